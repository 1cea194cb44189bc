"""Indices of a PrimFunc over canonical variables: iterators, symbols, and integers that are looked up.

In goes an index as it stands in a block, out comes TIR over the row space. Refused: what is no integer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_blocks import Block, Body
from .facts_ops import INTEGERS, Ops, is_float
from .facts_space import ONE, ZERO, Space, int64
from .program import Expr, Scalar, Sym, item_bytes, uses_column

ARITHMETIC = frozenset({tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max})
_TESTS = frozenset({tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or})


@dataclass(slots=True)
class Scope:
    """Where an expression stands: a block and the canonical indices of its iterators."""

    block: Block | None
    iters: dict[Any, Any]
    lets: dict[Any, Any]
    memo: dict[tuple[Any, bool], Expr] = field(default_factory=dict)
    own: dict[Any, tuple[Expr, tuple[Any, ...]]] = field(default_factory=dict)
    """Accumulators of the reduction that is being read and where they stand, by buffer."""


class Indices(ABC):
    """Reads the indices of one function; what is looked up is left to `value`."""

    def __init__(self, func: Any, body: Body) -> None:
        self.ops = Ops()
        self.space = Space(self.ops)
        self.params = list(func.params)
        self.number = {p: i for i, p in enumerate(self.params)}
        self.body = body
        self.symbols: dict[str, Any] = {}
        self._symbol_vars: dict[Any, Any] = {}
        for param in self.params:
            if compat.is_buffer(param):
                _check_buffer(param)
        self._strides: dict[Any, tuple[Any, ...]] = {}

    @abstractmethod
    def value(self, expr: Any, scope: Scope) -> Expr:
        """The value of `expr`, widened."""

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
        if isinstance(expr, tirx.Cast) and str(expr.value.ty.dtype) == "bool":
            return tirx.Select(self._index(expr.value, scope), ONE, ZERO)
        if isinstance(expr, tirx.Cast) and self.integral(expr.value) and not _cuts(expr):
            return self._index(expr.value, scope)
        if (type(expr) in ARITHMETIC and not _narrow(expr)) or (
            type(expr) in _TESTS and self.integral(expr.a)
        ):
            return type(expr)(self._index(expr.a, scope), self._index(expr.b, scope))
        if isinstance(expr, tirx.Div | tirx.Mod):
            # Of natural numbers, truncation is flooring.
            a, b = self._index(expr.a, scope), self._index(expr.b, scope)
            if self.space.is_natural(a) and self.space.is_natural(b):
                return tirx.FloorDiv(a, b) if isinstance(expr, tirx.Div) else tirx.FloorMod(a, b)
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
    def integral(expr: Any) -> bool:
        """Whether `expr` is an integer."""
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
        if var not in self.number or self._is_extent(var):
            self.space.assume_positive(found)
        self._symbol_vars[var] = found
        return found

    def _is_extent(self, var: Any) -> bool:
        return any(
            any(leaf.same_as(var) for extent in p.ty.shape for leaf in compat.leaves(extent))
            for p in self.params
            if compat.is_buffer(p)
        )

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

    def check_apart(self, buffer: Any) -> None:
        """Decline to write a tensor of whose elements two have one place, as its stated strides have it."""
        self.strides(buffer)  # declines those that are not fixed
        sizes = [int(e) if isinstance(e, tirx.IntImm) else None for e in buffer.ty.shape]
        axes = [(int(s), e) for s, e in zip(buffer.ty.strides, sizes, strict=False) if e != 1]
        if 0 in sizes:
            return
        reach = 0
        for stride, extent in sorted(axes, key=lambda axis: axis[0]):
            if stride <= reach:
                raise Unsupported(
                    f"{buffer.name} is written with strides {[int(s) for s in buffer.ty.strides]}, by which "
                    "elements may have one place; needs each stride beyond what the smaller ones reach"
                )
            if extent is None:
                return
            reach += stride * (extent - 1)

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


def _narrow(expr: Any) -> bool:
    """Whether an integer has fewer than 32 bits, and so may wrap around where an index does not."""
    return item_bytes(str(expr.ty.dtype)) < 4


def _cuts(cast: Any) -> bool:
    """Whether a cast may change a small number: to fewer than 32 bits, and not from fewer of the same sign."""
    to, of = str(cast.ty.dtype), str(cast.value.ty.dtype)
    if not _narrow(cast) or to == of:
        return False
    return item_bytes(to) <= item_bytes(of) or (to.startswith("u") and not of.startswith("u"))


def _check_buffer(param: Any) -> None:
    kind = param.ty
    if str(kind.storage_scope) not in ("", "global"):
        raise Unsupported(f"{param.name} in scope {kind.storage_scope}; needs tensors in global memory")
    if not compat.is_row_major(kind):
        raise Unsupported(f"{param.name} with a layout of its own; needs a row-major tensor")
