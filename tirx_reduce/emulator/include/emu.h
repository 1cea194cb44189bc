// Interface between an emitted kernel and the runtime of the CPU model: lanes, collectives, barriers, arrays.
#pragma once

typedef unsigned int emu_u32;
typedef unsigned long emu_u64;
typedef unsigned short emu_u16;
typedef unsigned char emu_u8;

// Code of the model itself: neither counted nor checked.
#define EMU_RAW __attribute__((no_sanitize("thread", "alignment", "bounds", "object-size", "integer-divide-by-zero")))
#define EMU_INLINE static inline __attribute__((always_inline))
// A collective in the text: unique, and it knows its line.
#define EMU_SITE ((__COUNTER__ << 16) | (__LINE__ & 0xffff))

struct emu_index {
  emu_u32 x, y, z;
};

struct emu_array {
  const char* name;
  emu_u32 bytes, align, granule, line;
};

enum emu_shuffle { EMU_IDX = 0, EMU_UP = 1, EMU_DOWN = 2, EMU_XOR = 3, EMU_REDUCE = 4, EMU_SYNC = 5 };
// `values` has one 16-byte slot per lane, `mask` says which hold something.
typedef void (*emu_combine)(const char (*values)[16], emu_u32 mask, int lane, char* out);

extern "C" {
void* emu_local(int id);
void* emu_copy(void* to, const void* from, emu_u64 bytes);
void* emu_shared(int id);
void emu_where(int which, emu_index* out);  // 0 thread, 1 block, 2 threads of a block, 3 blocks of the grid
emu_u32 emu_lane();
emu_u32 emu_subgroup();
void emu_barrier(int site, emu_u32 flags);  // 1 threadgroup memory, 2 device memory
void emu_subgroup_barrier(int site, emu_u32 mask, emu_u32 flags);
void emu_collect(int site, int op, emu_u32 mask, int width, emu_u32 arg, int clamps, emu_combine combine,
                 const char* in, char* out, int bytes);
emu_u32 emu_active(int site);
void emu_cluster_arrive(int site);
void emu_cluster_wait(int site);
void emu_mailbox_open(int site, void* box, int bytes);
void emu_mailbox_send(int site, void* slot, const void* value, int bytes, void* box, int rank);
void emu_mailbox_wait(int site, void* box);
void emu_async_copy(int site, void* to, const void* from);
void emu_async_commit();
void emu_async_wait(int site, int but);
void emu_begin();
void emu_offer();
void emu_follow(int site);
void emu_prefetch(int site, const void* from, int bytes);
emu_u32 emu_cluster_rank();
emu_u32 emu_cluster_size();
__attribute__((error("inline assembly; the model executes C++ only"))) void emu_assembly();
}

// What an uninitialised thread array holds: a quiet NaN in float, half and bfloat16 alike.
#define EMU_POISON16 0x7FE5u
#define EMU_POISON32 0x7FE57FE5u

template <class A>
EMU_INLINE A& emu_local_array(int id) {
  return *static_cast<A*>(emu_local(id));
}
template <class A>
EMU_INLINE A& emu_shared_array(int id) {
  return *static_cast<A*>(emu_shared(id));
}

EMU_INLINE emu_u32 emu_bits(float v) { return __builtin_bit_cast(emu_u32, v); }
// The NaNs that poison becomes on its way through half and bfloat16.
EMU_INLINE bool emu_poisoned(float v) {
  emu_u32 b = emu_bits(v) & 0x7fffffffu;
  return b == EMU_POISON32 || b == 0x7FFCA000u || b == 0x7FE50000u || b == 0x7FE56000u;
}

