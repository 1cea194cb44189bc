// The part of CUDA C++ that emitted kernels use, for the CPU model. What is missing is a compile error.
#pragma once
#include <cstdint>
#include <type_traits>

#include "emu.h"

#define EMU_VISIBLE __attribute__((visibility("default")))
#define EMU_ALWAYS __attribute__((always_inline)) inline

#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __constant__ static const
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

EMU_RAW static __attribute__((noinline)) emu_index emu_index_of(int which) {
  emu_index i;
  emu_where(which, &i);
  return i;
}
static const int warpSize = 32;

#include "emu_cuda_floats.h"

// ---- vector types ----
#define EMU_MAKE2(T, V) \
  struct alignas(2 * sizeof(T)) V { T x, y; }; \
  EMU_ALWAYS V make_##V(T x, T y) { V v; v.x = x, v.y = y; return v; }
#define EMU_MAKE3(T, V) \
  struct V { T x, y, z; }; \
  EMU_ALWAYS V make_##V(T x, T y, T z) { V v; v.x = x, v.y = y, v.z = z; return v; }
#define EMU_MAKE4(T, V, A) \
  struct alignas(A) V { T x, y, z, w; }; \
  EMU_ALWAYS V make_##V(T x, T y, T z, T w) { V v; v.x = x, v.y = y, v.z = z, v.w = w; return v; }
#define EMU_MAKE(T, V) EMU_MAKE2(T, V##2) EMU_MAKE3(T, V##3) EMU_MAKE4(T, V##4, 4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) \
  struct V##1 { T x; }; \
  EMU_ALWAYS V##1 make_##V##1(T x) { V##1 v; v.x = x; return v; }
EMU_MAKE(signed char, char)
EMU_MAKE(unsigned char, uchar)
EMU_MAKE(short, short)
EMU_MAKE(unsigned short, ushort)
EMU_MAKE(int, int)
EMU_MAKE(unsigned int, uint)
EMU_MAKE(long long, longlong)
EMU_MAKE(unsigned long long, ulonglong)
EMU_MAKE(float, float)
EMU_MAKE(double, double)
typedef emu_index dim3;

template <class K>
struct alignas(4) emu_float16x2 {
  emu_float16<K> x, y;
  emu_float16x2() = default;
  EMU_ALWAYS emu_float16x2(emu_float16<K> a, emu_float16<K> b) : x(a), y(b) {}
};
typedef emu_float16x2<emu_half_kind> __half2;
typedef __half2 half2;
typedef emu_float16x2<emu_bf16_kind> __nv_bfloat162;
typedef __nv_bfloat162 nv_bfloat162;
EMU_ALWAYS half2 make_half2(half a, half b) { return half2(a, b); }
EMU_ALWAYS half2 __halves2half2(half a, half b) { return half2(a, b); }
EMU_ALWAYS half __low2half(half2 a) { return a.x; }
EMU_ALWAYS half __high2half(half2 a) { return a.y; }
#define EMU_PAIR(NAME, OP)                                                               \
  template <class K>                                                                     \
  EMU_ALWAYS emu_float16x2<K> NAME(emu_float16x2<K> a, emu_float16x2<K> b) {             \
    return emu_float16x2<K>(OP(a.x, b.x), OP(a.y, b.y));                                 \
  }
EMU_PAIR(__hadd2, __hadd)
EMU_PAIR(__hsub2, __hsub)
EMU_PAIR(__hmul2, __hmul)
EMU_PAIR(__hmax2, __hmax)
EMU_PAIR(__hmin2, __hmin)
EMU_PAIR(operator+, __hadd)
EMU_PAIR(operator-, __hsub)
EMU_PAIR(operator*, __hmul)

#include "emu_cuda_maths.h"

// ---- bits ----
EMU_ALWAYS int __float_as_int(float a) { return __builtin_bit_cast(int, a); }
EMU_ALWAYS unsigned __float_as_uint(float a) { return __builtin_bit_cast(unsigned, a); }
EMU_ALWAYS float __int_as_float(int a) { return __builtin_bit_cast(float, a); }
EMU_ALWAYS float __uint_as_float(unsigned a) { return __builtin_bit_cast(float, a); }
EMU_ALWAYS int __popc(unsigned a) { return __builtin_popcount(a); }
EMU_ALWAYS int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
EMU_ALWAYS int __clz(int a) { return a ? __builtin_clz(unsigned(a)) : 32; }
EMU_ALWAYS unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned(((uint64_t(high) << 32) | low) >> (by & 31));
}
EMU_ALWAYS unsigned __byte_perm(unsigned low, unsigned high, unsigned take) {
  uint64_t both = (uint64_t(high) << 32) | low;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) out |= unsigned((both >> (8 * ((take >> (4 * i)) & 7))) & 255) << (8 * i);
  return out;
}
EMU_ALWAYS int __ffs(int a) { return __builtin_ffs(a); }
template <class T>
EMU_ALWAYS T __ldg(const T* p) {
  return *p;
}
template <class T>
EMU_ALWAYS T __ldcs(const T* p) {
  return *p;
}
template <class T>
EMU_ALWAYS void __stcs(T* p, T v) {
  *p = v;
}
#define CUDART_INF_F (__builtin_inff())
#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))

