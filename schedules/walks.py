"""One walk over the row: load some packets, then reduce, keep and write their elements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from tirx_reduce.errors import Unsupported
from tirx_reduce.program import Access, ColIndex, Expr, Load, item_bytes
from tirx_reduce.values import Candidate

from . import passes
from .collectives import combine
from .memory import from_memory, memory_dtype, to_memory
from .packets import Segment, Stream, copy_packet
from .row_values import held_dtypes, hoist, leaf, start_of, stream
from .state import Kernel
from .tir import SERIAL, UNROLLED, Block, cast, imm, load, translate

# Scalars of one stream that a lane loads before it uses the first: enough independent accesses to hide memory.
IN_FLIGHT = 16
# Scalars of weights that a lane may load ahead of a collective.
AHEAD = 32
# 32-bit registers of a multiprocessor (CUDA), and the share of a lane's that values outliving a walk may take.
REGISTERS, SHARE = 65536, 0.5
# Shared arrays above this take dynamic shared memory (CUDA), so that static ones stay under 48 KB.
DYNAMIC_BYTES = 32 * 1024


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
    """One packet of a lane."""

    packet: Any
    """Its number in the row."""
    turn: Any
    """Its round."""
    u: Any
    """Its place among the packets that are loaded together."""
    stage: dict[Load, Any]
    """Where their elements are."""


def walk_columns(k: Kernel, number: int, plan: passes.Pass) -> Walk:
    """Write the loops of one walk; its partial results stay in the lanes."""
    hoist(k, passes.column_values(k.program, plan) + plan.kept)
    w = Walk(number=number, plan=plan)
    _start_accumulators(k, w)
    if not (plan.reductions or plan.outputs):
        return w
    _start_keeps(k, w)
    w.loads = {
        ref: stream(k, ref.param, ref.index, ref.dtype)
        for ref in passes.column_loads(k.program, plan)
        if ref not in k.ahead
    }
    for i in plan.outputs:
        out = k.program.outputs[i]
        w.stores[i] = stream(k, out.param, out.index, out.dtype, store=True)
    loops = Block()
    # Kept values live in registers only where every index of their array is a constant.
    in_registers = any(
        all(a is not x for x in k.shared_arrays) for a in (*w.keeps.values(), *k.kept.values())
    )
    kind = UNROLLED if in_registers else SERIAL
    for segment in k.geometry.segments():
        size = _chunk(k, segment)
        count = segment.count
        with loops.loop("c", count // size if isinstance(count, int) else count, kind) as (body, c):
            _packets(k, w, body, segment, c * imm(size), size)
        rest = count % size if isinstance(count, int) else 0
        if rest:
            _packets(k, w, loops, segment, imm(count - rest), rest)
    if k.plain:
        k.block.add(tirx.AttrStmt(imm(0), "tirx_reduce.pass", imm(number), loops.stmt()))
    else:
        # A program without a row reads nothing either: where an output is the input, its row's owner writes there.
        with k.block.when(k.valid) as guard:
            guard.stmts.extend(loops.stmts)
    k.kept = w.keeps if plan.kept else k.kept
    return w


def _start_accumulators(k: Kernel, w: Walk) -> None:
    """Arrays of V partial results each: independent chains, and shorter ones to round in."""
    for i in w.plan.reductions:
        r = k.program.reductions[i]
        arrays = []
        for item, dtype in enumerate(held_dtypes(r)):
            array = k.block.alloc(f"acc{i}_{item}", k.candidate.vector, dtype)
            start = start_of(r, item)
            with k.block.loop("v", k.candidate.vector, UNROLLED) as (body, v):
                body.store(array, v, start)
            arrays.append(array)
        w.accumulators[i] = arrays


def _start_keeps(k: Kernel, w: Walk) -> None:
    """Arrays that hold what this walk keeps; a value that takes another's place takes its array, too."""
    for i, value in enumerate(w.plan.kept):
        dtype = memory_dtype(value.dtype, k.kind)
        if i < len(w.plan.found):
            taken = k.kept[w.plan.found[i]]
            if str(taken.ty.dtype) == dtype:
                w.keeps[value] = taken
                continue
        if value in k.ahead:
            w.keeps[value] = k.ahead.pop(value)
            continue
        extent = k.geometry.rounds * k.candidate.vector
        if k.candidate.reuse != "shared" or w.plan.found:
            w.keeps[value] = k.block.alloc(f"kept{i}", extent, dtype)
            continue
        extent *= k.candidate.threads
        big = k.kind == "cuda" and extent * item_bytes(dtype) > DYNAMIC_BYTES
        if big and i:
            raise Unsupported("shared: two arrays of dynamic shared memory; needs one kept value a column")
        w.keeps[value] = k.block.alloc(f"kept{i}", extent, dtype, "shared.dyn" if big else "shared")
        k.shared_arrays.append(w.keeps[value])


