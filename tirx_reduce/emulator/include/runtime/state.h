// What the runtime knows: lanes, subgroups, groups, memory, and the launch that is under way.
#pragma once

enum { MAX_CLUSTER = 16, MAX_LANES = 1024 * MAX_CLUSTER, MAX_SUBGROUPS = MAX_LANES / 32, MAX_REGIONS = 4096, MAX_ARRAYS = 256 };
static const uint64_t kPage = 4096;
static const uint64_t kGap = 1 << 20;  // between buffers, so that a stray row falls into none
static const uint64_t kDevice = 8ull << 30, kShared = 16ull << 20, kLocal = 1ull << 30;
static const uint64_t kStack = 64 << 10;
static const uint64_t kFrameStep = 64;

enum Kind {
  F_NONE, F_OUT_OF_BOUNDS, F_RACE, F_DIVERGENCE, F_MISALIGNED, F_UNINITIALIZED, F_TWICE, F_LIMIT, F_UNDEFINED
};
enum Space { S_DEVICE, S_SHARED, S_LOCAL, S_CONSTANT, N_SPACES };

struct Cell {
  uint32_t w_tick, r_tick;
  uint16_t w_lane, r_lane;
};
// A reader is a lane, or several of one subgroup, or of one group (its rank in the cluster), or of several groups.
enum { R_SUBGROUP = 0x4000, R_GROUP = 0x8000, R_ALL = 0xffff };
// A writer is a lane, or a send that a mailbox counts, or the opening of a mailbox that lies there.
enum { W_MAILBOX = 0x4000, W_SENT = 0x8000, MAX_MAILBOXES = 0x1000 };

enum Flags { REGION_TRACKED = 1, REGION_ONCE = 2, REGION_CONSTANT = 4, REGION_WORKSPACE = 8, REGION_INPUT = 16,
             REGION_WRITTEN = 32, REGION_EARLIER = 64 };  // the last: by a launch before this one

struct Region {
  uint64_t start, bytes;
  uint32_t granule, flags;
  Cell* cells;
  uint64_t cell_bytes;
};

struct Fault {
  int32_t kind, space, line, site;
  int32_t lane[3], block[3];
  int32_t other_lane, other_rank;  // partner of a race, its group in the cluster where it is another; -1 where none is
  int32_t region;                   // region of device memory, or number of the array
  int32_t write, bytes;
  int64_t offset;
  void* pc;
  char text[160];
};

struct Counters {
  uint64_t loads[N_SPACES], stores[N_SPACES], load_bytes[N_SPACES], store_bytes[N_SPACES];
  uint64_t barriers, collectives, subgroup_barriers, cluster_barriers, async_copies, async_bytes, mailbox_waits;
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
  uint32_t cluster;  // groups that run together, neighbours along x
  uint32_t dependent;  // starts while the launch before may still run
  uint32_t flush;  // denormal floats count as zero, as under fast math
  uint64_t seed;
  uint64_t max_accesses;
  uint64_t module_lo, module_hi;  // constants of the kernel's own library
  int64_t watch;  // an address of device memory whose last store is kept in `watched`, or -1
  Fault fault, watched;
  Counters counters;
};

enum State : uint8_t { RUNNABLE, AT_BARRIER, AT_COLLECTIVE, AT_ACTIVE, AT_CLUSTER, AT_MAILBOX, FINISHED };

struct Lane {
  void* sp;
  int site;
  State state;
  uint8_t clamps;
  uint8_t bytes;
  uint8_t op;
  bool arrived;  // has arrived at the cluster barrier, which is not complete
  bool begun;    // the launch before has ended, as far as this lane knows
  bool follows;  // the launch before goes on with it, and began when all before that one had ended
  bool phase;    // has arrived and not yet waited
  uint16_t arrivals, waits;  // of the cluster barrier; what was opened before arrival n is known to be after wait n
  uint16_t mailbox;  // that it waits on
  uint32_t mask, argument, flags;
  int width;
  uint32_t copies;  // the last asynchronous copy that is under way: place + 1, or 0
  uint32_t commits; // of them so far
  emu_combine combine;
  emu_index thread;
  alignas(16) char in[16];
  alignas(16) char out[16];
};

