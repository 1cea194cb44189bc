// Shuffles and reductions of a subgroup, and what a lane may ask of the runtime.
#pragma once

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
  if (which == 1) *out = g_group[g_rank].at;
  if (which == 2) *out = emu_index{g_l->block[0], g_l->block[1], g_l->block[2]};
  if (which == 3) *out = emu_index{g_l->grid[0], g_l->grid[1], g_l->grid[2]};
}
API void emu_begin() { g_cur->begun = true; }

// A launch that offers its place before it has begun may have launches before it that still run.
API void emu_offer() {
  if (!g_cur->begun)
    g_offered = OFFER_EARLY;
  else if (g_offered == OFFER_NONE)
    g_offered = OFFER_LATE;
}

API void emu_follow(int site) {
  g_site_line = site & 0xffff;
  if (g_l->dependent && g_offered_before != OFFER_LATE)
    fail(F_RACE, "a launch follows one that offered its place before tirx_reduce_begin, or none", nullptr, S_DEVICE, -1, -1,
         0, 0);
  g_cur->follows = true;
  g_site_line = 0;
}
API emu_u32 emu_cluster_rank() { return g_rank; }
API emu_u32 emu_cluster_size() { return g_groups; }
API emu_u32 emu_lane() { return g_cur_id & 31; }
API emu_u32 emu_subgroup() { return g_cur_id >> 5; }
// A thread array, as its declaration is met: nothing is written in it yet, in a loop each time anew.
API void* emu_local(int id) {
  uint64_t* words = reinterpret_cast<uint64_t*>(g_local_lo + g_local_off[id]);
  for (uint64_t i = 0; i < (g_l->locals[id].bytes + 7) / 8; ++i) words[i] = 0x0001000100010001ull * EMU_POISON16;
  return words;
}
API void* emu_shared(int id) { return reinterpret_cast<void*>(g_shared_base + g_rank * g_shared_step + g_shared_off[id]); }
