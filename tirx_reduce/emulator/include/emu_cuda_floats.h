// CUDA's half and bfloat16: storage of 16 bits, arithmetic rounded once.
#pragma once

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
