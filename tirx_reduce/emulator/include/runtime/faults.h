// How a fault leaves the lane that made it: it is written down, and the launch ends.
#pragma once

static int g_site_line;  // where a call of the runtime knows its line itself

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
  const emu_index& at = g_group[g_cur_id / (g_subs_each * 32)].at;
  f.block[0] = int(at.x), f.block[1] = int(at.y), f.block[2] = int(at.z);
  f.line = g_site_line;
  g_site_line = 0;
  f.other_lane = f.other_rank = -1;
  f.region = -1;
  f.offset = -1;
  f.space = -1;
  copy_text(f.text, text);
}

[[noreturn]] static void fail(int kind, const char* text, void* pc, int space = -1, int region = -1,
                              int64_t offset = -1, int write = 0, int bytes = 0, int other = -1) {
  describe(kind, text, pc);
  Fault& f = g_l->fault;
  f.space = space, f.region = region, f.offset = offset, f.write = write, f.bytes = bytes;
  if (other >= 0) {
    int each = int(g_subs_each) * 32;
    f.other_lane = other % each;
    if (uint32_t(other / each) != g_cur_id / uint32_t(each)) f.other_rank = other / each;
  }
  leave();
}
