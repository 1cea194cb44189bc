// Asynchronous copies of 16 bytes from device to threadgroup memory: they end at the wait of the lane that began them.
#pragma once

enum { COPY_BYTES = 16 };

// Any access to what a copy is about to write: nobody knows whether it has.
[[noreturn]] static void meets_copy(const Copy& c, bool write, int bytes, void* pc, uint32_t id, int64_t offset) {
  uint32_t owner = c.owner - 1;
  fail(F_RACE,
       owner != g_cur_id ? "another lane's asynchronous copy to it is under way"
       : write           ? "this lane's asynchronous copy to it is under way, and it is overwritten before the wait"
                         : "this lane's asynchronous copy to it is under way; no wait stands between",
       pc, S_SHARED, int(id), offset, write, bytes, owner != g_cur_id ? int(owner) : -1);
}

API void emu_async_copy(int site, void* to, const void* from) {
  g_site_line = site & 0xffff;
  uint64_t source = uint64_t(from), off = uint64_t(to) - g_shared_base - g_rank * g_shared_step;
  if (source % COPY_BYTES) misaligned(source, false, COPY_BYTES, nullptr);
  if (uint64_t(to) % COPY_BYTES) misaligned(uint64_t(to), true, COPY_BYTES, nullptr);
  if (source - uint64_t(g_base) >= kDevice)
    fail(F_OUT_OF_BOUNDS, "the source of an asynchronous copy is no device memory", nullptr, -1, -1, -1, 0, COPY_BYTES);
  device_access<false>(source, COPY_BYTES, nullptr);
  shared_access<true>(uint64_t(to), COPY_BYTES, nullptr);
  if (!g_copies) g_copies = static_cast<Copy*>(map_memory(g_copies_bytes));
  uint32_t slot = uint32_t((g_rank * g_shared_step + off) / COPY_BYTES);
  Copy& c = g_copies[slot];
  c.owner = g_cur_id + 1;
  c.site = site;
  c.next = g_cur->copies;
  c.commits = g_cur->commits;
  c.source = source;
  memcpy(c.data, from, COPY_BYTES);
  g_cur->copies = slot + 1;
  ++g_flying;
  ++g_l->counters.async_copies;
  g_l->counters.async_bytes += COPY_BYTES;
  g_site_line = 0;
}

// A prefetch changes nothing, and is asked for before the launch has begun; only its bounds can be wrong.
API void emu_prefetch(int site, const void* from, int bytes) {
  g_site_line = site & 0xffff;
  uint64_t a = uint64_t(from), off = a - uint64_t(g_base);
  uint32_t id = off < kDevice ? g_page_region[off / kPage] : 0;
  const Region* r = id ? &g_regions[id - 1] : nullptr;
  if (!r || a + uint64_t(bytes) > r->start + r->bytes)
    fail(F_OUT_OF_BOUNDS, "a prefetch reaches past the end of the buffer", nullptr, S_DEVICE, int(id) - 1,
         r ? int64_t(r->bytes) : -1, 0, bytes);
  g_site_line = 0;
}

API void emu_async_commit() { ++g_cur->commits; }

// The copy at a place is over: what it brought is there.
static void end_copy(uint32_t slot) {
  Copy& c = g_copies[slot];
  uint64_t off = uint64_t(slot) * COPY_BYTES - g_rank * g_shared_step;
  uint32_t id = uint32_t(g_shared_map[off >> 4] - 1), granule = g_l->shareds[id].granule;
  if (memcmp(c.data, reinterpret_cast<const void*>(c.source), COPY_BYTES)) {
    int space, region;
    int64_t at;
    locate(c.source, space, region, at);
    fail(F_RACE, "the source of an asynchronous copy is written before the wait", nullptr, space, region, at, 0,
         COPY_BYTES);
  }
  c.owner = 0;
  --g_flying;
  // For all others it is written now: a barrier before this wait orders nothing.
  Cell* cells = g_shared_cells + g_rank * g_shared_cells_each + g_shared_cell[id];
  uint64_t o = off - g_shared_off[id];
  for (uint64_t i = o / granule; i <= (o + COPY_BYTES - 1) / granule; ++i) cells[i].w_tick = g_tick;
  memcpy(reinterpret_cast<char*>(g_shared_base + g_rank * g_shared_step + off), c.data, COPY_BYTES);
}

// Waits for all copies of this lane but those of its last `but` commits; with `but` below 0 for what is not committed, too.
API void emu_async_wait(int site, int but) {
  g_site_line = site & 0xffff;
  // A lane's copies are linked from the last to the first.
  uint32_t* link = &g_cur->copies;
  while (*link && but >= 0 && g_copies[*link - 1].commits + uint32_t(but) >= g_cur->commits) link = &g_copies[*link - 1].next;
  uint32_t slot = *link;
  *link = 0;
  while (slot) {
    uint32_t next = g_copies[slot - 1].next;
    end_copy(slot - 1);
    slot = next;
  }
  g_site_line = 0;
}

static void check_copies_ended() {
  if (!g_cur->copies) return;
  g_site_line = g_copies[g_cur->copies - 1].site & 0xffff;
  fail(F_RACE, "a lane ends while an asynchronous copy of its own is under way; no wait stands behind it", nullptr);
}
