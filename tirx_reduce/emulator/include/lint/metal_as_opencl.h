// Metal's words in C++ for OpenCL, so that clang judges address spaces and types of the untouched text.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_non_portable_kernel_param_types : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private

// Vectors as classes: clang's own take neither Metal's constructors nor its conversions.
template <class T, int N>
struct msl_vec;
template <class T>
struct __attribute__((aligned(2 * sizeof(T)))) msl_vec<T, 2> {
  T x, y;
  msl_vec() = default;
  msl_vec(T);
  msl_vec(T, T);
  template <class U>
  explicit msl_vec(msl_vec<U, 2>);
  T& operator[](int);
  T operator[](int) const;
};
template <class T>
struct __attribute__((aligned(4 * sizeof(T)))) msl_vec<T, 3> {
  T x, y, z;
  msl_vec() = default;
  msl_vec(T);
  msl_vec(T, T, T);
  template <class U>
  explicit msl_vec(msl_vec<U, 3>);
  T& operator[](int);
  T operator[](int) const;
};
template <class T>
struct __attribute__((aligned(4 * sizeof(T)))) msl_vec<T, 4> {
  T x, y, z, w;
  msl_vec() = default;
  msl_vec(T);
  msl_vec(T, T, T, T);
  template <class U>
  explicit msl_vec(msl_vec<U, 4>);
  T& operator[](int);
  T operator[](int) const;
};
#define MSL_NAMES(T)                 \
  typedef msl_vec<T, 2> msl_##T##2;  \
  typedef msl_vec<T, 3> msl_##T##3;  \
  typedef msl_vec<T, 4> msl_##T##4;
MSL_NAMES(bool)
MSL_NAMES(char)
MSL_NAMES(uchar)
MSL_NAMES(short)
MSL_NAMES(ushort)
MSL_NAMES(int)
MSL_NAMES(uint)
MSL_NAMES(long)
MSL_NAMES(ulong)
MSL_NAMES(half)
MSL_NAMES(float)
#define MSL_OPERATOR(OP)                                              \
  template <class T, int N>                                           \
  msl_vec<T, N> operator OP(msl_vec<T, N>, msl_vec<T, N>);            \
  template <class T, int N>                                           \
  msl_vec<T, N> operator OP(msl_vec<T, N>, T);                        \
  template <class T, int N>                                           \
  msl_vec<T, N> operator OP(T, msl_vec<T, N>);
MSL_OPERATOR(+)
MSL_OPERATOR(-)
MSL_OPERATOR(*)
MSL_OPERATOR(/)
MSL_OPERATOR(%)
MSL_OPERATOR(&)
MSL_OPERATOR(|)
MSL_OPERATOR(^)
MSL_OPERATOR(<<)
MSL_OPERATOR(>>)
#define MSL_COMPARISON(OP)                                            \
  template <class T, int N>                                           \
  msl_vec<bool, N> operator OP(msl_vec<T, N>, msl_vec<T, N>);
