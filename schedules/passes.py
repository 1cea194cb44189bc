"""Cuts a row program into walks over the row: which values each walk computes, writes, keeps and finds kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tirx_reduce.facts_keep import Walks
from tirx_reduce.program import Expr, Load, Op, RowProgram, children, item_bytes, uses_column, walk

# Worth keeping in place of their operand: they cost a trip through the special function unit.
_DEAR = frozenset("exp exp2 exp10 log log2 log10 log1p tanh sin cos tan erf sigmoid pow".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One walk over the row."""

    reductions: tuple[int, ...] = ()
    """Reductions that this walk feeds; their collective ends it."""
    outputs: tuple[int, ...] = ()
    """Matrix outputs that this walk writes."""
    row_outputs: tuple[int, ...] = ()
    """Row outputs that are known after its collective (or, in the first pass, before it)."""
    found: tuple[Expr, ...] = ()
    """Values of a column that are kept when the walk begins."""
    kept: tuple[Expr, ...] = ()
    """Values of a column that are kept when it ends; the i-th takes the place of `found[i]`."""


def cut(walks: Walks, keep: bool, upgrade: bool = True, widen: bool = False) -> tuple[Pass, ...]:
    """The walks of a program, in order.

    Parameters
    ----------
    keep : bool
        Values of a row that a later walk reads again are kept (private and shared reuse).
    upgrade : bool
        A kept value may be replaced by a later one that was dear to compute (the exponential of a softmax).
    widen : bool
        It may be so where that takes more room, a float32 for a 16-bit input.
    """
    program = walks.program
    depth = program.depth
    plans: list[Pass] = []
    places = _places(walks, keep)
    for number in range(1, depth + 2):
        plan = Pass(
            reductions=tuple(
                i for i in range(len(program.reductions)) if program.reduction_level(i) == number
            ),
            outputs=tuple(i for i, place in places.items() if place == number),
            row_outputs=tuple(
                i
                for i, out in enumerate(program.outputs)
                if out.per_row and max(1, walks.level(out.value)) == number
            ),
        )
        if plan.reductions or plan.outputs or plan.row_outputs:
            plans.append(plan)
    return _with_kept(walks, tuple(plans), upgrade, widen) if keep else tuple(plans)


def _places(walks: Walks, keep: bool) -> dict[int, int]:
    """The walk that writes each matrix output: no later one reads a matrix that the caller may have put there.

    A residual that takes the place of its input, say, is written when the input has been read for the last time. It
    costs nothing: a walk that reads the input again computes the residual again.
    """
    program = walks.program
    kept = walks.kept() if keep else ()
    last = 1
    for number, roots in enumerate(walks.roots, 1):
        loads = _loads(roots, set(kept) if number > 1 else set())
        if not all(walks.is_vector(load) for load in loads):
            last = number
    return {
        i: max(last, 1 + walks.level(out.value)) for i, out in enumerate(program.outputs) if not out.per_row
    }


def column_values(program: RowProgram, plan: Pass) -> tuple[Expr, ...]:
    """The expressions that one walk evaluates in every column."""
    elements = tuple(e for i in plan.reductions for e in program.reductions[i].elements)
    return elements + tuple(program.outputs[i].value for i in plan.outputs)


def _with_kept(walks: Walks, plans: tuple[Pass, ...], upgrade: bool, widen: bool) -> tuple[Pass, ...]:
    out: list[Pass] = []
    found: tuple[Expr, ...] = ()
    for number, plan in enumerate(plans):
        rest = tuple(e for p in plans[number + 1 :] for e in column_values(walks.program, p))
        ends = (
            walks.kept()
            if number == 0
            else _upgraded(walks, rest, found, number, widen)
            if upgrade
            else found
        )
        ends = ends if rest else ()
        out.append(replace(plan, found=found, kept=ends))
        found = ends
    return tuple(out)


def _upgraded(
    walks: Walks, rest: tuple[Expr, ...], found: tuple[Expr, ...], level: int, widen: bool
) -> tuple[Expr, ...]:
    """What to keep from here on: the exponential, say, in place of the input it was computed from."""
    better = _largest(walks, rest, level)
    if len(better) != len(found):
        return found
    pairs: list[Expr] = []
    for old in found:
        heirs = [b for b in better if old in set(walk(b))]
        if len(heirs) != 1 or heirs[0].dtype != "float32" or (item_bytes(old.dtype) != 4 and not widen):
            return found
        dear = any(isinstance(e, Op) and e.name in _DEAR for e in walk(heirs[0]))
        pairs.append(heirs[0] if dear else old)
    return tuple(pairs)


def _largest(walks: Walks, exprs: tuple[Expr, ...], level: int) -> tuple[Expr, ...]:
    """The largest subexpressions of `exprs` that hold a matrix load, no vector, and need no walk after `level`."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()

    def visit(e: Expr) -> None:
        if e in seen:
            return
        seen.add(e)
        loads = walks.loads(e)
        if all(walks.is_vector(load) for load in loads):
            return
        mixed = any(walks.is_vector(load) for load in loads) or any(
            type(x).__name__ == "ColIndex" for x in walk(e)
        )
        if walks.level(e) <= level and not mixed:
            found[e] = None
            return
        for child in children(e):
            visit(child)

    for e in exprs:
        visit(e)
    return tuple(found)


def column_loads(program: RowProgram, plan: Pass) -> tuple[Load, ...]:
    """The loads that one walk makes in every column, what it finds kept left out."""
    return _loads(column_values(program, plan) + plan.kept, set(plan.found))


def _loads(values: tuple[Expr, ...], have: set[Expr]) -> tuple[Load, ...]:
    """The loads that differ from column to column in `values`, those inside `have` left out."""
    loads: dict[Load, None] = {}
    seen: set[Expr] = set()

    def visit(e: Expr) -> None:
        if e in seen or e in have:
            return
        seen.add(e)
        if isinstance(e, Load) and (e.index.stride != 0 or uses_column(e.index.full or e.index.row)):
            loads[e] = None
            return
        for child in children(e):
            visit(child)

    for e in values:
        visit(e)
    return tuple(loads)
