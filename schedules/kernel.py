"""Writes the device functions of one mapping: every walk over the row, its collective, its stores.

Before: a PrimFunc of S/R blocks, read into a row program. After, for a softmax at W=128, V=4, private::

    row = blockIdx.x
    for r in unroll(R): xl[4r : 4r+4] = x[row, 4(128r + lane) …]      # walk 1, 16 bytes an access
    m = max over xl; m = shuffles(m); slot[subgroup] = m; barrier; m = max over slots
    for r in unroll(R): xl[…] = exp(xl[…] - m); s += xl[…]           # walk 2
    s = shuffles(s); slot'[subgroup] = s; barrier; s = sum over slots'
    for r in unroll(R): y[row, …] = xl[…] / s                        # walk 3
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tirx_reduce.facts_keep import Walks
from tirx_reduce.program import Const, RowProgram
from tirx_reduce.values import Candidate

from . import arithmetic, cluster, online, passes, prologue, resident
from .exchange import (
    assume,
    conclude,
    join,
    leave,
    of_subgroup,
    open_workspace,
    recall,
    settle_cluster,
    settle_group,
    totals_of,
)
from .merge import Rider, riders
from .row_values import row_outputs
from .state import ANY_ROWS, Kernel, Rows, declare, first_row, launched, next_row, place, short_launch
from .tir import Block, imm
from .walks import load_ahead, walk_columns, widens

# Overlap the start of a launch with the end of the one before (CUDA, where clusters are). Measured on an H200: 0.3
# to 0.8 µs less a launch at every size.
OVERLAP = True


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
    rows: Rows = ANY_ROWS,
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
    rows : Rows
        What is known of their number.
    """
    program = arithmetic.prepare(program)
    shape = Walks(program)
    columns = int(program.columns.value) if isinstance(program.columns, Const) else None
    wide = widens(candidate, kind, columns)
    # What is kept in two places is never given a third.
    fits = candidate.reuse != "mixed" or all(e.dtype == "float32" for e in shape.kept())
    # Where a row is on its way to threadgroup memory it stays as it was there.
    fits = fits and not (candidate.resident and candidate.reuse == "shared")
    walks = passes.cut(shape, candidate.reuse != "reload", upgrade=not plain and fits, widen=wide)
    begin = OVERLAP and max_cluster > 1 and not plain

    def kernel(workspace: dict[int, list[Any]], clustered: bool, reuse: str = candidate.reuse) -> Kernel:
        k = Kernel(
            program=program,
            walks=shape,
            params=params,
            symbols=symbols,
            candidate=replace(candidate, reuse=reuse),
            kind=kind,
            subgroup=subgroup,
            plain=plain,
            short=short_launch(candidate, rows.planned),
            rows=rows,
            cluster=clustered,
            workspace=workspace,
        )
        declare(k)
        if k.cluster:
            cluster.arrive(k.block)
        return k

    once = online.applies(candidate, walks, 1 < candidate.splits <= max_cluster, plain)
    step = candidate.vector * candidate.width * candidate.splits
    together = riders(program, walks, None if once else step)
    if candidate.splits > max_cluster:
        held = _held_first(shape, walks, candidate, step) if begin and wide else None
        if held is not None:
            return _apart(kernel, *held, begin, "private")
        return _apart(kernel, walks, together, begin)
    k = kernel({}, candidate.splits > 1)
    if begin:
        prologue.open_launch(k)
    if not (k.cluster or candidate.merged) or (candidate.width <= subgroup and not once):
        together = {}
    if candidate.resident:
        return resident.write(k, walks, lambda walks: _row(k, walks, together))
    if candidate.rows > 1:
        return _several(k, walks, together)
    place(k, first_row(k))
    _row(k, walks, together)
    return launched(k)


