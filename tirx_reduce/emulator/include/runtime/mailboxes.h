// Asynchronous stores into the memory of a group of the cluster, which a mailbox in that memory counts.
//
// Only a wait on the mailbox orders what was sent. The cluster barrier orders the opening of mailboxes, and nothing else:
// its arrival is relaxed.
#pragma once

// What a mailbox can expect; a limit of the hardware's counter.
enum { MAX_EXPECTED = (1 << 20) - 1, MAILBOX_BYTES = 8 };

// The place of a mailbox in the memory of every group: an array and an offset into it.
static uint32_t mailbox_place(void* box, int64_t& offset) {
  if (uint64_t(box) % MAILBOX_BYTES) misaligned(uint64_t(box), false, MAILBOX_BYTES, nullptr);
  uint64_t off = uint64_t(box) - g_shared_base - g_rank * g_shared_step;
  uint32_t array = shared_array(off, MAILBOX_BYTES, false, nullptr);
  offset = int64_t(off - g_shared_off[array]);
  return array;
}

static Cell* cells_at(uint32_t rank, uint32_t array, int64_t offset) {
  return g_shared_cells + uint64_t(rank) * g_shared_cells_each + g_shared_cell[array] +
         uint64_t(offset) / g_l->shareds[array].granule;
}

// The mailbox that is open at a place, or null.
static Mailbox* mailbox_at(uint32_t rank, uint32_t array, int64_t offset) {
  const Cell& c = *cells_at(rank, array, offset);
  if (c.w_tick < g_block_tick || (c.w_lane & W_SENT) || !(c.w_lane & W_MAILBOX)) return nullptr;
  Mailbox& m = g_mailboxes[c.w_lane & (W_MAILBOX - 1)];
  return m.offset == offset ? &m : nullptr;
}

// Whether the current lane knows that a mailbox is open.
static bool knows_open(const Mailbox& m) {
  return m.opener == g_cur_id || m.open_tick < horizon(m.opener >> 5, S_SHARED) || m.open_epoch < g_cur->waits;
}

API void emu_mailbox_open(int site, void* box, int bytes) {
  g_site_line = site & 0xffff;
  int64_t offset;
  uint32_t array = mailbox_place(box, offset), granule = g_l->shareds[array].granule;
  if (bytes < 0 || bytes > MAX_EXPECTED)
    fail(F_LIMIT, "a mailbox is opened for less than none or more than 1048575 bytes", nullptr, S_SHARED, int(array), offset);
  Cell* cells = cells_at(g_rank, array, offset);
  uint32_t n = granule < MAILBOX_BYTES ? MAILBOX_BYTES / granule : 1;
  for (uint32_t i = 0; i < n; ++i)
    if (cells[i].w_tick >= g_block_tick && !(cells[i].w_lane & W_SENT) && (cells[i].w_lane & W_MAILBOX))
      fail(F_TWICE, "a mailbox is opened a second time", nullptr, S_SHARED, int(array), offset, 0, 0,
           int(g_mailboxes[cells[i].w_lane & (W_MAILBOX - 1)].opener));
  if (g_n_mailboxes == MAX_MAILBOXES) fail(F_LIMIT, "the cluster opens more mailboxes than the model counts", nullptr);
  check_copies(g_rank, g_shared_off[array] + uint64_t(offset), true, MAILBOX_BYTES, nullptr, array);
  for (uint32_t i = 0; i < n; ++i) {
    judge<true>(cells[i], g_block_tick, nullptr, S_SHARED, int(array), offset, MAILBOX_BYTES);
    cells[i].w_lane = uint16_t(W_MAILBOX | g_n_mailboxes);
  }
  Mailbox& m = g_mailboxes[g_n_mailboxes++];
  m = Mailbox{};
  m.rank = g_rank, m.array = array, m.offset = offset;
  m.expected = bytes;
  m.opener = g_cur_id, m.open_tick = g_tick, m.open_epoch = g_cur->arrivals;
  m.site = site;
  g_site_line = 0;
}

static void deliver(Send& s) {
  memcpy(reinterpret_cast<void*>(s.address), s.data, s.bytes);
  s.held = false;
}

static Send& new_send() {
  if (g_n_sends == g_max_sends) {
    g_max_sends = g_max_sends ? 2 * g_max_sends : 1024;
    g_sends = static_cast<Send*>(realloc(g_sends, g_max_sends * sizeof(Send)));
  }
  return g_sends[g_n_sends++];
}

// A send takes place at any time before the wait on its mailbox: only what the sender itself knows to be over may have
// touched the slot before, and of another group it knows nothing.
static void judge_send(Cell& c, bool own, uint32_t array, int64_t offset, int bytes, uint32_t mailbox) {
  if (c.w_tick >= g_block_tick && !(own && (c.w_lane == g_cur_id || written_before(c, S_SHARED))))
    unordered(c, true, nullptr, S_SHARED, int(array), offset, bytes);
  if (c.r_tick >= g_block_tick && !(own && (c.r_lane == g_cur_id || read_before(c, S_SHARED))))
    fail(F_RACE, "another lane read it, and no barrier stands between", nullptr, S_SHARED, int(array), offset, 1, bytes,
         (c.r_lane & (R_GROUP | R_SUBGROUP)) ? -1 : c.r_lane);
  c.w_tick = g_tick;
  c.w_lane = uint16_t(W_SENT | mailbox);
}

