"""One device function under construction: its tensors, its lanes, its row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import tirx

from tirx_reduce import ends
from tirx_reduce.candidates import private_rounds
from tirx_reduce.facts_keep import Walks
from tirx_reduce.program import Const, Expr, Load, RowProgram, Sym, walk
from tirx_reduce.values import Candidate

from .memory import memory_dtype
from .packets import Row
from .tir import Block, cast, flat, imm, launch, translate


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """The two arrays of a value that is kept partly in registers and partly in threadgroup memory."""

    private: Any
    shared: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What is known of the number of rows of a launch."""

    planned: int | None = None
    """Rows that it was planned for, at most; None where it may have any number."""
    most: int | None = None
    """Rows that it surely has, at most; None likewise."""
    usual: int = 1
    """Rows that it has as a rule, or more: what all groups need is asked for by those that so many start."""
    whole: bool = False
    """They are a multiple of those that a group takes."""


ANY_ROWS = Rows()


@dataclass(slots=True, kw_only=True)
class Kernel:
    """What is known while a device function is written; it lives no longer than `kernel.emit`."""

    program: RowProgram
    walks: Walks
    params: list[Any]
    """Parameters of the PrimFunc, by number."""
    symbols: dict[str, Any]
    candidate: Candidate
    kind: str
    subgroup: int
    plain: bool = False
    """Write the captured form, on which features are counted."""
    short: bool = False
    """The launch is over as soon as its first groups are."""
    rows: Rows = ANY_ROWS
    """What is known of their number."""
    cluster: bool = False
    """The groups of a row are a thread-block cluster and exchange partial results in shared memory."""
    workspace: dict[int, list[Any]] = field(default_factory=dict)
    """Where the groups of a row exchange partial results by way of global memory: an array a value."""
    block: Block = field(default_factory=Block)
    """Where statements go."""
    views: dict[int, Any] = field(default_factory=dict)
    """Flat views of the tensors, by number."""
    group: Any = None
    lane: Any = None
    slot: Any = None
    """This program in its group."""
    rank: Any = None
    """This group among those of its row."""
    row: Any = None
    geometry: Any = None
    """The `Row` of packets."""
    index_dtype: str = "int32"
    opening: Block = field(default_factory=Block)
    """What comes before everything else: the mailboxes of a group in a cluster."""
    begun: bool = False
    """All groups of the cluster are known to run."""
    turn: Any = None
    """Which of `turns` sets of exchange slots this step uses, where a group takes row after row."""
    turns: int = 1
    known: dict[Expr, Any] = field(default_factory=dict)
    """Values of the row that are named already."""
    kept: dict[Expr, Any] = field(default_factory=dict)
    """Arrays of kept values, each an array or `Mixed`."""
    shared_arrays: list[Any] = field(default_factory=list)
    """Those of them that are in threadgroup memory."""
    shelf: Any = None
    """Where in such an array this step's row begins, where others are on their way to it."""
    scale: dict[Expr, Any] = field(default_factory=dict)
    """Factors that make kept values those of the whole row."""
    folded: dict[Expr, tuple[Expr, Any]] = field(default_factory=dict)
    """Products of such a value and a value of the row, as the kept value and one factor."""
    ahead: dict[Expr, Any] = field(default_factory=dict)
    """Arrays of what was loaded before it was needed."""
    moves: list[Any] = field(default_factory=list)
    """What was loaded for them and is not in its place yet (`straddle.Loaded`)."""


# Groups of a launch up to which most of them run at once.
SHORT_LAUNCH = 264


def short_launch(candidate: Candidate, rows: int | None) -> bool:
    """Whether a launch over so many rows has one wave of groups or little more."""
    if rows is None:
        return False
    return candidate.groups(rows) <= SHORT_LAUNCH


# Elements of a tensor whose offsets, and those a little behind it, are int32.
SMALL = 2**31 - 2**16