MSL_COMPARISON(==)
MSL_COMPARISON(!=)
MSL_COMPARISON(<)
MSL_COMPARISON(<=)
MSL_COMPARISON(>)
MSL_COMPARISON(>=)
MSL_COMPARISON(&&)
MSL_COMPARISON(||)
template <class T, int N>
msl_vec<T, N> operator-(msl_vec<T, N>);
template <class T, int N>
msl_vec<T, N> operator~(msl_vec<T, N>);
#define bool2 msl_bool2
#define bool3 msl_bool3
#define bool4 msl_bool4
#define char2 msl_char2
#define char3 msl_char3
#define char4 msl_char4
#define uchar2 msl_uchar2
#define uchar3 msl_uchar3
#define uchar4 msl_uchar4
#define short2 msl_short2
#define short3 msl_short3
#define short4 msl_short4
#define ushort2 msl_ushort2
#define ushort3 msl_ushort3
#define ushort4 msl_ushort4
#define int2 msl_int2
#define int3 msl_int3
#define int4 msl_int4
#define uint2 msl_uint2
#define uint3 msl_uint3
#define uint4 msl_uint4
#define long2 msl_long2
#define long3 msl_long3
#define long4 msl_long4
#define ulong2 msl_ulong2
#define ulong3 msl_ulong3
#define ulong4 msl_ulong4
#define half2 msl_half2
#define half3 msl_half3
#define half4 msl_half4
#define float2 msl_float2
#define float3 msl_float3
#define float4 msl_float4
namespace metal {
template <class T, class U>
T as_type(U v) {
  static_assert(sizeof(T) == sizeof(U), "as_type between types of different size");
  return T();
}
#define MSL_ONE(NAME)                  \
  template <class T, int N>            \
  msl_vec<T, N> NAME(msl_vec<T, N>);   \
  namespace precise {                  \
  float NAME(float);                   \
  half NAME(half);                     \
  }                                    \
  namespace fast {                     \
  float NAME(float);                   \
  }
#define MSL_TWO(NAME)                                  \
  template <class T, int N>                            \
  msl_vec<T, N> NAME(msl_vec<T, N>, msl_vec<T, N>);    \
  namespace precise {                                  \
  float NAME(float, float);                            \
  half NAME(half, half);                               \
  }
MSL_ONE(exp)
MSL_ONE(exp2)
MSL_ONE(exp10)
MSL_ONE(log)
MSL_ONE(log2)
MSL_ONE(log10)
MSL_ONE(sqrt)
MSL_ONE(rsqrt)
MSL_ONE(sin)
MSL_ONE(cos)
MSL_ONE(tan)
MSL_ONE(asin)
MSL_ONE(acos)
MSL_ONE(atan)
MSL_ONE(sinh)
MSL_ONE(cosh)
MSL_ONE(tanh)
MSL_ONE(asinh)
MSL_ONE(acosh)
MSL_ONE(atanh)
MSL_ONE(floor)
MSL_ONE(ceil)
MSL_ONE(round)
MSL_ONE(trunc)
MSL_ONE(rint)
MSL_ONE(fabs)
MSL_TWO(pow)
MSL_TWO(powr)
MSL_TWO(fmod)
MSL_TWO(atan2)
MSL_TWO(copysign)
MSL_TWO(fmax)
MSL_TWO(fmin)
template <class T, int N>
msl_vec<T, N> max(msl_vec<T, N>, msl_vec<T, N>);
template <class T, int N>
msl_vec<T, N> min(msl_vec<T, N>, msl_vec<T, N>);
template <class T, int N>
msl_vec<T, N> abs(msl_vec<T, N>);
template <class T, int N>
msl_vec<T, N> select(msl_vec<T, N>, msl_vec<T, N>, msl_vec<bool, N>);
float select(float, float, bool);
half select(half, half, bool);
int select(int, int, bool);
uint select(uint, uint, bool);
struct mem_flags {
  int bits;
  enum { mem_none = 0, mem_threadgroup = 1, mem_device = 2 };
  mem_flags(int b) : bits(b) {}
};
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

template <class T>
struct shuffled {
  static constexpr bool value = false;
};
#define SHUFFLED(T)                      \
  template <>                            \
  struct shuffled<T> {                   \
    static constexpr bool value = true;  \
  };
#define SHUFFLED_VECTORS(T) SHUFFLED(T) SHUFFLED(msl_##T##2) SHUFFLED(msl_##T##3) SHUFFLED(msl_##T##4)
SHUFFLED_VECTORS(char)
SHUFFLED_VECTORS(uchar)
SHUFFLED_VECTORS(short)
SHUFFLED_VECTORS(ushort)
SHUFFLED_VECTORS(int)
SHUFFLED_VECTORS(uint)
SHUFFLED_VECTORS(half)
SHUFFLED_VECTORS(float)
SHUFFLED(bool)
#define SHUFFLE(NAME)                                                                                       \
  template <class T>                                                                                        \
  T NAME(T v, ushort) {                                                                                     \
    static_assert(shuffled<T>::value, "Metal has no " #NAME " of this type (64-bit types among them)");     \
    return v;                                                                                               \
  }
#define REDUCE(NAME)                                                                                        \
  template <class T>                                                                                        \
  T NAME(T v) {                                                                                             \
    static_assert(shuffled<T>::value, "Metal has no " #NAME " of this type (64-bit types among them)");     \
    return v;                                                                                               \
  }
SHUFFLE(simd_shuffle)
SHUFFLE(simd_shuffle_up)
SHUFFLE(simd_shuffle_down)
SHUFFLE(simd_shuffle_xor)
SHUFFLE(simd_broadcast)
REDUCE(simd_broadcast_first)
REDUCE(simd_sum)
REDUCE(simd_product)
REDUCE(simd_max)
REDUCE(simd_min)
REDUCE(simd_and)
REDUCE(simd_or)
REDUCE(simd_xor)

}  // namespace metal
