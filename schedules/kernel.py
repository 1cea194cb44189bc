"""Writes the device function of one mapping: every walk over the row, its collective, its stores.

Before: a PrimFunc of S/R blocks, read into a row program. After, for a softmax at W=128, V=4, private::

    row = blockIdx.x
    for r in unroll(R): xl[4r : 4r+4] = x[row, 4(128r + lane) …]      # walk 1, 16 bytes an access
    m = max over xl; m = shuffles(m); slot[subgroup] = m; barrier; m = max over slots
    for r in unroll(R): xl[…] = exp(xl[…] - m); s += xl[…]           # walk 2
    s = shuffles(s); slot'[subgroup] = s; barrier; s = sum over slots'
    for r in unroll(R): y[row, …] = xl[…] / s                        # walk 3
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import tirx

from tirx_reduce.errors import Unsupported
from tirx_reduce.program import (
    Access,
    ColIndex,
    Const,
    Expr,
    Load,
    Op,
    Reduction,
    RowIndex,
    RowProgram,
    RowValue,
    Scalar,
    Sym,
    children,
    uses_column,
    walk,
)
from tirx_reduce.values import Candidate

from . import arithmetic, cluster, passes
from .collectives import Lanes, combine, identity, named, reduce_lanes, register_dtype
from .memory import from_memory, memory_dtype, to_memory
from .packets import Row, Segment, Stream, copy_packet, tirx_bytes
from .tir import SERIAL, UNROLLED, Block, cast, dtype_of, flat, imm, launch, load, translate

# Scalars of one stream that a lane loads before it uses the first: enough independent accesses to hide memory.
_IN_FLIGHT = 16
# Scalars of weights that a lane may load ahead of a collective.
AHEAD = 32
# Overlap the start of a launch with the end of the one before (CUDA, where clusters are).
OVERLAP = True
# Streaming hints on matrix accesses (CUDA): loads, stores.
HINTS = (False, False)


@dataclass(slots=True)
class Kernel:
    """One device function under construction; `emit` is its only user."""

    program: RowProgram
    params: list[Any]
    symbols: dict[str, Any]
    candidate: Candidate
    kind: str
    subgroup: int
    plain: bool
    cluster: bool = False
    """The groups of a row are a thread-block cluster and exchange partial results in shared memory."""
    workspace: dict[int, list[Any]] = field(default_factory=dict)
    """Where the groups of a row exchange partial results by way of global memory: an array a value."""
    block: Block = field(default_factory=Block)
    views: dict[int, Any] = field(default_factory=dict)
    lane: Any = None
    slot: Any = None
    row: Any = None
    valid: Any = None
    geometry: Any = None
    known: dict[Expr, Any] = field(default_factory=dict)
    """Values of the row that are named already."""
    kept: dict[Expr, Any] = field(default_factory=dict)
    """Arrays of kept values."""
    ahead: dict[Expr, Any] = field(default_factory=dict)
    """Arrays of weights that were loaded before the collective."""
    index_dtype: str = "int32"
    rank: Any = None
    """This group among those of its row."""
    begun: bool = False


def emit(
    program: RowProgram,
    params: list[Any],
    symbols: dict[str, Any],
    candidate: Candidate,
    *,
    kind: str,
    subgroup: int = 32,
    max_cluster: int = 1,
    plain: bool = False,
) -> Any:
    """The statement that launches and runs `candidate`.

    Parameters
    ----------
    program : RowProgram
        What a row computes.
    params : list of tvm Var
        Parameters of the PrimFunc, by number.
    symbols : dict
        Symbolic extents by name.
    kind : str
        Target kind, `metal` or `cuda`.
    max_cluster : int
        Groups that may form a cluster; where a row takes more, its groups exchange by way of global memory.
    plain : bool
        The captured form on which features are counted: every walk written out and marked.
    """
    program = arithmetic.prepare(program)
    walks = passes.cut(program, candidate.reuse != "reload", upgrade=not plain)
    if candidate.splits > max_cluster:
        return _emit_apart(program, params, symbols, candidate, kind, subgroup, walks)
    k = Kernel(program, params, symbols, candidate, kind, subgroup, plain, cluster=candidate.splits > 1)
    if OVERLAP and max_cluster > 1 and not plain:
        cluster.begin(k.block)
    _declare(k)
    _place(k)
    for number, walk_ in enumerate(walks, 1):
        _walk(k, number, walk_, walks[number:] if number == 1 else ())
        _row_outputs(k, walk_)
    return _launch(k)


def _emit_apart(
    program: RowProgram,
    params: list[Any],
    symbols: dict[str, Any],
    candidate: Candidate,
    kind: str,
    subgroup: int,
    walks: tuple[passes.Pass, ...],
) -> Any:
    """A launch for each walk: the groups of a row leave their partial results in global memory for the next.

    After, for a sum over S groups a row::

        launch rows·S: part[row, s] = sum over the columns of group s
        launch rows·S: total = sum over part[row, :]; y[row, …] = x[row, …] / total
    """
    host = Block()
    workspace: dict[int, list[Any]] = {}
    pending: passes.Pass | None = None
    if walks[-1].reductions:
        walks = (*walks, passes.Pass(reductions=(), outputs=(), row_outputs=()))
    for number, walk_ in enumerate(walks, 1):
        k = Kernel(program, params, symbols, candidate, kind, subgroup, False, workspace=workspace)
        _declare(k)
        _place(k)
        _gather(k)
        if pending is not None:
            _row_outputs(k, pending)
        for i in walk_.reductions:
            arrays = [
                tirx.decl_buffer((_parts(k),), dtype, name=f"part{i}_{item}", scope="global")
                for item, dtype in enumerate(_held(program.reductions[i]))
            ]
            for array in arrays:
                host.add(tirx.AllocBuffer(array))
            workspace[i] = arrays
        _walk(k, number, walk_)
        host.add(_launch(k))
        pending = walk_
    return host.stmt()


def _parts(k: Kernel) -> Any:
    """Partial results of one value: one for each group."""
    return cast(_rows(k), "int64") * imm(k.candidate.splits, "int64")


def _gather(k: Kernel) -> None:
    """Fold the partial results that earlier launches left for this row; every subgroup does it for itself."""
    done = [i for i, arrays in k.workspace.items()]
    if not done:
        return
    splits, within = k.candidate.splits, tirx.FloorMod(k.lane, imm(k.subgroup))
    combiners = tuple(k.program.reductions[i].combiner for i in done)
    values: list[tuple[Any, ...]] = []
    for i in done:
        r = k.program.reductions[i]
        mine: tuple[Any, ...] | None = None
        for first in range(0, splits, k.subgroup):
            part = imm(first) + within
            cells = []
            for item, array in enumerate(k.workspace[i]):
                cell = k.block.alloc("part", 1, str(array.ty.dtype))
                k.block.store(cell, 0, _start(r, item))
                with k.block.when(tirx.LT(part, imm(splits)) if first + k.subgroup > splits else None) as inside:
                    at = cast(k.row, "int64") * imm(splits, "int64") + cast(part, "int64")
                    inside.store(cell, 0, load(array, at))
                cells.append(k.block.bind("p", load(cell, 0)))
            mine = tuple(cells) if mine is None else named(k.block, combine(r.combiner, mine, tuple(cells)))
        assert mine is not None
        values.append(mine)
    lanes = Lanes(width=k.subgroup, packing=1, subgroup=k.subgroup, lane=k.lane, program=k.slot, kind=k.kind)
    for i, total in zip(done, reduce_lanes(k.block, combiners, values, lanes, "gathered"), strict=True):
        _learn(k, i, total)


def _launch(k: Kernel) -> Any:
    rows = _rows(k)
    packing = k.candidate.packing
    it = str(rows.ty.dtype)
    groups = rows if packing == 1 else tirx.FloorDiv(rows + imm(packing - 1, it), imm(packing, it))
    if k.candidate.splits > 1:
        groups = groups * imm(k.candidate.splits, it)
    threads = [(k.lane, "threadIdx.x", imm(k.candidate.width))]
    if packing > 1:
        threads.append((k.slot, "threadIdx.y", imm(packing)))
    block_var = k.known[_GROUP]
    threads.append((block_var, "blockIdx.x", cast(groups, str(block_var.ty.dtype))))
    if k.cluster:
        threads.append((tirx.Var("rank", "int32"), "clusterCtaIdx.x", imm(k.candidate.splits)))
    return launch(k.block.stmt(), tuple(threads))


# Marks the variable of the group in `known`; no expression of a program equals it.
_GROUP = Sym("<group>")


def _rows(k: Kernel) -> Any:
    """The number of rows as TIR."""
    fixed = [e.value for e in k.program.rows if isinstance(e, Const)]
    total: Any = imm(prod(int(v) for v in fixed), "int64")
    for extent in k.program.rows:
        if not isinstance(extent, Const):
            total = total * cast(translate(extent, lambda e: _sym(k, e), Block(), k.kind), "int64")
    return total if any(not isinstance(e, Const) for e in k.program.rows) else imm(prod(int(v) for v in fixed), "int32")


def _sym(k: Kernel, e: Expr) -> Any:
    if isinstance(e, Sym):
        return cast(k.symbols[e.name], e.dtype)
    return None


def _extent(k: Kernel, e: Expr) -> Any:
    return translate(e, lambda leaf: _sym(k, leaf), k.block, k.kind)


def _declare(k: Kernel) -> None:
    """Flat views of all tensors."""
    symbolic = False
    largest = 0
    for tensor in k.program.tensors:
        view, declaration = flat(k.params[tensor.param], f"{tensor.name}_flat", memory_dtype(tensor.dtype, k.kind))
        k.views[tensor.param] = view
        k.block.add(declaration)
        sizes = [e.value for e in tensor.shape if isinstance(e, Const)]
        symbolic = symbolic or len(sizes) < len(tensor.shape)
        largest = max(largest, prod(int(s) for s in sizes))
    k.index_dtype = "int64" if symbolic or largest >= 2**31 - 2**16 else "int32"


def _place(k: Kernel) -> None:
    """Which row and which columns this lane works on."""
    c = k.candidate
    it = k.index_dtype
    k.lane, k.slot = tirx.Var("lane", "int32"), tirx.Var("slot", "int32") if c.packing > 1 else imm(0)
    group = tirx.Var("group", "int32")
    k.known[_GROUP] = group
    row: Any = cast(group, it)
    if c.splits > 1:
        k.rank = k.block.bind("part", tirx.FloorMod(group, imm(c.splits)))
        row = cast(tirx.FloorDiv(group, imm(c.splits)), it)
        if k.cluster:
            cluster.arrive(k.block)
    if c.packing > 1:
        row = row * imm(c.packing, it) + cast(k.slot, it)
        rows = _rows(k)
        k.valid = None if isinstance(rows, tirx.IntImm) and rows.value % c.packing == 0 else tirx.LT(row, cast(rows, it))
        if k.valid is not None:
            # A group's last programs may have no row: they follow the last one to every barrier and write nothing.
            k.valid = k.block.bind("valid", k.valid)
            row = tirx.Min(row, cast(rows, it) - imm(1, it))
    k.row = k.block.bind("row", row)
    fixed = int(k.program.columns.value) if isinstance(k.program.columns, Const) else None
    columns = imm(fixed) if fixed is not None else cast(_extent(k, k.program.columns), "int32")
    base = k.block.bind("base", k.row * cast(columns, it))
    accesses = [o.index for o in k.program.outputs if not o.per_row] + [
        e.index for e in walk(*_all_values(k.program)) if isinstance(e, Load)
    ]
    vector = c.vector
    shift = head = None
    if vector > 1 and not (fixed is not None and fixed % vector == 0):
        dense = any(a.dense for a in accesses)
        head = k.block.bind("head", tirx.FloorDiv(base, imm(vector, it))) if dense else imm(0, it)
        shift = k.block.bind("shift", cast(base - head * imm(vector, it), "int32")) if dense else imm(0)
    k.geometry = Row(
        columns=columns,
        fixed=fixed,
        vector=vector,
        width=c.width * c.splits,
        lane=k.lane if c.splits == 1 else k.block.bind("place", k.rank * imm(c.width) + k.lane),
        base=base,
        head=head,
        shift=shift,
        index_dtype=it,
        kind=k.kind,
    )


def _all_values(program: RowProgram) -> tuple[Expr, ...]:
    return tuple(e for r in program.reductions for e in r.elements) + tuple(o.value for o in program.outputs)


# --- values of a row -------------------------------------------------------------------------------------------------


def _row_leaf(k: Kernel, e: Expr) -> Any:
    """A leaf whose value is the same in the whole row."""
    if e in k.known:
        return k.known[e]
    if isinstance(e, Sym):
        return _sym(k, e)
    if isinstance(e, Scalar):
        return k.params[e.param]
    if isinstance(e, RowIndex):
        return _row_index(k, e.axis)
    if isinstance(e, Load) and not uses_column(e):
        return k.block.bind("x", from_memory(load(k.views[e.param], _row_offset(k, e.index)), e.dtype, k.kind))
    return None


def _row_index(k: Kernel, axis: int) -> Any:
    """The index along one axis of the row space, from the flat row."""
    it = k.index_dtype
    inner: Any = imm(1, it)
    for extent in k.program.rows[axis + 1 :]:
        inner = inner * cast(_extent(k, extent), it)
    index = k.row if isinstance(inner, tirx.IntImm) and inner.value == 1 else tirx.FloorDiv(k.row, inner)
    if axis:
        index = tirx.FloorMod(index, cast(_extent(k, k.program.rows[axis]), it))
    bound = k.block.bind("i", cast(index, "int64"))
    k.known[RowIndex(axis)] = bound
    return bound


def _row_offset(k: Kernel, access: Access) -> Any:
    """Offset at column 0, in the index dtype."""
    if access.dense:
        return k.geometry.base
    value = translate(access.row, lambda e: _row_leaf(k, e), k.block, k.kind)
    return k.block.bind("at", cast(value, k.index_dtype))


def _hoist(k: Kernel, exprs: tuple[Expr, ...]) -> None:
    """Name every largest subexpression of `exprs` that is the same in the whole row."""
    seen: set[Expr] = set()

    def visit(e: Expr) -> None:
        if e in seen or e in k.known or e in k.kept:
            return
        seen.add(e)
        if isinstance(e, (Op, Load)) and not uses_column(e):
            if all(isinstance(x, (Const, Op)) for x in walk(e)):
                return  # literals only
            value = _row_value(k, e)
            k.known[e] = k.block.settle("h", value) if dtype_of(value) == "float32" else value
            return
        for child in children(e):
            visit(child)

    for e in exprs:
        visit(e)


def _row_value(k: Kernel, e: Expr) -> Any:
    return translate(e, lambda leaf: _row_leaf(k, leaf), k.block, k.kind)


# --- one walk --------------------------------------------------------------------------------------------------------


def _walk(k: Kernel, number: int, walk_: passes.Pass, later: tuple[passes.Pass, ...] = ()) -> None:
    values = passes.column_values(k.program, walk_) + walk_.kept
    _hoist(k, values)
    accs = _accumulators(k, walk_)
    if walk_.reductions or walk_.outputs:
        _columns(k, number, walk_, accs)
    _load_ahead(k, later)
    _collective(k, number, walk_, accs)


def _accumulators(k: Kernel, walk_: passes.Pass) -> dict[int, list[Any]]:
    """Arrays of V partial results each: independent chains, and shorter ones to round in."""
    accs: dict[int, list[Any]] = {}
    for i in walk_.reductions:
        r = k.program.reductions[i]
        arrays = []
        for item, dtype in enumerate(_held(r)):
            array = k.block.alloc(f"acc{i}_{item}", k.candidate.vector, dtype)
            start = _start(r, item)
            with k.block.loop("v", k.candidate.vector, UNROLLED) as (body, v):
                body.store(array, v, start)
            arrays.append(array)
        accs[i] = arrays
    return accs


def _held(r: Reduction) -> tuple[str, ...]:
    """Dtypes in which a lane holds the partial results; an index needs no more than 32 bits."""
    if r.combiner in ("argmax", "argmin"):
        return ("int32", register_dtype(r.dtypes[1]))
    return tuple(register_dtype(d) for d in r.dtypes)


def _start(r: Reduction, item: int) -> Any:
    if r.combiner in ("argmax", "argmin") and item == 0:
        return imm(2**31 - 1)
    return identity(r.combiner, r.dtypes[item])


def _keep_arrays(k: Kernel, walk_: passes.Pass) -> dict[Expr, Any]:
    """Arrays that hold what this walk keeps; a value that takes another's place takes its array, too."""
    arrays: dict[Expr, Any] = {}
    for i, value in enumerate(walk_.kept):
        if i < len(walk_.found):
            arrays[value] = k.kept[walk_.found[i]]
            continue
        dtype = memory_dtype(value.dtype, k.kind)
        extent = k.geometry.rounds * k.candidate.vector
        if k.candidate.reuse == "shared":
            extent *= k.candidate.threads
            big = extent * tirx_bytes(dtype) > 32 * 1024
            arrays[value] = k.block.alloc(f"kept{i}", extent, dtype, "shared.dyn" if big and k.kind == "cuda" else "shared")
        else:
            arrays[value] = k.block.alloc(f"kept{i}", extent, dtype)
    return arrays