def _row(k: Kernel, walks: tuple[passes.Pass, ...], together: dict[int, Rider]) -> None:
    """All walks over one row in one launch."""
    done = 0
    if together:
        mine = _both(k, walks, together)
        if k.cluster:
            settle_cluster(k, join(k, mine, 2, together), 2, together)
        else:
            settle_group(k, mine, 2, together)
        for plan in walks[:2]:
            row_outputs(k, plan)
        done = 2
    for number, plan in enumerate(walks[done:], done + 1):
        w = walk_columns(k, number, plan, walks[1:] if number == 1 else ())
        conclude(k, w)
        row_outputs(k, plan)


def _both(k: Kernel, walks: tuple[passes.Pass, ...], together: dict[int, Rider]) -> dict[int, Any]:
    """What the first two walks find in each subgroup, by reduction."""
    if online.applies(k.candidate, walks, k.cluster, k.plain):
        return online.walk_once(k, walks[0], together)
    first = walk_columns(k, 1, walks[0], walks[1:])
    assumed = assume(k, first, together)
    return of_subgroup(k, first, assumed, walk_columns(k, 2, walks[1]))


def _several(k: Kernel, walks: tuple[passes.Pass, ...], together: dict[int, Rider]) -> Any:
    """Programs that take some rows one after another, written out: the compiler brings their loads together."""
    begin = first_row(k)
    place(k, begin)
    if k.geometry.head is None:  # then every row is cut alike
        load_ahead(k, walks, vectors=True)
    once = k.ahead
    for number in range(k.candidate.rows):
        next_row(k, begin + imm(number, k.index_dtype) if number else begin, once, first=number == 0)
        _row(k, walks, together)
    return launched(k)


def _held_first(
    shape: Walks, walks: tuple[passes.Pass, ...], candidate: Candidate, step: int
) -> tuple[tuple[passes.Pass, ...], dict[int, Rider]] | None:
    """Walks and riders where the first launch keeps its share of the row for both reductions; None where it cannot."""
    held = passes.cut(shape, True, upgrade=False)
    together = riders(shape.program, held, step)
    if not (candidate.merged and together) or len(held) != len(walks):
        return None
    return (*held[:2], *walks[2:]), together


def _apart(
    kernel: Any,
    walks: tuple[passes.Pass, ...],
    together: dict[int, Rider],
    begin: bool,
    first: str = "reload",
) -> Any:
    """A launch for each exchange: the groups of a row leave their partial results in global memory for the next.

    After, for a softmax over S groups a row::

        launch rows·S: m = max over the columns of group s; part[row, s] = m, sum of exp(x - m)
        launch rows·S: m, sum = over part[row, :]; y[row, …] = exp(x[row, …] - m) / sum
    """
    host = Block()
    workspace: dict[int, list[Any]] = {}
    pending: tuple[passes.Pass, ...] = ()
    number = 1
    while number <= len(walks) or any(p.row_outputs for p in pending):
        k: Kernel = kernel(workspace, False, first if number == 1 else "reload")
        place(k, first_row(k))
        here = walks[number - 1 : number]
        if begin and number == 1:
            prologue.open_launch(k, followed=True)
        elif begin:
            written = any(p.outputs for p in walks[: number - 1])
            more = any(p.reductions for p in here)
            prologue.follow(k, () if written else here, followed=more)
        recall(k, together)
        for plan in pending:
            row_outputs(k, plan)
        pending = ()
        if number == 1 and together:
            open_workspace(k, walks[0], host)
            open_workspace(k, walks[1], host)
            mine = join(k, _both(k, walks, together), 2, together)
            leave(k, {i: (value,) for i, value in mine.items()})
            pending, number = walks[:2], 3
        elif number <= len(walks):
            w = walk_columns(k, number, walks[number - 1])
            if w.plan.reductions:
                open_workspace(k, w.plan, host)
                leave(k, dict(zip(w.plan.reductions, totals_of(k, w), strict=True)))
                pending = (w.plan,)
            else:
                row_outputs(k, w.plan)
            number += 1
        host.add(launched(k))
    return host.stmt()
