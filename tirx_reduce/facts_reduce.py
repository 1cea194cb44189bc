"""Reduction blocks: which combiner a block applies, to what, and from which initial value.

Recognised by data flow from the block's new values and its accumulators. Refused: every combiner that is not
known to be associative with a known identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_blocks import Block, Store
from .facts_combine import (
    BOOL_CHAINS,
    CHAINS,
    arg_pair,
    chain,
    chosen,
    describe,
    is_identity,
    linear,
    replaced,
)
from .facts_exprs import Mismatch, Reader
from .facts_index import Scope
from .facts_ops import wide
from .facts_owner import stored_at
from .facts_running import Mean, Online, recognise
from .facts_space import ZERO
from .program import ColIndex, Const, Expr, Op, Reduction, RowValue, uses_column, walk

INDEX_DTYPES = ("int32", "int64")
"""Both hold every column: rows have fewer than 2^31."""
_TEXT = {"add": "sum", "mul": "product"}


@dataclass(slots=True)
class Reduced:
    """A reduction block that has been read."""

    placed: dict[Any, Any]
    """Canonical index of each spatial iterator."""
    values: tuple[Expr, ...]
    """What each store of the block holds in the end."""


@dataclass(slots=True)
class Inner:
    """A reduction that only an outer one reads: both together are one reduction over both extents."""

    combiner: str
    element: Expr


class Reductions:
    """The reductions of a function, in the order in which they are needed."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.found: list[Reduction] = []
        self._read: dict[int, Reduced] = {}
        self.products: list[Reduction] = []
        """Sums whose own block multiplies two tensors, as matrix products are written."""
        self._inner: dict[RowValue, Inner] = {}
        self._outer: int | None = None
        """Number of leading column axes that the outer reduction being read reduces."""
        reader.reduce = self.value

    def value(self, block: Block, store: Store, indices: tuple[Any, ...]) -> Expr:
        """The element at `indices` of what `block` reduces, proved to be this row's."""
        space = self.reader.space
        if self._outer is not None and _rank(block) == len(space.rows) + self._outer:
            return self._inner_value(block, store, indices)
        reduced = self.read(block)
        for var, index in stored_at(self.reader, block, store, indices).items():
            if not space.same(index, reduced.placed[var]):
                raise Mismatch(
                    f"{store.buffer.name} is read at another row ({index} for {reduced.placed[var]});"
                    " needs a row to use its own reductions only"
                )
        return next(v for s, v in zip(block.stores, reduced.values, strict=True) if s is store)

    def read(self, block: Block) -> Reduced:
        """`block` over the canonical rows and columns."""
        if block.position not in self._read:
            guards, self.reader._guards = self.reader._guards, 0
            try:
                self._read[block.position] = self._place(block)
            finally:
                self.reader._guards = guards
        return self._read[block.position]

    def _place(self, block: Block) -> Reduced:
        reader, space = self.reader, self.reader.space
        axes = [(i.var, reader.extent(i.extent), i.reduces) for i in block.iters if not i.unit]
        rows = [(v, e) for v, e, reduces in axes if not reduces]
        columns = [(v, e) for v, e, reduces in axes if reduces]
        units = {i.var: ZERO for i in block.iters if i.unit}
        refused: Mismatch | None = None
        known = self.known_rows(block)
        for placed_rows in space.placements(rows, space.rows, known):
            for placed_columns in space.placements(columns, space.columns):
                try:
                    return self._combine(block, {**units, **placed_rows, **placed_columns})
                except Mismatch as error:
                    refused = refused or error
        if refused is not None:
            raise refused
        nested = self._nested(block, rows, columns, units)
        if nested is not None:
            return nested
        mine = f"{_shape(e for _, e in rows)} rows of {_shape(e for _, e in columns)} columns"
        first = f"{_shape(e for _, e in space.rows)} rows of {_shape(e for _, e in space.columns)} columns"
        raise Unsupported(
            f"block {block.name} reduces {mine} beside {first}; needs one row space for all reductions"
        )

    def known_rows(self, block: Block) -> dict[Any, Any]:
        """Iterators of `block` that are rows, as the first reduction says that the block reads.

        Read off the indices alone, through blocks that use iterators as they are; empty where none is known.
        """
        found = self._reduction_read(block, {i.var: i.var for i in block.iters}, set())
        if found is None:
            return {}
        source, names = found
        try:
            placed = self.read(source).placed
        except Unsupported:
            return {}  # whoever needs that reduction will say why
        known = {names[i.var]: placed[i.var] for i in source.iters if i.var in names and not i.unit}
        return {var: axis for var, axis in known.items() if isinstance(axis, compat.Var)}

    def _reduction_read(
        self, block: Block, names: dict[Any, Any], seen: set[int]
    ) -> tuple[Block, dict[Any, Any]] | None:
        """The first reduction that `block` reads, and which iterator stands at each of its spatial ones."""
        seen.add(block.position)
        for leaf in (leaf for s in block.stores for leaf in compat.leaves(s.value)):
            made = self.reader.defined.get(leaf.source) if isinstance(leaf, compat.TensorLoad) else None
            if made is None or made[-1][0].position in seen or made[-1][0].position > block.position:
                continue
            source, store = made[-1]
            pairs = zip(store.indices, leaf.indices, strict=True)
            plain = {
                to: names[of]
                for to, of in pairs
                if isinstance(to, compat.Var) and isinstance(of, compat.Var) and of in names
            }
            found = (source, plain) if source.reduces else self._reduction_read(source, plain, seen)
            if found is not None:
                return found
        return None

    def _nested(
        self, block: Block, rows: list[Any], columns: list[Any], units: dict[Any, Any]
    ) -> Reduced | None:
        """`block` as the outer reduction of two, where it reduces the leading column axes."""
        space = self.reader.space
        if self._outer is not None or not 0 < len(columns) < len(space.columns):
            return None
        for placed_rows in space.placements(rows, space.rows):
            for placed_columns in space.placements(columns, space.columns[: len(columns)]):
                self._outer = len(columns)
                try:
                    return self._combine(block, {**units, **placed_rows, **placed_columns})
                finally:
                    self._outer = None
        return None

    def _inner_value(self, block: Block, store: Store, indices: tuple[Any, ...]) -> Expr:
        """A mark for what `block` reduces over the trailing column axes."""
        space = self.reader.space
        leading = space.rows + space.columns[: self._outer]
        placed = stored_at(self.reader, block, store, indices)
        given = [i for i in placed.values() if isinstance(i, compat.Var)]
        if not all(any(g.same_as(v) for g in given) for v, _ in leading) or len(block.stores) != 1:
            raise Mismatch(
                f"block {block.name} is read by several rows; needs one row space for all reductions"
            )
        axes = [(i.var, self.reader.extent(i.extent)) for i in block.iters if i.reduces and not i.unit]
        units = {i.var: ZERO for i in block.iters if i.unit}
        for columns in space.placements(axes, space.columns[self._outer :]):
            outer, self._outer = self._outer, None
            try:
                combiner, element, start = self._parts(block, {**units, **placed, **columns})
            finally:
                self._outer = outer
            if not start:
                mark = RowValue(-2 - len(self._inner), 0, element.dtype)
                self._inner[mark] = Inner(combiner=combiner, element=element)
                return mark
        raise Unsupported(
            f"block {block.name} inside another reduction; needs one row space for all reductions"
        )

    def _parts(self, block: Block, placed: dict[Any, Any]) -> tuple[str, Expr, tuple[Expr, ...]]:
        """(combiner, element, init) of a block with one store."""
        reader = self.reader
        (store,) = block.stores
        dtype = str(store.buffer.ty.dtype)
        mark = RowValue(-1, 0, wide(dtype))
        scope = Scope(block=block, iters=placed, lets={**reader.body.lets, **block.lets})
        scope.own[store.buffer] = (mark, store.indices)
        value = reader.ops.stored(reader.value(store.value, scope), dtype)
        combiner, element = self._split(block, value, mark)
        init = self._init(block, store, scope)
        return combiner, element, () if is_identity(combiner, init, dtype) else (init,)

    def _flattened(self, block: Block, combiner: str, element: Expr) -> tuple[Expr, Expr, RowValue] | None:
        """(element of the inner reduction, outer element, its mark) where two reductions are one."""
        marks = [e for e in walk(element) if isinstance(e, RowValue) and e in self._inner]
        if not marks:
            return None
        inner = self._inner[marks[0]]
        same = element == marks[0] or (combiner == "sum" and linear(element, marks[0]))
        if len(marks) > 1 or inner.combiner != combiner or not same:
            raise Unsupported(
                f"block {block.name} reduces another reduction ({describe(element)}); needs a sum of sums, a"
                " max of maxima and the like, scaled at most"
            )
        return inner.element, element, marks[0]

    def _combine(self, block: Block, placed: dict[Any, Any]) -> Reduced:
        reader = self.reader
        scope = Scope(block=block, iters=placed, lets={**reader.body.lets, **block.lets})
        accumulators = []
        for item, store in enumerate(block.stores):
            mark = RowValue(-1, item, wide(str(store.buffer.ty.dtype)))
            accumulators.append(mark)
            if store.buffer in scope.own:
                raise Unsupported(
                    f"block {block.name} stores {store.buffer.name} twice; needs one store a buffer"
                )
            scope.own[store.buffer] = (mark, store.indices)
        rows = {i.var: placed[i.var] for i in block.iters if not i.reduces}
        for store in block.stores:
            stored_at(reader, block, store, tuple(reader.index(i, scope) for i in store.indices))
        values = [reader.ops.stored(v, str(s.buffer.ty.dtype)) for s, v in self._new_values(block, scope)]
        inits = [self._init(block, s, scope) for s in block.stores]
        pair = arg_pair(values, accumulators) if len(values) == 2 else None
        if pair is not None:
            return Reduced(placed=rows, values=self._arg(block, pair, accumulators))
        running = self._running(block, values, accumulators, inits)
        if running is not None:
            return Reduced(placed=rows, values=running)
        results: list[Expr] = []
        for store, value, mark, init in zip(block.stores, values, accumulators, inits, strict=True):
            dtype = str(store.buffer.ty.dtype)
            combiner, element = self._split(block, value, mark)
            start = () if is_identity(combiner, init, dtype) else (init,)
            flat = self._flattened(block, combiner, element)
            if self._outer is not None and (flat is None or start):
                raise Unsupported(f"block {block.name} reduces other rows than the rest; needs one row space")
            if flat is not None:
                element = flat[0]
            reduction = Reduction(combiner=combiner, elements=(element,), dtypes=(mark.dtype,), init=start)
            total: Expr = self._add(reduction, 0)
            if _multiplies(store):
                self.products.append(reduction)
            if flat is not None:
                total = replaced(flat[1], flat[2], total)
            results.append(total)
        return Reduced(placed=rows, values=tuple(results))

    def _running(
        self, block: Block, values: list[Expr], marks: list[RowValue], inits: list[Expr]
    ) -> tuple[Expr, ...] | None:
        """Running reductions as what they compute: a mean is a sum over the count, a spread the sum about the mean.

        The form that they are written in is for one pass in order; which one is emitted is for the mapping to say.
        """
        plain = [chain(v, m) or chosen(v, m) for v, m in zip(values, marks, strict=True)]
        if self._outer is not None or all(f is not None and not any(map(_is_marked, f[1])) for f in plain):
            return None
        found = recognise(values, marks, inits)
        ops = self.reader.ops
        results: dict[int, Expr] = {}
        if isinstance(found, Mean) and (found.count is not None or _steps_are_columns(block)):
            count = self.reader.space.leaf(self.reader.space.column_count)
            total = self._add(Reduction(combiner="sum", elements=(found.element,), dtypes=("float32",)), 0)
            mean = results[found.mean] = ops.op("div", total, ops.cast(count, "float32"))
            if found.spread is not None:
                off = ops.op("sub", found.element, mean)
                square = ops.op("mul", off, off)
                spread = Reduction(combiner="sum", elements=(square,), dtypes=("float32",))
                results[found.spread] = self._add(spread, 0)
            if found.count is not None:
                results[found.count] = ops.cast(count, marks[found.count].dtype)
        elif isinstance(found, Online) and is_identity("max", inits[found.maximum], "float32"):
            top = self._add(Reduction(combiner="max", elements=(found.element,), dtypes=("float32",)), 0)
            power = ops.op(found.exponential, ops.op("sub", found.element, top))
            power = power if found.factor is None else ops.op("mul", found.factor, power)
            total = self._add(Reduction(combiner="sum", elements=(power,), dtypes=("float32",)), 0)
            results = {found.maximum: top, found.total: total}
        return tuple(results[i] for i in range(len(values))) if results else None

    def _new_values(self, block: Block, scope: Scope) -> list[tuple[Store, Expr]]:
        """What each store writes, in accumulators as they stand before the first store."""
        reader = self.reader
        bound = {(var, False): reader.value(var, scope) for var in block.lets}
        values: list[tuple[Store, Expr]] = []
        for number, store in enumerate(block.stores):
            own = {
                s.buffer: (_updated(*values[at]), s.indices) if at < number else scope.own[s.buffer]
                for at, s in enumerate(block.stores)
            }
            after = Scope(block=block, iters=scope.iters, lets=scope.lets, memo=dict(bound), own=own)
            values.append((store, reader.value(store.value, after)))
        return values

    def _add(self, reduction: Reduction, item: int) -> RowValue:
        if reduction not in self.found:
            self.found.append(reduction)
        return self.reader.ops.share(RowValue(self.found.index(reduction), item, reduction.dtypes[item]))

    def _init(self, block: Block, store: Store, scope: Scope) -> Expr:
        """The value that an accumulator starts from."""
        reader = self.reader
        for init in block.inits:
            if init.buffer.same_as(store.buffer):
                if any(not compat.equal(a, b) for a, b in zip(init.indices, store.indices, strict=True)):
                    raise Unsupported(f"block {block.name} initialises another element than it reduces into")
                outer = Scope(block=block, iters=scope.iters, lets=scope.lets)
                return self._row_only(block, reader.value(init.value, outer))
        earlier = [(b, s) for b, s in reader.defined[store.buffer] if b.position < block.position]
        if len(earlier) != 1 or earlier[0][0].reduces:
            raise Unsupported(f"block {block.name} reduces without an initial value; needs T.init()")
        first, written = earlier[0]
        indices = tuple(reader.index(i, scope) for i in store.indices)
        before = Scope(
            block=first,
            iters=stored_at(reader, first, written, indices),
            lets={**reader.body.lets, **first.lets},
        )
        return self._row_only(block, reader.value(written.value, before))

    @staticmethod
    def _row_only(block: Block, init: Expr) -> Expr:
        if uses_column(init):
            raise Unsupported(
                f"block {block.name} starts from a value that varies by column; needs one a row"
            )
        return init

    def _split(self, block: Block, value: Expr, mark: RowValue) -> tuple[str, Expr]:
        """`value` as (combiner, element) with the accumulator taken out."""
        found = chain(value, mark) or chosen(value, mark)
        if found is None or any(isinstance(e, RowValue) and e.reduction == -1 for e in walk(*found[1])):
            raise Unsupported(
                f"block {block.name} combines in a way that is not recognised ({describe(value)}); needs"
                " a sum, product, max, min, all, any, argmax or argmin"
            )
        name, parts = found
        if mark.dtype == "bool" and name in CHAINS:
            raise Unsupported(
                f"block {block.name} takes a {_TEXT.get(name, name)} of bool; needs all or any, or integers"
            )
        combiner = BOOL_CHAINS[name] if mark.dtype == "bool" else CHAINS[name]
        element = parts[0]
        for part in parts[1:]:
            element = self.reader.ops.op(name, element, part)
        return combiner, element

    def _arg(
        self, block: Block, pair: tuple[str, int, Expr, Expr], marks: list[RowValue]
    ) -> tuple[RowValue, ...]:
        combiner, index_item, index, value = pair
        column = _without_casts(index)
        if isinstance(column, Const) and column.value == 0 and not self.reader.space.columns:
            # The index of a row of one column.
            column = ColIndex()
        if not isinstance(column, ColIndex):
            raise Unsupported(
                f"block {block.name} keeps the index {describe(index)}; needs the index of the column"
            )
        if marks[index_item].dtype not in INDEX_DTYPES:
            raise Unsupported(
                f"block {block.name} keeps an index of dtype {marks[index_item].dtype}; needs int32 or int64"
            )
        index = self.reader.ops.cast(self.reader.ops.share(column), index.dtype)
        dtypes = (marks[index_item].dtype, marks[1 - index_item].dtype)
        reduction = Reduction(combiner=combiner, elements=(index, value), dtypes=dtypes)
        both = (self._add(reduction, 0), self._add(reduction, 1))
        return both if index_item == 0 else both[::-1]


