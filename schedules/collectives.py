"""Reductions over the lanes of a program: shuffles in a subgroup, one barrier across subgroups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from . import cluster
from .tir import Block, cast, imm, load

# Partial results of a cluster up to which every subgroup sends its own; above, the group folds them first.
DIRECT = 64
# Partial results up to which every lane folds all of them; above, the lanes of a subgroup share them out.
ALL = 8
_INT_RANGE = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Where a lane stands in its group."""

    width: int
    """Lanes of a program."""
    packing: int
    """Programs of a group."""
    subgroup: int
    """Lanes of a subgroup."""
    lane: Any
    """This lane in its program."""
    program: Any
    """Its program in the group."""
    kind: str
    """Target kind."""
    groups: int = 1
    """Groups of one program (a thread-block cluster), each with its own lanes."""
    rank: Any = None
    """This group in its cluster."""
    turn: Any = None
    """Set of slots that is in use, of `turns`, where a group exchanges row after row: others may still be read."""
    turns: int = 1
    begun: bool = True
    """Whether it is known that all groups of the cluster run (after the first collective)."""
    opening: Block | None = None
    """What a group of a cluster does before it says that it is here."""

    @property
    def subgroups(self) -> int:
        """Subgroups of one program."""
        return max(1, self.width // self.subgroup)

    @property
    def direct(self) -> bool:
        """Whether every subgroup sends its values to all groups itself, without a barrier of the group before."""
        return self.groups > 1 and self.groups * self.subgroups <= DIRECT

    @property
    def parts(self) -> int:
        """Partial results of one value that a group of a cluster receives."""
        return self.groups * (self.subgroups if self.direct else 1)


def register_dtype(dtype: str) -> str:
    """The dtype in which a value is held by a lane: narrow integers wrap just as well when cast at the end."""
    return "int32" if dtype in ("bool", "int8", "uint8", "int16", "uint16") else dtype


def identity(combiner: str, dtype: str) -> Any:
    """The neutral element."""
    real = dtype.startswith("float")
    if combiner in ("sum", "any"):
        return imm(0, register_dtype(dtype))
    if combiner in ("prod", "all"):
        return imm(1, register_dtype(dtype))
    low = combiner in ("max", "argmax")
    if real:
        return imm(float("-inf") if low else float("inf"), dtype)
    return (
        imm(0 if low else 1, "int32")
        if dtype == "bool"
        else imm(_INT_RANGE[dtype][0 if low else 1], register_dtype(dtype))
    )


def combine(combiner: str, mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Two partial results as one. The pair of an argmax is (index, value); on a tie the lower index stays."""
    if combiner in ("argmax", "argmin"):
        (i, a), (j, b) = mine, theirs
        better = tirx.GT(b, a) if combiner == "argmax" else tirx.LT(b, a)
        take = tirx.Or(better, tirx.And(tirx.EQ(b, a), tirx.LT(j, i)))
        return tirx.Select(take, j, i), tirx.Select(take, b, a)
    (a,), (b,) = mine, theirs
    make = {
        "sum": tirx.Add,
        "prod": tirx.Mul,
        "max": tirx.Max,
        "min": tirx.Min,
        "any": tirx.Max,
        "all": tirx.Min,
    }[combiner]
    return (make(a, b),)


def named(block: Block, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of `combine` under names; a pair uses each operand more than once and is settled."""
    keep = block.settle if len(values) > 1 else block.bind
    return tuple(keep("s", v) for v in values)


def fold_chains(block: Block, combiner: str, arrays: Sequence[Any], vector: int) -> tuple[Any, ...]:
    """The chains of a lane as one partial result."""
    chains = [tuple(block.bind("a", load(a, v)) for a in arrays) for v in range(vector)]
    total = chains[0]
    for chain in chains[1:]:
        total = named(block, combine(combiner, total, chain))
    return total


def shuffle_xor(block: Block, value: Any, offset: int, kind: str) -> Any:
    """The value of the lane whose number differs in the bit `offset`, under a name.

    Without a name it would be copied into conditions, where not all lanes evaluate it.
    """
    dtype = str(value.ty.dtype)
    if kind == "cuda":
        mask = imm(0xFFFFFFFF, "uint32")
        moved = tirx.call_intrin(dtype, "tirx.cuda.__shfl_xor_sync", mask, value, imm(offset), imm(32))
        return block.bind("o", moved)
    if dtype in ("int64", "uint64"):
        # Metal shuffles at most 32 bits.
        low = shuffle_xor(block, cast(value, "uint32"), offset, kind)
        high = shuffle_xor(block, cast(value >> imm(32, dtype), "uint32"), offset, kind)
        return tirx.bitwise_or(cast(low, dtype), cast(high, dtype) << imm(32, dtype))
    return block.bind(
        "o", tirx.call_extern(dtype, "simd_shuffle_xor", value, tirx.Cast("uint16", imm(offset)))
    )


def reduce_lanes(
    block: Block,
    combiners: tuple[str, ...],
    starts: list[tuple[Any, ...]],
    partials: list[tuple[Any, ...]],
    lanes: Lanes,
    name: str,
    within_subgroup: bool = False,
) -> list[tuple[Any, ...]]:
    """Every lane's partial results as those of the whole program, the same bits in every lane.

    With `within_subgroup` they are those of the lane's subgroup alone.

    All of them share one exchange: before, a partial in every lane; after, the total in every lane, and
    at most one barrier between.
    """
    totals = _butterfly(block, combiners, partials, min(lanes.width, lanes.subgroup), lanes.kind)
    if within_subgroup:
        return totals
    if lanes.subgroups > 1 and not lanes.direct:
        totals = _folded(block, combiners, deposit(block, totals, lanes, name))
    if lanes.groups == 1:
        return totals
    parts = spread(block, totals, lanes, name)
    if lanes.parts <= ALL:
        return _folded(block, combiners, parts)
    return gather(
        block,
        combiners,
        starts,
        lanes,
        lanes.parts,
        lambda inside, n, index: tuple(
            inside.bind("p", load(a, parts[n].base + index)) for a in parts[n].arrays
        ),
    )


def _butterfly(
    block: Block, combiners: tuple[str, ...], values: list[tuple[Any, ...]], span: int, kind: str
) -> list[tuple[Any, ...]]:
    if span == 1:
        return values
    cells = [tuple(block.alloc("total", 1, str(v.ty.dtype)) for v in vs) for vs in values]
    for held, vs in zip(cells, values, strict=True):
        for cell, v in zip(held, vs, strict=True):
            block.store(cell, 0, v)
    offset = span // 2
    while offset:
        mine = [tuple(block.bind("m", load(c, 0)) for c in held) for held in cells]
        theirs = [tuple(shuffle_xor(block, v, offset, kind) for v in vs) for vs in mine]
        for name, held, ours, other in zip(combiners, cells, mine, theirs, strict=True):
            for cell, new in zip(held, combine(name, ours, other), strict=True):
                block.store(cell, 0, new)
        offset //= 2
    return [tuple(block.bind("s", load(c, 0)) for c in held) for held in cells]


def _slots(
    block: Block, values: list[tuple[Any, ...]], lanes: Lanes, count: int, name: str
) -> tuple[list[tuple[Any, ...]], Any]:
    """Threadgroup arrays of `count` slots for each value, and where those in use begin."""
    slots = [
        tuple(
            block.alloc(f"{name}_{k}_{i}", count * lanes.turns, str(v.ty.dtype), "shared")
            for i, v in enumerate(vs)
        )
        for k, vs in enumerate(values)
    ]
    return slots, imm(0) if lanes.turn is None else lanes.turn * imm(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Partial results of one value, each in a slot of its own."""

    arrays: tuple[Any, ...]
    base: Any
    count: int


def deposit(block: Block, values: list[tuple[Any, ...]], lanes: Lanes, name: str) -> list[Parts]:
    """Each subgroup's values to slots of their own; after one barrier all of the program's are there."""
    count = lanes.subgroups
    slots, base = _slots(block, values, lanes, count * lanes.packing, name)
    if lanes.packing > 1:
        base = base + lanes.program * imm(count)
    first = tirx.EQ(tirx.FloorMod(lanes.lane, imm(lanes.subgroup)), imm(0))
    with block.when(first) as inside:
        for buffers, vs in zip(slots, values, strict=True):
            for buffer, v in zip(buffers, vs, strict=True):
                inside.store(buffer, base + tirx.FloorDiv(lanes.lane, imm(lanes.subgroup)), v)
    block.barrier()
    return [Parts(arrays=buffers, base=base, count=count) for buffers in slots]


def _folded(block: Block, combiners: tuple[str, ...], parts: list[Parts]) -> list[tuple[Any, ...]]:
    """Every lane folds all slots."""
    return [
        _fold(
            block,
            c,
            [tuple(block.bind("f", load(a, p.base + imm(i))) for a in p.arrays) for i in range(p.count)],
        )
        for c, p in zip(combiners, parts, strict=True)
    ]


def spread(block: Block, values: list[tuple[Any, ...]], lanes: Lanes, name: str) -> list[Parts]:
    """Each group's values, or each subgroup's, to every group of the cluster; afterwards all are there."""
    if lanes.opening is None:
        raise ValueError("an exchange over a cluster whose groups open no mailboxes")
    slots, base = _slots(lanes.opening, values, lanes, lanes.parts, f"{name}_c")
    for buffer in (b for buffers in slots for b in buffers):
        cluster.keep(lanes.opening, buffer)
    dtypes = [str(v.ty.dtype) for vs in values for v in vs]
    boxes = cluster.mailboxes(lanes.opening, lanes.lane, dtypes, lanes.parts, lanes.turns)
    box = tirx.address_of(load(boxes, 0 if lanes.turn is None else lanes.turn))
    if not lanes.begun:
        cluster.wait(block)  # nobody may send to a group that has not opened its mailboxes
    place, to = lanes.rank, lanes.lane
    if lanes.direct and lanes.subgroups > 1:
        to = tirx.FloorMod(lanes.lane, imm(lanes.subgroup))
        place = place * imm(lanes.subgroups) + tirx.FloorDiv(lanes.lane, imm(lanes.subgroup))
    with block.when(tirx.LT(to, imm(lanes.groups))) as inside:
        for buffers, vs in zip(slots, values, strict=True):
            for buffer, v in zip(buffers, vs, strict=True):
                cluster.send(inside, box, buffer, base + place, v, to)
    cluster.receive(block, box)
    return [Parts(arrays=buffers, base=base, count=lanes.parts) for buffers in slots]


def gather(
    block: Block,
    combiners: tuple[str, ...],
    starts: list[tuple[Any, ...]],
    lanes: Lanes,
    count: int,
    read: Callable[[Block, int, Any], tuple[Any, ...]],
) -> list[tuple[Any, ...]]:
    """Fold `count` partial results: the lanes of each subgroup share them out, then shuffle.

    Parameters
    ----------
    starts
        Neutral elements, a tuple for each value.
    read
        (block, value, index) to the partial result of that value at that index.
    """
    within = tirx.FloorMod(lanes.lane, imm(lanes.subgroup))
    totals: list[tuple[Any, ...]] = []
    for number, (combiner, start) in enumerate(zip(combiners, starts, strict=True)):
        mine: tuple[Any, ...] | None = None
        for first in range(0, count, lanes.subgroup):
            index = within + imm(first) if first else within
            cells = [block.alloc("part", 1, str(v.ty.dtype)) for v in start]
            for cell, v in zip(cells, start, strict=True):
                block.store(cell, 0, v)
            with block.when(tirx.LT(index, imm(count)) if first + lanes.subgroup > count else None) as inside:
                for cell, v in zip(cells, read(inside, number, index), strict=True):
                    inside.store(cell, 0, v)
            part = tuple(block.bind("p", load(cell, 0)) for cell in cells)
            mine = part if mine is None else named(block, combine(combiner, mine, part))
        totals.append(mine or start)
    return _butterfly(block, combiners, totals, lanes.subgroup, lanes.kind)


def _fold(block: Block, combiner: str, values: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """A tree over the slots: the same order in every lane, and a short chain."""
    while len(values) > 1:
        paired = [
            named(block, combine(combiner, values[i], values[i + 1])) for i in range(0, len(values) - 1, 2)
        ]
        values = paired + ([values[-1]] if len(values) % 2 else [])
    return values[0]