def small_rows(program: RowProgram) -> float:
    """Rows up to which offsets into every tensor are int32: infinite where they always are, 0 where never."""
    most = math.inf
    for tensor in program.tensors:
        fixed = prod(int(e.value) for e in tensor.shape if isinstance(e, Const))
        open_ = [e for e in tensor.shape if not isinstance(e, Const)]
        if not open_:
            most = most if fixed <= SMALL else 0
        elif all(e in program.rows for e in open_):
            # Some extents of the rows, each once, are no more than all of them together.
            most = min(most, SMALL // max(1, fixed))
        else:
            most = 0
    return most


def declare(k: Kernel) -> None:
    """Flat views of all tensors."""
    small = small_rows(k.program)
    k.index_dtype = (
        "int32" if small == math.inf or (k.rows.most is not None and k.rows.most <= small) else "int64"
    )
    # Fixed extents stay of 64 bits, and so do all where rows start anywhere: CUDA's compiler then gives a lane more
    # registers, and brings more loads forward. 64 rows of 12289 columns took 1.2 to 1.3 times as long with 32.
    columns = k.program.columns
    ragged = not isinstance(columns, Const) or int(columns.value) % k.candidate.vector > 0
    extents = None if small == math.inf or ragged else k.index_dtype
    for tensor in k.program.tensors:
        dtype = memory_dtype(tensor.dtype, k.kind)
        view, declaration = flat(k.params[tensor.param], f"{tensor.name}_flat", dtype, extents)
        k.views[tensor.param] = view
        k.block.add(declaration)
    k.group, k.lane = tirx.Var("group", "int32"), tirx.Var("lane", "int32")
    k.slot = tirx.Var("slot", "int32") if k.candidate.packing > 1 else imm(0)
    if k.candidate.splits > 1:
        k.rank = tirx.FloorMod(k.group, imm(k.candidate.splits))


def first_row(k: Kernel) -> Any:
    """The row that this lane's program takes first."""
    c, it = k.candidate, k.index_dtype
    group = k.group if c.splits == 1 else tirx.FloorDiv(k.group, imm(c.splits))
    row: Any = cast(group, it)
    row = row if c.packing == 1 else row * imm(c.packing, it) + cast(k.slot, it)
    return row if c.rows == 1 else row * imm(c.rows, it)


def place(k: Kernel, row: Any, *, first: bool = True) -> None:
    """Take `row`, the `first` of its program or a later one: its columns, and how they fall into packets."""
    c, it = k.candidate, k.index_dtype
    valid, rows = None, row_count(k)
    whole = isinstance(rows, tirx.IntImm) and rows.value % c.rows_a_group == 0
    if not (whole or k.rows.whole) and (c.packing > 1 or not first):
        # A group's last programs may have no row: they go along to every barrier, and neither read nor write. (Where an
        # output is the input, the row's owner writes there.) What they compute of nothing stays with them.
        valid = None if k.plain else tirx.LT(row, cast(rows, it))
        row = tirx.Min(row, cast(rows, it) - imm(1, it))
    k.row = row
    fixed = int(k.program.columns.value) if isinstance(k.program.columns, Const) else None
    columns = imm(fixed) if fixed is not None else cast(extent(k, k.program.columns), "int32")
    base = row * cast(columns, it)
    head, before, most_before = None, imm(0), 0
    packets = columns if fixed is None else imm(fixed // c.vector)
    if c.vector > 1 and not (fixed is not None and fixed % ends.start_unit(c) == 0):
        head = imm(0, it)
        if _reads_dense(k.program) and not (isinstance(rows, tirx.IntImm) and rows.value == 1):
            most_before = ends.most_before(fixed, ends.start_unit(c))
            head = _named(k, "head", first_packet(k, base))
            before = _named(k, "before", cast(head * imm(c.vector, it) - base, "int32"))
        if fixed is None or ends.fewest_packets(fixed, c.vector, most_before) < fixed // c.vector:
            whole = tirx.FloorDiv(tirx.Max(columns - before, imm(0)), imm(c.vector))
            packets = _named(k, "packets", whole)
    near = None
    if c.reuse == "mixed" and fixed is not None:
        near = private_rounds(c, len(k.walks.kept()), fixed)
    elif c.resident and c.reuse == "shared" and head is not None:
        # Asynchronous copies take whole packets; what is left comes through registers, and stays there.
        near = 0
    k.geometry = Row(
        valid=valid,
        columns=columns,
        fixed=fixed,
        vector=c.vector,
        width=c.width * c.splits,
        lane=k.lane if k.rank is None else k.rank * imm(c.width) + k.lane,
        base=base,
        head=head,
        before=before,
        most_before=most_before,
        packets=packets,
        # The captured form asks for every element once.
        pairs=k.kind == "cuda" and not k.plain,
        index_dtype=it,
        kind=k.kind,
        private_rounds=near,
    )


def first_packet(k: Kernel, base: Any) -> Any:
    """Number of the first packet from `base` on, where rows start anywhere."""
    it, unit = k.index_dtype, ends.start_unit(k.candidate)
    number = tirx.FloorDiv(base + imm(unit - 1, it), imm(unit, it))
    packets = unit // k.candidate.vector
    return number * imm(packets, it) if packets > 1 else number


def next_row(k: Kernel, row: Any, once: dict[Expr, Any], *, first: bool = True) -> None:
    """Take `row`, and forget the one before but for what was loaded `once` for all; `first` as for `place`."""
    k.known, k.kept, k.scale, k.folded, k.ahead, k.moves = {}, {}, {}, {}, dict(once), []
    place(k, row, first=first)


def _named(k: Kernel, name: str, value: Any) -> Any:
    """A value under a name; spelled out in the captured form, which asks what depends on the row."""
    return value if k.plain else k.block.settle(name, value)


def loads_of(program: RowProgram) -> list[Load]:
    """All loads of a program, one of each tensor and index."""
    values: list[Expr] = [e for r in program.reductions for e in (*r.elements, *r.init)]
    values += [out.value for out in program.outputs]
    return list(dict.fromkeys(e for e in walk(*values) if isinstance(e, Load)))


def _reads_dense(program: RowProgram) -> bool:
    return any(e.index.dense for e in loads_of(program)) or any(
        o.index.dense for o in program.outputs if not o.per_row
    )


def row_count(k: Kernel) -> Any:
    """The number of rows as TIR, an int32 literal where it is fixed."""
    total: Any = imm(prod(int(e.value) for e in k.program.rows if isinstance(e, Const)), "int64")
    for e in k.program.rows:
        if not isinstance(e, Const):
            total = total * cast(extent(k, e), "int64")
    return imm(int(total.value), "int32") if isinstance(total, tirx.IntImm) else total


def extent(k: Kernel, e: Expr) -> Any:
    """An extent as TIR."""
    return translate(e, lambda leaf: symbol(k, leaf), Block(), k.kind)


def symbol(k: Kernel, e: Expr) -> Any:
    """A symbolic extent as TIR; None for anything else."""
    return cast(k.symbols[e.name], e.dtype) if isinstance(e, Sym) else None


def launched(k: Kernel, groups: Any | None = None) -> Any:
    """The statement that launches what was written: a group for each program, or `groups` of them."""
    c = k.candidate
    if groups is None:
        rows, each = row_count(k), c.rows_a_group
        if isinstance(rows, tirx.IntImm):  # rounding up in 32 bits may take more
            groups = imm(c.groups(int(rows.value)))
        else:
            groups = tirx.FloorDiv(rows + imm(each - 1, "int64"), imm(each, "int64")) if each > 1 else rows
            groups = groups * imm(c.splits, "int64") if c.splits > 1 else groups
    threads = [(k.lane, "threadIdx.x", imm(c.width))]
    if c.packing > 1:
        threads.append((k.slot, "threadIdx.y", imm(c.packing)))
    threads.append((k.group, "blockIdx.x", cast(groups, "int32")))
    if k.cluster:
        threads.append((tirx.Var("rank", "int32"), "clusterCtaIdx.x", imm(c.splits)))
    k.block.stmts[:0] = k.opening.stmts
    return launch(k.block.stmt(), tuple(threads))
