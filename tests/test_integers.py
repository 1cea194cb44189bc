"""Integers wrap around as the PrimFunc's dtype says, and are compared as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import te, topi

import tirx_reduce as tr
from tests.launch import TARGETS

BOTH = pytest.mark.parametrize("target", TARGETS)


def run(outputs: list[Any], inputs: list[Any], arrays: list[Any], target: Any) -> list[Any]:
    func = te.create_prim_func([*inputs, *outputs])
    found = [np.zeros([int(e) for e in t.shape], str(t.dtype)) for t in outputs]
    tr.emulate(tr.compile(func, target, fallback=False), *arrays, *found, target=target)
    return found


@BOTH
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("change", [lambda x: x - 7, lambda x: 5 - x, lambda x: x], ids=["x-7", "5-x", "x"])
@pytest.mark.parametrize("which", ["argmin", "argmax"])
def test_an_index_of_an_expression_with_a_constant(
    which: str, change: Callable[[Any], Any], dtype: str, target: Any
) -> None:
    """TVM moves the constant to the other side, where what the search begins with leaves its dtype."""
    x = te.placeholder((3, 70), dtype, name="x")
    y = getattr(topi, which)(te.compute((3, 70), lambda i, j: change(x[i, j])), 1)
    a = np.random.default_rng(0).integers(-50, 50, (3, 70)).astype(dtype)
    (found,) = run([y], [x], [a], target)
    assert (found == getattr(np, which)(change(a), 1)).all()


@BOTH
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_narrow_arithmetic_wraps_before_it_is_converted_or_compared(dtype: str, target: Any) -> None:
    """C computes in int."""
    x = te.placeholder((2, 40), dtype, name="x")
    k = te.reduce_axis((0, 40), "k")
    top = te.compute((2,), lambda i: te.max(x[i, k] * x[i, k], axis=k), name="top")
    y = te.compute((2, 40), lambda i, j: (x[i, j] * x[i, j] - top[i]).astype("float32"), name="y")
    end = np.iinfo(dtype)
    a = np.random.default_rng(0).integers(end.min, end.max, (2, 40), endpoint=True).astype(dtype)
    most, found = run([top, y], [x], [a], target)
    squares = a * a
    assert (most == squares.max(1)).all()
    assert (found == (squares - squares.max(1, keepdims=True)).astype("float32")).all()
