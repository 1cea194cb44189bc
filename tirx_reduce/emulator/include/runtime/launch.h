// One launch: layout of arrays, order of groups.
#pragma once

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
  if (g_frame_bytes * g_subs * 32 > kLocal) return -1;
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
  // An odd number of cache lines from one group's copy to the next.
  g_shared_step = align_up(at + 64, 128) + 64;
  if (g_shared_step * g_groups + kPage > kShared) return -1;
  static uint64_t map_size;
  if (g_shared_map) munmap(g_shared_map, map_size);
  map_size = at / 16 + 1;
  g_shared_map = static_cast<uint8_t*>(map_memory(map_size));
  for (uint32_t i = 0; i < l->n_shareds; ++i)
    for (uint64_t b = 0; b < g_shared_len[i]; b += 16) g_shared_map[(g_shared_off[i] + b) / 16] = uint8_t(i + 1);
  if (g_shared_cells) munmap(g_shared_cells, g_shared_cells_n * sizeof(Cell));
  g_shared_cells_each = cells + 1;
  g_shared_cells_n = g_shared_cells_each * g_groups;
  g_shared_cells = static_cast<Cell*>(map_memory(g_shared_cells_n * sizeof(Cell)));
  return 0;
}

static void forget_copies() {
  if (g_copies) munmap(g_copies, g_copies_bytes);
  g_copies = nullptr;
  g_flying = 0;
  g_copies_bytes = (g_shared_step * g_groups / 16 + 1) * sizeof(Copy);
}

static void start_cluster(uint32_t first) {
  g_block_tick = ++g_tick;
  g_cluster_arrived = 0;
  g_n_mailboxes = g_n_sends = 0;
  for (uint32_t r = 0; r < g_groups; ++r) {
    uint32_t b = first + r;
    g_group[r].at = emu_index{b % g_l->grid[0], b / g_l->grid[0] % g_l->grid[1], b / g_l->grid[0] / g_l->grid[1]};
    settle(g_group[r], r, true, true);
  }
  for (uint32_t q = 0; q < g_subs; ++q) {
    g_sub[q].arrived = 0;
    g_sub[q].mixed = g_sub[q].ended = false;
    g_sub[q].arrive_number = g_sub[q].wait_number = 0;
    for (uint32_t i = 0; i < g_sub[q].lanes; ++i) {
      uint32_t id = g_sub[q].first + i;
      // Tops at different cache lines: at one line each, every switch would throw the last lane's frame out.
      uint64_t top = uint64_t(g_stacks) + (id + 1) * kStack - 64 - (id % 61) * 64;
#if defined(__x86_64__)
      uint64_t* sp = reinterpret_cast<uint64_t*>(top) - kFrame - 2;
      sp[kFrame] = uint64_t(&fiber_main);
#else
      uint64_t* sp = reinterpret_cast<uint64_t*>(top - 160);
      sp[11] = uint64_t(&fiber_main);
#endif
      g_lane[id].sp = sp;
      g_lane[id].copies = g_lane[id].commits = 0;
      g_lane[id].arrived = g_lane[id].phase = false;
      g_lane[id].begun = !g_l->dependent;
      g_lane[id].follows = false;
      g_lane[id].arrivals = g_lane[id].waits = 0;
      set_runnable(id);
    }
  }
  if (g_l->order == 2) shuffle_orders();
}

static void prepare(Launch* l) {
  for (uint32_t q = 0; q < g_subs; ++q) {
    Subgroup& s = g_sub[q];
    s.rank = q / g_subs_each;
    s.first = q * 32;
    uint32_t before = (q - s.rank * g_subs_each) * 32;
    s.lanes = g_threads - before < 32 ? g_threads - before : 32;
    s.exist = s.lanes == 32 ? ~0u : (1u << s.lanes) - 1;
    s.runnable = 0;
    for (uint32_t k = 0; k < s.lanes; ++k) {
      uint32_t t = before + k;
      s.perm[k] = uint8_t(l->order == 1 ? s.lanes - 1 - k : k);
      s.place[s.perm[k]] = uint8_t(k);
      g_lane[s.first + k].thread =
          emu_index{t % l->block[0], t / l->block[0] % l->block[1], t / l->block[0] / l->block[1]};
    }
    g_sub_order[q] = uint16_t(l->order == 1 ? g_subs - 1 - q : q);
  }
}

// A step that is prime to `n`, for a walk over all of it in an order that looks random.
static uint64_t prime_step(uint64_t n) {
  for (uint64_t step = 1 + random_below(uint32_t(n - 1));; ++step) {
    uint64_t a = n, b = step % n;
    while (b) {
      uint64_t t = a % b;
      a = b, b = t;
    }
    if (a == 1) return step % n;
  }
}

API int emu_launch(Launch* l) {
  g_l = l;
  g_failed = false;
  g_offered_before = g_offered;
  g_offered = OFFER_NONE;
  g_site_line = 0;
  g_groups = l->cluster ? l->cluster : 1;
  g_threads = l->block[0] * l->block[1] * l->block[2];
  g_subs_each = (g_threads + 31) / 32;
  g_subs = g_subs_each * g_groups;
  g_left = l->max_accesses;
  g_rng = l->seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull;
  if (g_groups > MAX_CLUSTER || l->grid[0] % g_groups || lay_out(l)) return -1;
  g_launch_tick = ++g_tick;
  for (uint32_t i = 0; i < g_n_regions; ++i)
    if (g_regions[i].flags & REGION_WRITTEN) g_regions[i].flags |= REGION_EARLIER;
  forget_copies();
  prepare(l);
  uint64_t clusters = uint64_t(l->grid[0]) * l->grid[1] * l->grid[2] / g_groups;
  uint64_t step = 1, at = 0;
  if (l->order == 2 && clusters > 2) {
    at = random_below(uint32_t(clusters));
    step = prime_step(clusters);
  }
  uint64_t mode = float_mode();
  catch_signals();
  if (l->flush) set_float_mode(mode | kFlush);
  for (uint64_t n = 0; n < clusters; ++n) {
    uint64_t c = l->order == 1 ? clusters - 1 - n : l->order == 2 ? (at + n * step) % clusters : n;
    start_cluster(uint32_t(c * g_groups));
    uint32_t id = 0;
    next_in(g_sub_order[0], 31, id);
    enter(id);
    emu_swap(&g_main, g_lane[id].sp);
    if (g_failed || outlived_by_sends()) break;
  }
  set_float_mode(mode);
  release_signals();
  g_cur = nullptr;
  g_l = nullptr;
  return g_failed ? 1 : 0;
}