def _kept_index(k: Kernel, turn: Any, v: Any) -> Any:
    """Where element `v` of round `turn` is kept.

    In threadgroup memory neighbouring lanes have neighbouring words, so that no two lanes meet in a bank.
    """
    scalar = turn * imm(k.candidate.vector) + v
    if k.candidate.reuse != "shared":
        return scalar
    lane = k.lane if k.candidate.packing == 1 else k.slot * imm(k.candidate.width) + k.lane
    return scalar * imm(k.candidate.threads) + lane


def _columns(k: Kernel, number: int, walk_: passes.Pass, accs: dict[int, list[Any]]) -> None:
    """The loops of one walk: load some packets, then compute on them."""
    arrays = _keep_arrays(k, walk_)
    loads = tuple(l for l in passes.column_loads(k.program, walk_) if l not in k.ahead)
    streams = {l: _stream(k, l.param, l.index, l.dtype) for l in loads}
    outs = {i: _stream(k, o.param, o.index, o.dtype, True) for i in walk_.outputs for o in [k.program.outputs[i]]}
    keeps = bool(walk_.kept or walk_.found)
    loops = Block()
    for segment in k.geometry.segments():
        size = _chunk(k, walk_, segment, arrays)
        count = segment.count
        whole = count // size if isinstance(count, int) else count
        kind = UNROLLED if keeps and k.candidate.reuse != "shared" else SERIAL
        with loops.loop("c", whole, kind) as (body, c):
            _turns(k, walk_, accs, arrays, streams, outs, body, segment, c * imm(size), size)
        rest = count % size if isinstance(count, int) else 0
        if rest:
            done = imm(count - rest)
            _turns(k, walk_, accs, arrays, streams, outs, loops, segment, done, rest)
    if k.plain:
        k.block.add(tirx.AttrStmt(imm(0), "tirx_reduce.pass", imm(number), loops.stmt()))
    else:
        k.block.stmts.extend(loops.stmts)
    k.kept = arrays if walk_.kept else k.kept


