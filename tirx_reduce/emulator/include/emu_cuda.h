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

// ---- half and bfloat16: storage of 16 bits, arithmetic rounded once ----
struct emu_half_kind {
  EMU_RAW EMU_ALWAYS static emu_u16 to(float f) { return emu_to_half(f); }
  EMU_RAW EMU_ALWAYS static float from(emu_u16 v) { return emu_from_half(v); }
};
struct emu_bf16_kind {
  EMU_RAW EMU_ALWAYS static emu_u16 to(float f) { return emu_to_bf16(f); }
  EMU_RAW EMU_ALWAYS static float from(emu_u16 v) { return emu_from_bf16(v); }
};
template <class K>
struct alignas(2) emu_float16 {
  emu_u16 bits;
  emu_float16() = default;
  EMU_ALWAYS emu_float16(float v) : bits(K::to(v)) {}
  EMU_ALWAYS emu_float16(double v) : bits(K::to(float(v))) {}
  EMU_ALWAYS emu_float16(int v) : bits(K::to(float(v))) {}
  EMU_ALWAYS emu_float16(unsigned v) : bits(K::to(float(v))) {}
  EMU_ALWAYS emu_float16(short v) : bits(K::to(float(v))) {}
  EMU_ALWAYS emu_float16(unsigned short v) : bits(K::to(float(v))) {}
  EMU_ALWAYS emu_float16(long v) : bits(K::to(float(v))) {}
  EMU_ALWAYS emu_float16(unsigned long v) : bits(K::to(float(v))) {}
  EMU_ALWAYS emu_float16(long long v) : bits(K::to(float(v))) {}
  EMU_ALWAYS emu_float16(unsigned long long v) : bits(K::to(float(v))) {}
  emu_float16(const emu_float16&) = default;
  emu_float16& operator=(const emu_float16&) = default;
  // Templates, so that plain copies stay trivial: a vector of four is one access.
  template <class Q, class = typename std::enable_if<std::is_same<Q, K>::value>::type>
  EMU_ALWAYS emu_float16(const volatile emu_float16<Q>& o) : bits(o.bits) {}
  template <class Q>
  EMU_ALWAYS void operator=(const emu_float16<Q>& o) volatile {
    static_assert(std::is_same<Q, K>::value, "half and bfloat16 are assigned to one another");
    bits = o.bits;
  }
  EMU_ALWAYS operator float() const { return K::from(bits); }
  EMU_ALWAYS operator float() const volatile { return K::from(bits); }
  EMU_ALWAYS explicit operator int() const { return int(K::from(bits)); }
  EMU_ALWAYS explicit operator unsigned() const { return unsigned(K::from(bits)); }
  EMU_ALWAYS explicit operator signed char() const { return (signed char)(K::from(bits)); }
  EMU_ALWAYS explicit operator unsigned char() const { return (unsigned char)(K::from(bits)); }
  EMU_ALWAYS explicit operator short() const { return short(K::from(bits)); }
  EMU_ALWAYS explicit operator unsigned short() const { return (unsigned short)(K::from(bits)); }
  EMU_ALWAYS explicit operator long() const { return long(K::from(bits)); }
  EMU_ALWAYS explicit operator unsigned long() const { return (unsigned long)(K::from(bits)); }
  EMU_ALWAYS explicit operator long long() const { return (long long)(K::from(bits)); }
  EMU_ALWAYS explicit operator bool() const { return (bits & 0x7fff) != 0; }
};
typedef emu_float16<emu_half_kind> __half;
typedef __half half;
typedef emu_float16<emu_bf16_kind> __nv_bfloat16;
typedef __nv_bfloat16 nv_bfloat16;
#define EMU_OP16(OP)                                                              \
  template <class K>                                                              \
  EMU_ALWAYS emu_float16<K> operator OP(emu_float16<K> a, emu_float16<K> b) {     \
    return emu_float16<K>(float(a) OP float(b));                                  \
  }                                                                               \
  template <class K>                                                              \
  EMU_ALWAYS emu_float16<K>& operator OP##=(emu_float16<K>& a, emu_float16<K> b) { \
    return a = a OP b;                                                            \
  }
