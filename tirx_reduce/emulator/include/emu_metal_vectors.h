// Vectors of two to four elements, as Metal makes, converts and combines them.
#pragma once

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
