// Runtime of the CPU model: one fiber per lane, and a verdict on every memory access before it happens.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__linux__)
#include <ucontext.h>
#endif

#define EMU_RUNTIME 1
#include "emu.h"

#define API extern "C" __attribute__((visibility("default")))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#include "runtime/fibers.h"
#include "runtime/state.h"
#include "runtime/memory.h"
#include "runtime/faults.h"
#include "runtime/accesses.h"
#include "runtime/callbacks.h"
#include "runtime/copies.h"
#include "runtime/lanes.h"
#include "runtime/mailboxes.h"
#include "runtime/collectives.h"
#include "runtime/signals.h"
#include "runtime/launch.h"
