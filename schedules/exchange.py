"""The end of a walk: partial results of lanes, and of the groups of a row, become values of the row."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tirx_reduce.program import RowValue

from . import merge, passes
from .collectives import Lanes, combine, named, reduce_lanes, share
from .row_values import held_dtypes, learn, start_of
from .state import Kernel, row_count
from .tir import Block, cast, imm, load
from .walks import Walk


def totals_of(k: Kernel, w: Walk, groups: int = 1) -> list[tuple[Any, ...]]:
    """Fold this lane's chains, then the lanes of its group, then `groups` groups of a cluster."""
    block = Block() if k.plain else k.block
    combiners = tuple(k.program.reductions[i].combiner for i in w.plan.reductions)
    partials = []
    for i, name in zip(w.plan.reductions, combiners, strict=True):
        chains = [tuple(block.bind("a", load(a, v)) for a in w.accumulators[i]) for v in range(k.candidate.vector)]
        total = chains[0]
        for chain in chains[1:]:
            total = named(block, combine(name, total, chain))
        partials.append(total)
    totals = reduce_lanes(block, combiners, partials, _lanes(k, groups), f"slots{w.number}")
    k.begun = k.begun or groups > 1
    if k.plain:
        for i in w.plan.reductions:
            k.block.add(tirx.AttrStmt(imm(0), "tirx_reduce.collective", imm(i), tirx.Evaluate(imm(0))))
        k.block.stmts.extend(block.stmts)
    return totals


def _lanes(k: Kernel, groups: int) -> Lanes:
    return Lanes(
        width=k.candidate.width,
        packing=k.candidate.packing,
        subgroup=k.subgroup,
        lane=k.lane,
        program=k.slot,
        kind=k.kind,
        groups=groups,
        rank=k.rank,
        begun=k.begun,
        parity=k.parity,
    )


def conclude(k: Kernel, w: Walk) -> None:
    """The row values of a walk are known afterwards."""
    if not w.plan.reductions:
        return
    totals = totals_of(k, w, k.candidate.splits if k.cluster else 1)
    for i, total in zip(w.plan.reductions, totals, strict=True):
        learn(k, i, total)


# --- two walks, one exchange -----------------------------------------------------------------------------------------


def assume(k: Kernel, w: Walk, riders: dict[int, merge.Rider]) -> list[tuple[Any, ...]]:
    """End a walk in its group alone: what later reductions ride on is taken from this group for the time being."""
    totals = totals_of(k, w)
    ridden = {r.on: r for r in riders.values()}
    for i, (value,) in zip(w.plan.reductions, totals, strict=True):
        k.known[RowValue(i, 0, "float32")] = k.block.settle("r", ridden[i].reference(value, k.candidate.splits))
    return totals


def settle_cluster(
    k: Kernel, first: Walk, a: list[tuple[Any, ...]], second: Walk, riders: dict[int, merge.Rider], columns: int
) -> None:
    """One exchange over the cluster for both walks; afterwards their row values are those of the whole row."""
    b = totals_of(k, second)
    parts = share(k.block, [*a, *b], _lanes(k, k.candidate.splits), f"slots{second.number}")
    k.begun = True
    of = dict(zip((*first.plan.reductions, *second.plan.reductions), parts, strict=True))
    _settle(k, first, second, riders, columns, {i: [p[0] for p in each] for i, each in of.items()})


def _settle(
    k: Kernel,
    first: Walk,
    second: Walk,
    riders: dict[int, merge.Rider],
    columns: int,
    of: dict[int, list[Any]],
) -> None:
    mine = {i: k.known[RowValue(i, 0, "float32")] for i in first.plan.reductions}
    for i in first.plan.reductions:
        # What was named from this group's value, such as its mean, is not the row's.
        k.known = {e: v for e, v in k.known.items() if not merge.depends(e, i)}
        learn(k, i, (_tree(k.program.reductions[i].combiner, of[i]),))
    for j in second.plan.reductions:
        rider = riders[j]
        total = k.known[RowValue(rider.on, 0, "float32")]
        terms = [
            rider.term(x, y, total, k.candidate.splits, columns) for x, y in zip(of[rider.on], of[j], strict=True)
        ]
        learn(k, j, (_tree("sum", terms),))
        _rescale(k, rider, mine[rider.on], total)


