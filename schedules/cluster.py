"""Hopper's launches (CUDA, sm_90 and later): dependent launches, and thread-block clusters.

A cluster is a barrier over several groups, and stores into one another's shared memory. TVM's own `cluster_sync` lets
the compiler move memory accesses across it, so the barrier here is ours. On the CPU model the helpers are those of its
header: the macro TIRX_REDUCE_CPU_MODEL is set there and the text below is skipped.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from .tir import Block, imm

_ARRIVE = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
#endif
"""
_WAIT = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#endif
"""
_STORE = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_cluster_store_{name}({type}* slot, {type} value, int rank) {{
  unsigned local = (unsigned)__cvta_generic_to_shared(slot), remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  asm volatile("st.shared::cluster.{suffix} [%0], %1;" :: "r"(remote), "{letter}"(value) : "memory");
}}
#endif
"""
_BEGIN = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_begin() {
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif
"""
_TYPES = {
    "float32": ("float", "f32", "f"),
    "int32": ("int", "b32", "r"),
    "uint32": ("unsigned int", "b32", "r"),
    "int64": ("int64_t", "b64", "l"),
    "uint64": ("uint64_t", "b64", "l"),
}


def _call(block: Block, name: str, *args: Any, source: str) -> None:
    block.add(tirx.Evaluate(cuda_func_call(name, *args, source_code=source)))


def begin(block: Block) -> None:
    """Let the next launch take its place on the device, and wait until the launch before has ended.

    Without programmatic dependent launch both do nothing; with it, the latency of a launch hides behind the one
    before. Nothing of the device's memory is touched before.
    """
    _call(block, "tirx_reduce_begin", source=_BEGIN)


def arrive(block: Block) -> None:
    """Say that this lane's group is here; what it wrote is visible to whoever waits."""
    _call(block, "tirx_reduce_cluster_arrive", source=_ARRIVE)


def wait(block: Block) -> None:
    """Wait until every group of the cluster has arrived."""
    _call(block, "tirx_reduce_cluster_wait", source=_WAIT)


def store(block: Block, slots: Any, index: Any, value: Any, rank: Any) -> None:
    """Write `value` to `slots[index]` in the shared memory of group `rank` of the cluster."""
    dtype = str(value.ty.dtype)
    kind, suffix, letter = _TYPES[dtype]
    source = _STORE.format(name=dtype, type=kind, suffix=suffix, letter=letter)
    address = tirx.address_of(tirx.BufferLoad(slots, [index if not isinstance(index, int) else imm(index)]))
    _call(block, f"tirx_reduce_cluster_store_{dtype}", address, value, rank, source=source)