// ---- half and bfloat16 conversions, round to nearest even, payloads of NaN kept ----
EMU_RAW EMU_INLINE emu_u16 emu_to_half(float f) {
  emu_u32 x = emu_bits(f), sign = (x >> 16) & 0x8000u;
  x &= 0x7fffffffu;
  if (x > 0x7f800000u) return emu_u16(sign | 0x7e00u | ((x >> 13) & 0x3ffu));
  if (x >= 0x477ff000u) return emu_u16(sign | 0x7c00u);
  if (x < 0x38800000u) {
    if (x < 0x33000000u) return emu_u16(sign);
    emu_u32 shift = 126 - (x >> 23), m = (x & 0x7fffffu) | 0x800000u;
    emu_u32 r = m >> shift, rest = m & ((1u << shift) - 1), mid = 1u << (shift - 1);
    return emu_u16(sign | (r + (rest > mid || (rest == mid && (r & 1)))));
  }
  x += 0xfffu + ((x >> 13) & 1);
  return emu_u16(sign | ((x - 0x38000000u) >> 13));
}
EMU_RAW EMU_INLINE float emu_from_half(emu_u16 h) {
  emu_u32 sign = emu_u32(h & 0x8000u) << 16, e = (h >> 10) & 31, m = h & 0x3ffu;
  emu_u32 x;
  if (e == 31)
    x = sign | 0x7f800000u | (m << 13);
  else if (e)
    x = sign | ((e + 112) << 23) | (m << 13);
  else if (!m)
    x = sign;
  else {
    int k = __builtin_clz(m) - 21;
    x = sign | ((113 - k) << 23) | ((m << (k + 13)) & 0x7fffffu);
  }
  return __builtin_bit_cast(float, x);
}
EMU_RAW EMU_INLINE emu_u16 emu_to_bf16(float f) {
  emu_u32 x = emu_bits(f);
  if ((x & 0x7fffffffu) > 0x7f800000u) return emu_u16((x >> 16) | 0x40u);
  return emu_u16((x + 0x7fffu + ((x >> 16) & 1)) >> 16);
}
EMU_RAW EMU_INLINE float emu_from_bf16(emu_u16 h) { return __builtin_bit_cast(float, emu_u32(h) << 16); }

// ---- minimum and maximum that poison cannot slip through ----
EMU_RAW __attribute__((noinline)) static float emu_fmax(float a, float b) {
  return emu_poisoned(a) ? a : emu_poisoned(b) ? b : __builtin_isnan(a) ? b : (a < b ? b : a);
}
EMU_RAW __attribute__((noinline)) static float emu_fmin(float a, float b) {
  return emu_poisoned(a) ? a : emu_poisoned(b) ? b : __builtin_isnan(a) ? b : (b < a ? b : a);
}

// ---- collectives ----
template <class T>
EMU_RAW EMU_INLINE T emu_shuffle(int site, int op, emu_u32 mask, T v, emu_u32 arg, int width, int clamps) {
  static_assert(sizeof(T) <= 16, "a shuffled value has at most 16 bytes");
  char in[16], out[16];
  __builtin_memcpy(in, &v, sizeof(T));
  emu_collect(site, op, mask, width, arg, clamps, nullptr, in, out, sizeof(T));
  T r;
  __builtin_memcpy(&r, out, sizeof(T));
  return r;
}

template <class T, class F>
EMU_RAW void emu_reduce_values(const char (*values)[16], emu_u32 mask, int lane, char* out) {
  // A tree in the order of lanes, the same in every lane.
  T v[32];
  bool have[32];
  for (int i = 0; i < 32; ++i) {
    have[i] = (mask >> i) & 1;
    if (have[i]) __builtin_memcpy(&v[i], values[i], sizeof(T));
  }
  for (int step = 16; step; step >>= 1)
    for (int i = 0; i < step; ++i)
      if (have[i + step]) {
        v[i] = have[i] ? F::apply(v[i], v[i + step]) : v[i + step];
        have[i] = true;
      }
  __builtin_memcpy(out, &v[0], sizeof(T));
}

template <class T, class F>
EMU_RAW EMU_INLINE T emu_reduce(int site, emu_u32 mask, T v) {
  char in[16], out[16];
  __builtin_memcpy(in, &v, sizeof(T));
  emu_collect(site, EMU_REDUCE, mask, 32, 0, 0, emu_reduce_values<T, F>, in, out, sizeof(T));
  T r;
  __builtin_memcpy(&r, out, sizeof(T));
  return r;
}

#if defined(__clang__) && !defined(EMU_RUNTIME)
// clang copies structures by calls that it does not announce.
extern "C" __attribute__((visibility("hidden"), no_sanitize("thread"))) inline void* memcpy(void* to, const void* from,
                                                                                         emu_u64 bytes) {
  return emu_copy(to, from, bytes);
}
extern "C" __attribute__((visibility("hidden"), used)) inline void* (*const emu_keep_memcpy)(void*, const void*, emu_u64) =
    memcpy;
#endif
