// What the processor refuses while a lane runs becomes a fault of that lane, not the end of the process.
#pragma once

static const int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { N_SIGNALS = sizeof(kSignals) / sizeof(kSignals[0]) };
static struct sigaction g_old_actions[N_SIGNALS];

static void* stopped_at(void* context) {
#if defined(__linux__) && defined(__x86_64__)
  return reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] + 1);
#elif defined(__linux__) && defined(__aarch64__)
  return reinterpret_cast<void*>(static_cast<ucontext_t*>(context)->uc_mcontext.pc + 1);
#else
  (void)context;
  return nullptr;
#endif
}

static void on_signal(int number, siginfo_t*, void* context) {
  if (!g_cur) {  // not ours: as it would have been without us
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  describe(number == SIGSEGV || number == SIGBUS ? F_OUT_OF_BOUNDS : F_UNDEFINED,
           number == SIGFPE ? "the processor refuses an integer division" : "the processor refuses the access or the step",
           stopped_at(context));
  leave();
}

static void catch_signals() {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  for (int i = 0; i < N_SIGNALS; ++i) sigaction(kSignals[i], &action, &g_old_actions[i]);
}

static void release_signals() {
  for (int i = 0; i < N_SIGNALS; ++i) sigaction(kSignals[i], &g_old_actions[i], nullptr);
}
