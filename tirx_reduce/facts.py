"""What is proved of a row-reduction PrimFunc: `read(func)` and `analyze(func)`.

In goes a PrimFunc with S/R blocks, out come RowFacts. Refused: all that is not one program a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_blocks import Block, Store, read_blocks
from .facts_count import count as count
from .facts_exprs import Mismatch, Reader
from .facts_index import Scope
from .facts_owner import stored_at
from .facts_reduce import Reductions, row_space
from .facts_shape import check_payload, check_sizes, summary
from .facts_space import ZERO, int64
from .program import Const, Expr, Op, Output, RowProgram, Scalar, Sym, Tensor
from .values import RowFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Facts, and the way from them back to the PrimFunc."""

    facts: RowFacts
    symbols: Mapping[str, Any]
    """TVM variable of each `Sym` by name."""
    params: tuple[Any, ...]
    """Parameters of the PrimFunc; `param` of tensors, loads, outputs and scalars counts them."""

    def extent(self, extent: Expr) -> Any:
        """An extent of the row program as TIR in int64, over the function's own variables.

        Raises
        ------
        Unsupported
            If it is made of more than symbols, scalars and integer arithmetic.
        """
        if isinstance(extent, Const):
            return int64(int(extent.value))
        if isinstance(extent, Sym | Scalar):
            var = self.symbols[extent.name] if isinstance(extent, Sym) else self.params[extent.param]
            return var if extent.dtype == "int64" else tirx.Cast("int64", var)
        if isinstance(extent, Op) and extent.name == "cast":
            return self.extent(extent.args[0])
        if isinstance(extent, Op) and extent.name in _EXTENTS:
            return _EXTENTS[extent.name](*(self.extent(a) for a in extent.args))
        raise Unsupported(f"an extent of {type(extent).__name__}; needs integer arithmetic on symbols")


_EXTENTS = {
    "add": tirx.Add,
    "sub": tirx.Sub,
    "mul": tirx.Mul,
    "floordiv": tirx.FloorDiv,
    "floormod": tirx.FloorMod,
    "min": tirx.Min,
    "max": tirx.Max,
}


def analyze(func: Any) -> RowFacts:
    """What is proved of `func`.

    Parameters
    ----------
    func : PrimFunc
        A function of S/R blocks, not scheduled.

    Returns
    -------
    RowFacts
        The row program and its summary.

    Raises
    ------
    Unsupported
        What was seen, and what is needed.
    """
    return read(func).facts


def read(func: Any) -> Reading:
    """As `analyze`, with what an emitter needs to come back to TVM's own variables.

    Raises
    ------
    Unsupported
        What was seen, and what is needed.
    """
    try:
        return _read(func)
    except RecursionError:
        raise Unsupported("an expression nested too deeply; needs a depth of a few hundred at most") from None


def _read(func: Any) -> Reading:
    body = read_blocks(func)
    reader = Reader(func, body)
    reductions = Reductions(reader)
    reader.space.shape(*row_space(reader))
    written = [(b, s) for b in body.blocks for s in b.stores if s.buffer in reader.number]
    last = {s.buffer: (b, s) for b, s in written}
    outputs = tuple(_output(reader, reductions, b, s) for b, s in last.values())
    program = RowProgram(
        tensors=_tensors(reader, last),
        rows=tuple(reader.space.leaf(e) for _, e in reader.space.rows),
        columns=reader.space.leaf(reader.space.column_count),
        reductions=tuple(reductions.found),
        outputs=outputs,
    )
    if not program.reductions:
        raise Unsupported("no output that depends on a reduction; needs at least one")
    check_payload(reader, program, reductions.products)
    found = summary(program)
    check_sizes(found)
    return Reading(facts=found, symbols=dict(reader.symbols), params=tuple(reader.params))


def _tensors(reader: Reader, written: Mapping[Any, Any]) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(
            param=i,
            name=p.name,
            dtype=str(p.ty.dtype),
            shape=tuple(reader.space.leaf(reader.extent(e)) for e in p.ty.shape),
            role="out" if p in written else "in",
        )
        for i, p in enumerate(reader.params)
        if compat.is_buffer(p)
    )


def _output(reader: Reader, reductions: Reductions, block: Block, store: Store) -> Output:
    """What `store` writes, for every row and column or for every row."""
    space = reader.space
    reader.written_once(store.buffer)
    if block.reduces:
        placed = reductions.read(block).placed
        scope = Scope(block=block, iters=placed, lets={**reader.body.lets, **block.lets})
        indices = tuple(reader.index(i, scope) for i in store.indices)
        return _written(reader, store, indices, reader.element(store.buffer, indices, None), True)
    refused: Mismatch | None = None
    for per_row, placed in _ways(reader, block, store, reductions.known_rows(block)):
        try:
            scope = Scope(block=block, iters=placed, lets={**reader.body.lets, **block.lets})
            indices = tuple(reader.index(i, scope) for i in store.indices)
            stored_at(reader, block, store, indices)
            return _written(reader, store, indices, reader.value(store.value, scope), per_row)
        except Mismatch as error:
            refused = refused or error
    if refused is not None:
        raise refused
    shape = "×".join(str(e) for e in store.buffer.ty.shape) or "1"
    raise Unsupported(
        f"output {store.buffer.name} of {shape} elements beside {space.row_count} rows of"
        f" {space.column_count} columns; needs one element for each row, or for each row and column"
    )


def _ways(
    reader: Reader, block: Block, store: Store, known: Mapping[Any, Any] | None = None
) -> Iterator[tuple[bool, dict[Any, Any]]]:
    """Bijections from the rows (True), or the rows and columns, to the iterators of `block`."""
    space = reader.space
    axes = [(i.var, reader.extent(i.extent)) for i in block.iters if not i.unit]
    units = {i.var: ZERO for i in block.iters if i.unit}
    for per_row, targets in ((True, space.rows), (False, space.rows + space.columns)):
        for placed in space.placements(axes, targets, known):
            yield per_row, {**units, **placed}
    if not isinstance(store.value, compat.TensorLoad):
        return
    source = store.value.source
    made = reader.defined.get(source)
    if made is None or made[-1][0].reduces:
        return
    # A copy, perhaps a reshape: the element of the source at the same flat index, wherever that one belongs.
    inner, written = made[-1]
    shape = [reader.extent(e) for e in source.ty.shape]
    for per_row, placed in _ways(reader, inner, written):
        scope = Scope(block=inner, iters=placed, lets={**reader.body.lets, **inner.lets})
        flat = space.ravel([(reader.index(i, scope), e) for i, e in zip(written.indices, shape, strict=True)])
        if space.same(space.product(e for _, e in axes), space.product(shape)):
            yield per_row, {**units, **space.unravel(axes, flat)}


def _written(reader: Reader, store: Store, indices: tuple[Any, ...], value: Any, per_row: bool) -> Output:
    dtype = str(store.buffer.ty.dtype)
    reader.check_apart(store.buffer)
    access, _ = reader.offset(store.buffer, indices)
    return Output(
        param=reader.number[store.buffer],
        index=access,
        value=reader.ops.stored(value, dtype),
        dtype=dtype,
        per_row=per_row,
    )
