"""How a row is cut into packets of V elements, and how a packet is read and written.

Packet p of a row holds the columns p·V - m … p·V - m + V - 1, where m is how far the row's start stands behind
a V-aligned element. So a packet is aligned in memory whatever the number of columns, and only the first and the
last packet of a row can be partial: their elements are accessed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tirx_reduce.program import Access, item_bytes

from .tir import UNROLLED, VECTORIZED, Block, cast, imm, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive rounds that are guarded alike."""

    start: int
    count: Any
    """Rounds; an int, or an expression where the columns are symbolic."""
    head: bool = False
    """Some lane may stand before the row's first column."""
    tail: bool = False
    """Some lane may stand behind its last."""

    @property
    def edge(self) -> bool:
        """Some lane may stand outside the row, or on a partial packet."""
        return self.head or self.tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row as one lane sees it."""

    columns: Any
    """Columns as TIR (int32)."""
    fixed: int | None
    """Columns, where fixed."""
    vector: int
    width: int
    lane: Any
    base: Any
    """Offset of the row's first element in a dense tensor."""
    head: Any
    """First packet of the row in a dense tensor: base // vector."""
    shift: Any
    """m, or None where every row starts aligned and V divides the columns."""
    index_dtype: str
    kind: str

    @property
    def packets(self) -> Any:
        """Packets of a row, partial ones included: an int where columns are fixed."""
        slack = self.vector - 1 if self.shift is not None else 0
        if self.fixed is not None:
            return -(-(self.fixed + slack) // self.vector)
        return tirx.FloorDiv(self.columns + imm(slack + self.vector - 1), imm(self.vector))

    @property
    def rounds(self) -> Any:
        """Packets of the busiest lane."""
        if self.fixed is not None:
            return -(-self.packets // self.width)
        return tirx.FloorDiv(self.packets + imm(self.width - 1), imm(self.width))

    def segments(self) -> tuple[Segment, ...]:
        """Rounds in order, those without any guard apart."""
        if self.fixed is None:
            return (Segment(start=0, count=self.rounds, head=self.shift is not None, tail=True),)
        first = 1 if self.shift is not None else 0
        whole = self.fixed // (self.vector * self.width)  # rounds below this lie wholly inside, whatever m is
        parts = (
            Segment(start=0, count=min(first, self.rounds), head=True, tail=whole < 1),
            Segment(start=first, count=max(0, whole - first)),
            Segment(start=max(first, whole), count=max(0, self.rounds - max(first, whole)), tail=True),
        )
        return tuple(p for p in parts if p.count)

    def packet(self, turn: Any) -> Any:
        """Number of this lane's packet in round `turn`."""
        if isinstance(turn, tirx.IntImm) and turn.value == 0:
            return self.lane
        return turn * imm(self.width) + self.lane

    def column(self, packet: Any, v: Any) -> Any:
        """Column of element `v`."""
        column = packet * imm(self.vector) + v
        return column if self.shift is None else column - self.shift

    def inside(self, packet: Any, v: Any, part: Segment) -> Any:
        """Whether element `v` of a packet at an edge is a column of the row."""
        column = self.column(packet, v)
        return _both(
            tirx.GE(column, imm(0)) if part.head else None,
            tirx.LT(column, self.columns) if part.tail else None,
        )

    def whole(self, packet: Any, part: Segment) -> Any:
        """Whether all elements of a packet at an edge are columns of the row."""
        if self.shift is None:
            return tirx.LT(packet, self.packets if not isinstance(self.packets, int) else imm(self.packets))
        begin = self.column(packet, imm(0))
        return _both(
            tirx.GE(begin, imm(0)) if part.head else None,
            tirx.LE(begin + imm(self.vector), self.columns) if part.tail else None,
        )

    def lanes_of(self, dtype: str) -> int:
        """Elements of the widest access: 16 bytes on CUDA, 4 lanes (and 16 bytes) on Metal."""
        size = item_bytes(dtype)
        widest = min(4, 16 // size) if self.kind == "metal" else 16 // size
        return min(self.vector, max(1, widest))


def _both(a: Any | None, b: Any | None) -> Any:
    return b if a is None else a if b is None else tirx.And(a, b)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One tensor as the row reads or writes it."""

    view: Any
    """Flat view of the tensor."""
    access: Access
    start: Any
    """Offset of column 0 where the access is not dense."""
    dtype: str

    def wide(self, row: Row) -> bool:
        """Whether a whole packet can be accessed at once."""
        if row.vector == 1 or self.access.stride != 1:
            return False
        return self.access.dense or (row.shift is None and self.access.align % row.vector == 0)

    def offset(self, row: Row, packet: Any, v: Any, column_offset: Any = None) -> Any:
        """Element offset of element `v` of a packet."""
        it = row.index_dtype
        if self.access.dense and row.shift is not None:
            return (row.head + cast(packet, it)) * imm(row.vector, it) + cast(v, it)
        if self.access.stride is None:
            return column_offset
        column = cast(row.column(packet, v), it)
        start = row.base if self.access.dense else self.start
        if self.access.stride != 1:
            column = column * imm(self.access.stride, it)
        elif self.wide(row) and not self.access.dense:
            # Proved in `facts`; written so that TVM's code generator can see it, too.
            start = tirx.FloorDiv(start, imm(row.vector, it)) * imm(row.vector, it)
        return column if isinstance(start, tirx.IntImm) and start.value == 0 else start + column


def copy_packet(
    block: Block,
    row: Row,
    stream: Stream,
    packet: Any,
    local: Any,
    at: Any,
    *,
    part: Segment,
    store: bool,
    offset: Any = None,
    fill: bool = False,
) -> None:
    """Move one packet between memory and `local[at …]`, all of it at once where that is proved.

    Before: nothing. After, for a load at the edge of a row::

        if whole: local[at : at+V] = x[offset : offset+V]
        else: for v: if inside(v): local[at + v] = x[offset + v]

    With `fill`, an element outside of the row is loaded as one: its lane may compute with it.
    """

    def element(inner: Block, v: Any) -> None:
        where = offset(v) if offset is not None else stream.offset(row, packet, v)
        if store:
            inner.store(stream.view, where, load(local, at + v))
        else:
            inner.store(local, at + v, load(stream.view, where))

    def one_by_one(inner: Block, guarded: bool) -> None:
        with inner.loop("v", row.vector, UNROLLED) as (body, v):
            inside, otherwise = Block(), Block()
            element(inside, v)
            if guarded and fill:
                otherwise.store(local, at + v, imm(1, stream.dtype))
            if guarded:
                body.either(row.inside(packet, v, part), inside, otherwise)
            else:
                body.stmts.extend(inside.stmts)

    if not stream.wide(row):
        uniform = row.shift is None  # then a packet is inside as a whole or not at all
        if part.edge and not uniform and fill:
            whole, partial = Block(), Block()
            one_by_one(whole, False)
            one_by_one(partial, True)
            block.either(row.whole(packet, part), whole, partial)
            return
        with block.when(row.whole(packet, part) if part.edge and uniform else None) as inner:
            one_by_one(inner, part.edge and not uniform)
        return
    wide = Block()
    lanes = row.lanes_of(stream.dtype)
    with (
        wide.loop("h", row.vector // lanes, UNROLLED) as (half, h),
        half.loop("v", lanes, VECTORIZED) as (body, v),
    ):
        element(body, h * imm(lanes) + v if row.vector != lanes else v)
    if not part.edge:
        block.stmts.extend(wide.stmts)
    elif row.shift is None:
        with block.when(row.whole(packet, part)) as inner:
            inner.stmts.extend(wide.stmts)
    else:
        scalar = Block()
        one_by_one(scalar, True)
        block.either(row.whole(packet, part), wide, scalar)
