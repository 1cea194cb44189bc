"""Welford's mean and spread and the sum of an online softmax, as people write them: what they compute is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx
from tvm.script import tirx as T  # noqa: N812

from tests.functions import topi_func
from tests.interpret import by_order, run
from tirx_reduce import facts
from tirx_reduce.errors import Unsupported

# mypy cannot read TVMScript.
# mypy: ignore-errors

X = np.random.default_rng(3).standard_normal((4, 12)).astype(np.float32) * 3 + 1


def outputs(func: Any, *inputs: Any) -> list[Any]:
    program = facts.analyze(func).program
    found = run(program, by_order(program, inputs), {})
    return [found[t.param] for t in program.tensors if t.role == "out"]


def tuple_reduction(combine: Any, start: Any, elements: Any, count: int, weights: bool = False) -> Any:
    """A PrimFunc whose outputs are the parts of one `te.comm_reducer`."""

    def build(x: Any, *w: Any) -> Any:
        k = te.reduce_axis((0, 12), "k")
        reducer = te.comm_reducer(combine, start, name="running")
        return list(te.compute((4,), lambda i: reducer(elements(x, i, k, *w), axis=k), name="parts"))

    shape = ((4, 12), "float32")
    return topi_func(build, shape, *([shape] if weights else []))


def f32(value: float) -> Any:
    return tirx.const(value, "float32")


def welford(a: Any, b: Any) -> Any:
    n = a[0] + b[0]
    d = b[1] - a[1]
    return n, a[1] + d * b[0] / n, a[2] + b[2] + d * d * a[0] * b[0] / n


def test_welford_as_a_combiner_of_three() -> None:
    func = tuple_reduction(
        welford,
        lambda *_: (f32(0), f32(0), f32(0)),
        lambda x, i, k: (f32(1), x[i, k], f32(0)),
        3,
    )
    n, mean, spread = outputs(func, X)
    np.testing.assert_array_equal(n, np.full(4, 12.0))
    np.testing.assert_allclose(mean, X.mean(-1), rtol=1e-6)
    np.testing.assert_allclose(spread, X.var(-1) * 12, rtol=1e-5)
    combiners = [r.combiner for r in facts.analyze(func).program.reductions]
    assert combiners == ["sum", "sum"]


def online(power: Any) -> Any:
    def combine(a: Any, b: Any) -> Any:
        top = tirx.max(a[0], b[0])
        return top, a[1] * power(a[0] - top) + b[1] * power(b[0] - top)

    return combine


@pytest.mark.parametrize("power", ["exp", "exp2"])
@pytest.mark.parametrize("lowest", [-np.inf, float(np.finfo(np.float32).min)])
def test_online_softmax_as_a_combiner(power: str, lowest: float) -> None:
    function = getattr(tirx, power)
    start = tirx.min_value("float32") if np.isfinite(lowest) else f32(-np.inf)
    func = tuple_reduction(
        online(function), lambda *_: (start, f32(0)), lambda x, i, k: (x[i, k] * f32(0.5), f32(1)), 2
    )
    top, total = outputs(func, X)
    np.testing.assert_array_equal(top, X.max(-1) / 2)
    want = getattr(np, power)((X - X.max(-1, keepdims=True)) / 2).sum(-1)
    np.testing.assert_allclose(total, want, rtol=1e-5)


def test_an_online_sum_with_weights() -> None:
    """The numerator of attention: the sum of w·exp(x - max)."""
    func = tuple_reduction(
        online(tirx.exp),
        lambda *_: (f32(-np.inf), f32(0)),
        lambda x, i, k, w: (x[i, k], w[i, k]),
        2,
        weights=True,
    )
    w = np.random.default_rng(1).standard_normal((4, 12)).astype(np.float32)
    _, total = outputs(func, X, w)
    np.testing.assert_allclose(
        total, (w * np.exp(X - X.max(-1, keepdims=True))).sum(-1), rtol=1e-4, atol=1e-5
    )


def by_hand(form: str) -> Any:
    """Welford with the step's number as the count; the forms differ in one place."""

    @T.prim_func(s_tir=True)
    def right(
        x: T.Buffer((4, 12), "float32"), mean: T.Buffer((4,), "float32"), m2: T.Buffer((4,), "float32")
    ):
        for i, k in T.grid(4, 12):
            with T.sblock("pair"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    mean[vi] = T.float32(0)
                    m2[vi] = T.float32(0)
                delta: T.let[T.float32] = x[vi, vk] - mean[vi]
                mean[vi] = mean[vi] + delta * (T.float32(1) / T.Cast("float32", vk + 1))
                m2[vi] = m2[vi] + delta * (x[vi, vk] - mean[vi])

    @T.prim_func(s_tir=True)
    def late(x: T.Buffer((4, 12), "float32"), mean: T.Buffer((4,), "float32"), m2: T.Buffer((4,), "float32")):
        for i, k in T.grid(4, 12):
            with T.sblock("pair"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    mean[vi] = T.float32(0)
                    m2[vi] = T.float32(0)
                mean[vi] = mean[vi] + (x[vi, vk] - mean[vi]) / T.Cast("float32", vk + 1)
                m2[vi] = m2[vi] + (x[vi, vk] - mean[vi]) * (x[vi, vk] - mean[vi])

    @T.prim_func(s_tir=True)
    def off_by_one(
        x: T.Buffer((4, 12), "float32"), mean: T.Buffer((4,), "float32"), m2: T.Buffer((4,), "float32")
    ):
        for i, k in T.grid(4, 12):
            with T.sblock("pair"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    mean[vi] = T.float32(0)
                    m2[vi] = T.float32(0)
                delta: T.let[T.float32] = x[vi, vk] - mean[vi]
                new: T.let[T.float32] = mean[vi] + delta / T.Cast("float32", vk + 2)
                m2[vi] = m2[vi] + delta * (x[vi, vk] - new)
                mean[vi] = new

    @T.prim_func(s_tir=True)
    def started(
        x: T.Buffer((4, 12), "float32"), mean: T.Buffer((4,), "float32"), m2: T.Buffer((4,), "float32")
    ):
        for i, k in T.grid(4, 12):
            with T.sblock("pair"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    mean[vi] = T.float32(1)
                    m2[vi] = T.float32(0)
                delta: T.let[T.float32] = x[vi, vk] - mean[vi]
                new: T.let[T.float32] = mean[vi] + delta / T.Cast("float32", vk + 1)
                m2[vi] = m2[vi] + delta * (x[vi, vk] - new)
                mean[vi] = new

    @T.prim_func(s_tir=True)
    def permuted(
        x: T.Buffer((4, 12), "float32"), mean: T.Buffer((4,), "float32"), m2: T.Buffer((4,), "float32")
    ):
        for i, k in T.grid(4, 12):
            with T.sblock("pair"):
                vi = T.axis.spatial(4, i)
                vk = T.axis.reduce(12, k % 3 * 4 + k // 3)
                with T.init():
                    mean[vi] = T.float32(0)
                    m2[vi] = T.float32(0)
                delta: T.let[T.float32] = x[vi, vk] - mean[vi]
                new: T.let[T.float32] = mean[vi] + delta / T.Cast("float32", vk + 1)
                m2[vi] = m2[vi] + delta * (x[vi, vk] - new)
                mean[vi] = new

    return {"right": right, "late": late, "off by one": off_by_one, "started": started, "permuted": permuted}[
        form
    ]


def test_welford_by_hand_with_later_stores_that_see_earlier_ones() -> None:
    mean, spread = outputs(by_hand("right"), X)
    np.testing.assert_allclose(mean, X.mean(-1), rtol=1e-6)
    np.testing.assert_allclose(spread, X.var(-1) * 12, rtol=1e-5)


@pytest.mark.parametrize("form", ["late", "off by one", "started", "permuted"])
def test_near_misses_are_declined(form: str) -> None:
    with pytest.raises(Unsupported, match=r"block pair combines in a way that is not recognised .*; needs"):
        facts.analyze(by_hand(form))


def test_an_online_softmax_that_guards_its_first_step() -> None:
    """-inf - -inf is NaN: careful people test for it."""

    def combine(a: Any, b: Any) -> Any:
        top = tirx.max(a[0], b[0])
        old = tirx.Select(a[0] == f32(-np.inf), f32(0), a[1] * tirx.exp(a[0] - top))
        return top, old + b[1] * tirx.exp(b[0] - top)

    func = tuple_reduction(combine, lambda *_: (f32(-np.inf), f32(0)), lambda x, i, k: (x[i, k], f32(1)), 2)
    _, total = outputs(func, X)
    np.testing.assert_allclose(total, np.exp(X - X.max(-1, keepdims=True)).sum(-1), rtol=1e-5)


@pytest.mark.parametrize("miss", ["no rescaling", "other base", "starts at 1", "one branch"])
def test_near_misses_of_an_online_softmax(miss: str) -> None:
    def combine(a: Any, b: Any) -> Any:
        top = tirx.max(a[0], b[0])
        old = a[1] if miss == "no rescaling" else a[1] * tirx.exp(a[0] - top)
        power = tirx.exp2 if miss == "other base" else tirx.exp
        more = b[1] * power(b[0] - top)
        return top, tirx.Select(a[0] > b[0], old, old + more) if miss == "one branch" else old + more

    first = 1.0 if miss == "starts at 1" else 0.0
    func = tuple_reduction(
        combine, lambda *_: (f32(-np.inf), f32(first)), lambda x, i, k: (x[i, k], f32(1)), 2
    )
    with pytest.raises(Unsupported, match="is not recognised"):
        facts.analyze(func)
