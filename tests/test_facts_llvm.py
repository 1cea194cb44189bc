"""Row programs compute what TVM's own CPU build of the same PrimFunc computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.functions import Spec, fused
from tests.interpret import numpy_dtype, run
from tirx_reduce import facts

op = relax.op
N = 3


def _table() -> dict[str, tuple[Callable[..., Any], tuple[Spec, ...]]]:
    def f(*shape: Any) -> Spec:
        return shape, "float32"

    def h(*shape: Any) -> Spec:
        return shape, "float16"

    cases: dict[str, tuple[Callable[..., Any], tuple[Spec, ...]]] = {}
    for axis in (-1, 0, 1, [0, 2], [1, 2], [0, 1], None):
        for number, name in enumerate(("sum", "max", "min", "mean", "prod", "variance", "std")):
            keep = bool(number % 2)

            def reduce(_: Any, x: Any, name: str = name, axis: Any = axis, keep: bool = keep) -> Any:
                return getattr(op, name)(x, axis, keepdims=keep)

            first = tirx.Var("n", "int64") if number % 3 == 0 else 2
            cases[f"{name}-{axis}"] = reduce, (f(first, 4, 8),)
    for axis in (0, 1, 2):
        cases[f"softmax-{axis}"] = (lambda _, x, axis=axis: op.nn.softmax(x, axis)), (f(3, 4, 8),)
        cases[f"log_softmax-{axis}"] = (lambda _, x, axis=axis: op.nn.log_softmax(x, axis)), (h(3, 4, 8),)
    for axes in ([-1], [1, 2], [0, 1, 2], [0], [1]):
        weight = f(*((3, 4, 8)[a] for a in axes))
        cases[f"layer_norm-{axes}"] = (
            (lambda _, x, g, b, axes=axes: op.nn.layer_norm(x, g, b, axes=axes)),
            (f(3, 4, 8), weight, weight),
        )
    weight = f(8)
    cases["group_norm"] = (
        lambda _, x, w, b: op.nn.group_norm(x, w, b, 2, 1, [2, 3]),
        (f(tirx.Var("n", "int64"), 8, 4, 3), weight, weight),
    )
    cases["group_norm_channels_last"] = (
        lambda _, x, w, b: op.nn.group_norm(x, w, b, 2, 3, [1, 2]),
        (f(2, 4, 3, 8), weight, weight),
    )
    cases["instance_norm"] = (
        lambda _, x, w, b: op.nn.instance_norm(x, w, b, 1, [2, 3]),
        (f(2, 8, 4, 3), weight, weight),
    )
    cases["batch_norm"] = (
        lambda _, x, *rest: op.nn.batch_norm(x, *rest, axis=1),
        (f(2, 8, 4, 3), weight, weight, weight, weight),
    )
    cases["nll_loss"] = (
        lambda _, x, t, w: op.nn.nll_loss(x, t, w),
        (f(5, 8), ((5,), "int64"), weight),
    )
    cases["cross_entropy"] = lambda _, x, t: op.nn.cross_entropy_with_logits(x, t), (f(5, 8), f(5, 8))
    cases["row_dots"] = lambda _, x, y: op.einsum([x, y], "bij,bij->bi"), (f(2, 4, 8), f(2, 4, 8))
    cases["global_pool"] = lambda _, x: op.nn.adaptive_avg_pool2d(x, (1, 1)), (f(2, 4, 8, 8),)
    for dtype in ("int8", "uint8", "int32", "int64", "bool"):
        cases[f"sum_{dtype}"] = lambda _, x: op.sum(x, -1), (((4, 8), dtype),)
        cases[f"max_{dtype}"] = lambda _, x: op.max(x, -1), (((4, 8), dtype),)
    del cases["max_bool"]
    return cases


CASES = _table()


@pytest.mark.parametrize("name", CASES)
def test_as_built_for_the_cpu(name: str) -> None:
    build, specs = CASES[name]
    reducing = [f for f in fused(build, *specs) if "T.init" in str(f)]
    assert reducing
    for func in reducing:
        read = facts.read(func)
        arrays = [_array(p, number) for number, p in enumerate(func.params)]
        wanted = run(read.facts.program, dict(enumerate(arrays)), dict.fromkeys(read.symbols, N))
        module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
        tensors = [tvm.runtime.tensor(a) for a in arrays]
        tvm.compile(module, target="llvm")["main"](*tensors)
        for param, want in wanted.items():
            got = tensors[param].numpy()
            # TVM accumulates float16 in float16; its float32 sums run in order.
            tolerance = 2e-2 if got.dtype == np.float16 else 1e-4
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
            )


def _array(param: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    shape = [e.value if isinstance(e, tirx.IntImm) else N for e in param.ty.shape]
    dtype = str(param.ty.dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if "int" in dtype:
        return rng.integers(0, 5, shape).astype(dtype)
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))
