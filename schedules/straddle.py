"""Packets of what starts aligned where the row does not: a weight, whose column h + p·V lies inside a packet (CUDA).

Two aligned packets are loaded in place of V elements, and moved by h elements in registers; h is the same for all
lanes of a row. An element at a time, neighbouring lanes would be V elements apart: V loads of V times the cache lines.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tirx_reduce.program import item_bytes

from .cluster import helper
from .packets import Row, Segment, Stream, copy_packet, move
from .tir import UNROLLED, Block, cast, imm, load

_WORD = 4
_SOURCE = """
__device__ __forceinline__ void tirx_reduce_straddle_{name}(void* packet, const void* two, int bytes) {{
  unsigned word[{two}];
#pragma unroll
  for (int i = 0; i < {two}; ++i) word[i] = ((const unsigned*)two)[i];
#pragma unroll
  for (int step = {one} / 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i + step < {two}; ++i) word[i] = (bytes & (4 * step)) ? word[i + step] : word[i];
#pragma unroll
  for (int i = 0; i < {one}; ++i) ((unsigned*)packet)[i] = {moved};
}}
"""


def load_packet(
    block: Block,
    row: Row,
    stream: Stream,
    part: Segment,
    number: Any,
    local: Any,
    at: Any,
    offset: Any = None,
) -> None:
    """Load one packet, or one element at the ends, into `local[at …]`.

    After, for a weight where rows start anywhere::

        two[0 : V] = w[p·V …]
        two[V : 2V] = w[(p + 1)·V …]        # the elements that there are, where the vector ends inside
        local[at : at+V] = two[h : h+V]
    """
    if part.ends or not straddles(row, stream):
        copy_packet(block, row, stream, part, number, local, at, store=False, offset=offset)
        return
    it, vector = row.index_dtype, row.vector
    start = tirx.FloorDiv(stream.start, imm(vector, it)) + cast(number, it)
    two = block.alloc("two", 2 * vector, stream.dtype)

    def place(packet: Any, v: Any) -> Any:
        return packet * imm(vector, it) + cast(v, it)

    move(block, row, stream, vector, lambda v: place(start, v), two, imm(0), store=False)
    following, behind, last = start + imm(1, it), Block(), Block()
    move(behind, row, stream, vector, lambda v: place(following, v), two, imm(vector), store=False)
    column = (number + imm(1)) * imm(vector)
    with (
        last.loop("v", vector - 1, UNROLLED) as (each, v),
        each.when(tirx.LT(column + v, row.columns)) as some,
    ):
        some.store(two, imm(vector) + v, load(stream.view, place(following, v)))
    # Rounds without a guard hold no row's last packet, and all others have one behind them.
    if part.guarded:
        block.either(tirx.LE(column + imm(vector), row.columns), behind, last)
    else:
        block.stmts.extend(behind.stmts)
    size = item_bytes(stream.dtype)
    one = vector * size // _WORD
    # What is no whole number of words: the upper part of one word, and the lower part of the next.
    moved = "word[i]" if size >= _WORD else "__funnelshift_r(word[i], word[i + 1], 8 * bytes)"
    name = f"{one}x{min(size, _WORD)}"
    helper(
        block,
        f"tirx_reduce_straddle_{name}",
        tirx.address_of(load(local, at)),
        tirx.address_of(load(two, 0)),
        row.before * imm(size),
        source=_SOURCE.format(name=name, one=one, two=2 * one, moved=moved),
    )


def straddles(row: Row, stream: Stream) -> bool:
    """Whether each packet of the row lies across two aligned ones of this stream."""
    if row.kind != "cuda" or row.head is None or stream.wide(row) or stream.access.stride != 1:
        return False
    return stream.access.align % row.vector == 0 and row.vector * item_bytes(stream.dtype) % _WORD == 0
