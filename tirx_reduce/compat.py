"""Every TVM name that moved between versions, under one name each; nothing else may look for them."""

from __future__ import annotations

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


def version() -> str:
    """The version of TVM that is installed."""
    return str(tvm.__version__)


def equal(a: Any, b: Any) -> bool:
    """Whether two expressions are the same tree over the same variables."""
    return bool(tvm_ffi.structural_equal(a, b))


def lowest(dtype: str) -> float | int:
    """The lowest finite value of `dtype`."""
    return tirx.min_value(dtype).value


def highest(dtype: str) -> float | int:
    """The highest finite value of `dtype`."""
    return tirx.max_value(dtype).value


def walk_tree(tree: Any, kind: Any, found: Any) -> None:
    """Call `found` for every node of type `kind` in `tree`, outermost first."""

    def visit(node: Any) -> Any:
        found(node)
        return tvm_ffi.WalkResult.ADVANCE

    tvm_ffi.structural_walk(tree, (kind, visit), order="pre")
