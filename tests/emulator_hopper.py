"""CUDA texts of Hopper as the emitter writes them: clusters of four groups a row, asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from tirx_reduce import emulator

ROWS, SPLITS, WIDTH = 3, 4, 64
COLUMNS = SPLITS * WIDTH

_HELPERS = """
#include <cstdint>
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void tirx_reduce_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void tirx_reduce_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ __forceinline__ void tirx_reduce_async_wait_but_2() {
  asm volatile("cp.async.wait_group 2;" ::: "memory");
}
#endif
__forceinline__ __device__ unsigned int tvm_builtin_cluster_ctaid_x() {
  unsigned int ctaid;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(ctaid) :);
  return ctaid;
}
"""

# The first exchange brings a value from each group, the second one from each subgroup.
CLUSTER = (
    _HELPERS.replace(
        "#endif",
        """__device__ __forceinline__ void tirx_reduce_mailbox_open(uint64_t* box, int bytes) {
  unsigned at = (unsigned)__cvta_generic_to_shared(box);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void tirx_reduce_mailbox_send_float32(float* slot, float value, uint64_t* box, int rank) {
  unsigned there = (unsigned)__cvta_generic_to_shared(slot), mail = (unsigned)__cvta_generic_to_shared(box);
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(there) : "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(mail) : "r"(rank));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
    :: "r"(there), "f"(value), "r"(mail) : "memory");
}
__device__ __forceinline__ void tirx_reduce_mailbox_wait(uint64_t* box) {
  unsigned at = (unsigned)__cvta_generic_to_shared(box), done;
  do {
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
      : "=r"(done) : "r"(at) : "memory");
  } while (!done);
}
#endif""",
    )
    + """
extern "C" __global__ void __launch_bounds__(64) rows_kernel(float* __restrict__ x_ptr,
    float* __restrict__ y_ptr) {
  __shared__ alignas(64) uint64_t box1[1];
  __shared__ alignas(64) uint64_t box2[1];
  if (TX == 0) {
    tirx_reduce_mailbox_open((&(box1[0])), 16);
    tirx_reduce_mailbox_open((&(box2[0])), 32);
  }
  tirx_reduce_cluster_arrive();  // begun
  tirx_reduce_begin();
  int part = (BX & 3);
  float x = x_ptr[((BX * 64) + TX)];
  float s = x;
  s = s + __shfl_xor_sync((unsigned int)4294967295, s, 16, 32);
  s = s + __shfl_xor_sync((unsigned int)4294967295, s, 8, 32);
  s = s + __shfl_xor_sync((unsigned int)4294967295, s, 4, 32);
  s = s + __shfl_xor_sync((unsigned int)4294967295, s, 2, 32);
  s = s + __shfl_xor_sync((unsigned int)4294967295, s, 1, 32);
  __shared__ alignas(64) float slots1[2];
  if ((TX % 32) == 0) {
    slots1[(TX >> 5)] = s;
  }
  __syncthreads();  // inner
  float total = slots1[0] + slots1[1];
  __shared__ alignas(64) float across1[4];
  tirx_reduce_cluster_wait();  // begun
  if (TX < 4) {
    tirx_reduce_mailbox_send_float32((&(across1[part])), total, (&(box1[0])), TX);
  }
  tirx_reduce_mailbox_wait((&(box1[0])));  // sum
  float sum = (across1[0] + across1[1]) + (across1[2] + across1[3]);
  float d = x - sum / 256.0f;
  float q = d * d;
  q = q + __shfl_xor_sync((unsigned int)4294967295, q, 16, 32);
  q = q + __shfl_xor_sync((unsigned int)4294967295, q, 8, 32);
  q = q + __shfl_xor_sync((unsigned int)4294967295, q, 4, 32);
  q = q + __shfl_xor_sync((unsigned int)4294967295, q, 2, 32);
  q = q + __shfl_xor_sync((unsigned int)4294967295, q, 1, 32);
  __shared__ alignas(64) float across2[8];
  if ((TX % 32) < 4) {
    tirx_reduce_mailbox_send_float32((&(across2[((part * 2) + (TX >> 5))])), q, (&(box2[0])), (TX % 32));
  }
  tirx_reduce_mailbox_wait((&(box2[0])));  // squares
  float all = ((across2[0] + across2[1]) + (across2[2] + across2[3]))
    + ((across2[4] + across2[5]) + (across2[6] + across2[7]));
  y_ptr[((BX * 64) + TX)] = d * rsqrtf(all / 256.0f);
}
"""
)

