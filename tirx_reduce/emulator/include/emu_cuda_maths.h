// CUDA's functions of floats, with and without a suffix.
#pragma once

#define EMU_F1(NAME, BUILTIN) EMU_ALWAYS float NAME(float a) { return BUILTIN(a); }
#define EMU_F2(NAME, BUILTIN) EMU_ALWAYS float NAME(float a, float b) { return BUILTIN(a, b); }
EMU_ALWAYS float emu_rsqrt(float a) { return 1.0f / __builtin_sqrtf(a); }
EMU_ALWAYS float emu_exp10(float a) { return __builtin_powf(10.0f, a); }
EMU_ALWAYS float emu_erf(float a) { return __builtin_erff(a); }
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
