"""Random tensor expressions: read as row programs, they compute what TVM's CPU build computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.interpret import numpy_dtype, run
from tests.random_te import Expressions
from tirx_reduce import facts
from tirx_reduce.errors import Unsupported

N = 3
SEEDS = range(60)
MASKS_ONLY = (10, 48)
"""Only a mask that several rows share is reduced: as good as a window."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random(seed: int) -> None:
    func = Expressions(seed).func()
    if func is None or seed in MASKS_ONLY:
        return
    read = facts.read(func)
    rng = np.random.default_rng(seed)
    arrays = [_array(p, rng) for p in func.params]
    wanted = run(read.facts.program, dict(enumerate(arrays)), dict.fromkeys(read.symbols, N))
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    tensors = [tvm.runtime.tensor(a) for a in arrays]
    tvm.compile(module, target="llvm")["main"](*tensors)
    for param, want in wanted.items():
        exact = want.astype(np.float64)
        # Roundings to float16 inside may fall either way.
        atol = 2e-3 * max(1.0, float(np.abs(exact).max()))
        np.testing.assert_allclose(tensors[param].numpy().astype(np.float64), exact, rtol=2e-3, atol=atol)


@pytest.mark.parametrize("seed", MASKS_ONLY)
def test_nothing_but_masks(seed: int) -> None:
    with pytest.raises(Unsupported, match=r"no input .* has an element for each row and column"):
        facts.read(Expressions(seed).func())


def _array(param: Any, rng: Any) -> Any:
    shape = [e.value if isinstance(e, tirx.IntImm) else N for e in param.ty.shape]
    dtype = str(param.ty.dtype)
    if "int" in dtype:
        return rng.integers(0, 50, shape).astype(dtype)
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))