def _load_ahead(k: Kernel, later: tuple[passes.Pass, ...]) -> None:
    """Load the weights of later walks before the first collective, where that takes few registers.

    They do not depend on it, and on the smallest launches the wait for them is up to 15 % of the time.
    """
    rounds = k.geometry.rounds
    if k.plain or k.candidate.reuse != "private" or not isinstance(rounds, int):
        return
    wanted: dict[Load, None] = {}
    for walk_ in later:
        wanted.update((l, None) for l in passes.column_loads(k.program, walk_) if passes.is_vector(l))
    if not wanted or len(wanted) * rounds * k.candidate.vector > AHEAD:
        return
    for l in wanted:
        stream = _stream(k, l.param, l.index, l.dtype)
        array = k.block.alloc("ahead", rounds * k.candidate.vector, stream.dtype)
        for segment in k.geometry.segments():
            with k.block.loop("r", segment.count, UNROLLED) as (body, r):
                turn = imm(segment.start) + r
                at = turn * imm(k.candidate.vector)
                copy_packet(
                    body, k.geometry, stream, k.geometry.packet(turn), array, at, edge=segment.edge, store=False
                )
        k.ahead[l] = array


def _chunk(k: Kernel, walk_: passes.Pass, segment: Segment, arrays: dict[Expr, Any]) -> int:
    """Rounds whose loads are issued together."""
    if not isinstance(segment.count, int):
        return 1
    if k.plain:
        return 1
    size = k.candidate.unroll if k.candidate.unroll > 1 else max(1, _IN_FLIGHT // k.candidate.vector)
    return max(1, min(size, segment.count))


def _stream(k: Kernel, param: int, access: Access, dtype: str, store: bool = False) -> Stream:
    start = imm(0, k.index_dtype) if access.stride is None else _row_offset(k, access)
    hint = HINTS[1 if store else 0] and k.kind == "cuda" and not passes.is_vector(Load(param, access, dtype))
    return Stream(view=k.views[param], access=access, start=start, dtype=memory_dtype(dtype, k.kind), hint=hint)


def _turns(
    k: Kernel,
    walk_: passes.Pass,
    accs: dict[int, list[Any]],
    arrays: dict[Expr, Any],
    streams: dict[Load, Stream],
    outs: dict[int, Stream],
    body: Block,
    segment: Segment,
    done: Any,
    size: int,
) -> None:
    """`size` rounds from `done` on: all their loads, then all their computing."""
    vector = k.candidate.vector
    own = k.candidate.reuse != "shared"
    stage: dict[Load, Any] = {}
    for l in streams:
        stage[l] = arrays[l] if l in arrays and own else body.alloc("x", size * vector, streams[l].dtype)

    def turn_of(u: Any) -> Any:
        first = done + imm(segment.start) if segment.start else done
        return first + u

    def staged(l: Load, u: Any, v: Any) -> Any:
        return _kept_index(k, turn_of(u), v) if stage[l] is arrays.get(l) else u * imm(vector) + v

    with body.loop("u", size, UNROLLED) as (inner, u):
        packet = inner.bind("p", k.geometry.packet(turn_of(u)))
        for l, stream in streams.items():
            offset = (lambda v, l=l: _general_offset(k, l, packet, v, inner)) if l.index.stride is None else None
            at = staged(l, u, imm(0))
            copy_packet(inner, k.geometry, stream, packet, stage[l], at, edge=segment.edge, store=False, offset=offset)
    with body.loop("u", size, UNROLLED) as (inner, u):
        turn = turn_of(u)
        packet = inner.bind("p", k.geometry.packet(turn))
        _compute(k, walk_, accs, arrays, outs, inner, segment, packet, turn, u, stage, staged)


def _general_offset(k: Kernel, l: Load, packet: Any, v: Any, block: Block) -> Any:
    full = l.index.full
    assert full is not None
    column = cast(k.geometry.column(packet, v), "int64")
    value = translate(full, lambda e: column if isinstance(e, ColIndex) else _row_leaf(k, e), Block(), k.kind)
    return cast(value, k.index_dtype)


def _compute(
    k: Kernel,
    walk_: passes.Pass,
    accs: dict[int, list[Any]],
    arrays: dict[Expr, Any],
    outs: dict[int, Stream],
    block: Block,
    segment: Segment,
    packet: Any,
    turn: Any,
    u: Any,
    stage: dict[Load, Any],
    staged: Any,
) -> None:
    """One packet: every element in turn, then the stores."""
    geometry = k.geometry
    uniform = geometry.shift is None
    results = {i: block.alloc("y", k.candidate.vector, outs[i].dtype) for i in outs}
    with block.when(geometry.whole(packet) if segment.edge and uniform else None) as guard:
        with guard.loop("v", k.candidate.vector, UNROLLED) as (elements, v):
            with elements.when(geometry.inside(packet, v) if segment.edge and not uniform else None) as body:
                _element(k, walk_, accs, arrays, results, body, packet, turn, u, v, stage, staged)
    for i, stream in outs.items():
        access = k.program.outputs[i].index
        offset = None
        if access.stride is None:
            raise Unsupported("an output whose place is not affine in the column; needs an affine one")
        with block.when(k.valid) as guard:
            copy_packet(guard, geometry, stream, packet, results[i], imm(0), edge=segment.edge, store=True, offset=offset)


def _element(
    k: Kernel,
    walk_: passes.Pass,
    accs: dict[int, list[Any]],
    arrays: dict[Expr, Any],
    results: dict[int, Any],
    block: Block,
    packet: Any,
    turn: Any,
    u: Any,
    v: Any,
    stage: dict[Load, Any],
    staged: Any,
) -> None:
    """One column: what the walk reduces, keeps and writes."""
    memo: dict[Expr, Any] = {}

    def leaf(e: Expr) -> Any:
        if e in k.known:
            return k.known[e]
        if e in k.kept:
            return block.bind("k", from_memory(load(k.kept[e], _kept_index(k, turn, v)), e.dtype, k.kind))
        if e in k.ahead:
            at = turn * imm(k.candidate.vector) + v
            return block.bind("e", from_memory(load(k.ahead[e], at), e.dtype, k.kind))
        if isinstance(e, Load) and e in stage:
            return block.bind("e", from_memory(load(stage[e], staged(e, u, v)), e.dtype, k.kind))
        if isinstance(e, ColIndex):
            return block.bind("col", cast(k.geometry.column(packet, v), "int64"))
        return _row_leaf(k, e)

    def value(e: Expr) -> Any:
        return translate(e, leaf, block, k.kind, memo)

    for e in walk_.kept:
        if e in k.kept or (isinstance(e, Load) and stage.get(e) is arrays[e]):
            continue
        at = _kept_index(k, turn, v)
        block.store(arrays[e], at, to_memory(value(e), e.dtype, k.kind))
        memo[e] = block.bind("k", from_memory(load(arrays[e], at), e.dtype, k.kind))
    for i in walk_.reductions:
        r = k.program.reductions[i]
        held = _held(r)
        mine = tuple(load(a, v) for a in accs[i])
        theirs = tuple(block.bind("g", cast(value(e), d)) for e, d in zip(r.elements, held, strict=True))
        if len(mine) > 1:
            mine = tuple(block.bind("m", m) for m in mine)
        for array, new in zip(accs[i], combine(r.combiner, mine, theirs), strict=True):
            block.store(array, v, new)
    for i, array in results.items():
        out = k.program.outputs[i]
        block.store(array, v, to_memory(value(out.value), out.dtype, k.kind))


def _collective(k: Kernel, number: int, walk_: passes.Pass, accs: dict[int, list[Any]]) -> None:
    """Fold this lane's chains, then the lanes; afterwards the row values of this walk are known."""
    if not walk_.reductions:
        return
    block = Block() if k.plain else k.block
    combiners = tuple(k.program.reductions[i].combiner for i in walk_.reductions)
    partials = []
    for i, name in zip(walk_.reductions, combiners, strict=True):
        chains = [tuple(block.bind("a", load(a, v)) for a in accs[i]) for v in range(k.candidate.vector)]
        total = chains[0]
        for chain in chains[1:]:
            total = named(block, combine(name, total, chain))
        partials.append(total)
    lanes = Lanes(
        width=k.candidate.width,
        packing=k.candidate.packing,
        subgroup=k.subgroup,
        lane=k.lane,
        program=k.slot,
        kind=k.kind,
        groups=k.candidate.splits if k.cluster else 1,
        rank=k.rank,
        begun=k.begun,
    )
    k.begun = True
    totals = reduce_lanes(block, combiners, partials, lanes, f"slots{number}")
    if k.plain:
        for i in walk_.reductions:
            k.block.add(tirx.AttrStmt(imm(0), "tirx_reduce.collective", imm(i), tirx.Evaluate(imm(0))))
        k.block.stmts.extend(block.stmts)
    if k.rank is not None and not k.cluster:
        _leave(k, walk_, totals)
        return
    for i, total in zip(walk_.reductions, totals, strict=True):
        _learn(k, i, total)


def _learn(k: Kernel, i: int, total: tuple[Any, ...]) -> None:
    """The row values of reduction `i` are known from here on."""
    r = k.program.reductions[i]
    for item, (value, dtype) in enumerate(zip(total, r.dtypes, strict=True)):
        k.known[RowValue(i, item, dtype)] = k.block.settle("r", _finished(k, r, item, value, dtype))


def _leave(k: Kernel, walk_: passes.Pass, totals: list[tuple[Any, ...]]) -> None:
    """One lane leaves the partial results of its group for the next launch."""
    at = cast(k.row, "int64") * imm(k.candidate.splits, "int64") + cast(k.rank, "int64")
    with k.block.when(tirx.EQ(k.lane, imm(0))) as first:
        for i, total in zip(walk_.reductions, totals, strict=True):
            for array, value in zip(k.workspace[i], total, strict=True):
                first.store(array, at, value)


def _finished(k: Kernel, r: Reduction, item: int, value: Any, dtype: str) -> Any:
    if r.combiner in ("argmax", "argmin") and item == 0:
        # A row of NaN leaves no index: stay in range.
        value = tirx.Select(tirx.LT(value, k.geometry.columns), value, imm(0))
    if r.init:
        start = tuple(cast(_row_value(k, e), d) for e, d in zip(r.init, _held(r), strict=True))
        if len(start) > 1:
            raise Unsupported("an argmax that starts from a value; needs one that starts from the identity")
        (value,) = combine(r.combiner, start, (value,))
    if dtype == "bool" and str(value.ty.dtype) != "bool":
        return tirx.NE(value, imm(0))
    return cast(value, dtype)


def _row_outputs(k: Kernel, walk_: passes.Pass) -> None:
    """One lane writes the values of the row."""
    if not walk_.row_outputs:
        return
    written = []
    for i in walk_.row_outputs:
        out = k.program.outputs[i]
        stream = _stream(k, out.param, out.index, out.dtype)
        written.append((stream, to_memory(k.block.bind("w", _row_value(k, out.value)), out.dtype, k.kind)))
    first = tirx.EQ(k.lane, imm(0))
    if k.rank is not None:
        first = tirx.And(first, tirx.EQ(k.rank, imm(0)))
    with k.block.when(first if k.valid is None else tirx.And(first, k.valid)) as guard:
        for stream, value in written:
            guard.store(stream.view, stream.start, value)