// ---- barriers and collectives ----
template <class T>
EMU_ALWAYS T emu_shfl(int site, int op, unsigned mask, T v, int argument, int width = 32) {
  static_assert(std::is_arithmetic<T>::value || sizeof(T) == 2 || sizeof(T) == 4, "a shuffle takes a scalar");
  return emu_shuffle(site, op, mask, v, emu_u32(argument), width, 1);
}
struct emu_add {
  template <class T>
  EMU_RAW static T apply(T a, T b) { return T(a + b); }
};
struct emu_greater {
  template <class T>
  EMU_RAW static T apply(T a, T b) { return max(a, b); }
};
struct emu_less {
  template <class T>
  EMU_RAW static T apply(T a, T b) { return min(a, b); }
};
struct emu_both {
  template <class T>
  EMU_RAW static T apply(T a, T b) { return T(a & b); }
};
struct emu_either {
  template <class T>
  EMU_RAW static T apply(T a, T b) { return T(a | b); }
};
struct emu_differ {
  template <class T>
  EMU_RAW static T apply(T a, T b) { return T(a ^ b); }
};
template <class F, class T>
EMU_ALWAYS T emu_warp_reduce(int site, unsigned mask, T v) {
  static_assert(std::is_same<T, int>::value || std::is_same<T, unsigned>::value, "a warp reduction takes 32-bit integers");
  return emu_reduce<T, F>(site, mask, v);
}
EMU_RAW EMU_ALWAYS unsigned emu_ballot(int site, unsigned mask, int p) {
  return emu_reduce<unsigned, emu_either>(site, mask, p ? 1u << emu_lane() : 0u);
}
#define __syncthreads() emu_barrier(EMU_SITE, 3)
EMU_ALWAYS void emu_syncwarp(int site, unsigned mask = ~0u) { emu_subgroup_barrier(site, mask, 3); }
#define __syncwarp(...) emu_syncwarp(EMU_SITE __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(mask, ...) emu_shfl(EMU_SITE, EMU_IDX, mask, __VA_ARGS__)
#define __shfl_up_sync(mask, ...) emu_shfl(EMU_SITE, EMU_UP, mask, __VA_ARGS__)
#define __shfl_down_sync(mask, ...) emu_shfl(EMU_SITE, EMU_DOWN, mask, __VA_ARGS__)
#define __shfl_xor_sync(mask, ...) emu_shfl(EMU_SITE, EMU_XOR, mask, __VA_ARGS__)
#define __reduce_add_sync(...) emu_warp_reduce<emu_add>(EMU_SITE, __VA_ARGS__)
#define __reduce_max_sync(...) emu_warp_reduce<emu_greater>(EMU_SITE, __VA_ARGS__)
#define __reduce_min_sync(...) emu_warp_reduce<emu_less>(EMU_SITE, __VA_ARGS__)
#define __reduce_and_sync(...) emu_warp_reduce<emu_both>(EMU_SITE, __VA_ARGS__)
#define __reduce_or_sync(...) emu_warp_reduce<emu_either>(EMU_SITE, __VA_ARGS__)
#define __reduce_xor_sync(...) emu_warp_reduce<emu_differ>(EMU_SITE, __VA_ARGS__)
#define __activemask() emu_active(EMU_SITE)
#define __ballot_sync(mask, p) emu_ballot(EMU_SITE, mask, p)
#define __any_sync(mask, p) (emu_ballot(EMU_SITE, mask, p) != 0)

// The emitter's helpers in assembly are skipped under this macro; what they do on the model stands here.
#define TIRX_REDUCE_CPU_MODEL 1
// Launches of the model never overlap; where a launch may, nothing of device memory is touched before this.
EMU_ALWAYS void tirx_reduce_begin() { emu_begin(); }
EMU_ALWAYS void tirx_reduce_offer() { emu_offer(); }
#define tirx_reduce_follow() emu_follow(EMU_SITE)
#define tirx_reduce_reads(tensor)
#define tirx_reduce_keep(slots)
EMU_ALWAYS void tirx_reduce_whole_4(void*) {}
EMU_ALWAYS float tirx_reduce_widen(const nv_bfloat16* array, int at) { return float(array[at]); }
#define tirx_reduce_prefetch(from, bytes) emu_prefetch(EMU_SITE, from, bytes)
#define tirx_reduce_cluster_arrive() emu_cluster_arrive(EMU_SITE)
#define tirx_reduce_cluster_wait() emu_cluster_wait(EMU_SITE)
template <class T>
EMU_RAW EMU_ALWAYS void emu_mailbox_put(int site, T* slot, T value, uint64_t* box, int rank) {
  emu_mailbox_send(site, slot, &value, sizeof(T), box, rank);
}
#define tirx_reduce_mailbox_open(box, bytes) emu_mailbox_open(EMU_SITE, box, bytes)
#define tirx_reduce_mailbox_wait(box) emu_mailbox_wait(EMU_SITE, box)
#define tirx_reduce_mailbox_send_float32(...) emu_mailbox_put<float>(EMU_SITE, __VA_ARGS__)
#define tirx_reduce_mailbox_send_int32(...) emu_mailbox_put<int>(EMU_SITE, __VA_ARGS__)
#define tirx_reduce_mailbox_send_uint32(...) emu_mailbox_put<unsigned int>(EMU_SITE, __VA_ARGS__)
#define tirx_reduce_mailbox_send_int64(...) emu_mailbox_put<int64_t>(EMU_SITE, __VA_ARGS__)
#define tirx_reduce_mailbox_send_uint64(...) emu_mailbox_put<uint64_t>(EMU_SITE, __VA_ARGS__)
#define tirx_reduce_async_copy_16(to, from) emu_async_copy(EMU_SITE, to, from)
#define tirx_reduce_async_commit() emu_async_commit()
#define tirx_reduce_async_wait() emu_async_wait(EMU_SITE, -1)
#define tirx_reduce_async_wait_but_2() emu_async_wait(EMU_SITE, 2)