API void emu_mailbox_send(int site, void* slot, const void* value, int bytes, void* box, int rank) {
  g_site_line = site & 0xffff;
  if (rank < 0 || uint32_t(rank) >= g_groups)
    fail(F_OUT_OF_BOUNDS, "a send names a group that the cluster does not have", nullptr, S_SHARED, -1, -1, 1, bytes);
  if (uint64_t(slot) % uint64_t(bytes)) misaligned(uint64_t(slot), true, bytes, nullptr);
  uint64_t off = uint64_t(slot) - g_shared_base - g_rank * g_shared_step;
  uint32_t id = shared_array(off, bytes, true, nullptr), granule = g_l->shareds[id].granule;
  int64_t at = int64_t(off - g_shared_off[id]), offset;
  uint32_t array = mailbox_place(box, offset);
  bool own = uint32_t(rank) == g_rank;
  Mailbox* m = mailbox_at(uint32_t(rank), array, offset);
  if (!m || !knows_open(*m))
    fail(F_RACE,
         own ? "a send to a mailbox that may not be open yet; no barrier stands between"
             : "a send to a group that may not have begun and opened its mailbox; no cluster barrier stands between",
         nullptr, S_SHARED, int(array), offset, 1, bytes, m ? int(m->opener) : -1);
  if (m->received + bytes > m->expected) {
    char text[sizeof(Fault::text)];
    snprintf(text, sizeof text, "a mailbox gets more than it expects: %lld of %lld bytes", (long long)(m->received + bytes),
             (long long)m->expected);
    fail(F_DIVERGENCE, text, nullptr, S_SHARED, int(array), offset, 1, bytes);
  }
  count<true>(S_SHARED, bytes);
  check_copies(uint64_t(rank), off, true, bytes, nullptr, id);
  uint32_t number = uint32_t(m - g_mailboxes);
  Cell* cells = cells_at(uint32_t(rank), id, 0);
  for (uint64_t i = uint64_t(at) / granule; i <= uint64_t(at + bytes - 1) / granule; ++i) {
    judge_send(cells[i], own, id, int64_t(i * granule), bytes, number);
  }
  Send& s = new_send();
  s.mailbox = number, s.lane = g_cur_id, s.site = site, s.bytes = uint8_t(bytes);
  s.cell = &cells[uint64_t(at) / granule];
  s.address = g_shared_base + uint64_t(rank) * g_shared_step + off;
  memcpy(s.data, value, size_t(bytes));
  s.held = true;
  // Forward it is there at once; in other orders not before somebody has waited.
  if (g_l->order == 0) deliver(s);
  m->received += bytes;
  if (m->received == m->expected)
    for (uint32_t i = 0; i < g_threads; ++i) {
      Lane& l = g_lane[lane_in(m->rank, i)];
      if (l.state == AT_MAILBOX && l.mailbox == number) set_runnable(lane_in(m->rank, i));
    }
  g_site_line = 0;
}

API void emu_mailbox_wait(int site, void* box) {
  g_site_line = site & 0xffff;
  int64_t offset;
  uint32_t array = mailbox_place(box, offset);
  Mailbox* m = mailbox_at(g_rank, array, offset);
  if (!m || !knows_open(*m))
    fail(F_RACE, "a wait on a mailbox that may not be open yet; no barrier stands between", nullptr, S_SHARED, int(array),
         offset, 0, 0, m ? int(m->opener) : -1);
  g_site_line = 0;
  if (m->received < m->expected) {
    g_cur->site = site;
    g_cur->mailbox = uint16_t(m - g_mailboxes);
    set_waiting(g_cur_id, AT_MAILBOX);
    yield_lane();
  }
  uint32_t sub = g_cur_sub - m->rank * g_subs_each;
  if (!m->first_wait) {
    m->first_wait = g_tick;
    ++g_l->counters.mailbox_waits;
    for (uint32_t i = 0; i < g_n_sends; ++i)
      if (g_sends[i].held && g_sends[i].mailbox == uint32_t(m - g_mailboxes)) deliver(g_sends[i]);
  }
  if (!m->sub_wait[sub]) m->sub_wait[sub] = g_tick;
  m->waited[sub] |= 1u << (g_cur_id & 31);
}

// A group that ends while nobody in it has waited for what was sent to it: it may come too late.
static bool outlived_by_sends() {
  for (uint32_t i = 0; i < g_n_sends; ++i) {
    const Mailbox& m = g_mailboxes[g_sends[i].mailbox];
    if (m.first_wait) continue;
    enter(lane_in(m.rank, 0));
    g_site_line = g_sends[i].site & 0xffff;
    describe(F_RACE, "a group may end before this store of another group reaches it; nobody waits on its mailbox", nullptr);
    Fault& f = g_l->fault;
    f.space = S_SHARED, f.region = int(m.array), f.offset = m.offset;
    return g_failed = true;
  }
  return false;
}
