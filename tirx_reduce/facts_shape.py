"""What follows from a row program: that it is a row reduction at all, and the counts of RowFacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import tirx

from .errors import Unsupported
from .facts_exprs import Reader
from .facts_keep import Walks
from .facts_poly import ONE, Polynomial, coefficient
from .facts_space import Space, constant
from .program import Load, Reduction, RowProgram, Scalar, Sym, walk
from .values import REUSES, RowFacts


def check_payload(reader: Reader, program: RowProgram, products: Sequence[Reduction]) -> None:
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
        if reduction in products and not loads <= payloads:
            names = ", ".join(sorted({reader.params[load.param].name for load in loads - payloads}))
            raise Unsupported(
                f"a sum of products with {names}, which has no element for each row and column, as in a"
                " matrix-vector product; needs a map before the reduction, or rows that are read once"
            )


FIRST_TOO_MANY = 2**31
"""Rows and columns are counted in 32 bits on the device; offsets into tensors are not."""


def check_sizes(facts: RowFacts) -> None:
    """Decline more rows, or more columns of a row, than a kernel counts."""
    for what, count in (("rows", facts.rows), ("columns", facts.columns)):
        if count is not None and count >= FIRST_TOO_MANY:
            raise Unsupported(f"{count} {what}; needs fewer than 2^31")


def _owned(reader: Reader, load: Load) -> bool:
    """Whether every row reads elements of its own through `load`, column by column."""
    if load.index.dense:
        return True
    space, indices = reader.space, reader.indices[load]
    if load.index.stride and space.looked_up_axes(indices) == set(range(len(space.rows))):
        return True  # a row of a table: which one, no analysis can tell
    numbers = {space.poly.number(v): e for v, e in space.rows + space.columns}
    alone, mixed = _axes(space, indices, numbers)
    rows = {space.poly.number(v) for v, _ in space.rows}
    if rows <= alone and (load.index.stride != 0 or not space.columns):
        return True  # whatever the columns do, no other row reads it
    # Two axes that mix rows and columns are a window over both, even where windows do not overlap.
    return bool(mixed < 2 and _radix(space, reader.loads[load], numbers))


def _axes(space: Space, indices: tuple[Any, ...], numbers: Mapping[int, Any]) -> tuple[set[int], int]:
    """The variables that have an axis of the tensor to themselves, and how many axes mix rows and columns."""
    alone: set[int] = set()
    mixed = 0
    rows = {space.poly.number(v) for v, _ in space.rows}
    for index in indices:
        moving = {m for m in space.poly.of(index) if m != ONE}
        inside = {n for m in moving for n in m if n in numbers}
        if len(moving) == 1 and moving == {tuple(inside)}:
            alone |= inside
        mixed += bool(inside & rows and inside - rows)
    return alone, mixed


def _radix(space: Space, offset: Polynomial, numbers: Mapping[int, Any]) -> bool:
    """Whether an offset is a mixed-radix number, each digit larger than all below it together."""
    digits = []
    for number, extent in numbers.items():
        weight = coefficient(offset, number)
        if weight is None or set(weight) != {ONE}:
            return False
        digits.append((abs(weight[ONE]), extent))
    if any(
        space.varies(space.poly.atoms[n]) or space.row_axes(space.poly.atoms[n])
        for n in _others(offset, numbers)
    ):
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


def _others(offset: Polynomial, numbers: Mapping[int, Any]) -> set[int]:
    return {n for m in offset for n in m if n not in numbers}


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
