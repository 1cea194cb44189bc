// Runtime of the CPU model: one fiber per lane, and a verdict on every memory access before it happens.
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "emu.h"

#define API extern "C" __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

// ---- fibers ----
#if defined(__APPLE__)
#define SYM(x) "_" x
#else
#define SYM(x) x
#endif
extern "C" void emu_swap(void** from, void* to);
#if defined(__x86_64__)
asm(".text\n.globl " SYM("emu_swap") "\n" SYM("emu_swap") ":\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static const int kFrame = 6;
#elif defined(__aarch64__)
asm(".text\n.globl " SYM("emu_swap") "\n" SYM("emu_swap") ":\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\n"
    "stp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\n"
    "ldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n");
#else
#error "the CPU model knows x86-64 and aarch64"
#endif

// ---- limits of the model, in lanes and bytes ----
enum { MAX_LANES = 1024, SUBGROUP = 32, MAX_SUBGROUPS = 32, MAX_REGIONS = 4096, MAX_ARRAYS = 256 };
static const uint64_t kPage = 4096;
static const uint64_t kGap = 1 << 20;  // between buffers, so that a stray row falls into none
static const uint64_t kDevice = 8ull << 30, kShared = 16ull << 20, kLocal = 1ull << 30;
static const uint64_t kStack = 128 << 10;
static const uint64_t kFrameStep = 64;

enum Kind {
  F_NONE, F_OUT_OF_BOUNDS, F_RACE, F_DIVERGENCE, F_MISALIGNED, F_UNINITIALIZED, F_TWICE, F_LIMIT, F_UNDEFINED
};
enum Space { S_DEVICE, S_SHARED, S_LOCAL, S_CONSTANT, N_SPACES };

struct Cell {
  uint32_t w_tick, r_tick;
  uint16_t w_lane, r_lane;
};
enum { R_SUBGROUP = 0x4000, R_MANY = 0x8000 };

enum Flags { REGION_TRACKED = 1, REGION_ONCE = 2, REGION_CONSTANT = 4, REGION_WORKSPACE = 8, REGION_INPUT = 16,
             REGION_WRITTEN = 32 };

struct Region {
  uint64_t start, bytes;
  uint32_t granule, flags;
  Cell* cells;
  uint64_t cell_bytes;
};

struct Fault {
  int32_t kind, space, line, site;
  int32_t lane[3], block[3];
  int32_t other_lane, other_block;  // partner of a race, -1 where there is none
  int32_t region;                   // region of device memory, or number of the array
  int32_t write, bytes;
  int64_t offset;
  void* pc;
  char text[160];
};

struct Counters {
  uint64_t loads[N_SPACES], stores[N_SPACES], load_bytes[N_SPACES], store_bytes[N_SPACES];
  uint64_t barriers, collectives, subgroup_barriers;
};

struct Launch {
  void (*entry)(void**);
  void** arguments;
  const emu_array* locals;
  const emu_array* shareds;
  uint32_t n_locals, n_shareds;
  uint32_t grid[3], block[3];
  uint32_t order;  // 0 forward, 1 reverse, 2 random
  uint32_t dynamic_bytes;
  uint64_t seed;
  uint64_t max_accesses;
  uint64_t module_lo, module_hi;  // constants of the kernel's own library
  int64_t watch;  // an address of device memory whose last store is kept in `watched`, or -1
  Fault fault, watched;
  Counters counters;
};

enum State : uint8_t { RUNNABLE, AT_BARRIER, AT_COLLECTIVE, AT_ACTIVE, FINISHED };

struct Lane {
  void* sp;
  int site;
  State state;
  uint8_t clamps;
  uint8_t bytes;
  uint8_t op;
  uint32_t mask, argument, flags;
  int width;
  emu_combine combine;
  emu_index thread;
  alignas(16) char in[16];
  alignas(16) char out[16];
};

struct Subgroup {
  uint32_t first, lanes, exist;
  uint32_t runnable;  // in the order of `perm`
  uint8_t perm[32], place[32];
  // The collective that is under way: who has come. `mixed` when two are, and the lanes' states are asked.
  int site;
  uint32_t mask, arrived;
  bool mixed;
  uint32_t synced_shared, synced_device;  // what this subgroup did before that tick is ordered within it
};

static char* g_base;
static uint64_t g_size;
static uint64_t g_device_top;
static Region g_regions[MAX_REGIONS];
static uint32_t g_n_regions;
static uint16_t* g_page_region;
static char* g_stacks;
static Lane g_lane[MAX_LANES];
static Subgroup g_sub[MAX_SUBGROUPS];
static uint32_t g_threads, g_subs;
static void* g_main;
static Launch* g_l;
static Lane* g_cur;
static uint32_t g_cur_id, g_cur_sub;
static uint64_t g_stack_lo;
static emu_index g_block;
static uint32_t g_tick = 1, g_launch_tick, g_block_tick, g_synced_shared, g_synced_device;
static uint64_t g_left;
static uint64_t g_rng;
static uint8_t g_sub_order[MAX_SUBGROUPS];
static bool g_failed;

// Thread arrays: one frame per lane, the same offsets in each.
static uint64_t g_local_base, g_frame_bytes, g_local_lo;
static uint32_t g_local_off[MAX_ARRAYS];
static uint8_t* g_frame_map;   // per 16 bytes of a frame: array + 1, or 0
static uint64_t g_frame_map_size;
// Threadgroup arrays.
static uint64_t g_shared_base, g_shared_bytes;
static uint32_t g_shared_off[MAX_ARRAYS];
static uint64_t g_shared_len[MAX_ARRAYS];
static uint32_t g_shared_cell[MAX_ARRAYS];
static uint8_t* g_shared_map;
static Cell* g_shared_cells;
static uint64_t g_shared_cells_n;

static uint32_t random_below(uint32_t n) {
  g_rng ^= g_rng << 13;
  g_rng ^= g_rng >> 7;
  g_rng ^= g_rng << 17;
  return uint32_t((g_rng >> 11) % n);
}

static void* map_memory(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

// ---- device memory ----
API int emu_init() {
  if (g_base) return 0;
  g_size = kDevice + kShared + kLocal;
  g_base = static_cast<char*>(map_memory(g_size));
  g_page_region = static_cast<uint16_t*>(map_memory(kDevice / kPage * sizeof(uint16_t)));
  g_stacks = static_cast<char*>(map_memory(kStack * MAX_LANES));
  if (!g_base || !g_page_region || !g_stacks) return -1;
  g_shared_base = uint64_t(g_base) + kDevice + kPage;
  g_local_base = uint64_t(g_base) + kDevice + kShared;
  return 0;
}

API void emu_reset() {
  for (uint32_t i = 0; i < g_n_regions; ++i) {
    Region& r = g_regions[i];
    uint64_t first = (r.start - uint64_t(g_base)) / kPage;
    memset(g_page_region + first, 0, ((r.bytes + kPage - 1) / kPage + 1) * sizeof(uint16_t));
    if (r.cells) munmap(r.cells, r.cell_bytes);
  }
  if (g_device_top) madvise(g_base, g_device_top, MADV_DONTNEED);
  g_device_top = 0;
  g_n_regions = 0;
}

API int emu_region(uint64_t bytes, uint32_t granule, uint32_t flags, void** out) {
  uint64_t start = g_device_top + kGap, span = (bytes + kPage - 1) / kPage * kPage;
  if (g_n_regions + 1 >= MAX_REGIONS || start + span + kGap > kDevice) return -1;
  Region& r = g_regions[g_n_regions];
  r = Region{uint64_t(g_base) + start, bytes, granule, flags, nullptr, 0};
  for (uint64_t p = 0; p < span; p += kPage) g_page_region[(start + p) / kPage] = uint16_t(g_n_regions + 1);
  g_device_top = start + span;
  *out = g_base + start;
  return int(g_n_regions++);
}

API void emu_flag(int region, uint32_t flags) {
  Region& r = g_regions[region];
  r.flags |= r.flags & REGION_WORKSPACE ? flags & ~uint32_t(REGION_ONCE) : flags;
}
API uint32_t emu_region_flags(int region) { return g_regions[region].flags; }

static Cell* region_cells(Region& r) {
  if (!r.cells) {
    r.cell_bytes = (r.bytes / r.granule + 2) * sizeof(Cell);
    r.cells = static_cast<Cell*>(map_memory(r.cell_bytes));
  }
  return r.cells;
}

// Elements of a region that no launch has written; the first one in `first`.
API uint64_t emu_unwritten(int region, int64_t* first) {
  Region& r = g_regions[region];
  uint64_t n = r.bytes / r.granule, missing = 0;
  *first = -1;
  for (uint64_t i = 0; i < n; ++i)
    if (!r.cells || !r.cells[i].w_tick) {
      if (!missing++) *first = int64_t(i * r.granule);
    }
  return missing;
}

// ---- faults ----
[[noreturn]] static void leave() {
  g_failed = true;
  void* here;
  emu_swap(&here, g_main);
  __builtin_unreachable();
}

static void copy_text(char* to, const char* text) {
  strncpy(to, text, sizeof(Fault::text) - 1);
  to[sizeof(Fault::text) - 1] = 0;
}

static void describe(int kind, const char* text, void* pc) {
  Fault& f = g_l->fault;
  f.kind = kind;
  f.pc = pc;
  f.lane[0] = int(g_cur->thread.x), f.lane[1] = int(g_cur->thread.y), f.lane[2] = int(g_cur->thread.z);
  f.block[0] = int(g_block.x), f.block[1] = int(g_block.y), f.block[2] = int(g_block.z);
  f.other_lane = f.other_block = -1;
  f.region = -1;
  f.offset = -1;
  f.space = -1;
  copy_text(f.text, text);
}

[[noreturn]] static void fail(int kind, const char* text, void* pc, int space = -1, int region = -1,
                              int64_t offset = -1, int write = 0, int bytes = 0, int other = -1) {
  describe(kind, text, pc);
  Fault& f = g_l->fault;
  f.space = space, f.region = region, f.offset = offset, f.write = write, f.bytes = bytes, f.other_lane = other;
  leave();
}

// ---- the verdict on one access ----
static inline uint32_t lane_of(uint32_t lane) { return lane >> 5; }

// Whether what `lane` did at `tick` in this block is ordered before what the current lane does now.
static inline bool ordered(uint32_t tick, bool same_subgroup, uint32_t group_sync, uint32_t subgroup_sync) {
  return tick < (same_subgroup ? subgroup_sync : group_sync);
}

template <bool WRITE>
static inline void judge(Cell& c, uint32_t begin, uint32_t group_sync, uint32_t subgroup_sync, void* pc, int space,
                         int region, int64_t offset, int bytes) {
  uint32_t me = g_cur_id;
  if (c.w_tick >= begin && c.w_lane != me &&
      !ordered(c.w_tick, lane_of(c.w_lane) == g_cur_sub, group_sync, subgroup_sync))
    fail(F_RACE, WRITE ? "two lanes write it, and no barrier stands between them"
                       : "another lane wrote it, and no barrier stands between",
         pc, space, region, offset, WRITE, bytes, c.w_lane);
  if (WRITE) {
    if (c.r_tick >= begin && c.r_lane != me) {
      bool same = !(c.r_lane & R_MANY) && ((c.r_lane & R_SUBGROUP) ? uint32_t(c.r_lane & 31) == g_cur_sub
                                                                   : lane_of(c.r_lane) == g_cur_sub);
      if (!ordered(c.r_tick, same, group_sync, subgroup_sync))
        fail(F_RACE, "another lane read it, and no barrier stands between", pc, space, region, offset, 1, bytes,
             (c.r_lane & (R_MANY | R_SUBGROUP)) ? -1 : c.r_lane);
    }
    c.w_tick = g_tick;
    c.w_lane = uint16_t(me);
    return;
  }
  uint32_t last = group_sync > begin ? group_sync : begin;
  if (c.r_tick < last || c.r_lane == me) {
    c.r_lane = uint16_t(me);
  } else if (c.r_lane & R_MANY) {
  } else {
    uint32_t sub = (c.r_lane & R_SUBGROUP) ? uint32_t(c.r_lane & 31) : lane_of(c.r_lane);
    if (sub != g_cur_sub)
      c.r_lane = R_MANY;
    else if (c.r_tick < subgroup_sync)
      c.r_lane = uint16_t(me);
    else
      c.r_lane = uint16_t(R_SUBGROUP | sub);
  }
  c.r_tick = g_tick;
}

template <bool WRITE>
static inline void count(int space, int bytes) {
  Counters& k = g_l->counters;
  if (WRITE)
    ++k.stores[space], k.store_bytes[space] += uint64_t(bytes);
  else
    ++k.loads[space], k.load_bytes[space] += uint64_t(bytes);
}



template <bool WRITE>
static void device_access(uint64_t a, int bytes, void* pc) {
  uint64_t off = a - uint64_t(g_base);
  uint32_t id = g_page_region[off / kPage];
  if (UNLIKELY(!id)) {
    // Name the buffer that lies before the address: a little past its end, or far away.
    int best = -1;
    uint64_t nearest = ~0ull;
    for (uint32_t i = 0; i < g_n_regions; ++i) {
      uint64_t start = g_regions[i].start, end = start + g_regions[i].bytes;
      uint64_t far = a >= end ? a - end : start - a;
      if (far < nearest) nearest = far, best = int(i);
    }
    fail(F_OUT_OF_BOUNDS, "the address lies outside every buffer", pc, S_DEVICE, best,
         best < 0 ? -1 : int64_t(a - g_regions[best].start), WRITE, bytes);
  }
  Region& r = g_regions[id - 1];
  uint64_t o = a - r.start;
  if (UNLIKELY(o + uint64_t(bytes) > r.bytes))
    fail(F_OUT_OF_BOUNDS, "the access reaches past the end of the buffer", pc, S_DEVICE, int(id - 1), int64_t(o), WRITE,
         bytes);
  if (UNLIKELY(r.flags & REGION_CONSTANT)) {
    if (WRITE) fail(F_OUT_OF_BOUNDS, "constant memory is written", pc, S_CONSTANT, int(id - 1), int64_t(o), 1, bytes);
    return count<WRITE>(S_CONSTANT, bytes);
  }
  count<WRITE>(S_DEVICE, bytes);
  if (!WRITE && LIKELY(!(r.flags & (REGION_TRACKED | REGION_WRITTEN)))) return;
  if (WRITE && UNLIKELY(r.flags & REGION_INPUT))
    fail(F_TWICE, "an input is written", pc, S_DEVICE, int(id - 1), int64_t(o), 1, bytes);
  if (WRITE) {
    r.flags |= REGION_WRITTEN;
    if (UNLIKELY(uint64_t(g_l->watch) - a < uint64_t(bytes))) {
      Fault kept = g_l->fault;
      describe(F_UNINITIALIZED, "", pc);
      g_l->watched = g_l->fault;
      g_l->fault = kept;
    }
  }
  Cell* cells = region_cells(r);
  uint64_t first = o / r.granule, last = (o + uint64_t(bytes) - 1) / r.granule;
  for (uint64_t i = first; i <= last; ++i) {
    Cell& c = cells[i];
    int64_t at = int64_t(i * r.granule);
    if (WRITE && (r.flags & REGION_ONCE) && c.w_tick >= g_launch_tick)
      fail(F_TWICE, "an element of an output is written a second time", pc, S_DEVICE, int(id - 1), at, 1, bytes,
           c.w_tick >= g_block_tick ? c.w_lane : -1);
    if (!WRITE && (r.flags & REGION_WORKSPACE) && !c.w_tick)
      fail(F_UNINITIALIZED, "a workspace is read before it is written", pc, S_DEVICE, int(id - 1), at, 0, bytes);
    if (c.w_tick >= g_launch_tick && c.w_tick < g_block_tick)
      fail(F_RACE, "another group wrote it in the same launch", pc, S_DEVICE, int(id - 1), at, WRITE, bytes);
    if (WRITE && c.r_tick >= g_launch_tick && c.r_tick < g_block_tick)
      fail(F_RACE, "another group read it in the same launch", pc, S_DEVICE, int(id - 1), at, 1, bytes);
    judge<WRITE>(c, g_block_tick, g_synced_device, g_sub[g_cur_sub].synced_device, pc, S_DEVICE, int(id - 1), at,
                 bytes);
  }
}

template <bool WRITE>
static void shared_access(uint64_t a, int bytes, void* pc) {
  uint64_t off = a - g_shared_base;
  uint32_t id = off < g_shared_bytes ? g_shared_map[off >> 4] : 0;
  if (UNLIKELY(!id)) {
    int best = -1;
    uint64_t nearest = ~0ull;
    for (uint32_t i = 0; i < g_l->n_shareds; ++i) {
      uint64_t start = g_shared_off[i], end = start + g_shared_len[i];
      uint64_t far = off >= end ? off - end : start - off;
      if (far < nearest) nearest = far, best = int(i);
    }
    fail(F_OUT_OF_BOUNDS, "the address lies outside every threadgroup array", pc, S_SHARED, best,
         best < 0 ? -1 : int64_t(off) - g_shared_off[best], WRITE, bytes);
  }
  --id;
  uint64_t o = off - g_shared_off[id];
  if (UNLIKELY(off < g_shared_off[id] || o + uint64_t(bytes) > g_shared_len[id]))
    fail(F_OUT_OF_BOUNDS, "the access reaches outside the threadgroup array", pc, S_SHARED, int(id),
         int64_t(off) - int64_t(g_shared_off[id]), WRITE, bytes);
  count<WRITE>(S_SHARED, bytes);
  uint32_t granule = g_l->shareds[id].granule;
  Cell* cells = g_shared_cells + g_shared_cell[id];
  uint64_t first = o / granule, last = (o + uint64_t(bytes) - 1) / granule;
  for (uint64_t i = first; i <= last; ++i) {
    Cell& c = cells[i];
    if (!WRITE && UNLIKELY(c.w_tick < g_block_tick))
      fail(F_UNINITIALIZED, "threadgroup memory is read before it is written", pc, S_SHARED, int(id),
           int64_t(i * granule), 0, bytes);
    judge<WRITE>(c, g_block_tick, g_synced_shared, g_sub[g_cur_sub].synced_shared, pc, S_SHARED, int(id),
                 int64_t(i * granule), bytes);
  }
}

template <bool WRITE>
static inline void access(uint64_t a, int bytes, void* pc) {
  if (UNLIKELY(!g_cur)) return;
  if (UNLIKELY(--g_left == 0)) fail(F_LIMIT, "the kernel makes more accesses than the limit; it may not end", pc);
  uint64_t off = a - g_local_lo;
  if (off < g_frame_bytes) {
    uint32_t id = g_frame_map[off >> 4];
    if (UNLIKELY(!id)) {
      int best = -1;
      uint64_t nearest = ~0ull;
      for (uint32_t i = 0; i < g_l->n_locals; ++i) {
        uint64_t start = g_local_off[i], end = start + g_l->locals[i].bytes;
        uint64_t far = off >= end ? off - end : start - off;
        if (far < nearest) nearest = far, best = int(i);
      }
      fail(F_OUT_OF_BOUNDS, "the address lies outside every thread array", pc, S_LOCAL, best,
           best < 0 ? -1 : int64_t(off) - g_local_off[best], WRITE, bytes);
    }
    --id;
    uint64_t o = off - g_local_off[id];
    if (UNLIKELY(off < g_local_off[id] || o + uint64_t(bytes) > g_l->locals[id].bytes))
      fail(F_OUT_OF_BOUNDS, "the access reaches outside the thread array", pc, S_LOCAL, int(id),
           int64_t(off) - int64_t(g_local_off[id]), WRITE, bytes);
    return count<WRITE>(S_LOCAL, bytes);
  }
  if (a - g_stack_lo < kStack) return;  // a temporary of the compiler
  off = a - uint64_t(g_base);
  if (LIKELY(off < kDevice)) return device_access<WRITE>(a, bytes, pc);
  if (off < kDevice + kShared) return shared_access<WRITE>(a, bytes, pc);
  if (off < g_size) fail(F_OUT_OF_BOUNDS, "the address lies outside every thread array of this lane", pc, S_LOCAL, -1, -1, WRITE, bytes);
  if (a - g_l->module_lo < g_l->module_hi - g_l->module_lo) return;
  fail(F_OUT_OF_BOUNDS, "the address is none of the kernel's", pc, -1, -1, -1, WRITE, bytes);
}

static void locate(uint64_t a, int& space, int& region, int64_t& offset) {
  space = region = -1;
  offset = -1;
  uint64_t off = a - uint64_t(g_base);
  if (off < kDevice) {
    uint32_t id = g_page_region[off / kPage];
    if (!id && off >= kPage) id = g_page_region[off / kPage - 1];
    if (id) space = S_DEVICE, region = int(id - 1), offset = int64_t(a - g_regions[id - 1].start);
  } else if (off < kDevice + kShared) {
    uint64_t o = a - g_shared_base;
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
static inline void aligned_access(void* a, void* pc) {
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

// ---- scheduling ----
static void set_runnable(uint32_t id) {
  g_lane[id].state = RUNNABLE;
  Subgroup& s = g_sub[id >> 5];
  s.runnable |= 1u << s.place[id & 31];
}
static void set_waiting(uint32_t id, State state) {
  g_lane[id].state = state;
  Subgroup& s = g_sub[id >> 5];
  s.runnable &= ~(1u << s.place[id & 31]);
}

static void enter(uint32_t id) {
  g_cur_id = id;
  g_cur_sub = id >> 5;
  g_cur = &g_lane[id];
  g_local_lo = g_local_base + id * g_frame_bytes;
  g_stack_lo = uint64_t(g_stacks) + id * kStack;
}

[[noreturn]] static void diverged(uint32_t id, const char* text) {
  g_cur = &g_lane[id];
  g_cur_id = id;
  describe(F_DIVERGENCE, text, nullptr);
  g_l->fault.line = g_lane[id].site & 0xffff;
  g_l->fault.site = g_lane[id].site;
  leave();
}

// A subgroup in which no lane can run: asks for active lanes are answered, anything else is a divergence.
static bool unblock(Subgroup& s) {
  uint32_t site = 0, mask = 0;
  for (uint32_t i = 0; i < s.lanes; ++i) {
    Lane& l = g_lane[s.first + i];
    if (l.state != AT_ACTIVE) continue;
    if (!mask) site = uint32_t(l.site);
    if (uint32_t(l.site) == site) mask |= 1u << i;
  }
  if (!mask) return false;
  for (uint32_t i = 0; i < s.lanes; ++i)
    if (mask >> i & 1) {
      g_lane[s.first + i].mask = mask;
      set_runnable(s.first + i);
    }
  return true;
}

static bool next_in(uint32_t sub, uint32_t after, uint32_t& id) {
  Subgroup& s = g_sub[sub];
  if (!s.runnable) return false;
  uint32_t later = after < 31 ? s.runnable & ~((2u << after) - 1) : 0;
  uint32_t place = uint32_t(__builtin_ctz(later ? later : s.runnable));
  id = s.first + s.perm[place];
  return true;
}

static void shuffle_orders() {
  for (uint32_t k = g_subs; k > 1; --k) {
    uint32_t j = random_below(k);
    uint8_t t = g_sub_order[k - 1];
    g_sub_order[k - 1] = g_sub_order[j], g_sub_order[j] = t;
  }
  for (uint32_t q = 0; q < g_subs; ++q) {
    Subgroup& s = g_sub[q];
    for (uint32_t k = s.lanes; k > 1; --k) {
      uint32_t j = random_below(k);
      uint8_t t = s.perm[k - 1];
      s.perm[k - 1] = s.perm[j], s.perm[j] = t;
    }
    for (uint32_t k = 0; k < s.lanes; ++k) s.place[s.perm[k]] = uint8_t(k);
    s.runnable = 0;
    for (uint32_t i = 0; i < s.lanes; ++i)
      if (g_lane[s.first + i].state == RUNNABLE) s.runnable |= 1u << s.place[i];
  }
}

// All lanes wait: the group passes its barrier, or is stuck. True when the block is over.
static bool release_group() {
  uint32_t finished = 0, waiting = 0, at = 0;
  for (uint32_t i = 0; i < g_threads; ++i) {
    if (g_lane[i].state == FINISHED) ++finished;
    if (g_lane[i].state == AT_BARRIER) ++waiting, at = i;
  }
  if (finished == g_threads) return true;
  int site = g_lane[at].site;
  uint32_t flags = g_lane[at].flags;
  if (waiting < g_threads) diverged(at, "a barrier is reached by some lanes of the group, the others have finished");
  for (uint32_t i = 0; i < g_threads; ++i) {
    if (g_lane[i].site != site) diverged(i, "lanes of one group wait at different barriers");
    if (g_lane[i].flags != flags) diverged(i, "lanes of one group wait with different memory flags");
  }
  ++g_tick;
  if (flags & 1) {
    g_synced_shared = g_tick;
    for (uint32_t q = 0; q < g_subs; ++q) g_sub[q].synced_shared = g_tick;
  }
  if (flags & 2) {
    g_synced_device = g_tick;
    for (uint32_t q = 0; q < g_subs; ++q) g_sub[q].synced_device = g_tick;
  }
  ++g_l->counters.barriers;
  for (uint32_t i = 0; i < g_threads; ++i) set_runnable(i);
  if (g_l->order == 2) shuffle_orders();
  return false;
}

// Gives the processor to the next lane. Runs on the stack of the lane that stops.
static void yield_lane() {
  Lane* me = g_cur;
  uint32_t sub = g_cur_sub, id;
  for (;;) {
    if (next_in(sub, g_sub[sub].place[g_cur_id & 31], id)) break;
    if (unblock(g_sub[sub])) continue;
    Subgroup& s = g_sub[sub];
    for (uint32_t i = 0; i < s.lanes; ++i)
      if (g_lane[s.first + i].state == AT_COLLECTIVE)
        diverged(s.first + i, "a collective is reached by some lanes of the subgroup, the others are elsewhere");
    bool found = false;
    for (uint32_t q = 0; q < g_subs && !found; ++q)
      if (g_sub[g_sub_order[q]].runnable) found = next_in(g_sub_order[q], 31, id);
    if (found) break;
    if (release_group()) {
      void* here;
      emu_swap(&here, g_main);
      __builtin_unreachable();
    }
    sub = g_sub_order[0];
    next_in(sub, 31, id);
    break;
  }
  if (&g_lane[id] == me) return;
  enter(id);
  emu_swap(&me->sp, g_lane[id].sp);
}

static void fiber_main() {
  g_l->entry(g_l->arguments);
  set_waiting(g_cur_id, FINISHED);
  yield_lane();
  __builtin_unreachable();
}

API void emu_barrier(int site, emu_u32 flags) {
  g_cur->site = site;
  g_cur->flags = flags;
  set_waiting(g_cur_id, AT_BARRIER);
  yield_lane();
}

static bool same_place(const Lane& a, const Lane& b) { return a.site == b.site && a.mask == b.mask; }

static void complete(Subgroup& s, uint32_t mask) {
  Lane& any = *g_cur;
  ++(any.op == EMU_SYNC ? g_l->counters.subgroup_barriers : g_l->counters.collectives);
  if (any.op == EMU_SYNC) {
    ++g_tick;
    // Only a full subgroup orders its memory in this model; a part that syncs is rarer than the error it would hide.
    if (mask == s.exist) {
      if (any.flags & 1) s.synced_shared = g_tick;
      if (any.flags & 2) s.synced_device = g_tick;
    }
  } else if (any.op == EMU_REDUCE) {
    static char values[32][16];
    for (uint32_t i = 0; i < s.lanes; ++i)
      if (mask >> i & 1) memcpy(values[i], g_lane[s.first + i].in, 16);
    for (uint32_t i = 0; i < s.lanes; ++i)
      if (mask >> i & 1) {
        if (i && (mask & ((1u << i) - 1)))
          memcpy(g_lane[s.first + i].out, g_lane[s.first + uint32_t(__builtin_ctz(mask))].out, 16);
        else
          any.combine(values, mask, int(i), g_lane[s.first + i].out);
      }
  } else {
    for (uint32_t i = 0; i < s.lanes; ++i) {
      if (!(mask >> i & 1)) continue;
      Lane& l = g_lane[s.first + i];
      if (l.op != EMU_IDX && l.argument != any.argument)
        diverged(s.first + i, "lanes of one subgroup shuffle with different deltas");
      uint32_t width = uint32_t(l.width), base = i / width * width, source;
      bool own = false;
      if (l.op == EMU_IDX) {
        source = l.clamps ? base + l.argument % width : l.argument;
      } else if (l.op == EMU_UP) {
        own = l.argument > i - base;
        source = i - l.argument;
      } else if (l.op == EMU_DOWN) {
        own = l.argument >= width || i + l.argument >= base + width;
        source = i + l.argument;
      } else {
        source = i ^ l.argument;
        if (l.clamps && source >= base + width) own = true;
      }
      if (own) source = i;
      if (source >= 32) diverged(s.first + i, "a shuffle names a lane beyond the subgroup");
      if (mask >> source & 1) {
        memcpy(l.out, g_lane[s.first + source].in, 16);
      } else if (l.op == EMU_UP || l.op == EMU_DOWN) {
        // Undefined on a GPU, and harmless where nobody uses it: poison tells the two apart.
        for (int b = 0; b < 16; b += 2) l.out[b] = char(EMU_POISON16 & 0xff), l.out[b + 1] = char(EMU_POISON16 >> 8);
      } else {
        diverged(s.first + i, "a shuffle reads a lane that is absent or does not take part");
      }
    }
  }
  for (uint32_t i = 0; i < s.lanes; ++i)
    if ((mask >> i & 1) && s.first + i != g_cur_id) set_runnable(s.first + i);
}

// The current lane has come to a collective: the last one of its mask completes it, the others wait.
static void arrive() {
  Subgroup& s = g_sub[g_cur_sub];
  uint32_t want = g_cur->mask & s.exist, have = 1u << (g_cur_id & 31);
  if (!(want & have)) diverged(g_cur_id, "a lane calls a collective whose mask does not name it");
  if (LIKELY(!s.mixed)) {
    if (!s.arrived) s.site = g_cur->site, s.mask = want;
    if (LIKELY(s.site == g_cur->site && s.mask == want)) {
      s.arrived |= have;
      if (s.arrived == want) {
        s.arrived = 0;
        return complete(s, want);
      }
      set_waiting(g_cur_id, AT_COLLECTIVE);
      return yield_lane();
    }
    s.mixed = true;
  }
  for (uint32_t rest = want & ~have; rest; rest &= rest - 1) {
    uint32_t i = uint32_t(__builtin_ctz(rest));
    Lane& l = g_lane[s.first + i];
    if (l.state == FINISHED) diverged(g_cur_id, "a collective waits for a lane that has finished");
    if (l.state != AT_COLLECTIVE || !same_place(l, *g_cur)) {
      set_waiting(g_cur_id, AT_COLLECTIVE);
      yield_lane();
      return;
    }
  }
  complete(s, want);
}

API void emu_collect(int site, int op, emu_u32 mask, int width, emu_u32 argument, int clamps, emu_combine combine,
                     const char* in, char* out, int bytes) {
  Lane& l = *g_cur;
  l.site = site, l.op = uint8_t(op), l.mask = mask & g_sub[g_cur_sub].exist, l.width = width, l.argument = argument;
  l.clamps = uint8_t(clamps), l.combine = combine, l.bytes = uint8_t(bytes);
  if (width < 1 || width > 32 || (width & (width - 1)))
    diverged(g_cur_id, "the width of a shuffle is no power of two up to 32");
  memcpy(l.in, in, 16);
  arrive();
  memcpy(out, l.out, 16);
}

API void emu_subgroup_barrier(int site, emu_u32 mask, emu_u32 flags) {
  Lane& l = *g_cur;
  l.site = site, l.op = EMU_SYNC, l.mask = mask & g_sub[g_cur_sub].exist, l.flags = flags;
  arrive();
}

API emu_u32 emu_active(int site) {
  g_cur->site = site;
  set_waiting(g_cur_id, AT_ACTIVE);
  yield_lane();
  return g_cur->mask;
}

API void emu_where(int which, emu_index* out) {
  if (which == 0) *out = g_cur->thread;
  if (which == 1) *out = g_block;
  if (which == 2) *out = emu_index{g_l->block[0], g_l->block[1], g_l->block[2]};
  if (which == 3) *out = emu_index{g_l->grid[0], g_l->grid[1], g_l->grid[2]};
}
API emu_u32 emu_lane() { return g_cur_id & 31; }
API emu_u32 emu_subgroup() { return g_cur_id >> 5; }
API void* emu_local(int id) { return reinterpret_cast<void*>(g_local_lo + g_local_off[id]); }
API void* emu_shared(int id) { return reinterpret_cast<void*>(g_shared_base + g_shared_off[id]); }

// ---- a launch ----
static uint64_t align_up(uint64_t v, uint64_t a) { return (v + a - 1) / a * a; }

static int lay_out(Launch* l) {
  if (l->n_locals >= 255 || l->n_shareds >= 255) return -1;
  uint64_t at = 32;
  for (uint32_t i = 0; i < l->n_locals; ++i) {
    at = align_up(at, l->locals[i].align < 16 ? 16 : l->locals[i].align);
    g_local_off[i] = uint32_t(at);
    at = align_up(at + l->locals[i].bytes, 16) + 16;
  }
  // An odd number of cache lines per frame, so that frames do not fall on one another in the cache.
  g_frame_bytes = align_up(at, kFrameStep);
  if (!(g_frame_bytes / kFrameStep & 1)) g_frame_bytes += kFrameStep;
  if (g_frame_bytes * g_threads > kLocal) return -1;
  if (g_frame_map) munmap(g_frame_map, g_frame_map_size);
  g_frame_map_size = g_frame_bytes / 16 + 1;
  g_frame_map = static_cast<uint8_t*>(map_memory(g_frame_map_size));
  for (uint32_t i = 0; i < l->n_locals; ++i)
    for (uint64_t b = 0; b < l->locals[i].bytes; b += 16) g_frame_map[(g_local_off[i] + b) / 16] = uint8_t(i + 1);

  uint64_t cells = 0;
  at = 64;
  for (uint32_t i = 0; i < l->n_shareds; ++i) {
    uint64_t bytes = l->shareds[i].bytes ? l->shareds[i].bytes : l->dynamic_bytes;
    at = align_up(at, l->shareds[i].align < 16 ? 16 : l->shareds[i].align);
    g_shared_off[i] = uint32_t(at);
    g_shared_len[i] = bytes;
    g_shared_cell[i] = uint32_t(cells);
    cells += bytes / l->shareds[i].granule + 2;
    at = align_up(at + bytes, 16) + 64;
  }
  g_shared_bytes = at;
  if (at + kPage > kShared) return -1;
  static uint64_t map_size;
  if (g_shared_map) munmap(g_shared_map, map_size);
  map_size = at / 16 + 1;
  g_shared_map = static_cast<uint8_t*>(map_memory(map_size));
  for (uint32_t i = 0; i < l->n_shareds; ++i)
    for (uint64_t b = 0; b < g_shared_len[i]; b += 16) g_shared_map[(g_shared_off[i] + b) / 16] = uint8_t(i + 1);
  if (g_shared_cells) munmap(g_shared_cells, g_shared_cells_n * sizeof(Cell));
  g_shared_cells_n = cells + 1;
  g_shared_cells = static_cast<Cell*>(map_memory(g_shared_cells_n * sizeof(Cell)));
  return 0;
}

static void start_block() {
  g_block_tick = g_synced_shared = g_synced_device = ++g_tick;
  uint64_t pattern = 0x0001000100010001ull * EMU_POISON16;
  uint64_t* frame = reinterpret_cast<uint64_t*>(g_local_base);
  if (g_l->n_locals)
    for (uint64_t i = 0; i < g_frame_bytes * g_threads / 8; ++i) frame[i] = pattern;
  for (uint32_t q = 0; q < g_subs; ++q) {
    Subgroup& s = g_sub[q];
    s.synced_shared = s.synced_device = g_tick;
    s.arrived = 0;
    s.mixed = false;
  }
  for (uint32_t i = 0; i < g_threads; ++i) {
    uint64_t top = uint64_t(g_stacks) + (i + 1) * kStack - 64;
#if defined(__x86_64__)
    uint64_t* sp = reinterpret_cast<uint64_t*>(top) - kFrame - 2;
    sp[kFrame] = uint64_t(&fiber_main);
#else
    uint64_t* sp = reinterpret_cast<uint64_t*>(top - 160);
    sp[11] = uint64_t(&fiber_main);
#endif
    g_lane[i].sp = sp;
    set_runnable(i);
  }
  if (g_l->order == 2) shuffle_orders();
}

API int emu_launch(Launch* l) {
  g_l = l;
  g_failed = false;
  g_threads = l->block[0] * l->block[1] * l->block[2];
  g_subs = (g_threads + 31) / 32;
  g_left = l->max_accesses;
  g_rng = l->seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull;
  if (lay_out(l)) return -1;
  g_launch_tick = ++g_tick;
  for (uint32_t q = 0; q < g_subs; ++q) {
    Subgroup& s = g_sub[q];
    s.first = q * 32;
    s.lanes = g_threads - s.first < 32 ? g_threads - s.first : 32;
    s.exist = s.lanes == 32 ? ~0u : (1u << s.lanes) - 1;
    s.runnable = 0;
    for (uint32_t k = 0; k < s.lanes; ++k) {
      s.perm[k] = uint8_t(l->order == 1 ? s.lanes - 1 - k : k);
      s.place[s.perm[k]] = uint8_t(k);
    }
    g_sub_order[q] = uint8_t(l->order == 1 ? g_subs - 1 - q : q);
  }
  for (uint32_t i = 0; i < g_threads; ++i)
    g_lane[i].thread = emu_index{i % l->block[0], i / l->block[0] % l->block[1], i / l->block[0] / l->block[1]};
  uint64_t blocks = uint64_t(l->grid[0]) * l->grid[1] * l->grid[2];
  // Random order of blocks: an affine walk with a step prime to their number.
  uint64_t step = 1, at = 0;
  if (l->order == 2 && blocks > 2) {
    at = random_below(uint32_t(blocks));
    for (step = 1 + random_below(uint32_t(blocks - 1));; ++step) {
      uint64_t a = blocks, b = step % blocks;
      while (b) {
        uint64_t t = a % b;
        a = b, b = t;
      }
      if (a == 1) break;
    }
  }
  for (uint64_t n = 0; n < blocks; ++n) {
    uint64_t b = l->order == 1 ? blocks - 1 - n : l->order == 2 ? (at + n * (step % blocks)) % blocks : n;
    g_block = emu_index{uint32_t(b % l->grid[0]), uint32_t(b / l->grid[0] % l->grid[1]),
                        uint32_t(b / l->grid[0] / l->grid[1])};
    start_block();
    uint32_t id;
    next_in(g_sub_order[0], 31, id);
    enter(id);
    emu_swap(&g_main, g_lane[id].sp);
    if (g_failed) break;
  }
  g_cur = nullptr;
  g_l = nullptr;
  return g_failed ? 1 : 0;
}
