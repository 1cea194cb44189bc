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

// ---- vectors ----
template <class T, int N>
struct emu_vec;
#define EMU_VEC(N, ALIGN, MEMBERS, PARAMETERS, INIT, SPLAT, CONVERT)                        \
  template <class T>                                                                       \
  struct alignas(ALIGN) emu_vec<T, N> {                                                    \
    T MEMBERS;                                                                             \
    emu_vec() = default;                                                                   \
    EMU_ALWAYS emu_vec(PARAMETERS) : INIT {}                                               \
    EMU_ALWAYS emu_vec(T v) : SPLAT {}                                                     \
    template <class U>                                                                     \
    EMU_ALWAYS explicit emu_vec(emu_vec<U, N> o) : CONVERT {}                              \
    EMU_ALWAYS T& operator[](int i) { return (&x)[i]; }                                    \
    EMU_ALWAYS T operator[](int i) const { return (&x)[i]; }                               \
  };
#define EMU_ALWAYS __attribute__((always_inline)) inline
#define EMU_COMMA ,
EMU_VEC(2, 2 * sizeof(T), x EMU_COMMA y, T a EMU_COMMA T b, x(a) EMU_COMMA y(b), x(v) EMU_COMMA y(v),
        x(T(o.x)) EMU_COMMA y(T(o.y)))
EMU_VEC(3, 4 * sizeof(T), x EMU_COMMA y EMU_COMMA z, T a EMU_COMMA T b EMU_COMMA T c,
        x(a) EMU_COMMA y(b) EMU_COMMA z(c), x(v) EMU_COMMA y(v) EMU_COMMA z(v),
        x(T(o.x)) EMU_COMMA y(T(o.y)) EMU_COMMA z(T(o.z)))
EMU_VEC(4, 4 * sizeof(T), x EMU_COMMA y EMU_COMMA z EMU_COMMA w, T a EMU_COMMA T b EMU_COMMA T c EMU_COMMA T d,
        x(a) EMU_COMMA y(b) EMU_COMMA z(c) EMU_COMMA w(d), x(v) EMU_COMMA y(v) EMU_COMMA z(v) EMU_COMMA w(v),
        x(T(o.x)) EMU_COMMA y(T(o.y)) EMU_COMMA z(T(o.z)) EMU_COMMA w(T(o.w)))

#define EMU_NAMES(T)           \
  typedef emu_vec<T, 2> T##2; \
  typedef emu_vec<T, 3> T##3; \
  typedef emu_vec<T, 4> T##4;
EMU_NAMES(char)
EMU_NAMES(uchar)
EMU_NAMES(short)
EMU_NAMES(ushort)
EMU_NAMES(int)
EMU_NAMES(uint)
EMU_NAMES(long)
EMU_NAMES(ulong)
EMU_NAMES(half)
EMU_NAMES(float)
EMU_NAMES(bool)

