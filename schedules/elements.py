"""One packet of a lane: what a walk computes, keeps and writes of its elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tirx_reduce.errors import Unsupported
from tirx_reduce.program import Access, ColIndex, Expr, Load, Op, uses_column

from . import passes
from .collectives import combine
from .memory import by_words, from_memory, keep_whole, to_memory, widened
from .packets import Segment, Stream, copy_packet
from .row_values import held_dtypes, leaf, row_offset
from .state import Kernel, Mixed
from .tir import UNROLLED, VECTORIZED, Block, cast, imm, load, translate


@dataclass(slots=True, kw_only=True)
class Walk:
    """The arrays and streams of one walk."""

    number: int
    plan: passes.Pass
    accumulators: dict[int, list[Any]] = field(default_factory=dict)
    """Partial results of a lane by reduction: an array of V chains for each value."""
    keeps: dict[Expr, Any] = field(default_factory=dict)
    """Where this walk keeps values."""
    loads: dict[Load, Stream] = field(default_factory=dict)
    stores: dict[int, Stream] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Turn:
    """One packet of a lane, or one element at the ends."""

    part: Segment
    number: Any
    """Its number in the row."""
    turn: Any
    """Its round."""
    u: Any
    """Its place among those that are loaded together."""
    stage: dict[Load, Any]
    """Where their elements are."""
    held: dict[Expr, tuple[Any, Any]] = field(default_factory=dict)
    """Kept values of this packet, where they are kept in threadgroup memory: a lane's own array, and their place."""


def compute(k: Kernel, w: Walk, block: Block, t: Turn) -> None:
    """One packet: every element in turn, then the stores."""
    row, vector = k.geometry, t.part.vector
    results = {i: block.alloc("y", vector, out.dtype) for i, out in w.stores.items()}
    _hold(k, w, block, t)
    with block.when(row.inside(t.part, t.number)) as inside:
        for e, array in k.kept.items():
            if e in t.held:
                _move_shared(k, inside, array_of(array, t.part), t, *t.held[e], store=False)
        with inside.loop("v", vector, UNROLLED) as (body, v):
            _element(k, w, body, t, v, results)
        for e, array in w.keeps.items():
            if e in t.held and e not in k.kept:
                _move_shared(k, inside, array_of(array, t.part), t, *t.held[e], store=True)
        for i, out in w.stores.items():
            index = k.program.outputs[i].index
            general = general_offset(k, index, t) if index.stride is None else None
            if row.head is not None and out.wide(row) and not (k.plain or t.part.ends):
                keep_whole(inside, results[i], k.kind)
            with inside.when(row.valid) as there:
                copy_packet(there, row, out, t.part, t.number, results[i], imm(0), store=True, offset=general)


def _hold(k: Kernel, w: Walk, block: Block, t: Turn) -> None:
    """A lane's own arrays for what is kept in threadgroup memory: one array where a value takes another's place."""
    if k.plain:
        return
    vector = t.part.vector
    of: dict[int, tuple[Any, Any]] = {}
    for e, kept in (*k.kept.items(), *w.keeps.items()):
        array = array_of(kept, t.part)
        if not in_shared(k, array):
            continue
        if id(array) not in of:
            if isinstance(e, Load) and e in t.stage:
                of[id(array)] = t.stage[e], t.u * imm(vector)
            else:
                of[id(array)] = block.alloc("held", vector, str(array.ty.dtype)), imm(0)
        t.held[e] = of[id(array)]


def _element(k: Kernel, w: Walk, block: Block, t: Turn, v: Any, results: dict[int, Any]) -> None:
    """One column: what the walk keeps, reduces and writes."""
    memo: dict[Expr, Any] = {}

    def read(array: Any, at: Any, dtype: str) -> Any:
        return block.bind("e", from_memory(load(array, at), dtype, k.kind))

    def place(e: Expr, kept: Any) -> tuple[Any, Any]:
        array = array_of(kept, t.part)
        if e in t.held:
            of, at = t.held[e]
            return of, at + v
        if in_shared(k, array):
            return array, _shared_place(k, t, v)
        return array, k.geometry.kept_slot(t.part, t.turn, v)

    def kept(e: Expr) -> Any:
        return read(*place(e, k.kept[e]), e.dtype)

    def found(e: Expr) -> tuple[Any, Any] | None:
        """Where an element stands as it was loaded."""
        if e in k.kept:
            return place(e, k.kept[e])
        if e in k.ahead:
            return k.ahead[e], k.geometry.slot(t.part, t.turn, v)
        return (t.stage[e], staged(k, w, e, t, v)) if isinstance(e, Load) and e in t.stage else None

    def each(e: Expr) -> Any:
        if e in k.known:
            return k.known[e]
        if e in k.kept:
            return kept(e) * k.scale[e] if e in k.scale else kept(e)
        if e in k.folded:
            of, factor = k.folded[e]
            return kept(of) * factor
        if isinstance(e, Load):
            at = found(e)
            if at is not None:
                return read(*at, e.dtype)
        if isinstance(e, Op) and e.name == "cast" and e.dtype == "float32" and not k.plain:
            at = found(e.args[0])
            if at is not None and by_words(at[0], k.kind):
                return widened(block, *at)
        if isinstance(e, ColIndex):
            return cast(k.geometry.column(t.part, t.number, v), "int64")
        return leaf(k, e)

    def value(e: Expr) -> Any:
        return translate(e, each, block, k.kind, memo)

    for e in w.plan.kept:
        mine = array_of(w.keeps[e], t.part)
        if e in k.kept or (isinstance(e, Load) and (e in t.held or t.stage.get(e, mine) is mine)):
            if isinstance(e, Load) and e not in t.stage and e not in k.kept:
                memo[e] = read(*place(e, w.keeps[e]), e.dtype)
            continue
        array, at = place(e, w.keeps[e])
        block.store(array, at, to_memory(value(e), e.dtype, k.kind))
        memo[e] = read(array, at, e.dtype)
    for i in w.plan.reductions:
        r = k.program.reductions[i]
        arrays = w.accumulators[i]
        new = tuple(cast(value(e), d) for e, d in zip(r.elements, held_dtypes(r), strict=True))
        if r.combiner in ("argmax", "argmin") and "int" in r.dtypes[1]:
            # TVM would compare x with m + 7 for x - 7 with m, and m begins at the end of what its dtype holds.
            new = (new[0], block.settle("y", new[1]))
        accumulate(block, r.combiner, arrays, v, new)
    for i, array in results.items():
        out = k.program.outputs[i]
        block.store(array, v, to_memory(value(out.value), out.dtype, k.kind))


