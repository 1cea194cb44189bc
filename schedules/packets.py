"""How a row is cut: packets of V elements that are aligned in memory, and what is left at its ends.

Where rows do not start aligned, h columns stand before the first aligned packet, and fewer than V behind the last
one. Packet p holds the columns h + p·V … h + p·V + V - 1, so it lies in the row as a whole or is none; the at most
2V - 2 elements at both ends are taken one by one, a lane each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tirx_reduce.ends import fewest_packets, most_left
from tirx_reduce.program import Access, item_bytes, uses_row

from .tir import UNROLLED, VECTORIZED, Block, cast, imm, load


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Consecutive rounds over packets, or over the elements at the ends."""

    start: int = 0
    count: Any
    """Rounds; an int, or an expression where the columns are symbolic."""
    vector: int
    """Elements that a lane takes in a round: V of a packet, one at the ends."""
    guarded: bool = True
    """Some lane may have nothing to take, or the last packet of a row that is more than its packets."""
    ends: bool = False
    shared: bool = False
    """Kept in threadgroup memory where earlier rounds are kept in registers (mixed reuse)."""

    def cut(self, at: int) -> tuple[Segment, Segment]:
        """The rounds before round `at`, and those from there on, which are kept in threadgroup memory."""
        before = min(self.count, max(0, at - self.start))
        later = replace(self, start=self.start + before, count=self.count - before, shared=True)
        return replace(self, count=before), later


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
    """First aligned packet of the row in a dense tensor; None where rows are whole packets from start to end."""
    before: Any
    """Columns that stand before that packet, h."""
    most_before: int
    """The most that there are in any row."""
    packets: Any
    """Packets as TIR (int32)."""
    valid: Any
    """Whether there is such a row; None where there always is."""
    pairs: bool
    """Whether a packet that lies across two aligned ones may be taken from both."""
    index_dtype: str
    kind: str
    private_rounds: int | None = None
    """Rounds over packets that are kept in registers, later ones in threadgroup memory; None where all are alike."""

    @property
    def rounds(self) -> Any:
        """Packets of the busiest lane in the row that has the most: an int where columns are fixed."""
        if self.fixed is not None:
            return -(-(self.fixed // self.vector) // self.width)
        step = self.vector * self.width
        return tirx.FloorDiv(self.columns + imm(step - self.vector), imm(step))

    @property
    def left(self) -> Any:
        """Elements at the ends."""
        return self.columns - self.packets * imm(self.vector)

    @property
    def slots(self) -> Any:
        """Elements that a lane has room for in an array of its own, where columns are fixed."""
        return self.rounds * self.vector + sum(part.count for part in self.ends())

    @property
    def room(self) -> Any:
        """The same in registers: whole pairs, so that elements of 16 bits can be taken by words."""
        return self.slots + self.slots % 2 if self.vector > 1 else self.slots

    def segments(self) -> tuple[Segment, ...]:
        """Rounds over packets in order, those without any guard apart."""
        if self.fixed is None:
            return (Segment(count=self.rounds, vector=self.vector),)
        packets = fewest_packets(self.fixed, self.vector, self.most_before)
        # Where something is left at the ends, the last packet is guarded, too: see `straddle`.
        whole = (packets if self.head is None else max(0, packets - 1)) // self.width
        parts: tuple[Segment, ...] = (
            Segment(count=whole, vector=self.vector, guarded=False),
            Segment(start=whole, count=self.rounds - whole, vector=self.vector),
        )
        if self.private_rounds is not None:
            parts = tuple(p for part in parts for p in part.cut(self.private_rounds))
        return tuple(p for p in parts if p.count)

    def ends(self) -> tuple[Segment, ...]:
        """The rounds over what is left at the ends, if anything is."""
        if self.head is None:
            return ()
        most = most_left(self.fixed, self.vector, self.most_before)
        return (Segment(count=-(-most // self.width), vector=1, ends=True),)

    def number(self, turn: Any) -> Any:
        """Number of what this lane takes in round `turn`: a packet, or an element at the ends."""
        if isinstance(turn, tirx.IntImm) and turn.value == 0:
            return self.lane
        return turn * imm(self.width) + self.lane

    def inside(self, part: Segment, number: Any) -> Any | None:
        """Whether there is such a packet or element; None where there always is."""
        if not part.guarded:
            return None
        return tirx.LT(number, self.left if part.ends else self.packets)

    def column(self, part: Segment, number: Any, v: Any) -> Any:
        """Column of element `v`."""
        if part.ends:
            behind = number + self.packets * imm(self.vector)
            return behind if _zero(self.before) else tirx.Select(tirx.LT(number, self.before), number, behind)
        column = number * imm(self.vector) + v
        return column if _zero(self.before) else self.before + column

    def slot(self, part: Segment, turn: Any, v: Any) -> Any:
        """Place of element `v` of round `turn` in an array of this lane that holds the row, packets first."""
        return turn + imm(self.rounds * self.vector) if part.ends else turn * imm(self.vector) + v

    def kept_slot(self, part: Segment, turn: Any, v: Any, lanes: int = 1, lane: Any | None = None) -> Any:
        """The same in an array of kept values, a row of each of `lanes`; of two arrays, in that of this round."""
        rounds = self.rounds if self.private_rounds is None else self.private_rounds
        turn = turn - imm(rounds) if part.shared else turn
        at = turn if lane is None else turn * imm(lanes) + lane
        return at + imm(rounds * self.vector * lanes) if part.ends else at * imm(self.vector) + v

    def lanes_of(self, dtype: str, count: int) -> int:
        """Elements of the widest access to `count` of them: 16 bytes on CUDA, 4 lanes (and 16 bytes) on Metal."""
        size = item_bytes(dtype)
        widest = min(4, 16 // size) if self.kind == "metal" else 16 // size
        return min(count, max(1, widest))


def _zero(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and int(value.value) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One tensor as the row reads or writes it."""

    view: Any
    """Flat view of the tensor."""
    access: Access
    start: Any
    """Offset of column 0 where the access is not dense."""
    dtype: str

    @property
    def of_row(self) -> bool:
        """Whether what is accessed belongs to the row (the only one, perhaps): all but weights."""
        return self.access.dense or uses_row(self.access)

    def wide(self, row: Row) -> bool:
        """Whether a packet can be accessed at once."""
        if row.vector == 1 or self.access.stride != 1:
            return False
        return self.access.dense or (_zero(row.before) and self.access.align % row.vector == 0)

    def offset(self, row: Row, part: Segment, number: Any, v: Any) -> Any:
        """Element offset of element `v` of a packet, or of an element at the ends."""
        it = row.index_dtype
        if self.access.dense and row.head is not None and not part.ends:
            return (row.head + cast(number, it)) * imm(row.vector, it) + cast(v, it)
        column = cast(row.column(part, number, v), it)
        start = row.base if self.access.dense else self.start
        if self.access.stride not in (1, None):
            column = column * imm(self.access.stride or 0, it)
        elif self.wide(row) and not self.access.dense:
            # Proved in `facts`; written so that TVM's code generator can see it, too.
            start = tirx.FloorDiv(start, imm(row.vector, it)) * imm(row.vector, it)
        return column if _zero(start) else start + column


def copy_packet(
    block: Block,
    row: Row,
    stream: Stream,
    part: Segment,
    number: Any,
    local: Any,
    at: Any,
    *,
    store: bool,
    offset: Any = None,
) -> None:
    """Move one packet between memory and `local[at …]`, all of it at once where that is proved.

    After, for a load: `local[at : at+V] = x[offset : offset+V]`. The caller has asked whether there is such a packet.
    """

    def place(v: Any) -> Any:
        return offset(v) if offset is not None else stream.offset(row, part, number, v)

    lanes = part.vector if stream.wide(row) else 1
    move(block, row, stream, part.vector, place, local, at, store=store, lanes=lanes)


def move(
    block: Block,
    row: Row,
    stream: Stream,
    count: int,
    place: Callable[[Any], Any],
    local: Any,
    at: Any,
    *,
    store: bool,
    lanes: int | None = None,
) -> None:
    """Copy `count` elements between `place` of each in memory and `local[at …]`, up to `lanes` at once (or all)."""
    lanes = row.lanes_of(stream.dtype, count if lanes is None else lanes)
    with (
        block.loop("h", count // lanes, UNROLLED) as (half, h),
        half.loop("v", lanes, VECTORIZED) as (body, v),
    ):
        v = h * imm(lanes) + v if count != lanes else v
        if store:
            body.store(stream.view, place(v), load(local, at + v))
        else:
            body.store(local, at + v, load(stream.view, place(v)))
