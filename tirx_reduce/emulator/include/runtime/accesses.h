// The verdict on one access: bounds, order, initial value, and how often it is written.
#pragma once

static inline uint32_t rank_of_subgroup(uint32_t sub) { return g_groups == 1 ? 0 : sub / g_subs_each; }

// The tick before which all that `sub` did in this space is ordered, by barriers of its group, before what the current
// lane does now; 0 in another group, where none can order it.
static inline uint32_t horizon(uint32_t sub, int space) {
  if (sub == g_cur_sub) return space == S_SHARED ? g_sub[sub].synced_shared : g_sub[sub].synced_device;
  if (rank_of_subgroup(sub) == g_rank)
    return space == S_SHARED ? g_group[g_rank].synced_shared : g_group[g_rank].synced_device;
  return 0;
}

static inline uint32_t reader_horizon(uint32_t reader, int space) {
  if (reader == R_ALL) return 0;
  if (reader & R_GROUP) {
    if ((reader & 15u) != g_rank) return 0;
    return space == S_SHARED ? g_group[g_rank].synced_shared : g_group[g_rank].synced_device;
  }
  return horizon((reader & R_SUBGROUP) ? reader & 0x3fffu : reader >> 5, space);
}

// Whether all that was sent to a mailbox of this lane's group has come before what the lane does now: it has waited
// itself, or another lane has and a barrier of the group or subgroup stands between.
static __attribute__((noinline)) bool mailbox_seen(const Mailbox& m) {
  uint32_t sub = g_cur_sub - m.rank * g_subs_each;
  return (m.waited[sub] >> (g_cur_id & 31) & 1) || (m.sub_wait[sub] && m.sub_wait[sub] < g_sub[g_cur_sub].synced_shared) ||
         (m.first_wait && m.first_wait < g_group[m.rank].synced_shared);
}

static inline bool written_before(const Cell& c, int space) {
  if (UNLIKELY(c.w_lane & W_SENT)) return mailbox_seen(g_mailboxes[c.w_lane & (W_SENT - 1)]);
  if (UNLIKELY(c.w_lane & W_MAILBOX)) return false;
  return c.w_tick < horizon(c.w_lane >> 5, space);
}

static inline bool read_before(const Cell& c, int space) {
  return c.r_tick < reader_horizon(c.r_lane, space);
}

static inline uint32_t reader_rank(uint32_t reader) {
  if (reader & R_GROUP) return reader & 15u;
  return rank_of_subgroup((reader & R_SUBGROUP) ? reader & 0x3fffu : reader >> 5);
}

// Several readers of one cell are kept as the narrowest set that holds them and still conflicts with later writers.
static inline void note_reader(Cell& c, uint32_t begin, int space) {
  uint32_t r = c.r_lane;
  bool alone = c.r_tick < begin || r == g_cur_id || read_before(c, space);
  if (alone)
    c.r_lane = uint16_t(g_cur_id);
  else if (r == R_ALL || reader_rank(r) != g_rank)
    c.r_lane = R_ALL;
  else if (r & R_GROUP) {
  } else if (((r & R_SUBGROUP) ? r & 0x3fffu : r >> 5) == g_cur_sub)
    c.r_lane = uint16_t(R_SUBGROUP | g_cur_sub);
  else
    c.r_lane = uint16_t(R_GROUP | g_rank);
  c.r_tick = g_tick;
}

// What was written last is not ordered before the access.
[[noreturn]] static __attribute__((noinline)) void unordered(const Cell& c, bool write, void* pc, int space, int region,
                                                             int64_t offset, int bytes) {
  if (c.w_lane & W_SENT) {
    int sender = -1;
    for (uint32_t i = 0; i < g_n_sends; ++i)
      if (g_sends[i].cell == &c) sender = int(g_sends[i].lane);
    fail(F_RACE,
         write ? "a value that was sent to it may still be under way; this lane knows of no wait on its mailbox"
               : "a value was sent to it, and this lane knows of no wait on its mailbox",
         pc, space, region, offset, write, bytes, sender);
  }
  if (c.w_lane & W_MAILBOX)
    fail(F_RACE, "a mailbox lies there, which only sends and waits may touch", pc, space, region, offset, write, bytes);
  fail(F_RACE, write ? "two lanes write it, and no barrier stands between them"
                     : "another lane wrote it, and no barrier stands between",
       pc, space, region, offset, write, bytes, c.w_lane);
}

