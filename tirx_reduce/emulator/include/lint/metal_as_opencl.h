// Metal's words in C++ for OpenCL, so that clang checks address spaces and types of the untouched text.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define kernel __kernel
#define EMU_OVER __attribute__((overloadable))
namespace metal {
template <class T, class U>
T as_type(U v) {
  static_assert(sizeof(T) == sizeof(U), "as_type between types of different size");
  return __builtin_astype(v, T);
}
enum class mem_flags { mem_none = 0, mem_threadgroup = 1, mem_device = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
}