def _without_casts(index: Expr) -> Expr:
    """`index` before any casts among the dtypes that hold every column."""
    while isinstance(index, Op) and index.name == "cast" and index.dtype in INDEX_DTYPES:
        index = index.args[0]
    return index


def _updated(store: Store, value: Expr) -> Expr:
    """What a later store of the same step sees: the new value, where storing does not round it."""
    return value if str(store.buffer.ty.dtype) == value.dtype else RowValue(-1, -1, "updated")


def _steps_are_columns(block: Block) -> bool:
    """Whether the k-th step of a row takes its column k."""
    moving = [i for i in block.iters if i.reduces and not i.unit]
    return len(moving) == 1 and moving[0].loop is not None


def _is_marked(expr: Expr) -> bool:
    return any(isinstance(e, RowValue) and e.reduction == -1 for e in walk(expr))


def row_space(reader: Reader) -> tuple[list[Any], list[Any]]:
    """Extents of the rows and of the columns: those of the first reduction.

    Where a later reduction only folds the first one's results further, its rows are the rows, and both
    extents together are the columns.
    """
    reducing = [b for b in reader.body.blocks if b.reduces]
    if not reducing:
        raise Unsupported("a function without a reduction; needs at least one reduced iterator")
    rows, columns = _extents(reader, reducing[0])
    outer_rows, outer_columns = _extents(reader, reducing[-1])
    inner = outer_rows + outer_columns
    if outer_columns and len(inner) == len(rows) and all(map(reader.space.same, inner, rows)):
        return outer_rows, outer_columns + columns
    return rows, columns


def _extents(reader: Reader, block: Block) -> tuple[list[Any], list[Any]]:
    axes = [(reader.extent(i.extent), i.reduces) for i in block.iters if not i.unit]
    return [e for e, reduces in axes if not reduces], [e for e, reduces in axes if reduces]


def _rank(block: Block) -> int:
    """The number of spatial iterators that move."""
    return sum(not i.reduces and not i.unit for i in block.iters)


def _multiplies(store: Store) -> bool:
    """Whether a store adds the product of elements of two tensors to its own."""
    if not isinstance(store.value, tirx.Add):
        return False
    for product in (_bare(store.value.a), _bare(store.value.b)):
        if isinstance(product, tirx.Mul):
            a, b = _bare(product.a), _bare(product.b)
            both = isinstance(a, compat.TensorLoad) and isinstance(b, compat.TensorLoad)
            return both and not a.source.same_as(b.source)
    return False


def _bare(expr: Any) -> Any:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr


def _shape(extents: Any) -> str:
    return "×".join(str(getattr(e, "value", e)) for e in extents) or "1"