def accumulate(block: Block, combiner: str, arrays: Sequence[Any], v: Any, new: tuple[Any, ...]) -> None:
    """Take one element into chain `v` of a reduction."""
    old = tuple(block.bind("m", load(a, v)) for a in arrays)
    for array, total in zip(arrays, combine(combiner, old, new), strict=True):
        block.store(array, v, total)


def staged(k: Kernel, w: Walk, ref: Load, t: Turn, v: Any) -> Any:
    """Where element `v` of a packet is among those that were loaded."""
    if t.stage[ref] is array_of(w.keeps.get(ref), t.part):
        return k.geometry.kept_slot(t.part, t.turn, v)
    return t.u * imm(t.part.vector) + v


def general_offset(k: Kernel, index: Access, t: Turn) -> Any:
    """The offset of element `v` where it is no affine function of the column."""
    full = index.full
    if full is None:
        raise Unsupported("an access that is neither affine nor spelled out; needs one of both")

    def offset(v: Any) -> Any:
        column = cast(k.geometry.column(t.part, t.number, v), "int64")
        return cast(_looked_up(k, full, column), k.index_dtype)

    return offset


class _Inline(Block):
    """Names nothing: an offset is one expression, wherever it is put."""

    def bind(self, name: str, value: Any) -> Any:
        return value

    settle = bind


def _looked_up(k: Kernel, e: Expr, column: Any) -> Any:
    """An expression of an index at `column`; integers that it holds are read where they stand."""

    def each(part: Expr) -> Any:
        if isinstance(part, ColIndex):
            return column
        if isinstance(part, Load) and uses_column(part):
            return from_memory(load(k.views[part.param], place(part.index)), part.dtype, k.kind)
        return leaf(k, part)

    def place(index: Access) -> Any:
        if index.full is not None:
            return cast(_looked_up(k, index.full, column), k.index_dtype)
        step = imm(index.stride or 0, k.index_dtype)
        return row_offset(k, index) + cast(column, k.index_dtype) * step

    return translate(e, each, _Inline(), k.kind)


def array_of(kept: Any, part: Segment) -> Any:
    """Of what keeps a value, the array that has the rounds of `part`."""
    if not isinstance(kept, Mixed):
        return kept
    return kept.shared if part.shared else kept.private


def in_shared(k: Kernel, array: Any) -> bool:
    """Whether an array of kept values is in threadgroup memory."""
    return any(array is a for a in k.shared_arrays)


def _shared_place(k: Kernel, t: Turn, v: Any) -> Any:
    """Where element `v` of a packet is in threadgroup memory: neighbouring lanes have neighbouring packets."""
    lane = k.lane if k.candidate.packing == 1 else k.slot * imm(k.candidate.width) + k.lane
    place = k.geometry.kept_slot(t.part, t.turn, v, k.candidate.threads, lane)
    return place if k.shelf is None else k.shelf + place


def _move_shared(k: Kernel, block: Block, array: Any, t: Turn, local: Any, at: Any, *, store: bool) -> None:
    """Copy one packet between threadgroup memory and a lane."""
    lanes = k.geometry.lanes_of(str(array.ty.dtype), t.part.vector)
    with (
        block.loop("h", t.part.vector // lanes, UNROLLED) as (half, h),
        half.loop("v", lanes, VECTORIZED) as (body, v),
    ):
        v = h * imm(lanes) + v if t.part.vector != lanes else v
        place = _shared_place(k, t, v)
        if store:
            body.store(array, place, load(local, at + v))
        else:
            body.store(local, at + v, load(array, place))
