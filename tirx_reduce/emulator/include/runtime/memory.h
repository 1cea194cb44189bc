// Device memory: one buffer is one region, with gaps between.
#pragma once

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
