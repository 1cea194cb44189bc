"""The canonical row space: index arithmetic over its rows and columns, and what can be proved of it.

Indices are TIR expressions in int64 over canonical variables (`r0…` for rows, `c0…` for columns, one for each
symbol, scalar and looked-up integer); they become row-program expressions only at the leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, permutations
from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_ops import Ops
from .facts_poly import ONE as ONE_TERM
from .facts_poly import Polynomial, Polynomials, coefficient, common, divided, multiplied, without
from .program import Access, ColIndex, Const, Expr, RowIndex, walk

MAX_ALIGN = 16
"""Elements; wider accesses exist on no target of ours."""
MAX_ORDERS = 24
"""Orders of the axes that are tried to match a block to the row space."""
MAX_EXTENT = 1 << 40
"""Assumed upper bound of a symbolic extent, for index arithmetic only."""

_LEAF_OPS = {
    tirx.Add: "add",
    tirx.Sub: "sub",
    tirx.Mul: "mul",
    tirx.FloorDiv: "floordiv",
    tirx.FloorMod: "floormod",
    tirx.Div: "truncdiv",
    tirx.Mod: "truncmod",
    tirx.Min: "min",
    tirx.Max: "max",
    tirx.LT: "lt",
    tirx.LE: "le",
    tirx.GT: "gt",
    tirx.GE: "ge",
    tirx.EQ: "eq",
    tirx.NE: "ne",
    tirx.And: "and",
    tirx.Or: "or",
}


def int64(value: int) -> Any:
    """A literal index."""
    return tirx.IntImm("int64", value)


ZERO = int64(0)
ONE = int64(1)


class Space:
    """Rows, columns, symbols and looked-up integers, with the analyzer that knows their ranges."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.analyzer = compat.Analyzer()
        self.rows: list[tuple[Any, Any]] = []
        self.columns: list[tuple[Any, Any]] = []
        self.flat_column: Any = ZERO
        self.row_count: Any = ONE
        self.column_count: Any = ONE
        self.poly = Polynomials()
        self._dense: Polynomial = {}
        self._leaves: dict[Any, Expr] = {}
        self._varies: set[Any] = set()
        self._lookups: dict[Expr, Any] = {}
        self._looked: set[Any] = set()
        self._symbolic = False

    def symbol(self, leaf: Expr, name: str) -> Any:
        """A canonical variable for an extent or an integer scalar."""
        var = tirx.Var(name, "int64")
        self._leaves[var] = self.ops.cast(leaf, "int64")
        self._symbolic = True
        return var

    def assume_positive(self, var: Any) -> None:
        """`var` is an extent: where anything runs at all, it is 1 or more."""
        self.analyzer.bind(var, compat.Range.from_min_extent(ONE, int64(MAX_EXTENT)))

    def lookup(self, value: Expr, column: bool) -> Any:
        """A canonical variable for an integer that is looked up; `column` if it varies in a row."""
        if value not in self._lookups:
            var = tirx.Var(f"lookup{len(self._lookups)}", "int64")
            self._lookups[value] = var
            self._looked.add(var)
            self._leaves[var] = self.ops.cast(value, "int64")
            if column:
                self._varies.add(var)
        return self._lookups[value]

    def shape(self, rows: Sequence[Any], columns: Sequence[Any]) -> None:
        """Fix the extents of the axes."""
        self.rows = [self._axis(f"r{i}", e) for i, e in enumerate(rows)]
        self.columns = [self._axis(f"c{i}", e) for i, e in enumerate(columns)]
        for i, (var, _) in enumerate(self.rows):
            self._leaves[var] = self.ops.share(RowIndex(i))
        self.row_count = self.product(e for _, e in self.rows)
        self.column_count = self.product(e for _, e in self.columns)
        self.flat_column = self.simplify(self.ravel(self.columns))
        column: Expr = self.ops.share(ColIndex())
        if len(self.columns) == 1:
            self._leaves[self.columns[0][0]] = column
        else:
            for i, (var, extent) in enumerate(self.columns):
                inner = self.product(e for _, e in self.columns[i + 1 :])
                index = column if _is_const(inner, 1) else self.ops.op("floordiv", column, self.leaf(inner))
                self._leaves[var] = index if i == 0 else self.ops.op("floormod", index, self.leaf(extent))
        self._varies |= {v for v, _ in self.columns}
        self._dense = self.poly.of(self.ravel(self.rows) * self.column_count + self.flat_column)

    def _axis(self, name: str, extent: Any) -> tuple[Any, Any]:
        var = tirx.Var(name, "int64")
        self.analyzer.bind(var, compat.Range.from_min_extent(ZERO, extent))
        return var, extent

    def product(self, extents: Any) -> Any:
        """The product of extents, simplified."""
        total: Any = ONE
        for extent in extents:
            total = extent if _is_const(total, 1) else total * extent
        return self.simplify(total)

    def ravel(self, axes: Iterable[tuple[Any, Any]]) -> Any:
        """The flat, row-major index of (index, extent) pairs."""
        flat: Any = ZERO
        for var, extent in axes:
            flat = flat * extent + var
        return flat

    def simplify(self, index: Any) -> Any:
        """`index` simplified under the known ranges, divisions by symbolic extents included."""
        if isinstance(index, compat.Var | tirx.IntImm):
            return index
        out = self.analyzer.simplify(index)
        return self._divide(out) if self._symbolic else out

    def _divide(self, index: Any) -> Any:
        """Rewrite (q·d + r) // d and % d, with 0 <= r < d proved; TVM leaves them where d is symbolic."""
        if isinstance(index, tirx.Add | tirx.Sub | tirx.Mul):
            a, b = self._divide(index.a), self._divide(index.b)
            if a is index.a and b is index.b:
                return index
            return self.analyzer.simplify(type(index)(a, b))
        if not isinstance(index, tirx.FloorDiv | tirx.FloorMod):
            return index
        number, divisor = self._divide(index.a), index.b
        if not isinstance(divisor, tirx.IntImm):
            by = self.poly.of(divisor)
            if len(by) == 1:
                ((monomial, factor),) = by.items()
                quotient, rest = divided(self.poly.of(number), monomial, factor)
                left = self.poly.index(rest)
                if self._within(left, divisor):
                    return self.poly.index(quotient) if isinstance(index, tirx.FloorDiv) else left
        return self.analyzer.simplify(type(index)(number, divisor))

    def _within(self, index: Any, extent: Any) -> bool:
        return bool(self.analyzer.can_prove(index >= ZERO) and self.analyzer.can_prove(index < extent))

    def same(self, a: Any, b: Any) -> bool:
        """Whether two indices are proved equal."""
        if isinstance(a, compat.Var) and isinstance(b, compat.Var):
            return bool(a.same_as(b))
        if self.poly.of(a) == self.poly.of(b):
            return True
        return bool(self.analyzer.can_prove_equal(a, b))

    def leaf(self, index: Any) -> Expr:
        """`index` as a row-program expression (int64, or bool for a comparison)."""
        if isinstance(index, tirx.IntImm):
            return self.ops.const(int(index.value), str(index.ty.dtype))
        if isinstance(index, compat.Var):
            return self._leaves[index]
        if len(self.columns) > 1 and compat.equal(index, self.flat_column):
            return self.ops.share(ColIndex())
        if isinstance(index, tirx.Cast):
            return self.ops.cast(self.leaf(index.value), str(index.ty.dtype))
        if isinstance(index, tirx.Not):
            return self.ops.op("not", self.leaf(index.a))
        if isinstance(index, tirx.Select):
            parts = (self.leaf(e) for e in (index.condition, index.true_value, index.false_value))
            return self.ops.op("select", *parts)
        name = _LEAF_OPS.get(type(index))
        if name is None:
            raise Unsupported(f"an index with {type(index).__name__} ({index}); needs integer arithmetic")
        return self.ops.op(name, self.leaf(index.a), self.leaf(index.b))

    def varies(self, index: Any) -> bool:
        """Whether `index` differs from column to column."""
        return any(v in self._varies for v in variables(index))

    def row_axes(self, index: Any) -> set[int]:
        """The row axes that `index` depends on directly."""
        found = set(variables(index))
        return {i for i, (v, _) in enumerate(self.rows) if v in found}

    def looked_up_axes(self, indices: Sequence[Any]) -> set[int] | None:
        """The row axes that `indices` depend on, through look-ups too; None where nothing is looked up."""
        looked = [v for i in indices for v in variables(i) if v in self._looked]
        if not looked:
            return None
        parts = walk(*(self._leaves[v] for v in looked))
        through = {e.axis for e in parts if isinstance(e, RowIndex)}
        return through.union(*(self.row_axes(i) for i in indices))

    def is_looked_up(self, index: Any) -> bool:
        """Whether `index` depends on a looked-up integer."""
        return any(v in self._looked for v in variables(index))

    def is_natural(self, index: Any) -> bool:
        """Whether `index` is proved not to be negative."""
        return bool(self.analyzer.can_prove(index >= ZERO))

    def reach(self, index: Any) -> tuple[int, int] | None:
        """The least and the largest value that `index` takes; None unless it is affine in axes of fixed extents."""
        extents = {self.poly.number(v): e for v, e in self.rows + self.columns}
        least = most = 0
        for monomial, factor in self.poly.of(index).items():
            if monomial == ONE_TERM:
                least, most = least + factor, most + factor
                continue
            extent = extents.get(monomial[0]) if len(monomial) == 1 else None
            if not isinstance(extent, tirx.IntImm) or extent.value < 1:
                return None
            end = factor * (int(extent.value) - 1)
            least, most = least + min(end, 0), most + max(end, 0)
        return least, most

    def bounded(self, index: Any, extent: Any) -> Any:
        """`index`, clamped to [0, extent) unless it is proved to lie there."""
        if self._within(index, extent):
            return index
        return tirx.Max(tirx.Min(index, self.simplify(extent - ONE)), ZERO)

    def access(self, offset: Any) -> tuple[Access, Polynomial]:
        """What is proved of an element offset, and its terms."""
        whole = self.poly.joined(self.poly.of(offset), self.simplify)
        changing = {n for m in whole for n in m if self.varies(self.poly.atoms[n])}
        if not changing:
            return self._affine(whole, 0), whole
        step = self._step(whole, changing)
        if step is None:
            full = self.leaf(self.poly.index(whole))
            return Access(row=self.ops.const(0, "int64"), stride=None, full=full), whole
        row = without(whole, changing.__contains__)
        return self._affine(row, step, step == 1 and whole == self._dense), whole

    def _affine(self, row: Polynomial, stride: int, dense: bool = False) -> Access:
        shared = common([MAX_ALIGN, *row.values()])
        align = shared & -shared
        return Access(row=self.leaf(self.poly.index(row)), stride=stride, dense=dense, align=align)

    def _step(self, whole: Polynomial, changing: set[int]) -> int | None:
        """The one stride of the flat column, if the axes' own strides compose to one."""
        numbers = [self.poly.number(v) for v, _ in self.columns]
        if not changing <= set(numbers):
            return None
        expected: Polynomial | None = None
        last = 0
        for number, (_, extent) in zip(numbers[::-1], self.columns[::-1], strict=True):
            mine = coefficient(whole, number)
            if mine is None or any(n in changing for m in mine for n in m):
                return None
            if expected is None:
                if set(mine) - {ONE_TERM}:
                    return None
                expected = mine
                last = mine.get(ONE_TERM, 0)
            elif mine != expected:
                return None
            expected = multiplied(expected, self.poly.of(extent))
        return last or None

    def placements(
        self,
        iters: Sequence[tuple[Any, Any]],
        axes: Sequence[tuple[Any, Any]],
        known: Mapping[Any, Any] | None = None,
    ) -> Iterator[dict[Any, Any]]:
        """Bijections from `axes` to block iterators of the same extents, the likeliest first.

        Where some iterators are `known` to be axes, the others follow in order; else the orders are tried.
        """
        if known and len(iters) == len(axes):
            yield from self._completed(iters, axes, known)
        count = len(iters)
        if count == len(axes):
            orders = islice(permutations(range(count)), MAX_ORDERS)
            for order in orders:
                pairs = [(iters[k], axes[i]) for i, k in enumerate(order)]
                if all(self.same(e, extent) for (_, e), (_, extent) in pairs):
                    yield {var: axis for (var, _), (axis, _) in pairs}
        elif not self.same(self.product(e for _, e in iters), self.product(e for _, e in axes)):
            return
        else:
            yield self.unravel(iters, self.ravel(axes))
            return
        same_order = all(self.same(e, x) for (_, e), (_, x) in zip(iters, axes, strict=True))
        if not same_order and self.same(self.product(e for _, e in iters), self.product(e for _, e in axes)):
            yield self.unravel(iters, self.ravel(axes))

    def _completed(
        self, iters: Sequence[tuple[Any, Any]], axes: Sequence[tuple[Any, Any]], known: Mapping[Any, Any]
    ) -> Iterator[dict[Any, Any]]:
        given = {axis: var for var, axis in known.items()}
        others = iter([(v, e) for v, e in iters if v not in known])
        extents = dict(iters)
        placed = {}
        for axis, extent in axes:
            var = given[axis] if axis in given else next(others, (None, ZERO))[0]
            if var not in extents or not self.same(extents[var], extent):
                return
            placed[var] = axis
        yield placed

    def unravel(self, iters: Sequence[tuple[Any, Any]], flat: Any) -> dict[Any, Any]:
        """The indices of a flat one, by variable."""
        if any(_is_const(e, 0) for _, e in iters):  # nothing is there, and TVM divides by no zero
            return dict.fromkeys((v for v, _ in iters), ZERO)
        placed = {}
        for i, (var, extent) in enumerate(iters):
            inner = self.product(e for _, e in iters[i + 1 :])
            index = flat if _is_const(inner, 1) else tirx.FloorDiv(flat, inner)
            placed[var] = self.simplify(index if i == 0 else tirx.FloorMod(index, extent))
        return placed


def _is_const(expr: Any, value: int) -> bool:
    return isinstance(expr, tirx.IntImm) and expr.value == value


def constant(extent: Expr) -> int | None:
    """The value of an extent that is fixed."""
    return int(extent.value) if isinstance(extent, Const) else None


def variables(index: Any) -> Iterator[Any]:
    """The variables of an index."""
    if isinstance(index, compat.Var):
        yield index
    elif isinstance(index, tirx.Cast):
        yield from variables(index.value)
    elif isinstance(index, tirx.Not):
        yield from variables(index.a)
    elif isinstance(index, tirx.Select):
        for part in (index.condition, index.true_value, index.false_value):
            yield from variables(part)
    elif not isinstance(index, tirx.IntImm):
        yield from variables(index.a)
        yield from variables(index.b)
