"""Walks over a row: what each one computes, which values outlive the first, and a row's bytes.

In goes a row program, out come plain values; no TVM here, so that the emitter can ask the same questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .program import ColIndex, Const, Expr, Load, Op, RowProgram, RowValue, children, item_bytes, uses_row


class Walks:
    """A row program cut into walks over its row, each answer worked out once."""

    def __init__(self, program: RowProgram) -> None:
        self.program = program
        self._level: dict[Expr, int] = {}
        self._loads: dict[Expr, frozenset[Load]] = {}
        self._column: dict[Expr, bool] = {}
        self._by_reduction: list[int] = []
        for reduction in program.reductions:
            self._by_reduction.append(1 + max(self.level(e) for e in reduction.elements))
        depth = max(self._by_reduction, default=0)
        roots: list[list[Expr]] = [[] for _ in range(depth + 1)]
        for level, reduction in zip(self._by_reduction, program.reductions, strict=True):
            roots[level - 1].extend(reduction.elements)
        for output in program.outputs:
            if not output.per_row:
                roots[self.level(output.value)].append(output.value)
        if not roots[depth] and depth:
            roots.pop()
        self.roots: tuple[tuple[Expr, ...], ...] = tuple(tuple(r) for r in roots)
        """The values that each walk computes, column by column."""

    def level(self, expr: Expr) -> int:
        """How many walks must be over before `expr` can be computed."""
        found = self._level.get(expr)
        if found is None:
            if isinstance(expr, RowValue):
                found = self._by_reduction[expr.reduction]
            else:
                found = max((self.level(e) for e in children(expr)), default=0)
            self._level[expr] = found
        return found

    def loads(self, expr: Expr) -> frozenset[Load]:
        """The loads inside `expr` that differ from column to column, those inside indices left out."""
        found = self._loads.get(expr)
        if found is None:
            if isinstance(expr, Load):
                index = expr.index
                moves = index.stride != 0 or self.uses_column(index.row)
                found = frozenset({expr}) if moves else frozenset()
            elif isinstance(expr, Op):
                found = frozenset().union(*(self.loads(e) for e in expr.args))
            else:
                found = frozenset()
            self._loads[expr] = found
        return found

    def uses_column(self, expr: Expr) -> bool:
        """Whether `expr` differs from column to column."""
        found = self._column.get(expr)
        if found is None:
            found = isinstance(expr, ColIndex) or (isinstance(expr, Load) and expr.index.stride != 0)
            found = found or any(self.uses_column(e) for e in children(expr))
            self._column[expr] = found
        return found

    def is_vector(self, load: Load) -> bool:
        """Whether all rows read the same through `load` (a weight, a bias). A single row has no vectors."""
        if not self.program.rows:
            return False
        return not uses_row(load.index)

    def kept(self) -> tuple[Expr, ...]:
        """The largest values of a column that need no reduction and no vector, and serve in later walks.

        Only what the first walk reads in any case is kept; 16-bit loads are kept as they stand in memory.
        """
        first = frozenset().union(*(self.loads(e) for e in self.roots[0])) if self.roots else frozenset()
        later = self._frontier(e for roots in self.roots[1:] for e in roots)
        values = [v for v in later if self.loads(v) <= first]
        return tuple(
            v
            for v in values
            if not any(o is not v and self.loads(v) <= {o} and o in set(_parts(v)) for o in values)
        )

    def _frontier(self, roots: Iterable[Expr]) -> dict[Expr, None]:
        found: dict[Expr, None] = {}
        seen: set[Expr] = set()

        def visit(expr: Expr) -> None:
            if expr in seen:
                return
            seen.add(expr)
            if all(self.is_vector(load) for load in self.loads(expr)):
                return
            if self.level(expr) == 0 and not self._mixed(expr):
                found[_stripped(expr)] = None
                return
            for child in children(expr):
                visit(child)

        for root in roots:
            visit(root)
        return found

    def _mixed(self, expr: Expr) -> bool:
        """Whether a vector or the column's index plays a part: such a value is better rebuilt than kept."""
        if any(self.is_vector(load) for load in self.loads(expr)):
            return True
        return any(isinstance(e, ColIndex) for e in _parts(expr, into_loads=False))

    def row_bytes(self, columns: int, reuse: str) -> int:
        """Global bytes of one row: matrices once a walk (once in all where kept), vectors, outputs once."""
        had: set[Load] = set()
        vectors: set[Load] = set()
        total = 0
        for roots in self.roots:
            loads = {load for e in roots for load in self.loads(e)}
            mine = {load for load in loads if not self.is_vector(load)}
            vectors |= loads - mine
            total += sum(item_bytes(load.dtype) for load in mine - had)
            if reuse != "reload":
                had |= mine
        total += sum(item_bytes(load.dtype) for load in vectors)
        total += sum(item_bytes(o.dtype) for o in self.program.outputs if not o.per_row)
        return total * columns


def _stripped(expr: Expr) -> Expr:
    """The load under a widening cast."""
    if isinstance(expr, Op) and expr.name == "cast" and isinstance(expr.args[0], Load):
        return expr.args[0]
    return expr


def _parts(expr: Expr, into_loads: bool = True) -> Iterator[Expr]:
    """Every distinct subexpression, `expr` among them."""
    seen: set[Expr] = set()
    waiting = [expr]
    while waiting:
        part = waiting.pop()
        if part in seen or isinstance(part, Const):
            continue
        seen.add(part)
        yield part
        if into_loads or not isinstance(part, Load):
            waiting.extend(children(part))