#define EMU_EACH2(E) E(x), E(y)
#define EMU_EACH3(E) E(x), E(y), E(z)
#define EMU_EACH4(E) E(x), E(y), E(z), E(w)
#define EMU_OP(OP)                                                                                     \
  template <class T>                                                                                   \
  EMU_ALWAYS emu_vec<T, 2> operator OP(emu_vec<T, 2> a, emu_vec<T, 2> b) {                             \
    return emu_vec<T, 2>(T(a.x OP b.x), T(a.y OP b.y));                                                \
  }                                                                                                    \
  template <class T>                                                                                   \
  EMU_ALWAYS emu_vec<T, 3> operator OP(emu_vec<T, 3> a, emu_vec<T, 3> b) {                             \
    return emu_vec<T, 3>(T(a.x OP b.x), T(a.y OP b.y), T(a.z OP b.z));                                 \
  }                                                                                                    \
  template <class T>                                                                                   \
  EMU_ALWAYS emu_vec<T, 4> operator OP(emu_vec<T, 4> a, emu_vec<T, 4> b) {                             \
    return emu_vec<T, 4>(T(a.x OP b.x), T(a.y OP b.y), T(a.z OP b.z), T(a.w OP b.w));                  \
  }                                                                                                    \
  template <class T, int N, class U>                                                                   \
  EMU_ALWAYS typename emu_if<emu_scalar<U>::value, emu_vec<T, N>>::type operator OP(emu_vec<T, N> a, U b) { \
    return a OP emu_vec<T, N>(T(b));                                                                   \
  }                                                                                                    \
  template <class T, int N, class U>                                                                   \
  EMU_ALWAYS typename emu_if<emu_scalar<U>::value, emu_vec<T, N>>::type operator OP(U a, emu_vec<T, N> b) { \
    return emu_vec<T, N>(T(a)) OP b;                                                                   \
  }                                                                                                    \
  template <class T, int N, class U>                                                                   \
  EMU_ALWAYS emu_vec<T, N>& operator OP##=(emu_vec<T, N>& a, U b) {                                    \
    return a = a OP b;                                                                                 \
  }
EMU_OP(+)
EMU_OP(-)
EMU_OP(*)
EMU_OP(/)
EMU_OP(%)
EMU_OP(&)
EMU_OP(|)
EMU_OP(^)
EMU_OP(<<)
EMU_OP(>>)
#define EMU_COMPARE(OP)                                                                   \
  template <class T>                                                                      \
  EMU_ALWAYS emu_vec<bool, 2> operator OP(emu_vec<T, 2> a, emu_vec<T, 2> b) {             \
    return emu_vec<bool, 2>(a.x OP b.x, a.y OP b.y);                                      \
  }                                                                                       \
  template <class T>                                                                      \
  EMU_ALWAYS emu_vec<bool, 3> operator OP(emu_vec<T, 3> a, emu_vec<T, 3> b) {             \
    return emu_vec<bool, 3>(a.x OP b.x, a.y OP b.y, a.z OP b.z);                          \
  }                                                                                       \
  template <class T>                                                                      \
  EMU_ALWAYS emu_vec<bool, 4> operator OP(emu_vec<T, 4> a, emu_vec<T, 4> b) {             \
    return emu_vec<bool, 4>(a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w);              \
  }
EMU_COMPARE(==)
EMU_COMPARE(!=)
EMU_COMPARE(<)
EMU_COMPARE(<=)
EMU_COMPARE(>)
EMU_COMPARE(>=)
EMU_COMPARE(&&)
EMU_COMPARE(||)
template <class T, int N>
EMU_ALWAYS emu_vec<T, N> operator-(emu_vec<T, N> a) {
  return emu_vec<T, N>(T(0)) - a;
}
template <class T, int N>
EMU_ALWAYS emu_vec<T, N> operator~(emu_vec<T, N> a) {
  return a ^ emu_vec<T, N>(T(~T(0)));
}

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

// ---- mathematics: float and half, and vectors of them ----
#define EMU_MAP1(NAME)                                                                         \
  template <class T>                                                                           \
  EMU_ALWAYS emu_vec<T, 2> NAME(emu_vec<T, 2> a) {                                             \
    return emu_vec<T, 2>(NAME(a.x), NAME(a.y));                                                \
  }                                                                                            \
  template <class T>                                                                           \
  EMU_ALWAYS emu_vec<T, 3> NAME(emu_vec<T, 3> a) {                                             \
    return emu_vec<T, 3>(NAME(a.x), NAME(a.y), NAME(a.z));                                     \
  }                                                                                            \
  template <class T>                                                                           \
  EMU_ALWAYS emu_vec<T, 4> NAME(emu_vec<T, 4> a) {                                             \
    return emu_vec<T, 4>(NAME(a.x), NAME(a.y), NAME(a.z), NAME(a.w));                          \
  }