def _rescale(k: Kernel, rider: merge.Rider, mine: Any, total: Any) -> None:
    """Kept values that were computed from this group's value get the factor that makes them the row's."""
    factor = rider.factor(mine, total)
    if factor is None:
        return
    settled = k.block.settle("f", factor)
    for e in k.kept:
        if merge.depends(e, rider.on):
            k.scale[e] = settled


def _tree(combiner: str, values: list[Any]) -> Any:
    while len(values) > 1:
        pairs = [combine(combiner, (a,), (b,))[0] for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + ([values[-1]] if len(values) % 2 else [])
    return values[0]


# --- by way of global memory -----------------------------------------------------------------------------------------


def leave(k: Kernel, plan: passes.Pass, totals: list[tuple[Any, ...]]) -> None:
    """One lane leaves the partial results of its group for the next launch."""
    at = cast(k.row, "int64") * imm(k.candidate.splits, "int64") + cast(k.rank, "int64")
    with k.block.when(tirx.EQ(k.lane, imm(0))) as first:
        for i, total in zip(plan.reductions, totals, strict=True):
            for array, value in zip(k.workspace[i], total, strict=True):
                first.store(array, at, value)


def open_workspace(k: Kernel, plan: passes.Pass, host: Block) -> None:
    """Arrays for the partial results of one walk, a value for each group of each row."""
    parts = cast(row_count(k), "int64") * imm(k.candidate.splits, "int64")
    for i in plan.reductions:
        arrays = [
            tirx.decl_buffer((parts,), dtype, name=f"part{i}_{item}", scope="global")
            for item, dtype in enumerate(held_dtypes(k.program.reductions[i]))
        ]
        for array in arrays:
            host.add(tirx.AllocBuffer(array))
        k.workspace[i] = arrays


def gather(k: Kernel, riders: dict[int, merge.Rider], columns: int) -> None:
    """Fold the partial results that earlier launches left for this row; every subgroup does it for itself."""
    for level in (
        [i for i in k.workspace if i not in riders],
        [i for i in k.workspace if i in riders],
    ):
        if not level:
            continue
        combiners = tuple(k.program.reductions[i].combiner for i in level)
        values = [_gathered(k, i, riders.get(i), columns) for i in level]
        lanes = Lanes(width=k.subgroup, packing=1, subgroup=k.subgroup, lane=k.lane, program=k.slot, kind=k.kind)
        for i, total in zip(level, reduce_lanes(k.block, combiners, values, lanes, "gathered"), strict=True):
            learn(k, i, total)


def _gathered(k: Kernel, i: int, rider: merge.Rider | None, columns: int) -> tuple[Any, ...]:
    """This lane's share of the partial results of reduction `i`."""
    r = k.program.reductions[i]
    splits, within = k.candidate.splits, tirx.FloorMod(k.lane, imm(k.subgroup))
    mine: tuple[Any, ...] | None = None
    for first in range(0, splits, k.subgroup):
        part = imm(first) + within
        cells = [k.block.alloc("part", 1, str(a.ty.dtype)) for a in k.workspace[i]]
        for item, cell in enumerate(cells):
            k.block.store(cell, 0, start_of(r, item))
        at = cast(k.row, "int64") * imm(splits, "int64") + cast(part, "int64")
        with k.block.when(tirx.LT(part, imm(splits)) if first + k.subgroup > splits else None) as inside:
            if rider is None:
                for cell, array in zip(cells, k.workspace[i], strict=True):
                    inside.store(cell, 0, load(array, at))
            else:
                x = inside.bind("x", load(k.workspace[rider.on][0], at))
                y = inside.bind("y", load(k.workspace[i][0], at))
                total = k.known[RowValue(rider.on, 0, "float32")]
                inside.store(cells[0], 0, rider.term(x, y, total, splits, columns))
        values = tuple(k.block.bind("p", load(cell, 0)) for cell in cells)
        mine = values if mine is None else named(k.block, combine(r.combiner, mine, values))
    if mine is None:
        raise AssertionError("a row of no groups")
    return mine
