"""What follows from a row program: that it is a row reduction at all, and the counts that RowFacts carries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_exprs import Reader
from .facts_ops import size
from .facts_poly import ONE, Polynomial, coefficient
from .facts_space import Space, constant
from .program import (
    Expr,
    Load,
    Output,
    Reduction,
    RowProgram,
    RowValue,
    Scalar,
    Sym,
    children,
    uses_column,
    walk,
)
from .values import RowFacts


def check_payload(reader: Reader, program: RowProgram) -> None:
    """Decline what is a contraction or a window and not a row reduction.

    A program has a payload: an input of which every (row, column) reads an element of its own. A reduction of
    several inputs that vary by column needs one itself, else each of them is read again by many rows (a matmul).
    """
    payloads = {load for load in reader.loads if _owned(reader, load)}
    every = {e for r in program.reductions for e in walk(*r.elements)}
    if not payloads & {e for e in every if isinstance(e, Load)} and any(isinstance(e, Load) for e in every):
        names = ", ".join(sorted({reader.params[e.param].name for e in every if isinstance(e, Load)}))
        raise Unsupported(
            f"a reduction in which no input ({names}) has an element for each row and column, as in a matmul, a"
            " convolution or a window; needs rows that are read once"
        )
    for reduction in program.reductions:
        loads = {e for e in walk(*reduction.elements) if isinstance(e, Load) and e.index.stride != 0}
        if len({load.param for load in loads}) > 1 and not loads & payloads:
            names = ", ".join(sorted({reader.params[load.param].name for load in loads}))
            raise Unsupported(
                f"a reduction over a product of {names} in which none has an element for each row and column, as in"
                " a matmul; needs rows that are read once"
            )


def _owned(reader: Reader, load: Load) -> bool:
    """Whether every (row, column) reads an element of its own through `load`."""
    if load.index.dense:
        return True
    space, indices = reader.space, reader.indices[load]
    axes = space.rows + space.columns
    plain = {i for i in indices if isinstance(i, compat.Var)}
    if all(v in plain for v, _ in axes):
        return True
    if load.index.stride is None:
        return False
    row = reader.loads[load]
    return row is not None and _radix(space, row, load.index.stride)


def _radix(space: Space, row: Polynomial, stride: int) -> bool:
    """Whether row + stride · column is a mixed-radix number, each digit larger than all below it together."""
    digits = [(abs(stride), space.column_count)] if space.columns else []
    for var, extent in space.rows:
        weight = coefficient(row, space.poly.number(var))
        if weight is None or set(weight) != {ONE}:
            return False
        digits.append((abs(weight[ONE]), extent))
    names = {space.poly.number(v) for v, _ in space.rows}
    if any(space.row_axes(space.poly.atoms[n]) for m in row for n in m if n not in names):
        return False
    digits.sort(key=lambda d: d[0])
    reach = 0
    for at, (weight, extent) in enumerate(digits):
        if weight <= reach:
            return False
        if not isinstance(extent, tirx.IntImm):
            return at == len(digits) - 1
        reach += weight * (int(extent.value) - 1)
    return True


def summary(program: RowProgram) -> RowFacts:
    """The counts of a row program."""
    passes = _passes(program)
    tensors = {t.param: t for t in program.tensors}
    used = {e for r in program.reductions for e in walk(*r.elements, *r.init)}
    used |= {e for o in program.outputs for e in walk(o.value, o.index.row)}
    used |= {e for t in program.tensors for e in walk(*t.shape)} | {
        e for e in walk(*program.rows, program.columns)
    }
    loads = {e for e in used if isinstance(e, Load)}
    params = {e.param for e in used if isinstance(e, Load | Scalar)} | {o.param for o in program.outputs}
    storage = {e.dtype for e in loads} | {o.dtype for o in program.outputs}
    rows: int | None = 1
    for extent in program.rows:
        fixed = constant(extent)
        rows = None if rows is None or fixed is None else rows * fixed
    columns = constant(program.columns)
    del tensors
    return RowFacts(
        program=program,
        rows=rows,
        columns=columns,
        passes=len(passes),
        reductions=len(program.reductions),
        storage=tuple(sorted(storage)),
        accumulation=tuple(sorted({d for r in program.reductions for d in r.dtypes})),
        kept=len(kept_values(program)),
        arguments=len(params) + len({e for e in used if isinstance(e, Sym)}),
        payload_bytes=tuple((reuse, _row_bytes(program, passes, columns, reuse)) for reuse in _REUSES),
    )


_REUSES = ("reload", "private", "shared")


def _passes(program: RowProgram) -> list[list[Expr]]:
    """The expressions that each walk over the row computes, column by column."""
    depth = program.depth
    walks: list[list[Expr]] = [[] for _ in range(depth)]
    for i, reduction in enumerate(program.reductions):
        walks[program.reduction_level(i) - 1].extend(reduction.elements)
    for output in program.outputs:
        if output.per_row:
            continue
        level = program.level(output.value)
        if level == len(walks):
            walks.append([])
        walks[level].append(output.value)
    return walks


def kept_values(program: RowProgram) -> tuple[Expr, ...]:
    """The largest values that vary by row and column, need no reduction, and serve in two passes or more."""
    serving: dict[Expr, set[int]] = {}
    for at, roots in enumerate(_passes(program)):
        for expr in _frontier(program, roots):
            serving.setdefault(expr, set()).add(at)
    # A value that serves once is recomputed from its own parts where they serve elsewhere.
    shared = {e for e, where in serving.items() if len(where) > 1}
    parts: dict[Expr, set[int]] = {}
    for expr, where in serving.items():
        if expr in shared:
            continue
        for part in walk(expr):
            if _matrix(program, part):
                parts.setdefault(part, set()).update(where)
    for expr in shared:
        for part in walk(expr):
            if part in parts:
                parts[part] |= {-1}
    grown = {e for e, where in parts.items() if len(where) > 1 and e not in shared}
    return tuple(sorted(shared | _maximal(grown, shared), key=repr))


def _maximal(grown: set[Expr], shared: set[Expr]) -> set[Expr]:
    """Those of `grown` that are no part of another one."""
    inner = {part for e in grown for part in walk(e) if part is not e}
    covered = {part for e in shared for part in walk(e)}
    return {e for e in grown if e not in inner and e not in covered}


def _matrix(program: RowProgram, expr: Expr) -> bool:
    """Whether `expr` varies by row and column and is known before any reduction."""
    if program.level(expr) or not uses_column(expr):
        return False
    return any(isinstance(e, Load) and e.index.stride != 0 and _by_row(e) for e in walk(expr))


def _by_row(load: Load) -> bool:
    index = load.index.row if load.index.full is None else load.index.full
    return any(type(e).__name__ in ("RowIndex", "Load") for e in walk(index))


def _frontier(program: RowProgram, roots: Iterable[Expr]) -> set[Expr]:
    """The largest subexpressions of `roots` that are matrix values of level 0."""
    found: set[Expr] = set()
    seen: set[Expr] = set()

    def visit(expr: Expr) -> None:
        if expr in seen:
            return
        seen.add(expr)
        if _matrix(program, expr):
            found.add(expr)
            return
        for child in children(expr):
            visit(child)

    for root in roots:
        visit(root)
    return found


def _row_bytes(program: RowProgram, passes: list[list[Expr]], columns: int | None, reuse: str) -> int | None:
    """Global bytes of one row: matrices once a pass (once in all where the row is kept), vectors and outputs once."""
    if columns is None:
        return None
    total = 0
    vectors: set[Load] = set()
    matrices: set[Load] = set()
    for roots in passes:
        loads = {e for e in walk(*roots) if isinstance(e, Load) and e.index.stride != 0}
        mine = {e for e in loads if _by_row(e)}
        vectors |= loads - mine
        total += sum(size(e.dtype) for e in mine - matrices)
        if reuse != "reload":
            matrices |= mine
    total += sum(size(e.dtype) for e in vectors)
    total += sum(size(o.dtype) for o in program.outputs if not o.per_row)
    return total * columns


__all__ = ["check_payload", "kept_values", "summary", "Output", "Reduction", "RowValue"]