EMU_OP16(+)
EMU_OP16(-)
EMU_OP16(*)
EMU_OP16(/)
#define EMU_COMPARE16(OP)                                          \
  template <class K>                                               \
  EMU_ALWAYS bool operator OP(emu_float16<K> a, emu_float16<K> b) { \
    return float(a) OP float(b);                                   \
  }
EMU_COMPARE16(==)
EMU_COMPARE16(!=)
EMU_COMPARE16(<)
EMU_COMPARE16(<=)
EMU_COMPARE16(>)
EMU_COMPARE16(>=)
template <class K>
EMU_ALWAYS emu_float16<K> operator-(emu_float16<K> a) {
  a.bits ^= 0x8000;
  return a;
}

EMU_ALWAYS float __half2float(half a) { return float(a); }
EMU_ALWAYS half __float2half(float a) { return half(a); }
EMU_ALWAYS half __float2half_rn(float a) { return half(a); }
EMU_ALWAYS float __bfloat162float(nv_bfloat16 a) { return float(a); }
EMU_ALWAYS nv_bfloat16 __float2bfloat16(float a) { return nv_bfloat16(a); }
EMU_ALWAYS nv_bfloat16 __float2bfloat16_rn(float a) { return nv_bfloat16(a); }
EMU_ALWAYS unsigned short __half_as_ushort(half a) { return a.bits; }
EMU_ALWAYS short __half_as_short(half a) { return short(a.bits); }
EMU_ALWAYS half __ushort_as_half(unsigned short b) {
  half h;
  h.bits = b;
  return h;
}
EMU_ALWAYS unsigned short __bfloat16_as_ushort(nv_bfloat16 a) { return a.bits; }
EMU_ALWAYS nv_bfloat16 __ushort_as_bfloat16(unsigned short b) {
  nv_bfloat16 h;
  h.bits = b;
  return h;
}
#define EMU_BINARY16(NAME, E)                                               \
  template <class K>                                                        \
  EMU_ALWAYS emu_float16<K> NAME(emu_float16<K> a, emu_float16<K> b) {      \
    float x = float(a), y = float(b);                                       \
    return emu_float16<K>(E);                                               \
  }
EMU_BINARY16(__hadd, x + y)
EMU_BINARY16(__hsub, x - y)
EMU_BINARY16(__hmul, x * y)
EMU_BINARY16(__hdiv, x / y)
EMU_BINARY16(__hmax, emu_fmax(x, y))
EMU_BINARY16(__hmin, emu_fmin(x, y))
#define EMU_TEST16(NAME, OP)                                         \
  template <class K>                                                 \
  EMU_ALWAYS bool NAME(emu_float16<K> a, emu_float16<K> b) {         \
    return float(a) OP float(b);                                     \
  }
EMU_TEST16(__heq, ==)
EMU_TEST16(__hne, !=)
// The prelude of the text builds max and min on these two: poison must win there.
template <class K>
EMU_ALWAYS bool __hgt(emu_float16<K> a, emu_float16<K> b) {
  return emu_poisoned(float(a)) || (!emu_poisoned(float(b)) && float(a) > float(b));
}
template <class K>
EMU_ALWAYS bool __hlt(emu_float16<K> a, emu_float16<K> b) {
  return emu_poisoned(float(a)) || (!emu_poisoned(float(b)) && float(a) < float(b));
}
EMU_TEST16(__hge, >=)
EMU_TEST16(__hle, <=)
template <class K>
EMU_ALWAYS emu_float16<K> __hneg(emu_float16<K> a) {
  return -a;
}
template <class K>
EMU_ALWAYS emu_float16<K> __habs(emu_float16<K> a) {
  a.bits &= 0x7fff;
  return a;
}
template <class K>
EMU_ALWAYS bool __hisnan(emu_float16<K> a) {
  return __builtin_isnan(float(a));
}
template <class K>
EMU_ALWAYS emu_float16<K> __hfma(emu_float16<K> a, emu_float16<K> b, emu_float16<K> c) {
  return emu_float16<K>(float(__builtin_fma(double(float(a)), double(float(b)), double(float(c)))));
}
#define EMU_UNARY16(NAME, E)                            \
  template <class K>                                    \
  EMU_ALWAYS emu_float16<K> NAME(emu_float16<K> a) {    \
    float x = float(a);                                 \
    return emu_float16<K>(E);                           \
  }
