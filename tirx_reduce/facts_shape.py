"""What follows from a row program: that it is a row reduction at all, and the counts of RowFacts."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx

from .errors import Unsupported
from .facts_exprs import Reader
from .facts_keep import REUSES, Walks
from .facts_poly import ONE, Polynomial, coefficient
from .facts_space import Space, constant
from .program import Load, RowProgram, Scalar, Sym, walk
from .values import RowFacts


def check_payload(reader: Reader, program: RowProgram) -> None:
    """Decline what is a contraction or a window and not a row reduction.

    A program has a payload: an input of which every (row, column) reads an element of its own. A reduction
    of several inputs that vary by column needs one itself, else many rows read each of them (a matmul).
    """
    payloads = {load for load in reader.loads if _owned(reader, load)}
    every = {e for r in program.reductions for e in walk(*r.elements)}
    if not payloads & {e for e in every if isinstance(e, Load)} and any(isinstance(e, Load) for e in every):
        names = ", ".join(sorted({reader.params[e.param].name for e in every if isinstance(e, Load)}))
        raise Unsupported(
            f"a reduction in which no input ({names}) has an element for each row and column, as in a matmul,"
            " a convolution or a window; needs rows that are read once"
        )
    for reduction in program.reductions:
        loads = {e for e in walk(*reduction.elements) if isinstance(e, Load) and e.index.stride != 0}
        if len({load.param for load in loads}) > 1 and not loads & payloads:
            names = ", ".join(sorted({reader.params[load.param].name for load in loads}))
            raise Unsupported(
                f"a reduction over a product of {names} in which none has an element for each row and column,"
                " as in a matmul; needs rows that are read once"
            )


def _owned(reader: Reader, load: Load) -> bool:
    """Whether every (row, column) reads an element of its own through `load`."""
    if load.index.dense:
        return True
    space, indices = reader.space, reader.indices[load]
    if load.index.stride and space.looked_up_axes(indices) == set(range(len(space.rows))):
        return True  # a row of a table: which one, no analysis can tell
    if all(v in _alone(space, indices) for v, _ in space.rows + space.columns):
        return True
    if load.index.stride is None:
        return False
    row = reader.loads[load]
    return row is not None and _radix(space, row, load.index.stride)


def _alone(space: Space, indices: tuple[Any, ...]) -> set[Any]:
    """The variables that have an axis of the tensor to themselves: a multiple of one, plus a constant."""
    found = set()
    for index in indices:
        moving = [m for m in space.poly.of(index) if m != ONE]
        if len(moving) == 1 and len(moving[0]) == 1:
            found.add(space.poly.atoms[moving[0][0]])
    return found


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
    for at, (step, extent) in enumerate(digits):
        if step <= reach:
            return False
        if not isinstance(extent, tirx.IntImm):
            return at == len(digits) - 1
        reach += step * (int(extent.value) - 1)
    return True


def summary(program: RowProgram) -> RowFacts:
    """The counts of a row program."""
    walks = Walks(program)
    roots = [e for r in program.reductions for e in (*r.elements, *r.init)]
    for output in program.outputs:
        roots += [output.value, output.index.full or output.index.row]
    shapes = [e for t in program.tensors for e in t.shape]
    used = set(walk(*roots, *shapes, *program.rows, program.columns))
    params = {e.param for e in used if isinstance(e, Load | Scalar)} | {o.param for o in program.outputs}
    storage = {e.dtype for e in used if isinstance(e, Load)} | {o.dtype for o in program.outputs}
    extents = [constant(e) for e in program.rows]
    fixed = [e for e in extents if e is not None]
    columns = constant(program.columns)
    return RowFacts(
        program=program,
        rows=prod(fixed) if len(fixed) == len(extents) else None,
        columns=columns,
        passes=len(walks.roots),
        reductions=len(program.reductions),
        storage=tuple(sorted(storage)),
        accumulation=tuple(sorted({d for r in program.reductions for d in r.dtypes})),
        kept=len(walks.kept()),
        arguments=len(params) + sum(isinstance(e, Sym) for e in used),
        payload_bytes=tuple(
            (reuse, None if columns is None else walks.row_bytes(columns, reuse)) for reuse in REUSES
        ),
    )
