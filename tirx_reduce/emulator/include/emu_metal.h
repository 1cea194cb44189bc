// The part of the Metal shading language that emitted kernels use, for the CPU model. What is missing is a compile error.
#pragma once
#include "emu.h"

#define EMU_VISIBLE __attribute__((visibility("default")))

typedef _Float16 half;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;

template <class T, class U>
struct emu_same {
  static constexpr bool value = false;
};
template <class T>
struct emu_same<T, T> {
  static constexpr bool value = true;
};
template <bool B, class T>
struct emu_if {};
template <class T>
struct emu_if<true, T> {
  typedef T type;
};
template <class T>
struct emu_scalar {
  static constexpr bool value = false;
};
#define EMU_SCALAR(T)                  \
  template <>                          \
  struct emu_scalar<T> {               \
    static constexpr bool value = true; \
  };
EMU_SCALAR(bool)
EMU_SCALAR(char)
EMU_SCALAR(signed char)
EMU_SCALAR(uchar)
EMU_SCALAR(short)
EMU_SCALAR(ushort)
EMU_SCALAR(int)
EMU_SCALAR(uint)
EMU_SCALAR(long)
EMU_SCALAR(ulong)
EMU_SCALAR(half)
EMU_SCALAR(float)

#include "emu_metal_vectors.h"

// ---- positions ----
template <class T>
struct emu_from_index {
  EMU_RAW static T of(emu_index i) { return T(i.x); }
};
template <class T>
struct emu_from_index<emu_vec<T, 2>> {
  EMU_RAW static emu_vec<T, 2> of(emu_index i) { return emu_vec<T, 2>(T(i.x), T(i.y)); }
};
template <class T>
struct emu_from_index<emu_vec<T, 3>> {
  EMU_RAW static emu_vec<T, 3> of(emu_index i) { return emu_vec<T, 3>(T(i.x), T(i.y), T(i.z)); }
};
template <class T>
EMU_RAW static T emu_position(int which) {
  emu_index i;
  emu_where(which, &i);
  return emu_from_index<T>::of(i);
}
template <class T>
EMU_RAW static T emu_grid_position() {
  emu_index t, b, n;
  emu_where(0, &t);
  emu_where(1, &b);
  emu_where(2, &n);
  return emu_from_index<T>::of(emu_index{b.x * n.x + t.x, b.y * n.y + t.y, b.z * n.z + t.z});
}

namespace metal {

// ---- reinterpretation ----
template <class T, class U>
EMU_ALWAYS T as_type(U v) {
  static_assert(sizeof(T) == sizeof(U), "as_type between types of different size");
  return __builtin_bit_cast(T, v);
}

#include "emu_metal_maths.h"

// ---- barriers ----
enum class mem_flags { mem_none = 0, mem_threadgroup = 1, mem_device = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
EMU_ALWAYS void emu_group_barrier(int site, mem_flags f) { emu_barrier(site, emu_u32(f)); }
EMU_ALWAYS void emu_simd_barrier(int site, mem_flags f) { emu_subgroup_barrier(site, ~0u, emu_u32(f)); }

// ---- collectives: scalars and vectors of at most 32 bits an element ----
template <class T>
struct emu_shuffled {
  static constexpr bool value = emu_scalar<T>::value && sizeof(T) <= 4;
};
template <class T, int N>
struct emu_shuffled<emu_vec<T, N>> {
  static constexpr bool value = sizeof(T) <= 4;
};
template <class T>
EMU_ALWAYS T emu_simd(int site, int op, T v, ushort argument) {
  static_assert(emu_shuffled<T>::value, "Metal has no shuffle of this type (64-bit types among them)");
  return emu_shuffle(site, op, ~0u, v, argument, 32, 0);
}
struct emu_add {
  template <class T>
  EMU_RAW static T apply(T a, T b) { return T(a + b); }
};
struct emu_multiply {
  template <class T>
  EMU_RAW static T apply(T a, T b) { return T(a * b); }
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
EMU_ALWAYS T emu_simd_reduce(int site, T v) {
  static_assert(emu_shuffled<T>::value, "Metal has no reduction of this type (64-bit types among them)");
  return emu_reduce<T, F>(site, ~0u, v);
}
}  // namespace metal

#define threadgroup_barrier(...) emu_group_barrier(EMU_SITE, __VA_ARGS__)
#define simdgroup_barrier(...) emu_simd_barrier(EMU_SITE, __VA_ARGS__)
#define simd_shuffle(...) emu_simd(EMU_SITE, EMU_IDX, __VA_ARGS__)
#define simd_shuffle_up(...) emu_simd(EMU_SITE, EMU_UP, __VA_ARGS__)
#define simd_shuffle_down(...) emu_simd(EMU_SITE, EMU_DOWN, __VA_ARGS__)
#define simd_shuffle_xor(...) emu_simd(EMU_SITE, EMU_XOR, __VA_ARGS__)
#define simd_broadcast(...) emu_simd(EMU_SITE, EMU_IDX, __VA_ARGS__)
#define simd_broadcast_first(v) emu_simd(EMU_SITE, EMU_IDX, v, 0)
#define simd_sum(...) emu_simd_reduce<emu_add>(EMU_SITE, __VA_ARGS__)
#define simd_product(...) emu_simd_reduce<emu_multiply>(EMU_SITE, __VA_ARGS__)
#define simd_max(...) emu_simd_reduce<emu_greater>(EMU_SITE, __VA_ARGS__)
#define simd_min(...) emu_simd_reduce<emu_less>(EMU_SITE, __VA_ARGS__)
#define simd_and(...) emu_simd_reduce<emu_both>(EMU_SITE, __VA_ARGS__)
#define simd_or(...) emu_simd_reduce<emu_either>(EMU_SITE, __VA_ARGS__)
#define simd_xor(...) emu_simd_reduce<emu_differ>(EMU_SITE, __VA_ARGS__)

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#define HUGE_VALF (__builtin_inff())
#define FLT_MAX 3.40282346638528859811704183484516925e+38f
// What Metal lacks must not compile here either.
#pragma GCC poison double erf erff nearbyint nearbyintf printf malloc