EMU_UNARY16(hexp, __builtin_expf(x))
EMU_UNARY16(hexp2, __builtin_exp2f(x))
EMU_UNARY16(hexp10, __builtin_powf(10.0f, x))
EMU_UNARY16(hlog, __builtin_logf(x))
EMU_UNARY16(hlog2, __builtin_log2f(x))
EMU_UNARY16(hlog10, __builtin_log10f(x))
EMU_UNARY16(hsqrt, __builtin_sqrtf(x))
EMU_UNARY16(hrsqrt, 1.0f / __builtin_sqrtf(x))
EMU_UNARY16(hrcp, 1.0f / x)
EMU_UNARY16(hsin, __builtin_sinf(x))
EMU_UNARY16(hcos, __builtin_cosf(x))
EMU_UNARY16(htanh, __builtin_tanhf(x))
EMU_UNARY16(hfloor, __builtin_floorf(x))
EMU_UNARY16(hceil, __builtin_ceilf(x))
EMU_UNARY16(hrint, __builtin_rintf(x))
EMU_UNARY16(htrunc, __builtin_truncf(x))

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

// ---- mathematics ----
#define EMU_F1(NAME, BUILTIN) EMU_ALWAYS float NAME(float a) { return BUILTIN(a); }
#define EMU_F2(NAME, BUILTIN) EMU_ALWAYS float NAME(float a, float b) { return BUILTIN(a, b); }
EMU_ALWAYS float emu_rsqrt(float a) { return 1.0f / __builtin_sqrtf(a); }
EMU_ALWAYS float emu_exp10(float a) { return __builtin_powf(10.0f, a); }
EMU_ALWAYS float emu_erf(float a) { return __builtin_erff(a); }
#define EMU_BOTH(NAME, BUILTIN)       \
  EMU_ALWAYS float emu_call_##NAME(float a) { return BUILTIN(a); }
