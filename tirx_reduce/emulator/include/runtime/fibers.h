// Switching from one lane's stack to another's.
#pragma once

#if defined(__APPLE__)
#define SYM(x) "_" x
#else
#define SYM(x) x
#endif
extern "C" void emu_swap(void** from, void* to);
#if defined(__x86_64__)
asm(".text\n.globl " SYM("emu_swap") "\n" SYM("emu_swap") ":\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
static const int kFrame = 6;
#elif defined(__aarch64__)
asm(".text\n.globl " SYM("emu_swap") "\n" SYM("emu_swap") ":\n"
    "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\n"
    "stp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\n"
    "ldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
    "add sp,sp,#160\nret\n");
#else
#error "the CPU model knows x86-64 and aarch64"
#endif

// Denormal floats as zero, or as the process had it: TVM's fast math flushes them on both back ends.
static uint64_t float_mode() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr();
#else
  uint64_t mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#endif
}
static void set_float_mode(uint64_t mode) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(uint32_t(mode));
#else
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}
#if defined(__x86_64__)
static const uint64_t kFlush = 0x8040;
#else
static const uint64_t kFlush = 1ull << 24;
#endif
