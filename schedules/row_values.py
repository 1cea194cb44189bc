"""Values that are the same in a whole row: indices, what is looked up once, what a reduction gave."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tirx_reduce.errors import Unsupported
from tirx_reduce.program import (
    Access,
    Const,
    Expr,
    Load,
    Op,
    Reduction,
    RowIndex,
    RowValue,
    Scalar,
    Sym,
    children,
    uses_column,
    walk,
)

from . import passes
from .collectives import combine, identity, register_dtype
from .memory import from_memory, memory_dtype, to_memory
from .packets import Stream
from .state import Kernel, extent, symbol
from .tir import both, cast, dtype_of, imm, load, translate


def leaf(k: Kernel, e: Expr) -> Any:
    """A leaf whose value is the same in the whole row; None for anything else."""
    if e in k.known:
        return k.known[e]
    if isinstance(e, Sym):
        return symbol(k, e)
    if isinstance(e, Scalar):
        return k.params[e.param]
    if isinstance(e, RowIndex):
        return row_index(k, e.axis)
    if isinstance(e, Load) and not uses_column(e):
        return k.block.bind("x", from_memory(load(k.views[e.param], row_offset(k, e.index)), e.dtype, k.kind))
    return None


def row_index(k: Kernel, axis: int) -> Any:
    """The index along one axis of the row space, from the flat row."""
    it = k.index_dtype
    inner: Any = imm(1, it)
    for e in k.program.rows[axis + 1 :]:
        inner = inner * cast(extent(k, e), it)
    index = k.row if isinstance(inner, tirx.IntImm) and inner.value == 1 else tirx.FloorDiv(k.row, inner)
    if axis:
        index = tirx.FloorMod(index, cast(extent(k, k.program.rows[axis]), it))
    k.known[RowIndex(axis)] = cast(index, "int64")
    return k.known[RowIndex(axis)]


def row_offset(k: Kernel, access: Access) -> Any:
    """Offset at column 0, in the index dtype."""
    if access.dense:
        return k.geometry.base
    return k.block.bind("at", cast(row_value(k, access.row), k.index_dtype))


def row_value(k: Kernel, e: Expr) -> Any:
    """An expression without columns as TIR."""
    return translate(e, lambda each: leaf(k, each), k.block, k.kind)


def hoist(k: Kernel, exprs: tuple[Expr, ...]) -> None:
    """Compute every largest subexpression of `exprs` that is the same in the whole row, once."""
    seen: set[Expr] = set()

    def visit(e: Expr) -> None:
        if e in seen or e in k.known or e in k.kept:
            return
        seen.add(e)
        if isinstance(e, (Op, Load)) and not uses_column(e):
            if all(isinstance(x, (Const, Op)) for x in walk(e)):
                return  # literals only
            value = row_value(k, e)
            k.known[e] = k.block.settle("h", value) if dtype_of(value) == "float32" else value
            return
        for child in children(e):
            visit(child)

    for e in exprs:
        visit(e)


def stream(k: Kernel, param: int, access: Access, dtype: str) -> Stream:
    """One tensor as this row reads or writes it."""
    start = imm(0, k.index_dtype) if access.stride is None else row_offset(k, access)
    return Stream(view=k.views[param], access=access, start=start, dtype=memory_dtype(dtype, k.kind))


def held_dtypes(r: Reduction) -> tuple[str, ...]:
    """Dtypes in which a lane holds the partial results; an index needs no more than 32 bits."""
    if r.combiner in ("argmax", "argmin"):
        return ("int32", register_dtype(r.dtypes[1]))
    return tuple(register_dtype(d) for d in r.dtypes)


def start_of(r: Reduction, item: int) -> Any:
    """What a partial result starts from."""
    if r.combiner in ("argmax", "argmin") and item == 0:
        return imm(2**31 - 1)
    return identity(r.combiner, r.dtypes[item])


def learn(k: Kernel, i: int, total: tuple[Any, ...]) -> None:
    """The row values of reduction `i` are known from here on."""
    r = k.program.reductions[i]
    for item, (value, dtype) in enumerate(zip(total, r.dtypes, strict=True)):
        k.known[RowValue(i, item, dtype)] = k.block.settle("r", _finished(k, r, item, value, dtype))


def _finished(k: Kernel, r: Reduction, item: int, value: Any, dtype: str) -> Any:
    if r.combiner in ("argmax", "argmin") and item == 0:
        # A row of NaN leaves no index: stay in range.
        value = tirx.Select(tirx.LT(value, k.geometry.columns), value, imm(0))
    if r.init:
        start = tuple(cast(row_value(k, e), d) for e, d in zip(r.init, held_dtypes(r), strict=True))
        if len(start) > 1:
            raise Unsupported("an argmax that starts from a value; needs one that starts from the identity")
        (value,) = combine(r.combiner, start, (value,))
    if dtype == "bool" and str(value.ty.dtype) != "bool":
        return tirx.NE(value, imm(0))
    return cast(value, dtype)


def row_outputs(k: Kernel, walk_: passes.Pass) -> None:
    """One lane writes the values of the row."""
    if not walk_.row_outputs:
        return
    written = []
    for i in walk_.row_outputs:
        out = k.program.outputs[i]
        written.append(
            (
                stream(k, out.param, out.index, out.dtype),
                to_memory(k.block.bind("w", row_value(k, out.value)), out.dtype, k.kind),
            )
        )
    first = tirx.EQ(k.lane, imm(0))
    if k.rank is not None:
        first = tirx.And(first, tirx.EQ(k.rank, imm(0)))
    with k.block.when(both(first, k.geometry.valid)) as guard:
        for each, value in written:
            guard.store(each.view, each.start, value)
