"""Rows on their way: asynchronous copies from global to shared memory (CUDA, sm_80 and later).

Every lane copies just the packets that it takes itself, so nobody waits for another lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call

from tirx_reduce.program import Load

from . import passes
from .memory import memory_dtype
from .packets import tirx_bytes
from .state import Kernel
from .tir import UNROLLED, VECTORIZED, Block, cast, imm, load

BYTES = 16
"""Of one copy."""

_COPY = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_async_copy_16(void* shared_destination, const void* global_source) {
  unsigned to = (unsigned)__cvta_generic_to_shared(shared_destination);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(global_source) : "memory");
}
#endif
"""
_COMMIT = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
#endif
"""
_WAIT = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
#endif
"""


@dataclass(slots=True, kw_only=True)
class Prefetch:
    """What of a row is copied ahead, and where to."""

    loads: tuple[Load, ...]
    arrays: dict[Load, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, k: Kernel, first: passes.Pass) -> Prefetch | None:
        """The dense matrices of the first walk, where a packet of each is one copy; None where there is none."""
        c = k.candidate
        whole = k.kind == "cuda" and k.geometry.shift is None and isinstance(k.geometry.rounds, int)
        if not whole or c.packing > 1 or c.reuse != "private":
            return None
        loads = tuple(
            l
            for l in passes.column_loads(k.program, first)
            if l.index.dense and tirx_bytes(memory_dtype(l.dtype, k.kind)) * c.vector == BYTES
        )
        return cls(loads=loads) if loads else None

    def open(self, k: Kernel) -> None:
        """Shared memory for one row."""
        extent = k.geometry.rounds * k.candidate.vector * k.candidate.threads
        for number, l in enumerate(self.loads):
            self.arrays[l] = k.block.alloc(f"next{number}", extent, memory_dtype(l.dtype, k.kind), "shared.dyn")

    def place(self, k: Kernel, turn: Any) -> Any:
        """Where the packet of round `turn` begins: neighbouring lanes have neighbouring packets."""
        return (turn * imm(k.candidate.threads) + k.lane) * imm(k.candidate.vector)


def issue(k: Kernel, block: Block, ahead: Prefetch, row: Any) -> None:
    """Start to copy `row`."""
    it, vector = k.index_dtype, imm(k.candidate.vector)
    base = row * cast(k.geometry.columns, it)
    for l, array in ahead.arrays.items():
        for segment in k.geometry.segments():
            with block.loop("r", segment.count, UNROLLED) as (body, r):
                turn = imm(segment.start) + r
                packet = k.geometry.packet(turn)
                with body.when(k.geometry.whole(packet) if segment.edge else None) as inside:
                    source = base + cast(packet * vector, it)
                    _call(
                        inside,
                        "tirx_reduce_async_copy_16",
                        tirx.address_of(load(array, ahead.place(k, turn))),
                        tirx.address_of(load(k.views[l.param], source)),
                        source=_COPY,
                    )
    _call(block, "tirx_reduce_async_commit", source=_COMMIT)


def receive(k: Kernel, ahead: Prefetch) -> None:
    """Wait for the copies, and take the row into registers: its place in shared memory is free afterwards."""
    _call(k.block, "tirx_reduce_async_wait", source=_WAIT)
    vector = k.candidate.vector
    for l, array in ahead.arrays.items():
        taken = k.block.alloc("row", k.geometry.rounds * vector, str(array.ty.dtype))
        for segment in k.geometry.segments():
            with k.block.loop("r", segment.count, UNROLLED) as (body, r):
                turn = imm(segment.start) + r
                with body.when(k.geometry.whole(k.geometry.packet(turn)) if segment.edge else None) as inside:
                    with inside.loop("v", vector, VECTORIZED) as (each, v):
                        each.store(taken, turn * imm(vector) + v, load(array, ahead.place(k, turn) + v))
        k.ahead[l] = taken


def _call(block: Block, name: str, *args: Any, source: str) -> None:
    block.add(tirx.Evaluate(cuda_func_call(name, *args, source_code=source)))
