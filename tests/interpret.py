"""A NumPy interpreter of row programs in float64; only casts and stores round.

In go a RowProgram and its parameters, out come the outputs. It knows nothing of TVM or of kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special

from tirx_reduce.program import (
    Access,
    ColIndex,
    Const,
    Expr,
    Load,
    Op,
    Reduction,
    RowIndex,
    RowProgram,
    RowValue,
    Scalar,
    Sym,
)

Array = np.ndarray[Any, np.dtype[Any]]

_NARROW = {
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}

_FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "truncdiv": lambda a, b: np.trunc(a / b).astype(a.dtype),
    "truncmod": np.fmod,
    "pow": np.power,
    "atan2": np.arctan2,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "neg": np.negative,
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda a: np.power(10.0, a),
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "erf": special.erf,
    "sigmoid": special.expit,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": lambda a: np.copysign(np.floor(np.abs(a) + 0.5), a),
    "trunc": np.trunc,
    "nearbyint": np.rint,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "select": np.where,
    "if_then_else": np.where,
    "fma": lambda a, b, c: a * b + c,
}

_COMBINERS: dict[str, tuple[Any, Any]] = {
    "sum": (np.add, 0),
    "prod": (np.multiply, 1),
    "all": (np.logical_and, True),
    "any": (np.logical_or, False),
}


def numpy_dtype(dtype: str) -> Any:
    """The NumPy dtype in memory."""
    return _NARROW.get(dtype, dtype)


def rounded(values: Array, dtype: str) -> Array:
    """`values` rounded to `dtype` and back to the dtype that is computed in."""
    if dtype in _NARROW:
        return values.astype(np.float32).astype(_NARROW[dtype]).astype(np.float64)
    if dtype == "float32":
        return values.astype(np.float64)
    return values.astype(dtype)


def run(
    program: RowProgram, params: Mapping[int, Any], symbols: Mapping[str, int] | None = None
) -> dict[int, Array]:
    """Every output of `program` by parameter number, each element checked to be written exactly once."""
    return _Run(program, params, symbols or {}).outputs()


class _Run:
    """One run; values have shape (rows, columns), (rows, 1), (1, columns) or (1, 1)."""

    def __init__(self, program: RowProgram, params: Mapping[int, Any], symbols: Mapping[str, int]) -> None:
        self.program = program
        self.symbols = symbols
        self.params = params
        self.memo: dict[Expr, Array] = {}
        self.done: dict[int, tuple[Array, ...]] = {}
        self.tensors = {t.param: t for t in program.tensors}
        self.extents = [int(self.value(e).item()) for e in program.rows]
        self.rows = int(np.prod(self.extents, dtype=np.int64))
        self.columns = int(self.value(program.columns).item())

    def outputs(self) -> dict[int, Array]:
        for number, reduction in enumerate(self.program.reductions):
            self.done[number] = self._reduce(reduction)
        return {o.param: self._output(o) for o in self.program.outputs}

    def _output(self, output: Any) -> Array:
        shape = [int(self.value(e).item()) for e in self.tensors[output.param].shape]
        out = np.zeros(int(np.prod(shape, dtype=np.int64)), numpy_dtype(output.dtype))
        written = np.zeros(out.shape, np.int64)
        grid = (self.rows, 1 if output.per_row else self.columns)
        at = np.broadcast_to(self._offset(output.index), grid).ravel()
        value = np.broadcast_to(self.value(output.value), grid).ravel()
        np.add.at(written, at, 1)
        assert (written == 1).all(), f"output {output.param} is not written once everywhere"
        if output.dtype in _NARROW:
            value = value.astype(np.float32)
        out[at] = value.astype(out.dtype)
        return out.reshape(shape)

    def _offset(self, index: Access) -> Array:
        if index.stride is None:
            assert index.full is not None
            return self.value(index.full)
        columns = np.arange(self.columns)[None, :] * index.stride if index.stride else 0
        offset: Array = self.value(index.row) + columns
        if index.dense:
            flat = np.arange(self.rows)[:, None] * self.columns + np.arange(self.columns)[None, :]
            assert (np.broadcast_to(offset, flat.shape) == flat).all(), "not dense, as was claimed"
        assert (self.value(index.row) % index.align == 0).all(), "not aligned, as was claimed"
        return offset

    def value(self, expr: Expr) -> Array:
        if expr not in self.memo:
            self.memo[expr] = self._value(expr)
        return self.memo[expr]

    def _value(self, expr: Expr) -> Array:
        if isinstance(expr, Const):
            return np.full((1, 1), expr.value, np.float64 if "float" in expr.dtype else expr.dtype)
        if isinstance(expr, Sym):
            return np.full((1, 1), self.symbols[expr.name], expr.dtype)
        if isinstance(expr, Scalar):
            return self._loaded(np.full((1, 1), self.params[expr.param], numpy_dtype(expr.dtype)))
        if isinstance(expr, RowIndex):
            axes = np.unravel_index(np.arange(self.rows), self.extents) if self.extents else ()
            return axes[expr.axis].astype(np.int64)[:, None]
        if isinstance(expr, ColIndex):
            return np.arange(self.columns, dtype=np.int64)[None, :]
        if isinstance(expr, RowValue):
            return self.done[expr.reduction][expr.item]
        if isinstance(expr, Load):
            flat = np.asarray(self.params[expr.param]).reshape(-1)
            offset = self._offset(expr.index)
            assert offset.size == 0 or (offset.min() >= 0 and offset.max() < flat.size), "load out of bounds"
            return self._loaded(flat[offset])
        return self._op(expr)

    @staticmethod
    def _loaded(values: Array) -> Array:
        known = values.dtype.kind in "iub"
        return values if known else values.astype(np.float64)

    def _op(self, op: Op) -> Array:
        args = [self.value(a) for a in op.args]
        if op.name == "cast":
            return rounded(args[0], op.dtype)
        if op.name == "reinterpret":
            source = args[0].astype(numpy_dtype(op.args[0].dtype))
            return self._loaded(source.view(numpy_dtype(op.dtype)))
        out: Array = _FUNCTIONS[op.name](*args)
        return out if out.dtype.kind == "f" else out.astype(op.dtype)

    def _reduce(self, reduction: Reduction) -> tuple[Array, ...]:
        grid = (self.rows, self.columns)
        elements = [np.broadcast_to(self.value(e), grid) for e in reduction.elements]
        name = reduction.combiner
        if name in ("argmax", "argmin"):
            pick = np.argmax if name == "argmax" else np.argmin
            at = pick(elements[1], axis=1)[:, None]
            return tuple(np.take_along_axis(e, at, axis=1) for e in elements)
        (element,) = elements
        if name in ("max", "min"):
            function: Any = np.maximum if name == "max" else np.minimum
            lowest = _lowest(element.dtype)
            start = lowest if name == "max" else _highest(element.dtype)
        else:
            function, start = _COMBINERS[name]
        total = function.reduce(element, axis=1, keepdims=True, initial=start, dtype=element.dtype)
        for init in reduction.init:
            total = function(total, self.value(init))
        return (total,)


def _lowest(dtype: Any) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def by_order(program: RowProgram, inputs: Sequence[Any]) -> dict[int, Any]:
    """Parameters by number, given the inputs in the function's order (scalars included)."""
    outs = {t.param for t in program.tensors if t.role == "out"}
    numbers = (n for n in range(len(inputs) + len(outs)) if n not in outs)
    return dict(zip(numbers, inputs, strict=True))
