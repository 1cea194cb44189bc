"""The S/R blocks of a PrimFunc in order, checked for shape only.

In goes a PrimFunc, out come its blocks with their iterators, stores and initial values. Refused: functions
that are scheduled already, loops that are not plain, blocks that are nested, bound oddly or guarded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import IRModule, tirx

from . import compat
from .errors import Unsupported, check_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Iter:
    """One iterator of a block."""

    var: Any
    extent: Any
    reduces: bool
    loop: Any
    """The loop variable that it is bound to; None for a constant."""

    @property
    def unit(self) -> bool:
        """Whether it only takes the value 0."""
        return isinstance(self.extent, tirx.IntImm) and self.extent.value == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One write of a block."""

    buffer: Any
    indices: tuple[Any, ...]
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One S/R block."""

    name: str
    position: int
    iters: tuple[Iter, ...]
    loops: frozenset[Any]
    """Variables of the loops around it."""
    lets: dict[Any, Any]
    """Values bound inside the block."""
    stores: tuple[Store, ...]
    inits: tuple[Store, ...]

    @property
    def reduces(self) -> bool:
        """Whether some iterator is reduced."""
        return any(i.reduces for i in self.iters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """All blocks of a function and the values bound around them."""

    blocks: tuple[Block, ...]
    lets: dict[Any, Any]


def read_blocks(func: Any) -> Body:
    """The blocks of `func` in order.

    Raises
    ------
    Unsupported
        If the function is scheduled, or is not a sequence of plain loops over plain blocks.
    """
    one = ", such as mod['main']" if isinstance(func, IRModule) else ""
    check_type("func", func, compat.PrimFunc, f"a PrimFunc{one}", Unsupported)
    if func.attrs is not None and func.attrs.get("tirx.is_scheduled"):
        raise Unsupported("a function marked tirx.is_scheduled; needs one that no rule has scheduled")
    walker = _Walker()
    walker.visit(func.body, {})
    if not walker.blocks:
        raise Unsupported(
            "a function without S/R blocks; needs loops over S/R blocks, as TOPI and Relax make them"
        )
    return Body(blocks=tuple(walker.blocks), lets=walker.lets)


class _Walker:
    """Collects blocks; `loops` maps loop variables to extents on the way down."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.lets: dict[Any, Any] = {}

    def visit(self, stmt: Any, loops: dict[Any, Any]) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.visit(part, loops)
        elif isinstance(stmt, tirx.For):
            self._loop(stmt, loops)
        elif isinstance(stmt, compat.SBlockRealize):
            self._realize(stmt, loops)
        elif isinstance(stmt, tirx.Bind):
            self.lets[stmt.var] = stmt.value
        elif isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, tirx.IntImm):
            pass  # an empty statement
        elif isinstance(stmt, tirx.AllocBuffer):
            pass  # what lies between blocks needs no place: a value in flight has none after us
        else:
            raise Unsupported(f"a {type(stmt).__name__} outside the blocks; needs only loops and S/R blocks")

    def _loop(self, stmt: Any, loops: dict[Any, Any]) -> None:
        if stmt.thread_binding is not None or int(stmt.kind) not in compat.SERIAL_KINDS:
            raise Unsupported(
                f"loop {stmt.loop_var.name} bound to threads or vectorised; needs unscheduled loops"
            )
        if not _is_int(stmt.min, 0) or (stmt.step is not None and not _is_int(stmt.step, 1)):
            raise Unsupported(f"loop {stmt.loop_var.name} that does not count from 0 by 1; needs plain loops")
        self.visit(stmt.body, {**loops, stmt.loop_var: stmt.extent})

    def _realize(self, stmt: Any, loops: dict[Any, Any]) -> None:
        block = stmt.block
        if not block.iter_vars and not loops and _holds_blocks(block.body):
            if block.match_buffers:
                raise Unsupported("a root block with matched buffers; needs plain allocations")
            self.visit(block.body, loops)
            return
        where = f"block {block.name_hint}"
        if not _is_int(stmt.predicate, 1):
            raise Unsupported(f"{where} runs under a predicate; needs every iteration to run")
        if block.match_buffers or block.alloc_buffers:
            raise Unsupported(f"{where} with buffers of its own; needs blocks that only compute")
        iters = _iterators(where, stmt, loops)
        lets, stores = _statements(where, block.body)
        if block.init is None:
            inits: tuple[Store, ...] = ()
        else:
            lets_init, inits = _statements(where, block.init)
            lets = {**lets_init, **lets}
        self.blocks.append(
            Block(
                name=str(block.name_hint),
                position=len(self.blocks),
                iters=iters,
                loops=frozenset(v for v, extent in loops.items() if not _is_int(extent, 1)),
                lets=lets,
                stores=stores,
                inits=inits,
            )
        )