def widens(candidate: Candidate, kind: str, columns: int | None) -> bool:
    """Whether a float32 may be kept for every column where a 16-bit input was."""
    if columns is None:
        return False
    scalars = -(-columns // (candidate.width * candidate.splits * candidate.vector)) * candidate.vector
    return kind == "cuda" and scalars <= SHARE * REGISTERS / candidate.threads


def _kept_index(k: Kernel, array: Any, turn: Any, v: Any) -> Any:
    """Where element `v` of round `turn` is kept.

    In threadgroup memory neighbouring lanes have neighbouring words, so that no two lanes meet in a bank.
    """
    scalar = turn * imm(k.candidate.vector) + v
    if not any(array is a for a in k.shared_arrays):
        return scalar
    lane = k.lane if k.candidate.packing == 1 else k.slot * imm(k.candidate.width) + k.lane
    return scalar * imm(k.candidate.threads) + lane


def _chunk(k: Kernel, segment: Segment) -> int:
    """Rounds whose loads are issued together."""
    if not isinstance(segment.count, int) or k.plain:
        return 1
    size = k.candidate.unroll if k.candidate.unroll > 1 else max(1, IN_FLIGHT // k.candidate.vector)
    return max(1, min(size, segment.count))


def load_ahead(k: Kernel, later: tuple[passes.Pass, ...], vectors: bool = False) -> None:
    """Load what only later walks read before the first collective, where that takes few registers.

    Weights, most of all: they do not depend on it, and on the smallest launches the wait for them is up to 15 % of
    the time. With `vectors` only what is the same for every row.
    """
    rounds = k.geometry.rounds
    if k.plain or k.candidate.reuse != "private" or not isinstance(rounds, int):
        return
    loads = {ref: None for plan in later for ref in passes.column_loads(k.program, plan)}
    wanted = [
        ref for ref in loads if ref not in k.ahead and ref not in k.kept and ref.index.stride is not None
    ]
    wanted = [ref for ref in wanted if not vectors or k.walks.is_vector(ref)]
    scalars = rounds * k.candidate.vector
    words = sum(scalars * item_bytes(memory_dtype(e.dtype, k.kind)) / 4 for e in (*wanted, *k.kept))
    if not wanted or len(wanted) * scalars > AHEAD or words > SHARE * REGISTERS / k.candidate.threads:
        return
    for ref in wanted:
        source = stream(k, ref.param, ref.index, ref.dtype)
        array = k.block.alloc("ahead", rounds * k.candidate.vector, source.dtype)
        with k.block.when(k.valid) as inside:
            for segment in k.geometry.segments():
                with inside.loop("r", segment.count, UNROLLED) as (body, r):
                    turn = imm(segment.start) + r
                    at = turn * imm(k.candidate.vector)
                    packet = k.geometry.packet(turn)
                    copy_packet(body, k.geometry, source, packet, array, at, edge=segment.edge, store=False)
        k.ahead[ref] = array


def _packets(k: Kernel, w: Walk, body: Block, segment: Segment, done: Any, size: int) -> None:
    """`size` rounds from `done` on: all their loads, then all their computing."""
    vector = k.candidate.vector
    in_place = k.candidate.reuse != "shared"
    stage = {
        ref: w.keeps[ref] if ref in w.keeps and in_place else body.alloc("x", size * vector, source.dtype)
        for ref, source in w.loads.items()
    }

    def at(u: Any) -> Turn:
        turn = (done + imm(segment.start) if segment.start else done) + u
        return Turn(packet=k.geometry.packet(turn), turn=turn, u=u, stage=stage)

    with body.loop("u", size, UNROLLED) as (inner, u):
        t = at(u)
        for ref, source in w.loads.items():
            general = _general_offset(k, ref.index, t.packet) if ref.index.stride is None else None
            copy_packet(
                inner,
                k.geometry,
                source,
                t.packet,
                stage[ref],
                _staged(k, w, ref, t, imm(0)),
                edge=segment.edge,
                store=False,
                offset=general,
            )
    with body.loop("u", size, UNROLLED) as (inner, u):
        _compute(k, w, inner, segment, at(u))


def _staged(k: Kernel, w: Walk, ref: Load, t: Turn, v: Any) -> Any:
    """Where element `v` of a packet is among those that were loaded."""
    return (
        _kept_index(k, t.stage[ref], t.turn, v)
        if t.stage[ref] is w.keeps.get(ref)
        else t.u * imm(k.candidate.vector) + v
    )


def _general_offset(k: Kernel, index: Access, packet: Any) -> Any:
    """The offset of element `v` where it is no affine function of the column."""
    full = index.full
    if full is None:
        raise Unsupported("an access that is neither affine nor spelled out; needs one of both")

    def offset(v: Any) -> Any:
        column = cast(k.geometry.column(packet, v), "int64")
        value = translate(full, lambda e: column if isinstance(e, ColIndex) else leaf(k, e), Block(), k.kind)
        return cast(value, k.index_dtype)

    return offset


def _compute(k: Kernel, w: Walk, block: Block, segment: Segment, t: Turn) -> None:
    """One packet: every element in turn, then the stores."""
    geometry, vector = k.geometry, k.candidate.vector
    uniform = geometry.shift is None  # then a packet is inside as a whole or not at all
    results = {i: block.alloc("y", vector, out.dtype) for i, out in w.stores.items()}
    with (
        block.when(geometry.whole(t.packet) if segment.edge and uniform else None) as guard,
        guard.loop("v", vector, UNROLLED) as (elements, v),
        elements.when(geometry.inside(t.packet, v) if segment.edge and not uniform else None) as body,
    ):
        _element(k, w, body, t, v, results)
    for i, out in w.stores.items():
        index = k.program.outputs[i].index
        general = _general_offset(k, index, t.packet) if index.stride is None else None
        copy_packet(
            block,
            geometry,
            out,
            t.packet,
            results[i],
            imm(0),
            edge=segment.edge,
            store=True,
            offset=general,
        )


def _element(k: Kernel, w: Walk, block: Block, t: Turn, v: Any, results: dict[int, Any]) -> None:
    """One column: what the walk keeps, reduces and writes."""
    memo: dict[Expr, Any] = {}

    def read(array: Any, at: Any, dtype: str) -> Any:
        return block.bind("e", from_memory(load(array, at), dtype, k.kind))

    def each(e: Expr) -> Any:
        if e in k.known:
            return k.known[e]
        if e in k.kept:
            value = read(k.kept[e], _kept_index(k, k.kept[e], t.turn, v), e.dtype)
            return value * k.scale[e] if e in k.scale else value
        if e in k.ahead:
            return read(k.ahead[e], t.turn * imm(k.candidate.vector) + v, e.dtype)
        if isinstance(e, Load) and e in t.stage:
            return read(t.stage[e], _staged(k, w, e, t, v), e.dtype)
        if isinstance(e, ColIndex):
            return cast(k.geometry.column(t.packet, v), "int64")
        return leaf(k, e)

    def value(e: Expr) -> Any:
        return translate(e, each, block, k.kind, memo)

    for e in w.plan.kept:
        if e in k.kept or (isinstance(e, Load) and t.stage.get(e, w.keeps[e]) is w.keeps[e]):
            if isinstance(e, Load) and e not in t.stage and e not in k.kept:
                memo[e] = read(w.keeps[e], _kept_index(k, w.keeps[e], t.turn, v), e.dtype)
            continue
        at = _kept_index(k, w.keeps[e], t.turn, v)
        block.store(w.keeps[e], at, to_memory(value(e), e.dtype, k.kind))
        memo[e] = read(w.keeps[e], at, e.dtype)
    for i in w.plan.reductions:
        r = k.program.reductions[i]
        arrays = w.accumulators[i]
        new = tuple(cast(value(e), d) for e, d in zip(r.elements, held_dtypes(r), strict=True))
        old = tuple(block.bind("m", load(a, v)) for a in arrays)
        for array, total in zip(arrays, combine(r.combiner, old, new), strict=True):
            block.store(array, v, total)
    for i, array in results.items():
        out = k.program.outputs[i]
        block.store(array, v, to_memory(value(out.value), out.dtype, k.kind))
