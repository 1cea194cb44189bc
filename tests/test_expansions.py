"""Functions that Metal's library lacks, as the emitted text computes them, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special
from tvm import te, tirx, topi

from tests.functions import topi_func
from tests.launch import TARGETS, Kernel


def mapped(function: Any) -> Any:
    """A row reduction whose second output is `function` of every element."""

    def build(x: Any) -> Any:
        return [topi.sum(x, -1), te.compute(x.shape, lambda i, j: function(x[i, j]), name="mapped")]

    return build


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", ["plain", "fast"])
@pytest.mark.parametrize("name", ["erf", "log1p"])
def test_right_over_the_whole_range(name: str, numerics: str, target: str) -> None:
    near = np.logspace(-30, 0, 500)
    if name == "erf":
        x = np.concatenate(
            [np.linspace(-6, 6, 3071), near, -near, [0.0, 1.0, -1.0, 30.0, -30.0, 3e38, -3e38]]
        )
        wanted, function = special.erf, tirx.erf
    else:
        x = np.concatenate([np.linspace(-0.999, 10, 3070), near, -near[:-1], [0.0, 0.25, -0.25, 1e30, 3e38]])
        wanted, function = np.log1p, tirx.log1p
    rows = x[: x.size // 6 * 6].reshape(6, -1).astype(np.float32)
    kernel = Kernel(topi_func(mapped(function), (rows.shape, "float32")), target)
    _, y = kernel.run(rows, numerics=numerics)
    want = wanted(rows.astype(np.float64))
    np.testing.assert_allclose(y, want, rtol=4e-7, atol=2e-7 if name == "erf" else 1e-37)
    small = np.abs(rows) < 0.2
    np.testing.assert_allclose(y[small], want[small], rtol=4e-7, atol=1e-37)


@pytest.mark.parametrize("target", TARGETS)
def test_ends_of_the_range(target: str) -> None:
    x = np.array([[np.inf, -np.inf, 0.0, -0.0], [np.nan, 1.0, 2.0, 3.0]], np.float32)
    kernel = Kernel(topi_func(mapped(tirx.erf), (x.shape, "float32")), target)
    _, y = kernel.run(x)
    np.testing.assert_array_equal(y[0], [1.0, -1.0, 0.0, 0.0])
    assert np.isnan(y[1, 0])
    assert not np.isnan(y[1, 1:]).any()