// An asynchronous copy that is under way, at its place in threadgroup memory.
struct Copy {
  uint32_t owner;  // lane + 1, 0 where there is none
  uint32_t next;   // of the same lane: place + 1, or 0
  uint32_t commits;  // of the lane before it
  int site;
  uint64_t source;
  char data[16];
};

// A mailbox in the threadgroup memory of one group: its one phase is over when all bytes that it expects have come.
struct Mailbox {
  uint32_t rank, array;
  int64_t offset;  // in the array
  int64_t expected, received;
  uint32_t opener, open_tick;
  uint16_t open_epoch;  // arrivals of the opener before
  int site;
  uint32_t first_wait;       // tick of the first wait in the group, 0 before
  uint32_t sub_wait[32];     // and in each subgroup
  uint32_t waited[32];       // lanes that have waited, by subgroup
};

// A send to a mailbox; `held` while the value is not yet in the slot.
struct Send {
  uint32_t mailbox, lane;
  int site;
  bool held;
  uint8_t bytes;
  const Cell* cell;
  uint64_t address;
  char data[8];
};

struct Subgroup {
  uint32_t first, lanes, exist, rank;
  uint32_t runnable;  // in the order of `perm`
  uint8_t perm[32], place[32];
  // The collective that is under way: who has come. `mixed` when two are, and the lanes' states are asked.
  int site;
  uint32_t mask, arrived;
  bool mixed;
  int arrive_site, wait_site;  // where its lanes came to the cluster barrier last
  uint32_t arrive_number, wait_number;
  bool ended;  // one of its lanes has, after so many cluster barriers
  uint16_t ended_arrivals, ended_waits;
  uint32_t synced_shared, synced_device;  // what this subgroup did before that tick is ordered within it
};

// One group of a cluster; outside clusters there is only rank 0.
struct Group {
  emu_index at;
  uint32_t synced_shared, synced_device;  // what the group did before that tick is ordered within it
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
static Group g_group[MAX_CLUSTER];
// Threads and subgroups of one group; groups of one cluster; all subgroups.
static uint32_t g_threads, g_subs_each, g_groups, g_subs;
static void* g_main;
static Launch* g_l;
static Lane* g_cur;
static uint32_t g_cur_id, g_cur_sub;
static uint64_t g_stack_lo;
static uint32_t g_rank;  // of the current lane's group
static uint32_t g_tick = 1, g_launch_tick, g_block_tick;
static uint32_t g_cluster_arrived;
static uint64_t g_left;
static uint64_t g_rng;
static uint16_t g_sub_order[MAX_SUBGROUPS];
static bool g_failed;
enum Offer { OFFER_NONE, OFFER_LATE, OFFER_EARLY };
static Offer g_offered, g_offered_before;  // how this launch lets the next one begin, and how the one before did

// Thread arrays: one frame per lane, the same offsets in each.
static uint64_t g_local_base, g_frame_bytes, g_local_lo;
static uint32_t g_local_off[MAX_ARRAYS];
static uint8_t* g_frame_map;   // per 16 bytes of a frame: array + 1, or 0
static uint64_t g_frame_map_size;
// Threadgroup arrays.
static uint64_t g_shared_base, g_shared_bytes, g_shared_step;  // a copy for each group of a cluster
static uint32_t g_shared_off[MAX_ARRAYS];
static uint64_t g_shared_len[MAX_ARRAYS];
static uint32_t g_shared_cell[MAX_ARRAYS];
static uint8_t* g_shared_map;
static Cell* g_shared_cells;
static uint64_t g_shared_cells_each, g_shared_cells_n;

// Copies under way, by 16 bytes of all groups' threadgroup memory; mapped by the first copy of a launch.
static Copy* g_copies;
static uint64_t g_copies_bytes;
static uint32_t g_flying;

// Mailboxes that the cluster has opened, and what was sent to them.
static Mailbox g_mailboxes[MAX_MAILBOXES];
static uint32_t g_n_mailboxes;
static Send* g_sends;
static uint32_t g_n_sends, g_max_sends;

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