#define expf(a) emu_m_expf(a)
#define exp2f(a) emu_m_exp2f(a)
#define exp10f(a) emu_m_exp10f(a)
#define logf(a) emu_m_logf(a)
#define log2f(a) emu_m_log2f(a)
#define log10f(a) emu_m_log10f(a)
#define log1pf(a) emu_m_log1pf(a)
#define expm1f(a) emu_m_expm1f(a)
#define sqrtf(a) emu_m_sqrtf(a)
#define rsqrtf(a) emu_m_rsqrtf(a)
#define sinf(a) emu_m_sinf(a)
#define cosf(a) emu_m_cosf(a)
#define tanf(a) emu_m_tanf(a)
#define asinf(a) emu_m_asinf(a)
#define acosf(a) emu_m_acosf(a)
#define atanf(a) emu_m_atanf(a)
#define sinhf(a) emu_m_sinhf(a)
#define coshf(a) emu_m_coshf(a)
#define tanhf(a) emu_m_tanhf(a)
#define asinhf(a) emu_m_asinhf(a)
#define acoshf(a) emu_m_acoshf(a)
#define atanhf(a) emu_m_atanhf(a)
#define floorf(a) emu_m_floorf(a)
#define ceilf(a) emu_m_ceilf(a)
#define roundf(a) emu_m_roundf(a)
#define truncf(a) emu_m_truncf(a)
#define rintf(a) emu_m_rintf(a)
#define nearbyintf(a) emu_m_rintf(a)
#define fabsf(a) emu_m_fabsf(a)
#define erff(a) emu_m_erff(a)
EMU_F1(emu_m_expf, __builtin_expf)
EMU_F1(emu_m_exp2f, __builtin_exp2f)
EMU_F1(emu_m_exp10f, emu_exp10)
EMU_F1(emu_m_logf, __builtin_logf)
EMU_F1(emu_m_log2f, __builtin_log2f)
EMU_F1(emu_m_log10f, __builtin_log10f)
EMU_F1(emu_m_log1pf, __builtin_log1pf)
EMU_F1(emu_m_expm1f, __builtin_expm1f)
EMU_F1(emu_m_sqrtf, __builtin_sqrtf)
EMU_F1(emu_m_rsqrtf, emu_rsqrt)
EMU_F1(emu_m_sinf, __builtin_sinf)
EMU_F1(emu_m_cosf, __builtin_cosf)
EMU_F1(emu_m_tanf, __builtin_tanf)
EMU_F1(emu_m_asinf, __builtin_asinf)
EMU_F1(emu_m_acosf, __builtin_acosf)
EMU_F1(emu_m_atanf, __builtin_atanf)
EMU_F1(emu_m_sinhf, __builtin_sinhf)
EMU_F1(emu_m_coshf, __builtin_coshf)
EMU_F1(emu_m_tanhf, __builtin_tanhf)
EMU_F1(emu_m_asinhf, __builtin_asinhf)
EMU_F1(emu_m_acoshf, __builtin_acoshf)
EMU_F1(emu_m_atanhf, __builtin_atanhf)
EMU_F1(emu_m_floorf, __builtin_floorf)
EMU_F1(emu_m_ceilf, __builtin_ceilf)
EMU_F1(emu_m_roundf, __builtin_roundf)
EMU_F1(emu_m_truncf, __builtin_truncf)
EMU_F1(emu_m_rintf, __builtin_rintf)
EMU_F1(emu_m_fabsf, __builtin_fabsf)
EMU_F1(emu_m_erff, emu_erf)
EMU_F1(__expf, __builtin_expf)
EMU_F1(__exp10f, emu_exp10)
EMU_F1(__logf, __builtin_logf)
EMU_F1(__log2f, __builtin_log2f)
EMU_F1(__log10f, __builtin_log10f)
EMU_F1(__sinf, __builtin_sinf)
EMU_F1(__cosf, __builtin_cosf)
EMU_F1(__tanf, __builtin_tanf)
EMU_F1(__tanhf, __builtin_tanhf)
EMU_F1(__frsqrt_rn, emu_rsqrt)
EMU_F1(__fsqrt_rn, __builtin_sqrtf)
EMU_F2(emu_m_powf, __builtin_powf)
EMU_F2(__powf, __builtin_powf)
EMU_F2(emu_m_fmodf, __builtin_fmodf)
EMU_F2(emu_m_atan2f, __builtin_atan2f)
EMU_F2(emu_m_copysignf, __builtin_copysignf)
EMU_F2(emu_m_fmaxf, emu_fmax)
EMU_F2(emu_m_fminf, emu_fmin)
#define powf(a, b) emu_m_powf(a, b)
#define fmodf(a, b) emu_m_fmodf(a, b)
#define atan2f(a, b) emu_m_atan2f(a, b)
#define copysignf(a, b) emu_m_copysignf(a, b)
#define fmaxf(a, b) emu_m_fmaxf(a, b)
#define fminf(a, b) emu_m_fminf(a, b)
#define fmaf(a, b, c) __builtin_fmaf(a, b, c)
EMU_ALWAYS float __fdividef(float a, float b) { return a / b; }
EMU_ALWAYS float __fdiv_rn(float a, float b) { return a / b; }
EMU_ALWAYS float __fadd_rn(float a, float b) { return a + b; }
EMU_ALWAYS float __fmul_rn(float a, float b) { return a * b; }
EMU_ALWAYS float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
EMU_ALWAYS float __saturatef(float a) { return a < 0 ? 0.0f : a > 1 ? 1.0f : a; }
EMU_ALWAYS double emu_rsqrtd(double a) { return 1.0 / __builtin_sqrt(a); }
// Overloads without a suffix; the float ones are those that a kernel means.
namespace emu_overloads {
EMU_F1(exp, __builtin_expf)
EMU_F1(log, __builtin_logf)
EMU_F1(sqrt, __builtin_sqrtf)
EMU_F1(erf, emu_erf)
EMU_F1(fabs, __builtin_fabsf)
EMU_F1(floor, __builtin_floorf)
EMU_F1(ceil, __builtin_ceilf)
EMU_F1(tanh, __builtin_tanhf)
EMU_F1(abs, __builtin_fabsf)
EMU_ALWAYS double exp(double a) { return __builtin_exp(a); }
EMU_ALWAYS double log(double a) { return __builtin_log(a); }
EMU_ALWAYS double sqrt(double a) { return __builtin_sqrt(a); }
EMU_ALWAYS double fabs(double a) { return __builtin_fabs(a); }
EMU_ALWAYS int abs(int a) { return a < 0 ? -a : a; }
EMU_ALWAYS long abs(long a) { return a < 0 ? -a : a; }
EMU_ALWAYS long long abs(long long a) { return a < 0 ? -a : a; }
EMU_ALWAYS bool isnan(float a) { return __builtin_isnan(a); }
EMU_ALWAYS bool isinf(float a) { return __builtin_isinf(a); }
EMU_ALWAYS bool isfinite(float a) { return __builtin_isfinite(a); }
EMU_ALWAYS float max(float a, float b) { return emu_fmax(a, b); }
EMU_ALWAYS float min(float a, float b) { return emu_fmin(a, b); }
#define EMU_INTEGER(T)                                       \
  EMU_ALWAYS T max(T a, T b) { return a < b ? b : a; }       \
  EMU_ALWAYS T min(T a, T b) { return b < a ? b : a; }
EMU_INTEGER(int)
EMU_INTEGER(unsigned int)
EMU_INTEGER(long)
EMU_INTEGER(unsigned long)
EMU_INTEGER(long long)
EMU_INTEGER(unsigned long long)
EMU_ALWAYS double max(double a, double b) { return a < b ? b : a; }
EMU_ALWAYS double min(double a, double b) { return b < a ? b : a; }
}  // namespace emu_overloads
#define exp emu_overloads::exp
#define log emu_overloads::log
#define sqrt emu_overloads::sqrt
#define erf emu_overloads::erf
#define fabs emu_overloads::fabs
#define floor emu_overloads::floor
#define ceil emu_overloads::ceil
#define tanh emu_overloads::tanh
#define abs emu_overloads::abs
#define isnan emu_overloads::isnan
#define isinf emu_overloads::isinf
#define isfinite emu_overloads::isfinite
using emu_overloads::max;
using emu_overloads::min;

