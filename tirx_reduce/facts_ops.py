"""Building row-program expressions: shared nodes, narrow floats widened, and the few folds that matter.

In goes what the PrimFunc says, out come expressions of `program`. Refused: float64 and vector types.
"""

from __future__ import annotations

import math
from typing import TypeVar

from .errors import Unsupported
from .program import Const, Expr, Op

E = TypeVar("E", bound=Expr)

INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"})
NARROW_FLOATS = frozenset({"float16", "bfloat16"})
COMPARISONS = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "and", "or", "not", "isnan", "isinf", "isfinite"}
)

LOWEST = {
    "float32": -3.4028234663852886e38,
    "float16": -65504.0,
    "bfloat16": -3.3895313892515355e38,
    "float8_e4m3fn": -448.0,
    "float8_e5m2": -57344.0,
}
"""Lowest finite values; the highest are their negatives (IEEE 754, OCP FP8)."""


def is_float(dtype: str) -> bool:
    """Whether `dtype` is a floating-point type."""
    return dtype.startswith(("float", "bfloat"))


def wide(dtype: str) -> str:
    """The dtype in which values of `dtype` are computed."""
    if dtype in INTEGERS or dtype == "float32":
        return dtype
    if dtype in NARROW_FLOATS or dtype.startswith("float8_"):
        return "float32"
    raise Unsupported(f"dtype {dtype}; needs floats of at most 32 bits, integers or bool, one lane each")


class Ops:
    """Makes expressions; equal ones are the same object, so that comparing and hashing them stays cheap."""

    def __init__(self) -> None:
        self._nodes: dict[Expr, Expr] = {}

    def share(self, expr: E) -> E:
        """The one object that stands for `expr`."""
        return self._nodes.setdefault(expr, expr)  # type: ignore[return-value]

    def const(self, value: float | int | bool, dtype: str) -> Expr:
        """A literal in the dtype that its values are computed in."""
        dtype = wide(dtype)
        if dtype == "bool":
            value = bool(value)
        elif is_float(dtype):
            value = float(value)
            if math.isnan(value) or (value == 0 and math.copysign(1.0, value) < 0):
                # A NaN equals nothing and -0.0 equals 0.0: neither may be found by its value.
                return Const(value, dtype)
        else:
            value = int(value)
        return self.share(Const(value, dtype))

    def op(self, name: str, *args: Expr, dtype: str | None = None) -> Expr:
        """An operation on widened operands."""
        if dtype is None:
            dtype = "bool" if name in COMPARISONS else args[-1].dtype
        if is_float(dtype) or (args and is_float(args[0].dtype)):
            tested = self._tests(name, args)
            if tested is not None:
                return tested
        return self.share(Op(name, args, dtype))

    def _tests(self, name: str, args: tuple[Expr, ...]) -> Expr | None:
        """Spelled-out tests for NaN and infinity, by their names: fast math would drop them."""
        if name in ("eq", "ne") and args[0] is args[1]:
            nan = self.op("isnan", args[0])
            return nan if name == "ne" else self.op("not", nan)
        if name in ("eq", "ne"):
            for a, b in (args, args[::-1]):
                if _is(a, "abs") and isinstance(b, Const) and b.value == math.inf:
                    infinite = self.op("isinf", a.args[0])  # type: ignore[union-attr]
                    return infinite if name == "eq" else self.op("not", infinite)
        return None

    def logic(self, name: str, a: Expr, b: Expr) -> Expr:
        """`and` or `or`; TVM spells isfinite as `(not isinf or isnan) and not isnan`."""
        if name == "and" and isinstance(b, Op) and b.name == "not" and _is(b.args[0], "isnan"):
            nan = b.args[0]
            if isinstance(a, Op) and a.name == "or" and a.args[1] is nan:
                a = a.args[0]
            (tested,) = nan.args  # type: ignore[union-attr]
            infinite = self.op("isinf", tested)
            if a is infinite:
                return a
            if a is self.op("not", infinite):
                return self.op("isfinite", tested)
        return self.share(Op(name, (a, b), "bool"))

    def cast(self, expr: Expr, dtype: str) -> Expr:
        """`expr` converted as an explicit Cast does it: a narrow float rounds here and is widened again."""
        target = wide(dtype)
        if target != dtype:
            if isinstance(expr, Op) and expr.name == "cast" and expr.args[0].dtype == dtype:
                return expr  # already a value of that dtype
            if isinstance(expr, Const):
                return self.widen(self.share(Op("cast", (expr,), dtype)))
            return self.widen(self.share(Op("cast", (expr,), dtype)))
        if expr.dtype == dtype:
            return expr
        if isinstance(expr, Const) and dtype in INTEGERS and not is_float(expr.dtype):
            return self.const(expr.value, dtype) if _fits(expr.value, dtype) else self._plain(expr, dtype)
        if isinstance(expr, Const) and dtype == "float32" and abs(expr.value) < 1 << 24:
            return self.const(float(expr.value), dtype)
        return self._plain(expr, dtype)

    def _plain(self, expr: Expr, dtype: str) -> Expr:
        return self.share(Op("cast", (expr,), dtype))

    def widen(self, expr: Expr) -> Expr:
        """`expr` in the dtype that it is computed in."""
        target = wide(expr.dtype)
        return expr if target == expr.dtype else self.share(Op("cast", (expr,), target))

    def stored(self, expr: Expr, dtype: str) -> Expr:
        """What an output of `dtype` holds before it rounds: a last Cast to `dtype` is that rounding."""
        if is_float(dtype) and isinstance(expr, Op) and expr.name == "cast":
            inner = expr.args[0]
            if inner.dtype == dtype and isinstance(inner, Op) and inner.name == "cast":
                return inner.args[0]
        return expr


def _is(expr: Expr, name: str) -> bool:
    return isinstance(expr, Op) and expr.name == name


def _fits(value: float | int | bool, dtype: str) -> bool:
    if dtype == "bool":
        return value in (0, 1)
    bits = int(dtype.lstrip("uint"))
    low, high = (0, (1 << bits) - 1) if dtype.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return low <= value <= high
