"""Packets of what starts aligned where the row does not: a weight, whose column h + p·V lies inside a packet (CUDA).

Two aligned packets are loaded in place of V elements, and moved by h elements in registers; h is the same for all
lanes of a row. An element at a time, neighbouring lanes would be V elements apart: V loads of V times the cache lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tirx_reduce.program import item_bytes

from .cluster import helper
from .packets import Row, Segment, Stream, copy_packet, move
from .tir import UNROLLED, Block, cast, imm, load

_WORD = 4
# Words are chosen by `__byte_perm`: of a choice by `?:` the compiler makes two moves, one of them predicated.
_SOURCE = """
__device__ __forceinline__ void tirx_reduce_straddle_{name}(void* packet, const void* two, int bytes) {{
  unsigned word[{two}];
#pragma unroll
  for (int i = 0; i < {two}; ++i) word[i] = ((const unsigned*)two)[i];
#pragma unroll
  for (int step = {one} / 2; step > 0; step /= 2) {{
    unsigned take = (bytes & (4 * step)) ? 0x7654 : 0x3210;
#pragma unroll
    for (int i = 0; i + step < {two}; ++i) word[i] = __byte_perm(word[i], word[i + step], take);
  }}
#pragma unroll
  for (int i = 0; i < {one}; ++i) ((unsigned*)packet)[i] = {moved};
}}
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one stream gives of a round, and where it goes."""

    stream: Stream
    local: Any
    at: Any
    offset: Any = None
    """Of an element, where the access is not affine."""


def load_round(
    block: Block, row: Row, part: Segment, number: Any, loads: Iterable[Wanted], later: Block | None = None
) -> None:
    """Load what a lane takes in one round, if it takes any: a packet of each stream, or an element at the ends.

    After, for a weight where rows start anywhere::

        if p < packets:
            two[0 : V] = w[p·V …]
            two[V : 2V] = w[(p + 1)·V …]        # the elements that there are, where the vector ends inside
        local[at : at+V] = two[h : h+V]         # whether there is a packet or not: nothing waits for a branch

    With `later`, the last line goes there.
    """
    moved = Block() if later is None else later
    with block.when(row.inside(part, number)) as inside:
        for x in loads:
            if part.ends or not straddles(row, x.stream):
                copy_packet(inside, row, x.stream, part, number, x.local, x.at, store=False, offset=x.offset)
                continue
            two = block.alloc("two", 2 * row.vector, x.stream.dtype)
            _load_two(inside, row, x.stream, part, number, two)
            _move(moved, row, x, two)
    if later is None:
        block.stmts.extend(moved.stmts)


def straddles(row: Row, stream: Stream) -> bool:
    """Whether each packet of the row lies across two aligned ones of this stream."""
    if not row.pairs or row.head is None or stream.wide(row) or stream.access.stride != 1:
        return False
    return stream.access.align % row.vector == 0 and row.vector * item_bytes(stream.dtype) % _WORD == 0


def packets_for_one(row: Row, streams: Iterable[Stream]) -> int:
    """Packets that are in registers for one that is taken, of the stream that needs most."""
    return 2 if any(straddles(row, s) for s in streams) else 1


def _load_two(block: Block, row: Row, stream: Stream, part: Segment, number: Any, two: Any) -> None:
    it, vector = row.index_dtype, row.vector
    first = tirx.FloorDiv(stream.start, imm(vector, it)) + cast(number, it)
    column = (number + imm(1)) * imm(vector)

    def place(packet: Any, v: Any) -> Any:
        return packet * imm(vector, it) + cast(v, it)

    move(block, row, stream, vector, lambda v: place(first, v), two, imm(0), store=False)
    second, whole, partial = first + imm(1, it), Block(), Block()
    move(whole, row, stream, vector, lambda v: place(second, v), two, imm(vector), store=False)
    # Rounds without a guard hold no row's last packet, and all others have one behind them.
    if not part.guarded:
        block.stmts.extend(whole.stmts)
        return
    with (
        partial.loop("v", vector - 1, UNROLLED) as (each, v),
        each.when(tirx.LT(column + v, row.columns)) as some,
    ):
        some.store(two, imm(vector) + v, load(stream.view, place(second, v)))
    block.either(tirx.LE(column + imm(vector), row.columns), whole, partial)


def _move(block: Block, row: Row, x: Wanted, two: Any) -> None:
    size = item_bytes(x.stream.dtype)
    one = row.vector * size // _WORD
    # What is no whole number of words: the upper part of one word, and the lower part of the next.
    moved = "word[i]" if size >= _WORD else "__funnelshift_r(word[i], word[i + 1], 8 * bytes)"
    name = f"{one}x{min(size, _WORD)}"
    helper(
        block,
        f"tirx_reduce_straddle_{name}",
        tirx.address_of(load(x.local, x.at)),
        tirx.address_of(load(two, 0)),
        row.before * imm(size),
        source=_SOURCE.format(name=name, one=one, two=2 * one, moved=moved),
    )
