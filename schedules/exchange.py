"""The end of a walk: partial results of lanes, and of the groups of a row, become values of the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tirx_reduce.program import RowValue

from . import merge, passes
from .collectives import Lanes, Parts, deposit, fold_chains, gather, reduce_lanes, spread
from .elements import Walk
from .row_values import held_dtypes, learn, start_of
from .state import Kernel, row_count
from .tir import Block, cast, imm, load


def totals_of(k: Kernel, w: Walk, groups: int = 1, within_subgroup: bool = False) -> list[tuple[Any, ...]]:
    """Fold this lane's chains, then the lanes of its group, then `groups` groups of a cluster."""
    block = Block() if k.plain else k.block
    combiners = tuple(k.program.reductions[i].combiner for i in w.plan.reductions)
    partials = [
        fold_chains(block, name, w.accumulators[i], k.candidate.vector)
        for i, name in zip(w.plan.reductions, combiners, strict=True)
    ]
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
        turn=k.turn,
        turns=k.turns,
        opening=k.opening,
    )


def conclude(k: Kernel, w: Walk) -> None:
    """The row values of a walk are known afterwards."""
    if not w.plan.reductions:
        return
    totals = totals_of(k, w, k.candidate.splits if k.cluster else 1)
    for i, total in zip(w.plan.reductions, totals, strict=True):
        learn(k, i, total)


# --- two reductions, one exchange ---------------------------------------------------------------------------
#
# Nobody waits between the two: each subgroup reduces both with its own value of the first, and what it found is
# corrected twice, to its group and to the row. What that is worth on an H200 stands in docs/kernels.md.


