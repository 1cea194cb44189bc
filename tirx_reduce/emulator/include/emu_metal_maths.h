// Metal's functions: float and half, integers, and vectors of them. Included inside `namespace metal`.
#pragma once

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