template <bool WRITE>
static inline void judge(Cell& c, uint32_t begin, void* pc, int space, int region, int64_t offset, int bytes) {
  if (c.w_tick >= begin && c.w_lane != g_cur_id && !written_before(c, space))
    unordered(c, WRITE, pc, space, region, offset, bytes);
  if (!WRITE) return note_reader(c, begin, space);
  if (c.r_tick >= begin && c.r_lane != g_cur_id && !read_before(c, space))
    fail(F_RACE, "another lane read it, and no barrier stands between", pc, space, region, offset, 1, bytes,
         (c.r_lane & (R_GROUP | R_SUBGROUP)) ? -1 : c.r_lane);
  c.w_tick = g_tick;
  c.w_lane = uint16_t(g_cur_id);
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
static __attribute__((noinline)) void device_access(uint64_t a, int bytes, void* pc) {
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
  if (UNLIKELY(!g_cur->begun && (WRITE || !g_cur->follows || g_regions[id - 1].flags & REGION_EARLIER)))
    fail(F_RACE, "device memory is touched before tirx_reduce_begin, while the launch before may still run", pc, S_DEVICE,
         int(id - 1), int64_t(a - g_regions[id - 1].start), WRITE, bytes);
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
    judge<WRITE>(c, g_block_tick, pc, S_DEVICE, int(id - 1), at, bytes);
  }
}

// The threadgroup array that an offset into a group's memory lies in, or a fault.
static uint32_t shared_array(uint64_t off, int bytes, bool write, void* pc) {
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
         best < 0 ? -1 : int64_t(off) - g_shared_off[best], write, bytes);
  }
  --id;
  if (UNLIKELY(off < g_shared_off[id] || off - g_shared_off[id] + uint64_t(bytes) > g_shared_len[id]))
    fail(F_OUT_OF_BOUNDS, "the access reaches outside the threadgroup array", pc, S_SHARED, int(id),
         int64_t(off) - int64_t(g_shared_off[id]), write, bytes);
  return id;
}

[[noreturn]] static void meets_copy(const Copy& c, bool write, int bytes, void* pc, uint32_t id, int64_t offset);

// Refuses an access of some bytes at an offset into the memory of group `rank` that meets a copy under way.
static inline void check_copies(uint64_t rank, uint64_t off, bool write, int bytes, void* pc, uint32_t id) {
  if (LIKELY(!g_flying)) return;
  uint64_t base = rank * g_shared_step / 16;
  for (uint64_t p = off / 16; p <= (off + uint64_t(bytes) - 1) / 16; ++p)
    if (g_copies[base + p].owner)
      meets_copy(g_copies[base + p], write, bytes, pc, id, int64_t(off) - int64_t(g_shared_off[id]));
}

template <bool WRITE>
static __attribute__((noinline)) void shared_access(uint64_t a, int bytes, void* pc) {
  uint64_t off = a - g_shared_base - g_rank * g_shared_step;
  uint32_t id = shared_array(off, bytes, WRITE, pc);
  uint64_t o = off - g_shared_off[id];
  count<WRITE>(S_SHARED, bytes);
  check_copies(g_rank, off, WRITE, bytes, pc, id);
  uint32_t granule = g_l->shareds[id].granule;
  Cell* cells = g_shared_cells + g_rank * g_shared_cells_each + g_shared_cell[id];
  uint64_t first = o / granule, last = (o + uint64_t(bytes) - 1) / granule;
  for (uint64_t i = first; i <= last; ++i) {
    Cell& c = cells[i];
    if (!WRITE && UNLIKELY(c.w_tick < g_block_tick))
      fail(F_UNINITIALIZED, "threadgroup memory is read before it is written", pc, S_SHARED, int(id),
           int64_t(i * granule), 0, bytes);
    judge<WRITE>(c, g_block_tick, pc, S_SHARED, int(id), int64_t(i * granule), bytes);
  }
}

template <bool WRITE>
static inline __attribute__((always_inline)) void access(uint64_t a, int bytes, void* pc) {
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
