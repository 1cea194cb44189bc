"""Rows on their way: asynchronous copies from global to shared memory (CUDA, sm_80 and later).

Every lane copies just the packets that it takes itself, so nobody waits for another lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tirx_reduce.candidates import SHELVES
from tirx_reduce.program import Expr, Load, item_bytes

from .cluster import helper
from .memory import memory_dtype
from .packets import Segment, copy_packet
from .row_values import stream
from .state import Kernel, first_packet
from .tir import UNROLLED, VECTORIZED, Block, both, cast, imm, load

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
_WAIT_OLDEST = """
#ifndef TIRX_REDUCE_CPU_MODEL
__device__ __forceinline__ void tirx_reduce_async_wait_but_2() {
  asm volatile("cp.async.wait_group 2;" ::: "memory");
}
#endif
"""


@dataclass(slots=True, kw_only=True)
class Prefetch:
    """What of a row is copied ahead, and where to."""

    loads: tuple[Load, ...]
    extent: int
    """Elements of one row of one of them, as the lanes of this group hold it."""
    array: Any = None
    """One array for all: a kernel has one piece of dynamic shared memory."""

    @classmethod
    def of(cls, k: Kernel, wanted: Iterable[Expr]) -> Prefetch | None:
        """The dense matrices among `wanted`, where a packet of each is one copy; None where there is none."""
        c, row = k.candidate, k.geometry
        whole = k.kind == "cuda" and isinstance(row.rounds, int) and (row.head is None or c.reuse == "shared")
        if not whole or c.packing > 1:
            return None
        loads = tuple(
            ref
            for ref in wanted
            if isinstance(ref, Load)
            and ref.index.dense
            and item_bytes(memory_dtype(ref.dtype, k.kind)) * c.vector == BYTES
        )
        loads = tuple(ref for ref in loads if ref.dtype == loads[0].dtype)
        return cls(loads=loads, extent=row.rounds * c.vector * c.threads) if loads else None

    def open(self, k: Kernel, rows: int = 1) -> None:
        """Shared memory for so many rows."""
        dtype = memory_dtype(self.loads[0].dtype, k.kind)
        self.array = k.block.alloc("next", rows * self.extent * len(self.loads), dtype, "shared.dyn")

    def place(self, k: Kernel, number: int, turn: Any) -> Any:
        """Where the packet of round `turn` begins: neighbouring lanes have neighbouring packets."""
        packet = (turn * imm(k.candidate.threads) + k.lane) * imm(k.candidate.vector)
        return packet + imm(number * self.extent) if number else packet


def issue(k: Kernel, block: Block, ahead: Prefetch, row: Any, shelf: Any | None = None) -> None:
    """Start to copy `row`, to where `shelf` begins."""
    it, vector = k.index_dtype, imm(k.candidate.vector)
    base = _begin(k, row)
    for number, ref in enumerate(ahead.loads):
        for segment in k.geometry.segments():
            with block.loop("r", segment.count, UNROLLED) as (body, r):
                turn = imm(segment.start) + r
                packet = k.geometry.number(turn)
                with body.when(k.geometry.inside(segment, packet)) as inside:
                    source = base + cast(packet * vector, it)
                    place = ahead.place(k, number, turn)
                    helper(
                        inside,
                        "tirx_reduce_async_copy_16",
                        tirx.address_of(load(ahead.array, place if shelf is None else shelf + place)),
                        tirx.address_of(load(k.views[ref.param], source)),
                        source=_COPY,
                    )


def _begin(k: Kernel, row: Any) -> Any:
    """Offset of the first packet of `row` in a dense matrix."""
    it, geometry = k.index_dtype, k.geometry
    base = row * cast(geometry.columns, it)
    return base if geometry.head is None else first_packet(k, base) * imm(geometry.vector, it)


def load_left(k: Kernel, block: Block, ahead: Prefetch, row: Any, there: Any = None) -> Any:
    """Load what stands at the ends of `row`, if it is `there`: into registers, for copies take whole packets.

    None where nothing stands there. The row starts like that of `k.geometry`.
    """
    ends = _ends(k)
    if not ends:
        return None
    (ref,) = ahead.loads
    source = stream(k, ref.param, ref.index, ref.dtype)
    left = block.alloc("left", len(ends), source.dtype)
    geometry = replace(k.geometry, base=row * cast(k.geometry.columns, k.index_dtype))
    for part, turn, number in ends:
        with block.when(both(there, geometry.inside(part, number))) as inside:
            copy_packet(inside, geometry, source, part, number, left, imm(turn), store=False)
    return left


def take_left(k: Kernel, block: Block, left: Any, coming: Any, there: Any) -> None:
    """The ends of the row that was `coming` are those of the row to compute."""
    for part, turn, number in _ends(k):
        with block.when(both(there, k.geometry.inside(part, number))) as inside:
            inside.store(left, turn, load(coming, turn))


def _ends(k: Kernel) -> list[tuple[Segment, int, Any]]:
    """The elements at the ends that this lane may take: part, round and number."""
    row = k.geometry
    return [(part, turn, row.number(imm(turn))) for part in row.ends() for turn in range(part.count)]


def commit(block: Block) -> None:
    """What was issued since the last time is what one wait waits for."""
    helper(block, "tirx_reduce_async_commit", source=_COMMIT)


def wait_oldest(block: Block) -> None:
    """Wait for the first of what was committed `SHELVES` times."""
    helper(block, f"tirx_reduce_async_wait_but_{SHELVES - 1}", source=_WAIT_OLDEST)


def receive(k: Kernel, ahead: Prefetch) -> None:
    """Wait for the copies, and take the row into registers: its place in shared memory is free afterwards."""
    helper(k.block, "tirx_reduce_async_wait", source=_WAIT)
    vector = k.candidate.vector
    for number, ref in enumerate(ahead.loads):
        taken = k.block.alloc("row", k.geometry.rounds * vector, str(ahead.array.ty.dtype))
        for segment in k.geometry.segments():
            with k.block.loop("r", segment.count, UNROLLED) as (body, r):
                turn = imm(segment.start) + r
                some = k.geometry.inside(segment, k.geometry.number(turn))
                with body.when(some) as inside, inside.loop("v", vector, VECTORIZED) as (each, v):
                    place = ahead.place(k, number, turn) + v
                    each.store(taken, turn * imm(vector) + v, load(ahead.array, place))
        k.ahead[ref] = taken