// ---- bits ----
EMU_ALWAYS int __float_as_int(float a) { return __builtin_bit_cast(int, a); }
EMU_ALWAYS unsigned __float_as_uint(float a) { return __builtin_bit_cast(unsigned, a); }
EMU_ALWAYS float __int_as_float(int a) { return __builtin_bit_cast(float, a); }
EMU_ALWAYS float __uint_as_float(unsigned a) { return __builtin_bit_cast(float, a); }
EMU_ALWAYS int __popc(unsigned a) { return __builtin_popcount(a); }
EMU_ALWAYS int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
EMU_ALWAYS int __clz(int a) { return a ? __builtin_clz(unsigned(a)) : 32; }
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
#define emu_mask(...) EMU_PICK(__VA_ARGS__, ~0u)
#define EMU_PICK(first, ...) first
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
template <class T>
EMU_RAW EMU_ALWAYS void emu_cluster_put(int site, T* slot, T value, int rank) {
  emu_cluster_store(site, slot, &value, sizeof(T), rank);
}
#define tirx_reduce_cluster_arrive() emu_cluster_arrive(EMU_SITE)
#define tirx_reduce_cluster_wait() emu_cluster_wait(EMU_SITE)
#define tirx_reduce_cluster_store_float32(slot, value, rank) emu_cluster_put<float>(EMU_SITE, slot, value, rank)
#define tirx_reduce_cluster_store_int32(slot, value, rank) emu_cluster_put<int>(EMU_SITE, slot, value, rank)
#define tirx_reduce_cluster_store_uint32(slot, value, rank) emu_cluster_put<unsigned int>(EMU_SITE, slot, value, rank)
#define tirx_reduce_cluster_store_int64(slot, value, rank) emu_cluster_put<int64_t>(EMU_SITE, slot, value, rank)
#define tirx_reduce_cluster_store_uint64(slot, value, rank) emu_cluster_put<uint64_t>(EMU_SITE, slot, value, rank)
#define tirx_reduce_async_copy_16(to, from) emu_async_copy(EMU_SITE, to, from)
#define tirx_reduce_async_commit() emu_async_commit()
#define tirx_reduce_async_wait() emu_async_wait(EMU_SITE)