# Each lane brings eight elements in by two copies, and reads them from the other end of the group.
ASYNC = (
    _HELPERS
    + """
extern "C" __global__ void __launch_bounds__(64) turn_kernel(float* __restrict__ x_ptr,
    float* __restrict__ y_ptr) {
  __shared__ alignas(64) float held[512];
  int base = BX * 512;
  tirx_reduce_async_copy_16((&(held[(TX * 4)])), (&(x_ptr[(base + (TX * 4))])));
  tirx_reduce_async_copy_16((&(held[((TX * 4) + 256)])), (&(x_ptr[((base + (TX * 4)) + 256)])));
  tirx_reduce_async_commit();
  tirx_reduce_async_wait();
  __syncthreads();
  for (int i = 0; i < 8; ++i) {
    y_ptr[(base + (i * 64) + TX)] = held[(511 - ((i * 64) + TX))];
  }
}
"""
)

# Four groups of copies, a shelf each; a lane takes what it copied itself, each as soon as it is there.
QUEUE = (
    _HELPERS
    + """
extern "C" __global__ void __launch_bounds__(64) turn_kernel(float* __restrict__ x_ptr,
    float* __restrict__ y_ptr) {
  __shared__ alignas(64) float held[1024];
  int base = BX * 512;
  tirx_reduce_async_copy_16((&(held[(TX * 4)])), (&(x_ptr[(base + (TX * 4))])));
  tirx_reduce_async_commit();
  tirx_reduce_async_copy_16((&(held[((TX * 4) + 256)])), (&(x_ptr[((base + (TX * 4)) + 256)])));
  tirx_reduce_async_commit();
  tirx_reduce_async_commit();
  tirx_reduce_async_wait_but_2();
  *(float4*)(y_ptr + (base + (TX * 4))) = *(float4*)(held + (TX * 4));
  tirx_reduce_async_commit();
  tirx_reduce_async_wait_but_2();
  *(float4*)(y_ptr + ((base + (TX * 4)) + 256)) = *(float4*)(held + ((TX * 4) + 256));
}
"""
)


def rows(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Arguments of the cluster's kernel."""
    x = np.random.default_rng(seed).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return {"x_ptr": x, "y_ptr": np.full_like(x, -7)}


def turned(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Arguments of the kernel of copies."""
    x = np.random.default_rng(seed).normal(size=(2, 512)).astype(np.float32)
    return {"x_ptr": x, "y_ptr": np.full_like(x, -7)}


def cuda(text: str) -> str:
    """`text` with the positions of lane and group as TVM prints them."""
    return text.replace("TX", "((int)threadIdx.x)").replace("BX", "((int)blockIdx.x)")


def changed(text: str, *edits: tuple[str, str]) -> str:
    """`text` with each first part that is named in place of the second."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


ORDERS = ("forward", "reverse", "random")
RACE = (emulator.DataRace, emulator.Uninitialized)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One defect: what is changed, which fault must come, and what the line it names must hold."""

    name: str
    faults: tuple[type[emulator.EmulatorError], ...]
    edits: tuple[tuple[str, str], ...]
    line: str = ""
    buffer: str = ""


def check_plant(plant: Plant, text: str, kernel: str, run: Callable[[str, tuple[str, ...]], object]) -> None:
    """The fault comes in every order, and names the place."""
    bad = changed(text, *plant.edits)
    for order in ORDERS:
        with pytest.raises(plant.faults) as caught:
            run(bad, (order,))
        error = caught.value
        assert error.kernel == kernel
        assert error.order == order
        if plant.line:
            assert plant.line in bad.split("\n")[error.line - 1]
        if plant.buffer:
            assert error.buffer == plant.buffer
            assert error.offset is not None
