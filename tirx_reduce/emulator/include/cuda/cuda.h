// All is in emu_cuda.h.