def assume(k: Kernel, w: Walk, riders: dict[int, merge.Rider]) -> list[Any]:
    """End a walk in its subgroup alone: what later reductions ride on is that of the subgroup for the time being."""
    totals = [value for (value,) in totals_of(k, w, within_subgroup=True)]
    ridden = {r.on: r for r in riders.values()}
    parts = k.candidate.splits * (k.candidate.width // k.subgroup)
    for i, value in zip(w.plan.reductions, totals, strict=True):
        k.known[RowValue(i, 0, "float32")] = k.block.settle("r", ridden[i].reference(value, parts))
    return totals


def of_subgroup(k: Kernel, first: Walk, a: list[Any], second: Walk) -> dict[int, Any]:
    """What two walks found in this subgroup, by reduction; `a` is what `assume` gave."""
    b = [value for (value,) in totals_of(k, second, within_subgroup=True)]
    return dict(zip((*first.plan.reductions, *second.plan.reductions), [*a, *b], strict=True))


def of_lanes(k: Kernel, own: dict[int, Any], count: Any, riders: dict[int, merge.Rider]) -> dict[int, Any]:
    """What one walk found in this subgroup, from what each lane found in its `count` columns."""
    span = min(k.candidate.width, k.subgroup)
    lane = _lane_in_row(k, tirx.FloorDiv(k.lane, imm(span)) * imm(span))

    def folded(values: dict[int, Any]) -> dict[int, Any]:
        of = [k.program.reductions[i] for i in values]
        found = reduce_lanes(
            k.block,
            tuple(r.combiner for r in of),
            [(start_of(r, 0),) for r in of],
            [(v,) for v in values.values()],
            _lanes(k, 1),
            "",
            within_subgroup=True,
        )
        return {i: k.block.settle("r", v) for i, (v,) in zip(values, found, strict=True)}

    totals = folded({i: own[i] for i in dict.fromkeys(r.on for r in riders.values())})
    terms = {
        j: r.term(own[r.on], own[j], r.base(totals[r.on]), count, columns_between(k, lane, span))
        for j, r in riders.items()
    }
    return {**totals, **folded(terms)}


def settle_group(k: Kernel, mine: dict[int, Any], number: int, riders: dict[int, merge.Rider]) -> None:
    """One barrier for both reductions, none where a row has one subgroup; afterwards their values are the row's."""
    lanes = _lanes(k, 1)
    if lanes.subgroups > 1:
        _settle(k, riders, lanes, lanes.subgroups, _deposited(k, mine, lanes, number))
        return
    for i, value in mine.items():
        learn(k, i, (riders[i].final(value, mine[riders[i].on]) if i in riders else value,))


def join(k: Kernel, mine: dict[int, Any], number: int, riders: dict[int, merge.Rider]) -> dict[int, Any]:
    """Both partial results for this group of several; for this subgroup, where each sends its own."""
    if k.candidate.width == k.subgroup or (k.cluster and _lanes(k, k.candidate.splits).direct):
        return mine
    lanes = _lanes(k, 1)
    read = _deposited(k, mine, lanes, number)
    return _corrected(k, riders, lanes, lanes.subgroups, read, group=True)


def settle_cluster(k: Kernel, mine: dict[int, Any], number: int, riders: dict[int, merge.Rider]) -> None:
    """One exchange over the cluster for both reductions; afterwards their row values are those of the whole row."""
    lanes = _lanes(k, k.candidate.splits)
    parts = spread(k.block, [(value,) for value in mine.values()], lanes, f"slots{number}")
    k.begun = True
    _settle(k, riders, lanes, lanes.parts, _reader(dict(zip(mine, parts, strict=True))))


def _deposited(
    k: Kernel, mine: dict[int, Any], lanes: Lanes, number: int
) -> Callable[[Block, int, Any], Any]:
    """What every subgroup of this group found, after the one barrier."""
    parts = deposit(k.block, [(v,) for v in mine.values()], lanes, f"slots{number}")
    return _reader(dict(zip(mine, parts, strict=True)))


def _reader(parts: dict[int, Parts]) -> Callable[[Block, int, Any], Any]:
    def read(inside: Block, i: int, index: Any) -> Any:
        return inside.bind("p", load(parts[i].arrays[0], parts[i].base + index))

    return read


def _lane_in_row(k: Kernel, lane: Any) -> Any:
    """A lane of this group among those of all groups of the row."""
    return lane if k.rank is None else k.rank * imm(k.candidate.width) + lane


def columns_between(k: Kernel, begin: Any, lanes: int) -> merge.Count:
    """How many columns the lanes from `begin` on have: an int where all lanes have equally many."""
    row = k.geometry
    if row.fixed is not None and row.fixed % (row.vector * row.width) == 0:
        return row.fixed // row.width * lanes

    def dealt(total: Any) -> Any:
        """How many of `total` things, dealt out to all lanes of the row in turn, these lanes have."""
        width = imm(row.width)

        def before(end: Any) -> Any:
            return tirx.FloorDiv(total, width) * end + tirx.Min(tirx.FloorMod(total, width), end)

        return before(begin + imm(lanes)) - before(begin)

    found = dealt(row.packets) * imm(row.vector)
    return cast(found + dealt(row.left) if row.head is not None else found, "float32")


def _settle(
    k: Kernel,
    riders: dict[int, merge.Rider],
    lanes: Lanes,
    count: int,
    read: Callable[[Block, int, Any], Any],
) -> None:
    """The row values of two reductions from `count` partial results that make up the row."""
    ridden = tuple(dict.fromkeys(r.on for r in riders.values()))
    assumed = {i: k.known.get(RowValue(i, 0, "float32")) for i in ridden}
    # What was computed from the subgroup's values is stale.
    for e in [e for e in k.known if any(merge.depends(e, i) for i in ridden)]:
        del k.known[e]
    for i, total in _corrected(k, riders, lanes, count, read).items():
        learn(k, i, (total,))
    for rider in riders.values():
        if assumed[rider.on] is not None:
            _rescale(k, rider, assumed[rider.on], k.known[RowValue(rider.on, 0, "float32")])


def _corrected(
    k: Kernel,
    riders: dict[int, merge.Rider],
    lanes: Lanes,
    count: int,
    read: Callable[[Block, int, Any], Any],
    group: bool = False,
) -> dict[int, Any]:
    """Fold `count` partial results of both reductions, the later ones corrected to the total.

    They make up the row, or with `group` what this group has of it.
    """
    ridden = tuple(dict.fromkeys(r.on for r in riders.values()))
    earlier = dict(zip(ridden, _gathered(k, ridden, lanes, count, read), strict=True))
    totals = {i: k.block.settle("r", v) for i, v in earlier.items()}
    begin = _lane_in_row(k, imm(0)) if group else imm(0)
    width = k.candidate.width if group else k.geometry.width
    each = width // count

    def corrected(inside: Block, j: int, index: Any) -> Any:
        rider = riders[j]
        total = rider.base(totals[rider.on]) if group else totals[rider.on]
        share = columns_between(k, begin + index * imm(each), each)
        columns = columns_between(k, begin, width)
        return rider.term(read(inside, rider.on, index), read(inside, j, index), total, share, columns)

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


def recall(k: Kernel, riders: dict[int, merge.Rider]) -> None:
    """Fold the partial results that earlier launches left for this row; every subgroup does it for itself."""
    if not k.workspace:
        return
    lanes = Lanes(width=k.subgroup, packing=1, subgroup=k.subgroup, lane=k.lane, program=k.slot, kind=k.kind)
    parts = k.candidate.splits

    def place(index: Any) -> Any:
        return cast(k.row, "int64") * imm(parts, "int64") + cast(index, "int64")

    if riders:

        def read(inside: Block, i: int, index: Any) -> Any:
            return inside.bind("p", load(k.workspace[i][0], place(index)))

        _settle(k, riders, lanes, parts, _read_once(k, read) if parts <= k.subgroup else read)
    together = {*riders, *(r.on for r in riders.values())}
    done = tuple(i for i in k.workspace if i not in together)
    if not done:
        return
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


def _read_once(k: Kernel, read: Callable[[Block, int, Any], Any]) -> Callable[[Block, int, Any], Any]:
    """`read`, which each lane asks for one partial result of each reduction, from memory the first time only."""
    had: dict[int, Any] = {}

    def once(inside: Block, i: int, index: Any) -> Any:
        if i in had:
            return inside.bind("p", load(had[i], 0))
        value = read(inside, i, index)
        had[i] = k.block.alloc("had", 1, "float32")
        inside.store(had[i], 0, value)
        return value

    return once
