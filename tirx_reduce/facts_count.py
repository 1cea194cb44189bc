"""Counting on a captured function: what a lowered kernel in its plain form really does, pass by pass.

In goes a PrimFunc whose walks and collectives are marked, out come FamilyCounts. Nothing is taken from the
row program: whatever the emitter wrote is what is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from . import compat
from .errors import ReduceError
from .program import item_bytes
from .values import FamilyCounts

PASS = "tirx_reduce.pass"
"""Attribute round each walk over the row; its value is the number of the pass."""
COLLECTIVE = "tirx_reduce.collective"
"""Attribute at each collective reduction."""


def count(func: Any, reuse: str) -> FamilyCounts:
    """Count the demand of a captured function.

    Parameters
    ----------
    func : PrimFunc
        A kernel in its plain form: one program a group, every walk inside an attribute `tirx_reduce.pass`.
    reuse : str
        The family that it was lowered for.

    Returns
    -------
    FamilyCounts
        Bytes are those of one column.

    Raises
    ------
    ReduceError
        If the function marks no pass: it was not captured.
    """
    seen = _Count()
    seen.visit(func.body)
    if not seen.passes:
        raise ReduceError("a function without marked passes; needs one that was captured in its plain form")
    matrices = [a for p in seen.passes for a in p.accesses.values() if a.by_row]
    vectors: dict[Any, int] = {}
    for p in seen.passes:
        mine: dict[Any, int] = {}
        for access in p.accesses.values():
            if not access.by_row:
                mine[access.buffer] = mine.get(access.buffer, 0) + access.bytes
        # A column vector is asked for once, however many passes read it.
        vectors = {b: max(vectors.get(b, 0), mine.get(b, 0)) for b in vectors.keys() | mine.keys()}
    return FamilyCounts(
        reuse=reuse,
        passes=len(seen.passes),
        reductions=seen.collectives,
        column_bytes_per_row_column=sum(a.bytes for a in matrices) + sum(vectors.values()),
        kept=len(seen.kept()),
        storage_bytes=max((a.bytes for a in matrices), default=0),
        accumulation_bytes=max((item_bytes(str(b.ty.dtype)) for b in seen.accumulators()), default=0),
    )


@dataclass(frozen=True, slots=True)
class _Access:
    buffer: Any
    bytes: int
    by_row: bool
    """Whether its index depends on the group."""


@dataclass(slots=True)
class _Pass:
    accesses: dict[Any, _Access] = field(default_factory=dict)
    loaded: set[Any] = field(default_factory=set)
    """Local and shared buffers that are read."""
    stored: set[Any] = field(default_factory=set)
    """Local and shared buffers that are written."""


class _Count:
    """Walks a kernel; `tainted` holds the variables that depend on the group."""

    def __init__(self) -> None:
        self.passes: list[_Pass] = []
        self.collectives = 0
        self._outside = _Pass()
        self._current: _Pass | None = None
        self._tainted: set[Any] = set()
        self._inside = False
        self._single = False

    def visit(self, stmt: Any) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.visit(part)
        elif isinstance(stmt, tirx.AttrStmt):
            self._attribute(stmt)
        elif isinstance(stmt, tirx.Bind):
            if self._expr(stmt.value):
                self._tainted.add(stmt.var)
        elif isinstance(stmt, tirx.For):
            self._loop(stmt)
        elif isinstance(stmt, tirx.IfThenElse):
            self._expr(stmt.condition)
            self._piece(stmt.then_case)
            if stmt.else_case is not None:
                self._piece(stmt.else_case)
        elif isinstance(stmt, tirx.BufferStore):
            self._store(stmt)
        elif isinstance(stmt, tirx.Evaluate):
            self._expr(stmt.value)
        elif isinstance(stmt, compat.SBlockRealize):
            self.visit(stmt.block.body)

    def _attribute(self, stmt: Any) -> None:
        key = str(stmt.attr_key)
        if key == COLLECTIVE:
            self.collectives += 1
        elif key == "thread_extent" and str(stmt.node.thread_tag).startswith("blockIdx"):
            self._group(stmt.node.var, stmt.value)
        if key != PASS:
            self.visit(stmt.body)
            return
        self._current = _Pass()
        self.passes.append(self._current)
        self.visit(stmt.body)
        self._current = None

    def _group(self, var: Any, extent: Any) -> None:
        self._tainted.add(var)
        # The one row of a single group has no vectors: nothing is shared between rows.
        self._single = isinstance(extent, tirx.IntImm) and extent.value == 1

    def _loop(self, stmt: Any) -> None:
        if stmt.thread_binding is not None and str(stmt.thread_binding.thread_tag).startswith("blockIdx"):
            self._group(stmt.loop_var, stmt.extent)
        self._piece(stmt.body)

    def _piece(self, body: Any) -> None:
        """Loops and branches side by side are pieces of one walk (packets, the ends): a column lies in one of them."""
        outer = self._current
        if outer is None or self._inside:
            self.visit(body)
            return
        self._current, self._inside = _Pass(loaded=outer.loaded, stored=outer.stored), True
        self.visit(body)
        piece, self._current, self._inside = self._current, outer, False
        ordinals: dict[Any, int] = {}
        for access in piece.accesses.values():
            kind = (access.buffer, access.by_row)
            ordinals[kind] = ordinals.get(kind, 0) + 1
            outer.accesses.setdefault((*kind, ordinals[kind]), access)

    def _store(self, stmt: Any) -> None:
        self._expr(stmt.value)
        by_row = [self._expr(index) for index in stmt.indices]
        self._access(stmt.buffer, tuple(stmt.indices), any(by_row), stores=True)

    def _expr(self, expr: Any) -> bool:
        """Count the loads of `expr`; whether it depends on the group."""
        by_row = False
        for leaf in compat.leaves(expr):
            if type(leaf) is compat.Var:
                by_row = by_row or leaf in self._tainted
            else:
                indices = tuple(leaf.indices)
                mine = any(v in self._tainted for i in indices for v in compat.leaves(i))
                self._access(leaf.source, indices, mine, stores=False)
        return by_row

    def _access(self, buffer: Any, indices: tuple[Any, ...], by_row: bool, stores: bool) -> None:
        where = self._current or self._outside
        kind = buffer.ty
        if str(kind.storage_scope) != "global":
            (where.stored if stores else where.loaded).add(buffer)
        elif self._current is not None:  # outside, it is once a row and not once a column
            key = (buffer, stores, tuple(compat.StructuralKey(i) for i in indices))
            where.accesses.setdefault(
                key, _Access(buffer, item_bytes(str(kind.dtype)), self._single or by_row)
            )

    def kept(self) -> set[Any]:
        """Arrays that one pass fills and another reads."""
        return {
            b
            for i, p in enumerate(self.passes)
            for b in p.stored
            for j, q in enumerate(self.passes)
            if i != j and b in q.loaded
        }

    def accumulators(self) -> set[Any]:
        """Arrays that a pass fills and a collective reads."""
        return {b for p in self.passes for b in p.stored if b in self._outside.loaded}
