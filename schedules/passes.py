"""Cuts a row program into walks over the row: which values each walk computes, writes, keeps and finds kept."""

from __future__ import annotations

from dataclasses import dataclass

from tirx_reduce.program import Expr, Load, Op, RowProgram, children, uses_column, walk

# Worth keeping in place of their operand: they cost a trip through the special function unit.
_DEAR = frozenset("exp exp2 exp10 log log2 log10 log1p tanh sin cos tan erf sigmoid pow".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One walk over the row."""

    reductions: tuple[int, ...]
    """Reductions that this walk feeds; their collective ends it."""
    outputs: tuple[int, ...]
    """Matrix outputs that this walk writes."""
    row_outputs: tuple[int, ...]
    """Row outputs that are known after its collective (or, in the first pass, before it)."""
    found: tuple[Expr, ...] = ()
    """Values of a column that are kept when the walk begins."""
    kept: tuple[Expr, ...] = ()
    """Values of a column that are kept when it ends; the i-th takes the place of `found[i]`."""

    @property
    def collective(self) -> bool:
        """Whether the walk ends in a collective."""
        return bool(self.reductions)


def cut(program: RowProgram, keep: bool, upgrade: bool = True) -> tuple[Pass, ...]:
    """The walks of `program`, in order.

    Parameters
    ----------
    keep : bool
        Values of a row that a later walk reads again are kept (private and shared reuse).
    upgrade : bool
        A kept value may be replaced by a later one that was dear to compute (the exponential of a softmax).
    """
    depth = program.depth
    last = depth + 1
    walks: list[Pass] = []
    for number in range(1, last + 1):
        reductions = tuple(
            i for i in range(len(program.reductions)) if program.reduction_level(i) == number
        )
        outputs = tuple(
            i for i, out in enumerate(program.outputs) if not out.per_row and program.level(out.value) == number - 1
        )
        rows = tuple(
            i
            for i, out in enumerate(program.outputs)
            if out.per_row and max(1, program.level(out.value)) == number
        )
        if reductions or outputs or rows:
            walks.append(Pass(reductions=reductions, outputs=outputs, row_outputs=rows))
    return _with_kept(program, tuple(walks), upgrade) if keep else tuple(walks)


def column_values(program: RowProgram, walk_: Pass) -> tuple[Expr, ...]:
    """The expressions that one walk evaluates in every column."""
    elements = tuple(e for i in walk_.reductions for e in program.reductions[i].elements)
    return elements + tuple(program.outputs[i].value for i in walk_.outputs)


def reads_matrix(expr: Expr) -> bool:
    """Whether `expr` holds a load that differs from row to row and from column to column."""
    return any(isinstance(e, Load) and e.index.stride != 0 and not is_vector(e) for e in walk(expr))


def is_vector(load: Load) -> bool:
    """A load that is the same in all rows (a weight, a bias)."""
    index = load.index
    if index.stride == 0 or index.full is not None:
        return False
    return not any(type(e).__name__ in ("RowIndex", "Load") for e in walk(index.row))


def _frontier(program: RowProgram, exprs: tuple[Expr, ...], level: int) -> tuple[Expr, ...]:
    """The largest subexpressions of `exprs` that hold a matrix load and need no walk after `level`."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()

    def visit(e: Expr) -> None:
        if e in seen:
            return
        seen.add(e)
        if not reads_matrix(e):
            return
        if program.level(e) <= level and not _mixes_vectors(e):
            found[_strip(e)] = None
            return
        for child in children(e):
            visit(child)

    for e in exprs:
        visit(e)
    return tuple(found)


def _mixes_vectors(expr: Expr) -> bool:
    """Whether a weight or the column index plays a part: such a value is better rebuilt than kept."""
    return any(
        (isinstance(e, Load) and is_vector(e)) or type(e).__name__ == "ColIndex" for e in walk(expr)
    )


def _strip(expr: Expr) -> Expr:
    """The load under a widening cast: 16-bit values are kept as they stand in memory, at half the room."""
    if isinstance(expr, Op) and expr.name == "cast" and isinstance(expr.args[0], Load):
        return expr.args[0]
    return expr


def _with_kept(program: RowProgram, walks: tuple[Pass, ...], upgrade: bool) -> tuple[Pass, ...]:
    later = tuple(e for w in walks[1:] for e in column_values(program, w))
    # What the first walk does not read is loaded where it is needed: keeping it would save nothing.
    first = {e for e in walk(*column_values(program, walks[0])) if isinstance(e, Load)}
    kept = _minimal(
        tuple(v for v in _frontier(program, later, 0) if first.issuperset(_matrix_loads(v)))
    )
    out: list[Pass] = []
    found: tuple[Expr, ...] = ()
    for number, walk_ in enumerate(walks):
        rest = tuple(e for w in walks[number + 1 :] for e in column_values(program, w))
        if number == 0:
            ends = kept
        else:
            ends = _upgraded(program, rest, found, number) if upgrade else found
        ends = ends if rest else ()
        out.append(
            Pass(
                reductions=walk_.reductions,
                outputs=walk_.outputs,
                row_outputs=walk_.row_outputs,
                found=found,
                kept=ends,
            )
        )
        found = ends
    return tuple(out)


def _matrix_loads(expr: Expr) -> set[Load]:
    return {e for e in walk(expr) if isinstance(e, Load) and e.index.stride != 0}


def _minimal(values: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """`values` without those that are cheap functions of others among them (x beside -x)."""
    return tuple(
        v for v in values if not any(o is not v and o in set(walk(v)) and _only_needs(v, o) for o in values)
    )


def _only_needs(value: Expr, other: Expr) -> bool:
    return _matrix_loads(value) <= {other}


def _upgraded(program: RowProgram, rest: tuple[Expr, ...], found: tuple[Expr, ...], level: int) -> tuple[Expr, ...]:
    """What to keep from here on: the exponential, say, in place of the input it was computed from."""
    better = _frontier(program, rest, level)
    if len(better) != len(found):
        return found
    pairs: list[Expr] = []
    for old in found:
        heirs = [b for b in better if old in set(walk(b))]
        if len(heirs) != 1 or heirs[0].dtype != "float32" or old.dtype != "float32":
            return found
        dear = any(isinstance(e, Op) and e.name in _DEAR for e in walk(heirs[0]))
        pairs.append(heirs[0] if dear else old)
    return tuple(pairs)


def column_loads(program: RowProgram, walk_: Pass) -> tuple[Load, ...]:
    """The loads that one walk makes in every column, what it finds kept left out."""
    have = set(walk_.found)
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

    for e in column_values(program, walk_) + walk_.kept:
        visit(e)
    return tuple(loads)
