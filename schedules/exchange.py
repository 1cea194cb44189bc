"""The end of a walk: partial results of lanes, and of the groups of a row, become values of the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tirx_reduce.program import RowValue

from . import merge, passes
from .collectives import Lanes, Parts, combine, deposit, gather, named, reduce_lanes, spread
from .elements import Walk
from .row_values import held_dtypes, learn, start_of
from .state import Kernel, row_count
from .tir import Block, cast, imm, load


def totals_of(k: Kernel, w: Walk, groups: int = 1, within_subgroup: bool = False) -> list[tuple[Any, ...]]:
    """Fold this lane's chains, then the lanes of its group, then `groups` groups of a cluster."""
    block = Block() if k.plain else k.block
    combiners = tuple(k.program.reductions[i].combiner for i in w.plan.reductions)
    partials = []
    for i, name in zip(w.plan.reductions, combiners, strict=True):
        chains = [
            tuple(block.bind("a", load(a, v)) for a in w.accumulators[i]) for v in range(k.candidate.vector)
        ]
        total = chains[0]
        for chain in chains[1:]:
            total = named(block, combine(name, total, chain))
        partials.append(total)
    starts = [
        tuple(start_of(r, item) for item in range(len(r.dtypes)))
        for r in (k.program.reductions[i] for i in w.plan.reductions)
    ]
    lanes = _lanes(k, groups)
    totals = reduce_lanes(block, combiners, starts, partials, lanes, f"slots{w.number}", within_subgroup)
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
        opening=k.opening,
    )


def conclude(k: Kernel, w: Walk) -> None:
    """The row values of a walk are known afterwards."""
    if not w.plan.reductions:
        return
    totals = totals_of(k, w, k.candidate.splits if k.cluster else 1)
    for i, total in zip(w.plan.reductions, totals, strict=True):
        learn(k, i, total)


# --- two walks, one exchange --------------------------------------------------------------------------------
#
# Nobody waits between the two walks: each subgroup reduces both with its own value of the first, and what it found is
# corrected twice, to its group and to the row. What that is worth on an H200 stands in docs/kernels.md.


