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
from .tir import UNROLLED, Block, both, cast, imm, load

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


# From so many packets on of elements below a word, one choice among all shifts takes less than one among words for
# each packet.
AT_ONCE = 4
# The same for packets of several streams, which lie the same way in all lanes of a group.
_ALL = """
__device__ __forceinline__ void tirx_reduce_straddle_{name}({parameters}, int bytes) {{
  unsigned* packet[] = {{{packets}}};
  const unsigned* two[] = {{{twos}}};
  switch (bytes) {{
{cases}  }}
}}
"""
_CASE = """    case {bytes}:
#pragma unroll
      for (int p = 0; p < {count}; ++p)
#pragma unroll
        for (int i = 0; i < {one}; ++i) packet[p][i] = {moved};
      break;
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one stream gives of a round, and where it goes."""

    stream: Stream
    local: Any
    at: Any
    offset: Any = None
    """Of an element, where the access is not affine."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Two packets in registers, of which one is wanted."""

    wanted: Wanted
    two: Any


def load_round(
    block: Block,
    row: Row,
    part: Segment,
    number: Any,
    loads: Iterable[Wanted],
    later: list[Loaded] | None = None,
) -> None:
    """Load what a lane takes in one round, if it takes any: a packet of each stream, or an element at the ends.

    After, for a weight where rows start anywhere::

        if p < packets:
            two[0 : V] = w[p·V …]
            two[V : 2V] = w[(p + 1)·V …]        # the elements that there are, where the vector ends inside
        local[at : at+V] = two[h : h+V]         # whether there is a packet or not: nothing waits for a branch

    With `later`, what the last line takes goes there, for `move_all`.
    """
    loaded: list[Loaded] = [] if later is None else later
    loads = list(loads)
    there = row.valid if any(x.stream.of_row for x in loads) else None
    with block.when(both(there, row.inside(part, number))) as inside:
        for x in loads:
            if part.ends or not straddles(row, x.stream):
                copy_packet(inside, row, x.stream, part, number, x.local, x.at, store=False, offset=x.offset)
                continue
            two = block.alloc("two", 2 * row.vector, x.stream.dtype)
            _load_two(inside, row, x.stream, part, number, two)
            loaded.append(Loaded(x, two))
    if later is None:
        for each in loaded:
            _move(block, row, each)


def move_all(block: Block, row: Row, loaded: list[Loaded]) -> None:
    """Take the packets that are wanted from those that were loaded."""
    by_size: dict[int, list[Loaded]] = {}
    for x in loaded:
        by_size.setdefault(item_bytes(x.wanted.stream.dtype), []).append(x)
    for size, alike in by_size.items():
        if size < _WORD and len(alike) >= AT_ONCE:
            _move_at_once(block, row, alike, size)
        else:
            for x in alike:
                _move(block, row, x)


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
    if row.most_before >= vector:
        number = number + tirx.FloorDiv(row.before, imm(vector))
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


def _move(block: Block, row: Row, x: Loaded) -> None:
    size = item_bytes(x.wanted.stream.dtype)
    one = row.vector * size // _WORD
    # What is no whole number of words: the upper part of one word, and the lower part of the next.
    moved = "word[i]" if size >= _WORD else "__funnelshift_r(word[i], word[i + 1], 8 * bytes)"
    name = f"{one}x{min(size, _WORD)}"
    helper(
        block,
        f"tirx_reduce_straddle_{name}",
        *_addresses(x),
        _shift(row) * imm(size),
        source=_SOURCE.format(name=name, one=one, two=2 * one, moved=moved),
    )


def _move_at_once(block: Block, row: Row, loaded: list[Loaded], size: int) -> None:
    one, count = row.vector * size // _WORD, len(loaded)
    name = f"{one}x{min(size, _WORD)}_of_{count}"
    cases = ""
    for shift in range(0, row.vector * size, size):
        word, rest = divmod(shift, _WORD)
        low, high = f"two[p][{word} + i]", f"two[p][{word + 1} + i]"
        moved = f"__funnelshift_r({low}, {high}, {8 * rest})" if rest else low
        cases += _CASE.format(bytes=shift, count=count, one=one, moved=moved)
    source = _ALL.format(
        name=name,
        parameters=", ".join(f"void* p{i}, const void* t{i}" for i in range(count)),
        packets=", ".join(f"(unsigned*)p{i}" for i in range(count)),
        twos=", ".join(f"(const unsigned*)t{i}" for i in range(count)),
        cases=cases,
    )
    places = [a for x in loaded for a in _addresses(x)]
    helper(block, f"tirx_reduce_straddle_{name}", *places, _shift(row) * imm(size), source=source)


def _shift(row: Row) -> Any:
    """Elements from the begin of an aligned packet to that of the row's."""
    return row.before if row.most_before < row.vector else tirx.FloorMod(row.before, imm(row.vector))


def _addresses(x: Loaded) -> tuple[Any, Any]:
    return tirx.address_of(load(x.wanted.local, x.wanted.at)), tirx.address_of(load(x.two, 0))
