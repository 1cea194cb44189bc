// Which lane runs next; barriers of groups and clusters.
#pragma once

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
  g_rank = g_sub[g_cur_sub].rank;
  g_cur = &g_lane[id];
  g_local_lo = g_local_base + id * g_frame_bytes;
  g_stack_lo = uint64_t(g_stacks) + id * kStack;
}

[[noreturn]] static void diverged(uint32_t id, const char* text) {
  enter(id);
  describe(F_DIVERGENCE, text, nullptr);
  g_l->fault.line = g_lane[id].site & 0xffff;
  g_l->fault.site = g_lane[id].site;
  leave();
}

// A lane waits for bytes that nobody sends any more.
[[noreturn]] static void starved(uint32_t id) {
  enter(id);
  const Mailbox& m = g_mailboxes[g_cur->mailbox];
  char text[sizeof(Fault::text)];
  snprintf(text, sizeof text, "a wait on a mailbox never ends: %lld of %lld bytes have come", (long long)m.received,
           (long long)m.expected);
  g_site_line = g_cur->site & 0xffff;
  fail(F_DIVERGENCE, text, nullptr, S_SHARED, int(m.array), m.offset);
}

static bool waits_for_mail(const Subgroup& s) {
  for (uint32_t i = 0; i < s.lanes; ++i)
    if (g_lane[s.first + i].state == AT_MAILBOX) return true;
  return false;
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
    uint16_t t = g_sub_order[k - 1];
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

static void settle(Group& g, uint32_t rank, bool shared, bool device) {
  if (shared) g.synced_shared = g_tick;
  if (device) g.synced_device = g_tick;
  for (uint32_t q = rank * g_subs_each; q < (rank + 1) * g_subs_each; ++q) {
    if (shared) g_sub[q].synced_shared = g_tick;
    if (device) g_sub[q].synced_device = g_tick;
  }
}

// Lane `i` of a group, counted as the group counts them.
static inline uint32_t lane_in(uint32_t rank, uint32_t i) { return rank * g_subs_each * 32 + i; }

// Every lane of a group waits at one barrier: it passes. Anything else waits on.
static bool release_group(uint32_t rank) {
  for (uint32_t i = 0; i < g_threads; ++i)
    if (g_lane[lane_in(rank, i)].state != AT_BARRIER) return false;
  uint32_t at = lane_in(rank, g_threads - 1);
  int site = g_lane[at].site;
  uint32_t flags = g_lane[at].flags;
  for (uint32_t i = 0; i < g_threads; ++i) {
    const Lane& l = g_lane[lane_in(rank, i)];
    if (l.site != site) diverged(lane_in(rank, i), "lanes of one group wait at different barriers");
    if (l.flags != flags) diverged(lane_in(rank, i), "lanes of one group wait with different memory flags");
  }
  ++g_tick;
  settle(g_group[rank], rank, flags & 1, flags & 2);
  ++g_l->counters.barriers;
  for (uint32_t i = 0; i < g_threads; ++i) set_runnable(lane_in(rank, i));
  return true;
}

// The last lane of the cluster has arrived: whoever waits for it may go on.
static void complete_cluster() {
  ++g_tick;
  g_cluster_arrived = 0;
  ++g_l->counters.cluster_barriers;
  for (uint32_t r = 0; r < g_groups; ++r)
    for (uint32_t i = 0; i < g_threads; ++i) {
      Lane& l = g_lane[lane_in(r, i)];
      l.arrived = false;
      if (l.state == AT_CLUSTER) set_runnable(lane_in(r, i));
    }
}

// No lane will ever run again, and not all have finished: what they wait for.
[[noreturn]] static void stuck() {
  uint32_t mail = 0, barrier = 0, cluster = 0;  // lane + 1
  for (uint32_t r = 0; r < g_groups; ++r)
    for (uint32_t i = 0; i < g_threads; ++i) {
      State s = g_lane[lane_in(r, i)].state;
      if (s == AT_MAILBOX) mail = lane_in(r, i) + 1;
      if (s == AT_BARRIER) barrier = lane_in(r, i) + 1;
      if (s == AT_CLUSTER) cluster = lane_in(r, i) + 1;
    }
  if (mail) starved(mail - 1);
  if (!barrier) diverged(cluster - 1, "a cluster barrier waits for lanes that have finished");
  for (uint32_t i = 0; i < g_threads; ++i)
    if (g_lane[lane_in(g_sub[(barrier - 1) >> 5].rank, i)].state == FINISHED)
      diverged(barrier - 1, "a barrier is reached by some lanes of the group, the others have finished");
  diverged(barrier - 1, "a barrier is reached by some lanes of the group, the others wait for the cluster");
}

// No lane can run: groups pass their barriers, or all are over, or they are stuck. True when the cluster is over.
static bool release() {
  bool moved = false;
  for (uint32_t r = 0; r < g_groups; ++r) moved |= release_group(r);
  if (moved) {
    if (g_l->order == 2) shuffle_orders();
    return false;
  }
  for (uint32_t r = 0; r < g_groups; ++r)
    for (uint32_t i = 0; i < g_threads; ++i)
      if (g_lane[lane_in(r, i)].state != FINISHED) stuck();
  return true;
}

// Gives the processor to the next lane. Runs on the stack of the lane that stops.
static void yield_lane() {
  Lane* me = g_cur;
  uint32_t sub = g_cur_sub, id = 0;
  for (;;) {
    if (next_in(sub, g_sub[sub].place[g_cur_id & 31], id)) break;
    if (unblock(g_sub[sub])) continue;
    Subgroup& s = g_sub[sub];
    for (uint32_t i = 0; i < s.lanes; ++i)
      if (g_lane[s.first + i].state == AT_COLLECTIVE && !waits_for_mail(s))
        diverged(s.first + i, "a collective is reached by some lanes of the subgroup, the others are elsewhere");
    bool found = false;
    for (uint32_t q = 0; q < g_subs && !found; ++q)
      if (g_sub[g_sub_order[q]].runnable) found = next_in(g_sub_order[q], 31, id);
    if (found) break;
    if (release()) {
      void* here;
      emu_swap(&here, g_main);
      __builtin_unreachable();
    }
  }
  if (&g_lane[id] == me) return;
  enter(id);
  emu_swap(&me->sp, g_lane[id].sp);
}

// A subgroup comes to cluster barriers as a whole, or not at all.
static void check_barriers_ended() {
  Subgroup& s = g_sub[g_cur_sub];
  if (s.ended && (s.ended_arrivals != g_cur->arrivals || s.ended_waits != g_cur->waits))
    diverged(g_cur_id, "lanes of one subgroup have come to different numbers of cluster barriers");
  s.ended = true, s.ended_arrivals = g_cur->arrivals, s.ended_waits = g_cur->waits;
}

static void fiber_main() {
  g_l->entry(g_l->arguments);
  check_copies_ended();
  if (UNLIKELY(g_groups > 1)) check_barriers_ended();
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

// The instructions of the cluster barrier are `aligned`: all lanes of a subgroup execute the same one.
static void check_site(int site, uint32_t number, int& kept, uint32_t& of) {
  g_cur->site = site;
  if (of == number && kept != site)
    diverged(g_cur_id, "lanes of one subgroup come to the cluster barrier at different places of the text");
  of = number;
  kept = site;
}

API void emu_cluster_arrive(int site) {
  Subgroup& s = g_sub[g_cur_sub];
  g_cur->site = site;
  if (g_cur->phase) diverged(g_cur_id, "a lane arrives at the cluster barrier twice and does not wait between");
  if (g_cur->arrivals == 0xffff) fail(F_LIMIT, "the kernel passes more cluster barriers than the model counts", nullptr);
  ++g_cur->arrivals;
  check_site(site, g_cur->arrivals, s.arrive_site, s.arrive_number);
  g_cur->arrived = g_cur->phase = true;
  if (++g_cluster_arrived == g_threads * g_groups) complete_cluster();
}

API void emu_cluster_wait(int site) {
  Subgroup& s = g_sub[g_cur_sub];
  g_cur->site = site;
  if (!g_cur->phase) diverged(g_cur_id, "a lane waits for a cluster barrier at which it has not arrived");
  check_site(site, g_cur->arrivals, s.wait_site, s.wait_number);
  if (g_cur->arrived) {
    set_waiting(g_cur_id, AT_CLUSTER);
    yield_lane();
  }
  g_cur->phase = false;
  g_cur->waits = g_cur->arrivals;
}