#define EMU_MAP2(NAME)                                                                         \
  template <class T>                                                                           \
  EMU_ALWAYS emu_vec<T, 2> NAME(emu_vec<T, 2> a, emu_vec<T, 2> b) {                            \
    return emu_vec<T, 2>(NAME(a.x, b.x), NAME(a.y, b.y));                                      \
  }                                                                                            \
  template <class T>                                                                           \
  EMU_ALWAYS emu_vec<T, 3> NAME(emu_vec<T, 3> a, emu_vec<T, 3> b) {                            \
    return emu_vec<T, 3>(NAME(a.x, b.x), NAME(a.y, b.y), NAME(a.z, b.z));                      \
  }                                                                                            \
  template <class T>                                                                           \
  EMU_ALWAYS emu_vec<T, 4> NAME(emu_vec<T, 4> a, emu_vec<T, 4> b) {                            \
    return emu_vec<T, 4>(NAME(a.x, b.x), NAME(a.y, b.y), NAME(a.z, b.z), NAME(a.w, b.w));      \
  }
#define EMU_F1(NAME, BUILTIN)                                            \
  EMU_ALWAYS float NAME(float a) { return BUILTIN(a); }                  \
  EMU_ALWAYS half NAME(half a) { return half(BUILTIN(float(a))); }       \
  EMU_MAP1(NAME)
#define EMU_F2(NAME, BUILTIN)                                                            \
  EMU_ALWAYS float NAME(float a, float b) { return BUILTIN(a, b); }                      \
  EMU_ALWAYS half NAME(half a, half b) { return half(BUILTIN(float(a), float(b))); }     \
  EMU_MAP2(NAME)
EMU_ALWAYS float emu_rsqrt(float a) { return 1.0f / __builtin_sqrtf(a); }
EMU_ALWAYS float emu_exp10(float a) { return __builtin_powf(10.0f, a); }
EMU_ALWAYS float emu_sign(float a) { return a > 0 ? 1.0f : a < 0 ? -1.0f : a == 0 ? a : 0.0f; }
#define EMU_FUNCTIONS              \
  EMU_F1(exp, __builtin_expf)      \
  EMU_F1(exp2, __builtin_exp2f)    \
  EMU_F1(exp10, emu_exp10)         \
  EMU_F1(log, __builtin_logf)      \
  EMU_F1(log2, __builtin_log2f)    \
  EMU_F1(log10, __builtin_log10f)  \
  EMU_F1(sqrt, __builtin_sqrtf)    \
  EMU_F1(rsqrt, emu_rsqrt)         \
  EMU_F1(sin, __builtin_sinf)      \
  EMU_F1(cos, __builtin_cosf)      \
  EMU_F1(tan, __builtin_tanf)      \
  EMU_F1(asin, __builtin_asinf)    \
  EMU_F1(acos, __builtin_acosf)    \
  EMU_F1(atan, __builtin_atanf)    \
  EMU_F1(sinh, __builtin_sinhf)    \
  EMU_F1(cosh, __builtin_coshf)    \
  EMU_F1(tanh, __builtin_tanhf)    \
  EMU_F1(asinh, __builtin_asinhf)  \
  EMU_F1(acosh, __builtin_acoshf)  \
  EMU_F1(atanh, __builtin_atanhf)  \
  EMU_F1(floor, __builtin_floorf)  \
  EMU_F1(ceil, __builtin_ceilf)    \
  EMU_F1(round, __builtin_roundf)  \
  EMU_F1(trunc, __builtin_truncf)  \
  EMU_F1(rint, __builtin_rintf)    \
  EMU_F1(fabs, __builtin_fabsf)    \
  EMU_F2(pow, __builtin_powf)      \
  EMU_F2(powr, __builtin_powf)     \
  EMU_F2(fmod, __builtin_fmodf)    \
  EMU_F2(atan2, __builtin_atan2f)  \
  EMU_F2(copysign, __builtin_copysignf)
