"""Every TVM name that moved between versions, under one name each; nothing else may look for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx

PrimFunc = tirx.PrimFunc
SBlock = s_tir.SBlock
SBlockRealize = s_tir.SBlockRealize
TensorLoad = ir.TensorLoad
Call = ir.Call
Var = ir.Var
Range = ir.Range
Analyzer = sym.Analyzer
StructuralKey = tvm_ffi.StructuralKey
is_buffer = tirx.is_buffer_var
linear_equation = sym.detect_linear_equation

SERIAL_KINDS = frozenset({int(tirx.ForKind.SERIAL), int(tirx.ForKind.UNROLLED), int(tirx.ForKind.PARALLEL)})
"""Loops over blocks whose order plays no part."""
DATA_PARALLEL = int(tirx.IterVar.DataPar)
COMM_REDUCE = int(tirx.IterVar.CommReduce)


_LITERALS = frozenset({tirx.IntImm, tirx.FloatImm, ir.StringImm})
_PAIRS = frozenset(
    {tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max}
    | {tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or}
)


def version() -> str:
    """The version of TVM that is installed."""
    return str(tvm.__version__)


def equal(a: Any, b: Any) -> bool:
    """Whether two expressions are the same tree over the same variables."""
    return bool(tvm_ffi.structural_equal(a, b))


def runs_through(values: list[Any], extents: list[int], loops: dict[Any, Any]) -> bool:
    """Whether `values` take every combination below `extents` exactly once while `loops` run."""
    ranges = {v: Range.from_min_extent(tirx.IntImm(str(v.ty.dtype), 0), e) for v, e in loops.items()}
    found = sym.detect_iter_map(values, ranges, check_level="bijective")
    if len(found.errors) or len(found.indices) != len(values):
        return False
    return all(
        isinstance(sum_.base, tirx.IntImm)
        and sum_.base.value == 0
        and prod(int(part.extent.value) for part in sum_.args) == extent
        and any(int(part.scale.value) == 1 for part in sum_.args)
        for sum_, extent in zip(found.indices, extents, strict=True)
    )


def is_row_major(kind: Any) -> bool:
    """Whether a buffer type has no layout beside its strides: none, or the default one."""
    if kind.layout is None:
        return True
    default = tirx.layout.TileLayout(tirx.layout.S[tuple(kind.shape)]) if len(kind.shape) else None
    return default is not None and equal(kind.layout, default)


def lowest(dtype: str) -> float | int:
    """The lowest finite value of `dtype`."""
    return tirx.min_value(dtype).value


def highest(dtype: str) -> float | int:
    """The highest finite value of `dtype`."""
    return tirx.max_value(dtype).value


def leaves(expr: Any) -> Iterator[Any]:
    """The variables and loads inside an expression, those inside the indices of loads included."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        # By exact type: isinstance asks an abstract base class here, at four times the time.
        kind = type(node)
        if kind in _LITERALS:
            continue
        if kind is Var:
            yield node
        elif kind is TensorLoad:
            yield node
            waiting.extend(node.indices)
        elif kind in _PAIRS:
            waiting += [node.a, node.b]
        elif kind is tirx.Cast:
            waiting.append(node.value)
        elif kind is Call:
            waiting.extend(node.args)
        elif kind is tirx.Select:
            waiting += [node.condition, node.true_value, node.false_value]
        else:
            yield from _found(node)


def _found(tree: Any) -> list[Any]:
    """The same of any other node, by TVM's own walk (20 times as slow)."""
    found: list[Any] = []

    def visit(node: Any) -> Any:
        found.append(node)
        return tvm_ffi.WalkResult.ADVANCE

    tvm_ffi.structural_walk(tree, ((Var, TensorLoad), visit), order="pre")
    return found


def holds(tree: Any, kinds: Any, test: Callable[[Any], bool]) -> bool:
    """Whether a node of one of `kinds` for which `test` holds is anywhere in `tree`."""

    def visit(node: Any) -> Any:
        return tvm_ffi.VisitInterrupt() if test(node) else tvm_ffi.WalkResult.ADVANCE

    return tvm_ffi.structural_walk(tree, (kinds, visit), order="pre") is not None