def assume(k: Kernel, w: Walk, riders: dict[int, merge.Rider]) -> list[Any]:
    """End a walk in its subgroup alone: what later reductions ride on is that of the subgroup for the time being."""
    totals = [value for (value,) in totals_of(k, w, within_subgroup=True)]
    ridden = {r.on: r for r in riders.values()}
    parts = k.candidate.splits * (k.candidate.width // k.subgroup)
    for i, value in zip(w.plan.reductions, totals, strict=True):
        k.known[RowValue(i, 0, "float32")] = k.block.settle("r", ridden[i].reference(value, parts))
    return totals


def _deposited(
    k: Kernel, first: Walk, a: list[Any], second: Walk
) -> tuple[Lanes, Callable[[Block, int, Any], Any]]:
    """What every subgroup of this group found in both walks, after the one barrier."""
    b = [value for (value,) in totals_of(k, second, within_subgroup=True)]
    lanes = _lanes(k, 1)
    parts = deposit(k.block, [(v,) for v in (*a, *b)], lanes, f"slots{second.number}")
    return lanes, _reader(dict(zip((*first.plan.reductions, *second.plan.reductions), parts, strict=True)))


def _reader(parts: dict[int, Parts]) -> Callable[[Block, int, Any], Any]:
    def read(inside: Block, i: int, index: Any) -> Any:
        return inside.bind("p", load(parts[i].arrays[0], parts[i].base + index))

    return read


def settle_group(
    k: Kernel, first: Walk, a: list[Any], second: Walk, riders: dict[int, merge.Rider], columns: int
) -> None:
    """One barrier for both walks; afterwards their row values are those of the row."""
    lanes, read = _deposited(k, first, a, second)
    _settle(k, riders, columns, lanes, lanes.subgroups, read)


def join(
    k: Kernel, first: Walk, a: list[Any], second: Walk, riders: dict[int, merge.Rider], columns: int
) -> dict[int, Any]:
    """Both walks' partial results for this group of several; for this subgroup, where each sends its own."""
    if k.candidate.width == k.subgroup or (k.cluster and _lanes(k, k.candidate.splits).direct):
        b = [value for (value,) in totals_of(k, second, within_subgroup=True)]
        return dict(zip((*first.plan.reductions, *second.plan.reductions), [*a, *b], strict=True))
    lanes, read = _deposited(k, first, a, second)
    return _corrected(k, riders, columns // k.candidate.splits, lanes, lanes.subgroups, read)


def settle_cluster(
    k: Kernel, second: Walk, mine: dict[int, Any], riders: dict[int, merge.Rider], columns: int
) -> None:
    """One exchange over the cluster for both walks; afterwards their row values are those of the whole row."""
    lanes = _lanes(k, k.candidate.splits)
    parts = spread(k.block, [(value,) for value in mine.values()], lanes, f"slots{second.number}")
    k.begun = True
    _settle(k, riders, columns, lanes, lanes.parts, _reader(dict(zip(mine, parts, strict=True))))


def _settle(
    k: Kernel,
    riders: dict[int, merge.Rider],
    columns: int,
    lanes: Lanes,
    count: int,
    read: Callable[[Block, int, Any], Any],
) -> None:
    """The row values of two walks from `count` partial results that make up the row."""
    ridden = tuple(dict.fromkeys(r.on for r in riders.values()))
    assumed = {i: k.known.get(RowValue(i, 0, "float32")) for i in ridden}
    # What was computed from the subgroup's values is stale.
    for e in [e for e in k.known if any(merge.depends(e, i) for i in ridden)]:
        del k.known[e]
    for i, total in _corrected(k, riders, columns, lanes, count, read, final=True).items():
        learn(k, i, (total,))
    for rider in riders.values():
        if assumed[rider.on] is not None:
            _rescale(k, rider, assumed[rider.on], k.known[RowValue(rider.on, 0, "float32")])


def _corrected(
    k: Kernel,
    riders: dict[int, merge.Rider],
    columns: int,
    lanes: Lanes,
    count: int,
    read: Callable[[Block, int, Any], Any],
    final: bool = False,
) -> dict[int, Any]:
    """Fold `count` partial results of both walks over `columns` columns, the later ones corrected to the total."""
    ridden = tuple(dict.fromkeys(r.on for r in riders.values()))
    earlier = dict(zip(ridden, _gathered(k, ridden, lanes, count, read), strict=True))
    totals = {i: k.block.settle("r", v) for i, v in earlier.items()}

    def corrected(inside: Block, j: int, index: Any) -> Any:
        on = riders[j].on
        total = totals[on] if final else riders[j].base(totals[on])
        return riders[j].term(read(inside, on, index), read(inside, j, index), total, count, columns)

    later = _gathered(k, tuple(riders), lanes, count, corrected)
    return {**totals, **dict(zip(riders, later, strict=True))}


def _gathered(
    k: Kernel,
    reductions: tuple[int, ...],
    lanes: Lanes,
    count: int,
    read: Callable[[Block, int, Any], Any],
) -> list[Any]:
    of = [k.program.reductions[i] for i in reductions]
    combiners = tuple(r.combiner for r in of)
    starts = [(start_of(r, 0),) for r in of]
    found = gather(
        k.block,
        combiners,
        starts,
        lanes,
        count,
        lambda inside, n, index: (read(inside, reductions[n], index),),
    )
    return [value for (value,) in found]


def _rescale(k: Kernel, rider: merge.Rider, mine: Any, total: Any) -> None:
    """Kept values that were computed from this group's value get the factor that makes them the row's."""
    factor = rider.factor(mine, total)
    if factor is None:
        return
    settled = k.block.settle("f", factor)
    for e in k.kept:
        if merge.depends(e, rider.on):
            k.scale[e] = settled


# --- by way of global memory -----------------------------------------------------------------------------------------


def leave(k: Kernel, totals: dict[int, tuple[Any, ...]]) -> None:
    """One lane leaves the partial results of its group for the next launch."""
    at = cast(k.row, "int64") * imm(k.candidate.splits, "int64") + cast(k.rank, "int64")
    with k.block.when(tirx.EQ(k.lane, imm(0))) as first:
        for i, total in totals.items():
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


def recall(k: Kernel, riders: dict[int, merge.Rider], columns: int) -> None:
    """Fold the partial results that earlier launches left for this row; every subgroup does it for itself."""
    if not k.workspace:
        return
    lanes = Lanes(width=k.subgroup, packing=1, subgroup=k.subgroup, lane=k.lane, program=k.slot, kind=k.kind)
    parts = k.candidate.splits

    def place(index: Any) -> Any:
        return cast(k.row, "int64") * imm(parts, "int64") + cast(index, "int64")

    if riders:
        _settle(
            k,
            riders,
            columns,
            lanes,
            parts,
            lambda inside, i, index: inside.bind("p", load(k.workspace[i][0], place(index))),
        )
        return
    done = tuple(k.workspace)
    of = [k.program.reductions[i] for i in done]
    starts = [tuple(start_of(r, item) for item in range(len(r.dtypes))) for r in of]
    found = gather(
        k.block,
        tuple(r.combiner for r in of),
        starts,
        lanes,
        parts,
        lambda inside, n, index: tuple(inside.bind("p", load(a, place(index))) for a in k.workspace[done[n]]),
    )
    for i, total in zip(done, found, strict=True):
        learn(k, i, total)