EMU_FUNCTIONS
EMU_F1(sign, emu_sign)
EMU_F2(fmax, emu_fmax)
EMU_F2(fmin, emu_fmin)
EMU_F2(max, emu_fmax)
EMU_F2(min, emu_fmin)
#define EMU_INTEGER(T)                                                    \
  EMU_ALWAYS T max(T a, T b) { return a < b ? b : a; }                    \
  EMU_ALWAYS T min(T a, T b) { return b < a ? b : a; }                    \
  EMU_ALWAYS T clamp(T v, T lo, T hi) { return min(max(v, lo), hi); }     \
  EMU_ALWAYS T popcount(T v) { return (T)(__builtin_popcountl(ulong(v) & (~0ul >> (64 - 8 * sizeof(T))))); } \
  EMU_ALWAYS T select(T a, T b, bool c) { return c ? b : a; }
#define EMU_SIGNED(T) EMU_ALWAYS T abs(T a) { return a < 0 ? (T)(-a) : a; }
#define EMU_UNSIGNED(T) EMU_ALWAYS T abs(T a) { return a; }
EMU_INTEGER(char)
EMU_INTEGER(signed char)
EMU_INTEGER(uchar)
EMU_INTEGER(short)
EMU_INTEGER(ushort)
EMU_INTEGER(int)
EMU_INTEGER(uint)
EMU_INTEGER(long)
EMU_INTEGER(ulong)
EMU_SIGNED(char)
EMU_SIGNED(signed char)
EMU_SIGNED(short)
EMU_SIGNED(int)
EMU_SIGNED(long)
EMU_UNSIGNED(uchar)
EMU_UNSIGNED(ushort)
EMU_UNSIGNED(uint)
EMU_UNSIGNED(ulong)
EMU_ALWAYS float abs(float a) { return __builtin_fabsf(a); }
EMU_ALWAYS half abs(half a) { return half(__builtin_fabsf(float(a))); }
EMU_MAP1(abs)
EMU_ALWAYS float clamp(float v, float lo, float hi) { return fmin(fmax(v, lo), hi); }
EMU_ALWAYS half clamp(half v, half lo, half hi) { return fmin(fmax(v, lo), hi); }
EMU_ALWAYS float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EMU_ALWAYS half fma(half a, half b, half c) { return half(__builtin_fma(double(a), double(b), double(c))); }
EMU_ALWAYS float select(float a, float b, bool c) { return c ? b : a; }
EMU_ALWAYS half select(half a, half b, bool c) { return c ? b : a; }
template <class T>
EMU_ALWAYS emu_vec<T, 2> select(emu_vec<T, 2> a, emu_vec<T, 2> b, emu_vec<bool, 2> c) {
  return emu_vec<T, 2>(c.x ? b.x : a.x, c.y ? b.y : a.y);
}
template <class T>
EMU_ALWAYS emu_vec<T, 4> select(emu_vec<T, 4> a, emu_vec<T, 4> b, emu_vec<bool, 4> c) {
  return emu_vec<T, 4>(c.x ? b.x : a.x, c.y ? b.y : a.y, c.z ? b.z : a.z, c.w ? b.w : a.w);
}
EMU_ALWAYS bool isnan(float a) { return __builtin_isnan(a); }
EMU_ALWAYS bool isinf(float a) { return __builtin_isinf(a); }
EMU_ALWAYS bool isfinite(float a) { return __builtin_isfinite(a); }
EMU_ALWAYS bool isnan(half a) { return __builtin_isnan(float(a)); }
EMU_ALWAYS bool isinf(half a) { return __builtin_isinf(float(a)); }
EMU_ALWAYS bool isfinite(half a) { return __builtin_isfinite(float(a)); }

namespace precise {
EMU_FUNCTIONS
}
namespace fast {
EMU_FUNCTIONS
}

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
