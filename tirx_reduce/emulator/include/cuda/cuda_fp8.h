// 8-bit floats, saturating as the conversions of CUDA do by default.
#pragma once

template <int MANTISSA, int BIAS, int TOP, int NOT_A_NUMBER>
struct emu_fp8_kind {
  EMU_RAW static unsigned char to(float f) {
    emu_u32 b = emu_bits(f), sign = (b >> 24) & 0x80u;
    float a = __builtin_bit_cast(float, b & 0x7fffffffu);
    if ((b & 0x7fffffffu) > 0x7f800000u) return (unsigned char)(sign | NOT_A_NUMBER);
    if (a >= from((unsigned char)TOP)) return (unsigned char)(sign | TOP);
    int e = int((b >> 23) & 255) - 127;
    if (e < 1 - BIAS) e = 1 - BIAS;
    float step = __builtin_ldexpf(1.0f, e - MANTISSA);
    int q = int(__builtin_rintf(a / step));
    if (q >= (2 << MANTISSA)) q >>= 1, ++e;
    if (q < (1 << MANTISSA)) return (unsigned char)(sign | emu_u32(q));
    return (unsigned char)(sign | emu_u32((e + BIAS) << MANTISSA) | emu_u32(q & ((1 << MANTISSA) - 1)));
  }
  EMU_RAW static float from(unsigned char v) {
    int e = (v & 0x7f) >> MANTISSA, m = v & ((1 << MANTISSA) - 1);
    float r;
    if ((v & 0x7f) > TOP)
      r = ((v & 0x7f) == TOP + 1 && MANTISSA == 2) ? __builtin_inff() : __builtin_nanf("");
    else if (e)
      r = __builtin_ldexpf(float(m + (1 << MANTISSA)), e - BIAS - MANTISSA);
    else
      r = __builtin_ldexpf(float(m), 1 - BIAS - MANTISSA);
    return v & 0x80 ? -r : r;
  }
};
typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
template <class K>
struct emu_fp8 {
  unsigned char __x;
  emu_fp8() = default;
  template <class T>
  EMU_ALWAYS explicit emu_fp8(T v) : __x(K::to(float(v))) {}
  EMU_ALWAYS explicit operator float() const { return K::from(__x); }
  EMU_ALWAYS explicit operator half() const { return half(K::from(__x)); }
  EMU_ALWAYS explicit operator nv_bfloat16() const { return nv_bfloat16(K::from(__x)); }
  EMU_ALWAYS explicit operator int() const { return int(K::from(__x)); }
};
template <class K>
struct emu_fp8x2 {
  unsigned short __x;
  emu_fp8x2() = default;
  EMU_ALWAYS explicit emu_fp8x2(float2 v) : __x((unsigned short)(K::to(v.x) | K::to(v.y) << 8)) {}
  // From half2 and nv_bfloat162, and to them.
  template <class V>
  EMU_ALWAYS explicit emu_fp8x2(V v) : __x((unsigned short)(K::to(float(v.x)) | K::to(float(v.y)) << 8)) {}
  template <class V>
  EMU_ALWAYS explicit operator V() const {
    V v;
    v.x = decltype(v.x)(K::from((unsigned char)__x)), v.y = decltype(v.y)(K::from((unsigned char)(__x >> 8)));
    return v;
  }
  EMU_ALWAYS explicit operator float2() const {
    return make_float2(K::from((unsigned char)__x), K::from((unsigned char)(__x >> 8)));
  }
};
template <class K>
struct emu_fp8x4 {
  unsigned int __x;
  emu_fp8x4() = default;
  EMU_ALWAYS explicit emu_fp8x4(float4 v)
      : __x(K::to(v.x) | unsigned(K::to(v.y)) << 8 | unsigned(K::to(v.z)) << 16 | unsigned(K::to(v.w)) << 24) {}
  EMU_ALWAYS explicit operator float4() const {
    return make_float4(K::from((unsigned char)__x), K::from((unsigned char)(__x >> 8)),
                       K::from((unsigned char)(__x >> 16)), K::from((unsigned char)(__x >> 24)));
  }
};
typedef emu_fp8_kind<3, 7, 0x7e, 0x7f> emu_e4m3;
typedef emu_fp8_kind<2, 15, 0x7b, 0x7f> emu_e5m2;
typedef emu_fp8<emu_e4m3> __nv_fp8_e4m3;
typedef emu_fp8x2<emu_e4m3> __nv_fp8x2_e4m3;
typedef emu_fp8x4<emu_e4m3> __nv_fp8x4_e4m3;
typedef emu_fp8<emu_e5m2> __nv_fp8_e5m2;
typedef emu_fp8x2<emu_e5m2> __nv_fp8x2_e5m2;
typedef emu_fp8x4<emu_e5m2> __nv_fp8x4_e5m2;
// Only declared by preludes; a kernel that computes with it does not compile.
struct __nv_fp8_e8m0 {
  unsigned char __x;
  // The preludes of bfloat16 texts name it.
  EMU_ALWAYS explicit operator nv_bfloat16() const { return nv_bfloat16(__builtin_ldexpf(1.0f, int(__x) - 127)); }
};
struct __nv_fp8x2_e8m0 {
  unsigned short __x;
};
struct __nv_fp8x4_e8m0 {
  unsigned int __x;
};
