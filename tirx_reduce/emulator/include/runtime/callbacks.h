// What the compiler calls before each access, and where it has seen undefined behaviour.
#pragma once

static void locate(uint64_t a, int& space, int& region, int64_t& offset) {
  space = region = -1;
  offset = -1;
  uint64_t off = a - uint64_t(g_base);
  if (off < kDevice) {
    uint32_t id = g_page_region[off / kPage];
    if (!id && off >= kPage) id = g_page_region[off / kPage - 1];
    if (id) space = S_DEVICE, region = int(id - 1), offset = int64_t(a - g_regions[id - 1].start);
  } else if (off < kDevice + kShared) {
    uint64_t o = a - g_shared_base - g_rank * g_shared_step;
    if (o < g_shared_bytes && g_shared_map[o >> 4])
      space = S_SHARED, region = g_shared_map[o >> 4] - 1, offset = int64_t(o) - g_shared_off[region];
  } else if (off < g_size) {
    uint64_t o = a - g_local_lo;
    if (o < g_frame_bytes && g_frame_map[o >> 4])
      space = S_LOCAL, region = g_frame_map[o >> 4] - 1, offset = int64_t(o) - g_local_off[region];
  }
}

[[noreturn]] static void misaligned(uint64_t a, bool write, int bytes, void* pc) {
  int space, region;
  int64_t offset;
  locate(a, space, region, offset);
  fail(F_MISALIGNED, "the address is no multiple of the alignment", pc, space, region, offset, write, bytes);
}

#define PC __builtin_return_address(0)
// The compiler calls these for types whose alignment is their size, and the others for the rest.
template <bool WRITE, int N>
static inline __attribute__((always_inline)) void aligned_access(void* a, void* pc) {
  if (UNLIKELY(uint64_t(a) & (N - 1)) && g_cur) misaligned(uint64_t(a), WRITE, N, pc);
  access<WRITE>(uint64_t(a), N, pc);
}
#define CALLBACKS(N)                                                                         \
  API void __tsan_read##N(void* a) { aligned_access<false, N>(a, PC); }                      \
  API void __tsan_write##N(void* a) { aligned_access<true, N>(a, PC); }                      \
  API void __tsan_volatile_read##N(void* a) { aligned_access<false, N>(a, PC); }             \
  API void __tsan_volatile_write##N(void* a) { aligned_access<true, N>(a, PC); }             \
  API void __tsan_unaligned_read##N(void* a) { access<false>(uint64_t(a), N, PC); }          \
  API void __tsan_unaligned_write##N(void* a) { access<true>(uint64_t(a), N, PC); }
CALLBACKS(1)
CALLBACKS(2)
CALLBACKS(4)
CALLBACKS(8)
CALLBACKS(16)
API void __tsan_read_range(void* a, uint64_t n) { access<false>(uint64_t(a), int(n), PC); }
API void __tsan_write_range(void* a, uint64_t n) { access<true>(uint64_t(a), int(n), PC); }
// A copy of a structure, where the compiler makes it a call: a vector's alignment is its size.
API void* emu_copy(void* to, const void* from, emu_u64 bytes) {
  if (g_cur && (bytes == 8 || bytes == 16)) {
    if (uint64_t(from) % bytes) misaligned(uint64_t(from), false, int(bytes), PC);
    if (uint64_t(to) % bytes) misaligned(uint64_t(to), true, int(bytes), PC);
  }
  access<false>(uint64_t(from), int(bytes), PC);
  access<true>(uint64_t(to), int(bytes), PC);
  return memcpy(to, from, bytes);
}
API void* __tsan_memcpy(void* to, const void* from, emu_u64 bytes) { return emu_copy(to, from, bytes); }
API void __tsan_vptr_update(void**, void*) {}
API void __tsan_func_entry(void*) {}
API void __tsan_func_exit() {}
API void __tsan_init() {}


// ---- undefined behaviour that the compiler marks ----
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
struct TypeDescriptor {
  uint16_t kind, info;
  char name[1];
};
struct BoundsData {
  SourceLocation where;
  const TypeDescriptor *array, *index;
};
struct OverflowData {
  SourceLocation where;
  const TypeDescriptor* type;
};

API void __ubsan_handle_out_of_bounds(BoundsData* d, uint64_t index) {
  if (!g_cur) return;
  describe(F_OUT_OF_BOUNDS, "the index lies outside the array", PC);
  Fault& f = g_l->fault;
  f.line = int(d->where.line);
  f.offset = int64_t(index);  // an index still: the host knows the array
  f.site = 1;
  leave();
}
API void __ubsan_handle_divrem_overflow(OverflowData* d, uint64_t, uint64_t) {
  if (!g_cur) return;
  describe(F_UNDEFINED, "an integer is divided by zero", PC);
  g_l->fault.line = int(d->where.line);
  leave();
}
