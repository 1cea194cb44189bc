"""From TIR to row-program expressions by pulling: a buffer that the function wrote is replaced by its value.

In go a function's blocks, out come values at (row, column). Refused: what has no place in a row program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_blocks import Block, Body, Iter, Store
from .facts_index import ARITHMETIC, Indices, Scope
from .facts_ops import wide
from .facts_owner import stored_at
from .facts_poly import Polynomial
from .facts_space import ZERO, int64
from .program import Access, Expr, Load, Op, Scalar

_BINARY = {
    tirx.Add: "add",
    tirx.Sub: "sub",
    tirx.Mul: "mul",
    tirx.Min: "min",
    tirx.Max: "max",
    tirx.FloorDiv: "floordiv",
    tirx.FloorMod: "floormod",
    tirx.EQ: "eq",
    tirx.NE: "ne",
    tirx.LT: "lt",
    tirx.LE: "le",
    tirx.GT: "gt",
    tirx.GE: "ge",
    tirx.BitwiseAnd: "bitwise_and",
    tirx.BitwiseOr: "bitwise_or",
    tirx.BitwiseXor: "bitwise_xor",
    tirx.LShift: "shift_left",
    tirx.RShift: "shift_right",
}
_UNARY_CALLS = frozenset(
    [
        "exp",
        "exp2",
        "exp10",
        "log",
        "log2",
        "log10",
        "log1p",
        "sqrt",
        "rsqrt",
        "tanh",
        "sin",
        "cos",
        "tan",
        "erf",
        "sigmoid",
        "floor",
        "ceil",
        "round",
        "trunc",
        "nearbyint",
        "isnan",
        "isinf",
        "isfinite",
        "bitwise_not",
    ]
)
_BINARY_CALLS = frozenset(
    ["pow", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"]
)


class Mismatch(Unsupported):
    """The tried placement of a block on the row space does not fit what the block reads."""


class Reader(Indices):
    """Evaluates expressions of one function over its row space."""

    def __init__(self, func: Any, body: Body) -> None:
        super().__init__(func, body)
        self.loads: dict[Load, Polynomial] = {}
        """Offset of every load."""
        self.indices: dict[Load, tuple[Any, ...]] = {}
        self.defined: dict[Any, list[tuple[Block, Store]]] = {}
        for block in body.blocks:
            for store in block.stores:
                self.defined.setdefault(store.buffer, []).append((block, store))
        self.reduce: Callable[[Block, Store, tuple[Any, ...]], Expr] | None = None
        """How a value of a reduction block is read; set by whoever knows the reductions."""
        self._values: dict[Any, Expr] = {}
        self._guards = 0
        """Values that only count where another one says so: what they read need not be there, and is clamped."""

    def value(self, expr: Any, scope: Scope) -> Expr:
        """The value of `expr`, widened."""
        kind = type(expr)
        if kind is tirx.IntImm or kind is tirx.FloatImm:
            return self.ops.const(expr.value, str(expr.ty.dtype))
        key = (expr, self._guards > 0)
        found = scope.memo.get(key)
        if found is None:
            read = _READERS.get(kind, Reader._binary)
            found = scope.memo[key] = read(self, expr, scope)
        return found

    def _cast(self, expr: Any, scope: Scope) -> Expr:
        return self.ops.cast(self.value(expr.value, scope), str(expr.ty.dtype))

    def _select(self, expr: Any, scope: Scope) -> Expr:
        return self._choose("select", (expr.condition, expr.true_value, expr.false_value), scope)

    def _not(self, expr: Any, scope: Scope) -> Expr:
        return self.ops.op("not", self.value(expr.a, scope))

    def _bitwise_not(self, expr: Any, scope: Scope) -> Expr:
        return self.ops.op("bitwise_not", self.value(expr.a, scope))

    def _logic(self, expr: Any, scope: Scope) -> Expr:
        name = "and" if isinstance(expr, tirx.And) else "or"
        first = self.value(expr.a, scope)
        self._guards += 1
        try:
            return self.ops.logic(name, first, self.value(expr.b, scope))
        finally:
            self._guards -= 1

    def _let(self, expr: Any, scope: Scope) -> Expr:
        lets = {**scope.lets, expr.var: expr.value}
        return self.value(expr.body, Scope(block=scope.block, iters=scope.iters, lets=lets, own=scope.own))

    def _arithmetic(self, expr: Any, scope: Scope) -> Expr:
        if self._pure(expr, scope):
            return self.ops.cast(self.space.leaf(self.index(expr, scope)), str(expr.ty.dtype))
        return self._binary(expr, scope)

    def _binary(self, expr: Any, scope: Scope) -> Expr:
        name = _BINARY.get(type(expr))
        if isinstance(expr, tirx.Div | tirx.Mod):
            integral = self.integral(expr)
            name = ("trunc" if integral else "") + ("div" if isinstance(expr, tirx.Div) else "mod")
        if name is None or name == "mod":
            raise Unsupported(
                f"a {type(expr).__name__} ({_short(expr)}); needs arithmetic that a row program has"
            )
        return self.ops.op(name, self.value(expr.a, scope), self.value(expr.b, scope))

    def _pure(self, expr: Any, scope: Scope) -> bool:
        """Whether `expr` is integer arithmetic on iterators and literals alone."""
        kind = type(expr)
        if kind is tirx.IntImm:
            return True
        if kind is compat.Var:
            return expr in scope.iters
        if kind is tirx.Cast:
            return self.integral(expr) and self._pure(expr.value, scope)
        return kind in ARITHMETIC and self._pure(expr.a, scope) and self._pure(expr.b, scope)

    def _var(self, var: Any, scope: Scope) -> Expr:
        if var in scope.iters:
            return self.ops.cast(self.space.leaf(scope.iters[var]), wide(str(var.ty.dtype)))
        if var in scope.lets:
            return self.value(scope.lets[var], scope)
        if compat.is_buffer(var):
            raise Unsupported(f"the address of {var.name} as a value; needs elements only")
        if var in self.number:
            dtype = str(var.ty.dtype)
            wide(dtype)
            return self.ops.widen(self.ops.share(Scalar(self.number[var], dtype)))
        return self.sym(var)

    def _choose(self, name: str, parts: tuple[Any, Any, Any], scope: Scope) -> Expr:
        condition = self.value(parts[0], scope)
        self._guards += 1
        try:
            return self.ops.op(name, condition, self.value(parts[1], scope), self.value(parts[2], scope))
        finally:
            self._guards -= 1

    def _call(self, expr: Any, scope: Scope) -> Expr:
        full = getattr(expr.op, "name", None) or str(expr.op)
        name = full.rpartition(".")[2]
        args = tuple(expr.args)
        if name == "if_then_else":
            return self._choose("if_then_else", (args[0], args[1], args[2]), scope)
        if name == "likely":
            return self.value(args[0], scope)
        if name == "fabs" or name == "abs":
            return self.ops.op("abs", self.value(args[0], scope))
        if name in _UNARY_CALLS and len(args) == 1:
            return self.ops.op(name, self.value(args[0], scope))
        if name in _BINARY_CALLS and len(args) == 2:
            return self.ops.op(name, self.value(args[0], scope), self.value(args[1], scope))
        if name == "fma":
            return self.ops.op("fma", *(self.value(a, scope) for a in args))
        if name == "reinterpret":
            return self._reinterpret(expr, scope)
        raise Unsupported(f"a call of {full}; needs arithmetic that a row program has")

    def _reinterpret(self, expr: Any, scope: Scope) -> Expr:
        value = self.value(expr.args[0], scope)
        source, target = str(expr.args[0].ty.dtype), str(expr.ty.dtype)
        if source != value.dtype:
            value = self.ops.share(Op("cast", (value,), source))
        wide(target)
        return self.ops.widen(self.ops.share(Op("reinterpret", (value,), target)))

    # Buffers

    def _load(self, expr: Any, scope: Scope) -> Expr:
        buffer = expr.source
        if buffer in scope.own:
            accumulator, at = scope.own[buffer]
            if not all(compat.equal(a, b) for a, b in zip(expr.indices, at, strict=True)):
                raise Unsupported(
                    f"{_short(expr)} beside {buffer.name}'s own element; needs one accumulator a row"
                )
            return accumulator
        if scope.block is not None and buffer in self.defined:
            self._same_iteration(expr, scope.block)
        indices = tuple(self.index(i, scope) for i in expr.indices)
        return self.element(buffer, indices, scope.block)

    def _same_iteration(self, expr: Any, reader: Block) -> None:
        """Where a block and its reader share a loop, what is read must be what the same iteration wrote."""
        mine = {i.loop: i.var for i in reader.iters if i.loop is not None}
        for block, store in self.defined[expr.source]:
            shared = block.loops & reader.loops
            if block is reader or not shared:
                continue
            bound = {i.loop: i for i in block.iters}
            if not all(_in_step(bound.get(v), mine.get(v), store.indices, expr.indices) for v in shared):
                names = ", ".join(sorted(v.name for v in shared))
                raise Unsupported(
                    f"block {reader.name} reads {_short(expr)} inside a loop that fills it ({names}); needs"
                    " it complete, or the element of the same iteration"
                )

    def element(self, buffer: Any, indices: tuple[Any, ...], reader: Block | None) -> Expr:
        """The element of `buffer` at canonical indices, as `reader` sees it."""
        key = (buffer, tuple(_key(i) for i in indices), self._guards > 0, reader.position if reader else -1)
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = self._element(buffer, indices, reader)
        return found

    def _element(self, buffer: Any, indices: tuple[Any, ...], reader: Block | None) -> Expr:
        made = self.defined.get(buffer)
        if made is None:
            return self._input(buffer, indices)
        block, store = made[-1]
        self.written_once(buffer)
        if reader is not None and made[0][0].position < reader.position < block.position:
            raise Unsupported(
                f"block {reader.name} reads {buffer.name} between two writes; needs it complete"
            )
        if reader is not None and block.position >= reader.position:
            if buffer in self.number:
                raise Unsupported(
                    f"block {reader.name} reads {buffer.name} before it is written (in place);"
                    " needs outputs apart from inputs"
                )
            raise Unsupported(
                f"block {reader.name} reads {buffer.name} before it is written; needs values in order"
            )
        if block.reduces:
            if self.reduce is None:
                raise Unsupported(f"block {block.name} is reduced inside an extent; needs plain extents")
            return self.reduce(block, store, indices)
        scope = Scope(
            block=block, iters=stored_at(self, block, store, indices), lets={**self.body.lets, **block.lets}
        )
        return self.value(store.value, scope)

    def written_once(self, buffer: Any) -> None:
        """Decline a buffer of several writers; a first one may set the initial value of a reduction."""
        made = self.defined[buffer]
        (first, _), (last, _) = made[0], made[-1]
        starts = len(made) == 2 and last.reduces and not last.inits and not first.reduces
        if len(made) > 1 and not starts:
            raise Unsupported(
                f"{buffer.name} is written by more than one block; needs each tensor written once"
            )

    def _input(self, buffer: Any, indices: tuple[Any, ...]) -> Expr:
        if buffer not in self.number:
            raise Unsupported(f"{buffer.name} is read but never written; needs values to be computed first")
        dtype = str(buffer.ty.dtype)
        wide(dtype)
        access, terms = self.offset(buffer, indices)
        load = self.ops.share(Load(self.number[buffer], access, dtype))
        self.loads[load] = terms
        self.indices.setdefault(load, indices)
        return self.ops.widen(load)

    def offset(self, buffer: Any, indices: tuple[Any, ...]) -> tuple[Access, Polynomial]:
        """The access to an element of a parameter, and its offset."""
        total: Any = ZERO
        for index, stride, extent in zip(indices, self.strides(buffer), buffer.ty.shape, strict=True):
            if self._guards or self.space.is_looked_up(index):
                index = self.space.bounded(index, self.extent(extent))
            else:
                self._inside(buffer, index, self.extent(extent))
            total = total + index * stride
        start = buffer.ty.elem_offset
        if start is not None:
            if not isinstance(start, tirx.IntImm):
                raise Unsupported(f"{buffer.name} starts at the symbolic offset {start}; needs a fixed one")
            total = total + int64(start.value)
        return self.space.access(total)

    def _inside(self, buffer: Any, index: Any, extent: Any) -> None:
        """Decline an index that certainly leaves its axis; where no analysis can tell it is trusted."""
        reach = self.space.reach(index)
        if reach is None or not isinstance(extent, tirx.IntImm):
            return
        if reach[0] < 0 or reach[1] >= extent.value:
            raise Mismatch(
                f"{buffer.name} is accessed from {reach[0]} to {reach[1]} along an axis of {extent.value}; "
                "needs indices within it, or a condition around the access"
            )


_READERS: dict[Any, Callable[[Reader, Any, Scope], Expr]] = {
    compat.Var: Reader._var,
    compat.TensorLoad: Reader._load,
    compat.Call: Reader._call,
    tirx.Cast: Reader._cast,
    tirx.Select: Reader._select,
    tirx.Not: Reader._not,
    tirx.And: Reader._logic,
    tirx.Or: Reader._logic,
    tirx.BitwiseNot: Reader._bitwise_not,
    tirx.Let: Reader._let,
    **dict.fromkeys(ARITHMETIC, Reader._arithmetic),
}


def _in_step(written: Iter | None, read: Any, store: Any, load: Any) -> bool:
    """Whether `load` reads along one loop what `store` wrote in the same iteration of it."""
    if written is None or written.reduces or read is None:
        return False
    return any(
        isinstance(to, compat.Var)
        and isinstance(of, compat.Var)
        and to.same_as(written.var)
        and of.same_as(read)
        for to, of in zip(store, load, strict=True)
    )


def _key(index: Any) -> Any:
    if isinstance(index, compat.Var):
        return index
    if isinstance(index, tirx.IntImm):
        return int(index.value)
    return compat.StructuralKey(index)


def _short(expr: Any) -> str:
    text = str(expr)
    return text if len(text) <= 80 else text[:77] + "..."
