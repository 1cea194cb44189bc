"""From TIR to row-program expressions by pulling: a buffer that the function wrote is replaced by its value.

In go a function's blocks, out come values at (row, column). Refused: what has no place in a row program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_blocks import Block, Body, Store
from .facts_ops import INTEGERS, Ops, is_float, wide
from .facts_poly import Polynomial
from .facts_space import ZERO, Space, int64
from .program import Access, Expr, Load, Op, Scalar, Sym, uses_column

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
_INDEX = frozenset({tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max})
_TESTS = frozenset({tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or})
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


@dataclass(slots=True)
class Scope:
    """Where an expression stands: a block and the canonical indices of its iterators."""

    block: Block | None
    iters: dict[Any, Any]
    lets: dict[Any, Any]
    memo: dict[tuple[Any, bool], Expr] = field(default_factory=dict)
    own: dict[Any, tuple[Expr, tuple[Any, ...]]] = field(default_factory=dict)
    """Accumulators of the reduction that is being read and where they stand, by buffer."""


class Reader:
    """Evaluates expressions of one function over its row space."""

    def __init__(self, func: Any, body: Body) -> None:
        self.ops = Ops()
        self.space = Space(self.ops)
        self.params = list(func.params)
        self.number = {p: i for i, p in enumerate(self.params)}
        self.body = body
        self.symbols: dict[str, Any] = {}
        self.loads: dict[Load, Polynomial] = {}
        """Offset of every load."""
        self.indices: dict[Load, tuple[Any, ...]] = {}
        self.defined: dict[Any, list[tuple[Block, Store]]] = {}
        for block in body.blocks:
            for store in block.stores:
                self.defined.setdefault(store.buffer, []).append((block, store))
        self.reduce: Callable[[Block, Store, tuple[Any, ...]], Expr] | None = None
        """How a value of a reduction block is read; set by whoever knows the reductions."""
        self._symbol_vars: dict[Any, Any] = {}
        self._values: dict[Any, Expr] = {}
        self._strides: dict[Any, tuple[Any, ...]] = {}
        self._guards = 0

    # Indices

    def extent(self, expr: Any) -> Any:
        """An extent of the function, over canonical symbols."""
        return self.space.simplify(self._index(expr, Scope(block=None, iters={}, lets=self.body.lets)))

    def index(self, expr: Any, scope: Scope) -> Any:
        """An index of the function over canonical variables."""
        if isinstance(expr, compat.Var) and expr in scope.iters:
            return scope.iters[expr]
        return self.space.simplify(self._index(expr, scope))

    def _index(self, expr: Any, scope: Scope) -> Any:
        if isinstance(expr, tirx.IntImm):
            return int64(expr.value)
        if isinstance(expr, compat.Var):
            return self._index_var(expr, scope)
        if isinstance(expr, tirx.Cast) and str(expr.value.ty.dtype) in INTEGERS:
            return self._index(expr.value, scope)
        if type(expr) in _INDEX or (type(expr) in _TESTS and self._integral(expr.a)):
            return type(expr)(self._index(expr.a, scope), self._index(expr.b, scope))
        if isinstance(expr, tirx.Select):
            return tirx.Select(
                self._index(expr.condition, scope),
                self._index(expr.true_value, scope),
                self._index(expr.false_value, scope),
            )
        value = self.value(expr, scope)
        if is_float(value.dtype):
            raise Unsupported(f"an index of dtype {value.dtype}; needs integer indices")
        if value.dtype == "bool":
            raise Unsupported(f"an index that depends on the condition {expr}; needs integer arithmetic")
        return self.space.lookup(value, uses_column(value))

    @staticmethod
    def _integral(expr: Any) -> bool:
        return str(expr.ty.dtype) in INTEGERS

    def _index_var(self, var: Any, scope: Scope) -> Any:
        if var in scope.iters:
            return scope.iters[var]
        if var in scope.lets:
            return self._index(scope.lets[var], scope)
        return self._symbol(var)

    def _symbol(self, var: Any) -> Any:
        if var in self._symbol_vars:
            return self._symbol_vars[var]
        dtype = str(var.ty.dtype)
        if dtype not in INTEGERS:
            raise Unsupported(f"{var.name} of dtype {dtype} in an index; needs integers")
        if var in self.number:
            found = self.space.symbol(self.ops.share(Scalar(self.number[var], dtype)), var.name)
        else:
            found = self.space.symbol(self.sym(var), var.name)
            self.space.assume_positive(found)
        self._symbol_vars[var] = found
        return found

    def sym(self, var: Any) -> Expr:
        """The symbol of a free variable, under a name of its own."""
        for name, known in self.symbols.items():
            if known.same_as(var):
                return self.ops.share(Sym(name, str(var.ty.dtype)))
        name = var.name
        while name in self.symbols:
            name += "_"
        self.symbols[name] = var
        return self.ops.share(Sym(name, str(var.ty.dtype)))

    # Values

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
        return self.ops.logic(name, self.value(expr.a, scope), self.value(expr.b, scope))

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
            integral = self._integral(expr)
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
            return self._integral(expr) and self._pure(expr.value, scope)
        return kind in _INDEX and self._pure(expr.a, scope) and self._pure(expr.b, scope)

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
        for block, store in self.defined[expr.source]:
            if block is reader or not block.loops & reader.loops:
                continue
            mine = {i.loop: i.var for i in reader.iters if i.loop in block.loops}
            for i in block.iters:
                if i.unit or i.loop not in reader.loops:
                    continue
                at = [
                    n
                    for n, index in enumerate(store.indices)
                    if isinstance(index, compat.Var) and index == i.var
                ]
                read = expr.indices[at[0]] if at else None
                if i.reduces or not (isinstance(read, compat.Var) and read.same_as(mine[i.loop])):
                    raise Unsupported(
                        f"block {reader.name} reads {_short(expr)} inside the loop {i.loop.name} that fills"
                        " it; needs it complete, or the element of the same iteration"
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
            block=block, iters=stored_at(block, store, indices), lets={**self.body.lets, **block.lets}
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
            total = total + index * stride
        start = buffer.ty.elem_offset
        if start is not None:
            if not isinstance(start, tirx.IntImm):
                raise Unsupported(f"{buffer.name} starts at the symbolic offset {start}; needs a fixed one")
            total = total + int64(start.value)
        return self.space.access(total)

    def strides(self, buffer: Any) -> tuple[Any, ...]:
        """Elements from one index to the next along every axis."""
        if buffer not in self._strides:
            kind = buffer.ty
            if len(kind.strides):
                if not all(isinstance(s, tirx.IntImm) for s in kind.strides):
                    raise Unsupported(
                        f"{buffer.name} has symbolic strides; needs fixed strides or a compact tensor"
                    )
                found = tuple(int64(s.value) for s in kind.strides)
            else:
                shape = [self.extent(e) for e in kind.shape]
                found = tuple(self.space.product(shape[i + 1 :]) for i in range(len(shape)))
            self._strides[buffer] = found
        return self._strides[buffer]


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
    **dict.fromkeys(_INDEX, Reader._arithmetic),
}


def stored_at(block: Block, store: Store, indices: tuple[Any, ...]) -> dict[Any, Any]:
    """The iterators of `block` for which `store` writes at `indices`.

    Raises
    ------
    Unsupported
        If the store does not put every spatial iteration into an element of its own that covers the tensor.
    """
    extents = {i.var: i for i in block.iters if not i.reduces}
    placed = {i.var: ZERO for i in block.iters if i.unit and not i.reduces}
    shape = store.buffer.ty.shape
    for at, index, extent in zip(store.indices, indices, shape, strict=True):
        if isinstance(at, tirx.Cast):
            at = at.value
        if isinstance(at, tirx.IntImm) and at.value == 0 and _one(extent):
            continue
        iterator = extents.pop(at, None) if isinstance(at, compat.Var) else None
        if iterator is None:
            raise _unowned(
                block, store, "; needs each element owned by one iteration (distinct iterators as indices)"
            )
        if not _one(iterator.extent) and not _same(iterator.extent, extent):
            raise _unowned(
                block, store, f" for {iterator.extent} of {extent} elements; needs all of them written"
            )
        if _one(iterator.extent) and not _one(extent):
            raise _unowned(block, store, f" for 1 of {extent} elements; needs all of them written")
        placed[at] = index
    if any(not i.unit for i in extents.values()):
        raise _unowned(block, store, " many times; needs every element written once")
    return placed


def _unowned(block: Block, store: Store, why: str) -> Unsupported:
    at = ", ".join(str(i) for i in store.indices)
    return Unsupported(f"block {block.name} writes {store.buffer.name}[{at}]{why}")


def _one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and extent.value == 1


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return bool(a.value == b.value)
    return compat.equal(a, b)


def _key(index: Any) -> Any:
    if isinstance(index, compat.Var):
        return index
    if isinstance(index, tirx.IntImm):
        return int(index.value)
    return compat.StructuralKey(index)


def _short(expr: Any) -> str:
    text = str(expr)
    return text if len(text) <= 80 else text[:77] + "..."
