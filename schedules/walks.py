"""One walk over the row: load some packets, then reduce, keep and write their elements."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from tvm import tirx

from tirx_reduce.errors import Unsupported
from tirx_reduce.program import Expr, Load, Op, item_bytes, walk
from tirx_reduce.values import Candidate

from . import passes
from .elements import Turn, Walk, array_of, compute, general_offset, in_shared, staged
from .memory import keep_whole, memory_dtype
from .packets import Row, Segment, Stream
from .row_values import held_dtypes, hoist, start_of, stream
from .state import Kernel, Mixed
from .straddle import Wanted, load_round, move_all, packets_for_one, straddles
from .tir import SERIAL, UNROLLED, Block, imm

# Scalars of one stream that a lane loads before it uses the first: enough independent accesses to hide memory.
IN_FLIGHT = 16
# Scalars of weights that a lane may load ahead of a collective; of one weight alone, as many 32-bit words.
AHEAD = 32
# 32-bit registers of a multiprocessor (CUDA), and the share of a lane's that values outliving a walk may take.
REGISTERS, SHARE = 65536, 0.5
# Shared arrays above this take dynamic shared memory (CUDA), so that static ones stay under 48 KB.
DYNAMIC_BYTES = 32 * 1024


def walk_columns(k: Kernel, number: int, plan: passes.Pass, later: tuple[passes.Pass, ...] = ()) -> Walk:
    """Write the loops of one walk; its partial results stay in the lanes.

    What only `later` walks read is loaded ahead, where that pays.
    """
    values = passes.column_values(k.program, plan) + plan.kept
    ahead = [k.ahead[ref] for ref in passes.column_loads(k.program, plan) if ref in k.ahead]
    if ahead:
        move_all(k.block, k.geometry, k.moves)
        k.moves = []
    if k.turn is not None or k.candidate.rows > 1:
        # Unpacked before the loop over rows, weights take twice the registers; and in a row, time before its exchange.
        for array in ahead:
            keep_whole(k.block, array, k.kind)
    hoist(k, values)
    _fold_factors(k, values)
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
        w.stores[i] = stream(k, out.param, out.index, out.dtype)
    row, loops = k.geometry, Block()
    segments = row.segments()
    begun = _begin(k, w, loops, segments)
    if begun is not None:
        # No compiler brings loads forward that stand under conditions.
        load_ahead(k, later, into=loops, taken=w.loads)
        later = ()
    # What is left at the ends is computed last: nobody waits for it.
    left = [(part, fetch(k, w, loops, part, imm(0), part.count)) for part in row.ends()]
    if begun is not None:
        _compute_all(k, w, loops, segments[0].count, begun)
        segments = segments[1:]
    for segment in segments:
        kind = UNROLLED if _in_registers(k, w, segment) else SERIAL
        size = _chunk(k, segment)
        count = segment.count
        steps = count // size if isinstance(count, int) else count
        with loops.loop("c", steps, kind, _as_it_stands(row, w) if kind is SERIAL else None) as (body, c):
            _packets(k, w, body, segment, c * imm(size), size)
        rest = count % size if isinstance(count, int) else 0
        if rest:
            _packets(k, w, loops, segment, imm(count - rest), rest)
    for part, at in left:
        _compute_all(k, w, loops, part.count, at)
    if k.plain:
        k.block.add(tirx.AttrStmt(imm(0), "tirx_reduce.pass", imm(number), loops.stmt()))
    else:
        k.block.stmts.extend(loops.stmts)
    k.kept = w.keeps if plan.kept else k.kept
    load_ahead(k, later)
    return w


def _begin(k: Kernel, w: Walk, block: Block, segments: tuple[Segment, ...]) -> Callable[[Any], Turn] | None:
    """Load the first rounds, where a launch is short and not all that a lane takes are whole packets (CUDA)."""
    row = k.geometry
    if not (k.short and row.pairs and row.ends() and segments):
        return None
    first = segments[0]
    return fetch(k, w, block, first, imm(0), first.count) if first.count == _chunk(k, first) else None


def _in_registers(k: Kernel, w: Walk, part: Segment) -> bool:
    """Whether values of these rounds live in registers, which they do only where every index is a constant."""
    kept = (array_of(a, part) for a in (*w.keeps.values(), *k.kept.values()))
    return bool(k.ahead) or any(not in_shared(k, a) for a in kept)


def _as_it_stands(row: Row, w: Walk) -> dict[str, Any] | None:
    """Annotations of a loop that the compiler had better not unroll: pairs of packets take many registers.

    Unrolled, an RMSNorm of 50257 bf16 columns took 128 of them in place of 40, and spilled.
    """
    return {"disable_unroll": True} if packets_for_one(row, w.loads.values()) > 1 else None


def _fold_factors(k: Kernel, values: tuple[Expr, ...]) -> None:
    """Multiply once a row what would be two factors of every kept value."""
    for e in walk(*values):
        if not (isinstance(e, Op) and e.name == "mul") or e in k.folded:
            continue
        for of, other in (e.args, e.args[::-1]):
            if of in k.scale and of in k.kept and other in k.known:
                k.folded[e] = of, k.block.settle("f", k.scale[of] * k.known[other])


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
            if isinstance(taken, Mixed) or str(taken.ty.dtype) == dtype:
                w.keeps[value] = taken
                continue
        if value in k.ahead:
            w.keeps[value] = k.ahead.pop(value)
            continue
        row = k.geometry
        if row.private_rounds is not None:
            far = (row.rounds - row.private_rounds) * row.vector
            mine = k.block.alloc(f"kept{i}", row.room - far, dtype)
            w.keeps[value] = Mixed(private=mine, shared=_shared_array(k, i, far, dtype))
        elif k.candidate.reuse != "shared" or w.plan.found:
            w.keeps[value] = k.block.alloc(f"kept{i}", row.room, dtype)
        else:
            w.keeps[value] = _shared_array(k, i, row.slots, dtype)


def _shared_array(k: Kernel, i: int, each: int, dtype: str) -> Any:
    """Threadgroup memory for `each` elements a lane of the i-th kept value."""
    extent = each * k.candidate.threads
    big = k.kind == "cuda" and extent * item_bytes(dtype) > DYNAMIC_BYTES
    if big and i:
        reuse = k.candidate.reuse
        raise Unsupported(f"{reuse}: two arrays of dynamic shared memory; needs one kept value a column")
    array = k.block.alloc(f"kept{i}", extent, dtype, "shared.dyn" if big else "shared")
    k.shared_arrays.append(array)
    return array


def widens(candidate: Candidate, kind: str, columns: int | None) -> bool:
    """Whether a float32 may be kept for every column where a 16-bit input was."""
    if columns is None or candidate.reuse == "mixed":
        return False
    scalars = -(-columns // (candidate.width * candidate.splits * candidate.vector)) * candidate.vector
    return kind == "cuda" and scalars <= SHARE * REGISTERS / candidate.threads


def _chunk(k: Kernel, segment: Segment) -> int:
    """Rounds whose loads are issued together."""
    if not isinstance(segment.count, int) or k.plain:
        return 1
    size = k.candidate.unroll if k.candidate.unroll > 1 else max(1, IN_FLIGHT // k.candidate.vector)
    return max(1, min(size, segment.count))


def load_ahead(
    k: Kernel,
    later: tuple[passes.Pass, ...],
    vectors: bool = False,
    early: bool = False,
    into: Block | None = None,
    taken: Container[Load] = (),
) -> None:
    """Load what only later walks read before the first collective, where that takes few registers.

    Weights, most of all: they do not depend on it, and where a launch is short or groups wait for one another the wait
    for them is up to a quarter of the time. Where one group follows another, one's wait hides behind another's work,
    and two weights' registers serve better to have more groups: late they are up to 5 % faster. So do those of one
    weight of which two packets are loaded for one: early, an RMSNorm of 1000 rows of 50257 bfloat16 columns takes 16 %
    more.

    Parameters
    ----------
    vectors : bool
        Only what is the same for every row.
    early : bool
        Before anything else is done, and so all that there is room for.
    into : Block, optional
        Where to load; what has to be moved in registers then is moved when it is needed, for a move waits for its load.
    taken : container of Load
        What is left out: the walk that is being written loads it itself, and would find it here before it is moved.
    """
    row = k.geometry
    if k.plain or row.fixed is None or (k.candidate.reuse == "reload" and not early):
        return
    loads = {ref: None for plan in later for ref in passes.column_loads(k.program, plan)}
    wanted = [
        ref
        for ref in loads
        if not (ref in k.ahead or ref in k.kept or ref in taken) and ref.index.stride is not None
    ]
    wanted = [ref for ref in wanted if not vectors or k.walks.is_vector(ref)]
    pays = early or vectors or k.short or k.cluster or len(wanted) == 1
    sources = {ref: stream(k, ref.param, ref.index, ref.dtype) for ref in wanted} if pays else {}
    if not sources or not _room_ahead(k, sources, all_at_once=into is not None, early=early):
        return
    moves = None if into is None else k.moves
    for ref, source in sources.items():
        array = k.block.alloc("ahead", row.room, source.dtype)
        for part in (*row.segments(), *row.ends()):
            for turn in range(part.start, part.start + part.count):
                here = Wanted(source, array, row.slot(part, imm(turn), imm(0)))
                load_round(into or k.block, row, part, row.number(imm(turn)), [here], moves)
        k.ahead[ref] = array


def _room_ahead(k: Kernel, wanted: dict[Load, Stream], *, all_at_once: bool, early: bool) -> bool:
    """Whether registers have room for this lane's packets of each of `wanted`, and it is wise to take so many."""
    row = k.geometry
    if not (early or k.short) and any(straddles(row, s) for s in wanted.values()):
        return False
    scalars = row.rounds * row.vector
    kept_scalars = scalars if row.private_rounds is None else row.private_rounds * row.vector

    def words(value: Expr, each: int) -> float:
        return each * item_bytes(memory_dtype(value.dtype, k.kind)) / 4

    raw = {e: scalars * packets_for_one(row, (s,)) for e, s in wanted.items()}
    held = [e for e, array in k.kept.items() if not in_shared(k, array)]
    needed = sum(words(e, raw[e] if all_at_once else scalars) for e in wanted)
    room = SHARE * REGISTERS / k.candidate.threads
    if needed + sum(words(e, kept_scalars) for e in held) > (min(room, 4 * AHEAD) if all_at_once else room):
        return False
    if early or all_at_once or sum(raw.values()) <= AHEAD:
        return True
    alone = len(wanted) == 1 and all(s.wide(row) or straddles(row, s) for s in wanted.values())
    return alone and sum(words(e, scalars) for e in wanted) <= AHEAD