def _is_int(expr: Any, value: int) -> bool:
    return isinstance(expr, tirx.IntImm) and expr.value == value


def _holds_blocks(stmt: Any) -> bool:
    """Whether blocks are the first thing inside (so that this one is only their frame)."""
    while True:
        if isinstance(stmt, compat.SBlockRealize):
            return True
        if isinstance(stmt, tirx.SeqStmt):
            return any(_holds_blocks(part) for part in stmt.seq)
        if not isinstance(stmt, tirx.For):
            return False
        stmt = stmt.body


def _iterators(where: str, stmt: Any, loops: dict[Any, Any]) -> tuple[Iter, ...]:
    """The iterators of a block, which its loops run through once each."""
    iters = []
    for iter_var, value in zip(stmt.block.iter_vars, stmt.iter_values, strict=True):
        kind = int(iter_var.iter_type)
        if kind not in (compat.DATA_PARALLEL, compat.COMM_REDUCE):
            raise Unsupported(
                f"{where} has an iterator that is neither spatial nor reduced; needs S and R only"
            )
        if not _is_int(iter_var.dom.min, 0):
            raise Unsupported(f"{where} iterates from {iter_var.dom.min}; needs iterators from 0")
        loop = value if isinstance(value, compat.Var) and value in loops else None
        reduces = kind == compat.COMM_REDUCE
        iters.append(Iter(var=iter_var.var, extent=iter_var.dom.extent, reduces=reduces, loop=loop))
    moving = {v: extent for v, extent in loops.items() if not _is_int(extent, 1)}
    if not _one_to_one(iters, moving) and not _bijective(iters, stmt.iter_values, moving):
        names = ", ".join(f"{i.var.name} to {v}" for i, v in zip(iters, stmt.iter_values, strict=True))
        raise Unsupported(
            f"{where} binds {names}; needs loops that run through all its iterations, once each"
        )
    return tuple(iters)


def _one_to_one(iters: list[Iter], loops: dict[Any, Any]) -> bool:
    """Whether each iterator has a loop of its own, of its extent, and each loop an iterator."""
    bound = [i for i in iters if not i.unit]
    used = {i.loop for i in bound}
    if None in used or len(used) != len(bound) or used != set(loops):
        return False
    return all(_same_extent(loops[i.loop], i.extent) for i in bound)


def _bijective(iters: list[Iter], values: Any, loops: dict[Any, Any]) -> bool:
    """Whether quotients and remainders of the loops run through all iterations, as after a fusion."""
    bound = [(i, v) for i, v in zip(iters, values, strict=True) if not i.unit]
    extents = [i.extent for i, _ in bound] + list(loops.values())
    if not bound or not all(isinstance(e, tirx.IntImm) for e in extents):
        return False
    if prod(int(i.extent.value) for i, _ in bound) != prod(int(e.value) for e in loops.values()):
        return False
    return compat.runs_through([v for _, v in bound], [int(i.extent.value) for i, _ in bound], loops)


def _same_extent(a: Any, b: Any) -> bool:
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return bool(a.value == b.value)
    return compat.equal(a, b)


def _statements(where: str, stmt: Any) -> tuple[dict[Any, Any], tuple[Store, ...]]:
    lets: dict[Any, Any] = {}
    stores: list[Store] = []
    for part in stmt.seq if isinstance(stmt, tirx.SeqStmt) else (stmt,):
        if isinstance(part, tirx.Bind):
            if stores:
                raise Unsupported(f"{where} binds a value after a store; needs all values bound first")
            lets[part.var] = part.value
        elif isinstance(part, tirx.BufferStore):
            stores.append(Store(buffer=part.buffer, indices=tuple(part.indices), value=part.value))
        else:
            raise Unsupported(f"{where} holds a {type(part).__name__}; needs stores of expressions only")
    return lets, tuple(stores)