def _packets(k: Kernel, w: Walk, body: Block, segment: Segment, done: Any, size: int) -> None:
    """`size` rounds from `done` on: all their loads, then all their computing."""
    _compute_all(k, w, body, size, fetch(k, w, body, segment, done, size))


def _compute_all(k: Kernel, w: Walk, body: Block, size: int, at: Callable[[Any], Turn]) -> None:
    with body.loop("u", size, UNROLLED) as (inner, u):
        compute(k, w, inner, at(u))


def fetch(k: Kernel, w: Walk, body: Block, part: Segment, done: Any, size: int) -> Callable[[Any], Turn]:
    """Load what `size` rounds from `done` on take; gives each of them by its place."""
    row = k.geometry
    kept = {ref: array_of(array, part) for ref, array in w.keeps.items()}
    in_place = {ref: array for ref, array in kept.items() if not in_shared(k, array)}
    extent = size * part.vector
    stage = {
        ref: in_place[ref] if ref in in_place else body.alloc("x", extent, source.dtype)
        for ref, source in w.loads.items()
    }

    def at(u: Any) -> Turn:
        turn = (done + imm(part.start) if part.start else done) + u
        return Turn(part=part, number=row.number(turn), turn=turn, u=u, stage=stage)

    with body.loop("u", size, UNROLLED) as (inner, u):
        t = at(u)
        loads = [
            Wanted(
                source,
                stage[ref],
                staged(k, w, ref, t, imm(0)),
                general_offset(k, ref.index, t) if ref.index.stride is None else None,
            )
            for ref, source in w.loads.items()
        ]
        load_round(inner, row, part, t.number, loads)
    return at
