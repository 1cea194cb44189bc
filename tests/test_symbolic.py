"""Symbolic rows and columns: one build, many calls; no rows, one row, each side of every interval's end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx, topi

import tirx_reduce as tr
from tests.faults import np_layer_norm, np_rms_norm, np_softmax, rms_norm, softmax
from tests.functions import legalized, symbol, topi_func
from tests.launch import TARGETS, Kernel, check, narrow, wide
from tirx_reduce import facts
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.schedules import force, lower, plan, state
from tirx_reduce.schedules.planning import ROW_COUNTS
from tirx_reduce.values import Candidate

BOTH = pytest.mark.parametrize("target", TARGETS)


def drawn(*shape: int, dtype: str = "float32") -> Any:
    return narrow(np.random.default_rng(sum(shape)).standard_normal(shape), dtype)


def launched(kernel: Kernel) -> bool:
    """Whether the last call launched anything."""
    return bool(kernel.emulation.kernels)


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_symbolic_rows(dtype: str, target: str) -> None:
    n = symbol("n")
    kernel = Kernel(topi_func(softmax, ((n, 33), dtype)), target)
    for rows in (1, 2, 5, 17):
        x = drawn(rows, 33, dtype=dtype)
        check(kernel.run(x)[0], np_softmax(wide(x)), columns=33)
        assert launched(kernel)


@BOTH
def test_no_rows_launch_nothing(target: str) -> None:
    n = symbol("n")
    kernel = Kernel(topi_func(softmax, ((n, 33), "float32")), target)
    (y,) = kernel.run(np.zeros((0, 33), np.float32))
    assert y.shape == (0, 33)
    assert not launched(kernel)


@BOTH
def test_two_symbolic_row_axes_and_no_rows_in_one_of_them(target: str) -> None:
    b, s = symbol("b"), symbol("s")
    f = legalized(
        lambda _, v, w: relax.op.nn.rms_norm(v, w, axes=[-1], epsilon=1e-5),
        ((b, s, 24), "float32"),
        ((24,), "float32"),
    )
    kernel = Kernel(f, target)
    w = drawn(24)
    for shape in ((1, 1, 24), (2, 3, 24), (3, 1, 24)):
        x = drawn(*shape)
        check(kernel.run(x, w)[0], np_rms_norm(wide(x), 1e-5) * wide(w))
    (y,) = kernel.run(np.zeros((2, 0, 24), np.float32), w)
    assert y.size == 0
    assert not launched(kernel)


@BOTH
@pytest.mark.parametrize("op", ["softmax", "max", "rms_norm"])
def test_symbolic_columns(op: str, target: str) -> None:
    """Every remainder of the vector, one column, and rows much longer than the group."""
    m = symbol("m")
    build_, want = {
        "softmax": (softmax, np_softmax),
        "max": (lambda v: topi.max(v, -1), lambda v: v.max(-1)),
        "rms_norm": (_rms_symbolic, lambda v: np_rms_norm(v, 1e-5)),
    }[op]
    kernel = Kernel(topi_func(build_, ((3, m), "float32")), target)
    for columns in (1, 2, 3, 4, 5, 31, 64, 130, 4099):
        x = drawn(3, columns)
        check(kernel.run(x)[0], want(wide(x)), columns=columns)


def _rms_symbolic(v: Any) -> Any:
    from tvm import te

    k = te.reduce_axis((0, v.shape[1]), "k")
    square = te.compute((v.shape[0],), lambda i: te.sum(v[i, k] * v[i, k], axis=k), name="square")
    return te.compute(
        v.shape,
        lambda i, c: v[i, c] * tirx.rsqrt(square[i] / v.shape[1].astype("float32") + 1e-5),
        name="out",
    )


@BOTH
@pytest.mark.parametrize(
    "candidate", [Candidate(width=64, packing=2, vector=4), Candidate(width=8, packing=8)]
)
def test_both_symbolic_and_packed(candidate: Candidate, target: str) -> None:
    n, m = symbol("n"), symbol("m")
    try:
        kernel = Kernel(topi_func(softmax, ((n, m), "float32")), target, candidate)
    except tr.Unsupported as refused:
        pytest.fail(str(refused))
    for shape in ((1, 1), (3, 7), (5, 64), (2, 257)):
        x = drawn(*shape)
        check(kernel.run(x)[0], np_softmax(wide(x)), columns=shape[1])


@BOTH
def test_a_symbol_in_the_values(target: str) -> None:
    """The causal mask of a prompt that is longer than its block: the offset is a symbol."""
    from tvm import te

    s = symbol("s")

    def build_(v: Any) -> Any:
        low = tirx.const(float("-inf"), "float32")
        masked = te.compute(
            v.shape, lambda i, j: tirx.if_then_else(j <= i + (v.shape[1] - 4), v[i, j], low), name="m"
        )
        return softmax(masked)

    kernel = Kernel(topi_func(build_, ((4, s), "float32")), target)
    for columns in (4, 9, 40):
        x = drawn(4, columns)
        keep = np.arange(columns)[None] <= np.arange(4)[:, None] + columns - 4
        check(kernel.run(x)[0], np_softmax(np.where(keep, wide(x), -np.inf)), columns=columns)


@BOTH
def test_each_interval_has_its_plan(target: str) -> None:
    """The policy is asked at the ends of every interval; where it agrees there is one kernel."""
    n = symbol("n")

    class ByRows:
        name = "by-rows"

        def reduction_cost(self, candidate: Candidate, features: Any, limits: Any) -> tr.CostEstimate:
            wanted = 32 if features.rows > 64 else 128
            score = 1.0 + abs(candidate.width - wanted) + (candidate.reuse != "reload")
            return tr.CostEstimate(local=score, launch=1.0, kernel_score=score, unit="test")

    f = topi_func(softmax, ((n, 300), "float32"))
    p = plan(f, target, policy=ByRows())
    assert [(i, v.width) for i, v in p.variants] == [((1, 64), 128), ((65, None), 32)]
    text = lower(f, p).script()
    # One for any number of rows, one for one row.
    assert text.count('"threadIdx.x", 128') == 2
    # The last interval has no end: a second kernel for offsets of 64 bits.
    assert text.count('"threadIdx.x", 32') == 2
    from tirx_reduce import emulator
    from tirx_reduce.schedules import build

    executable = build(lower(f, p), target)
    for rows in (1, 64, 65, 66):
        x, y = drawn(rows, 300), np.zeros((rows, 300), np.float32)
        ran = emulator.emulate(executable, x, y, target=target, orders=("forward",))
        check(y, np_softmax(wide(x)), columns=300)
        assert len(ran.kernels) == 1
    assert tr.GroupPlan.from_json(p.to_json()) == p
    assert ROW_COUNTS[0] == 1


@BOTH
def test_offsets_are_as_wide_as_the_rows_need(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel up to as many rows as 32 bits can count elements of, one beyond; here that is ten rows."""
    monkeypatch.setattr(state, "SMALL", 3009)
    shape, weights = ((symbol("n"), 300), "float32"), ((300,), "float32")
    kernel = Kernel(topi_func(rms_norm(1e-5), shape, weights), target)
    assert state.small_rows(facts.read(kernel.func).facts.program) == 10
    names = []
    for rows in (9, 10, 11, 12):
        x, w = drawn(rows, 300), drawn(300)
        check(kernel.run(x, w)[0], np_rms_norm(wide(x), 1e-5) * wide(w), columns=300)
        names += kernel.emulation.kernels
    assert len(names) == 4
    assert names[0] == names[1] != names[2] == names[3]
    # In the text as well, where the views that offsets go into have extents of symbols, or of 64 bits.
    wide_offset = "((int64_t)((int)" if target == "cuda" else "((long)((int)"
    texts = [kernel.source[kernel.source.rindex(f" {name}(") :].split("\n}")[0] for name in names]
    assert [wide_offset in text for text in texts] == [False, False, True, True]


@BOTH
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "softmax"])
def test_one_row_has_the_kernel_of_a_fixed_row(op: str, target: str) -> None:
    workload, splits = get_workload(op), 4 if target == "cuda" else 1
    candidate = Candidate(width=128, vector=4, reuse="private", splits=splits)
    open_, fixed = (
        Kernel(workload.func((1, 4096), "float32", symbolic_rows=s), target, candidate) for s in (True, False)
    )
    inputs = workload.inputs((1, 4096), "float32")
    assert workload.verify(tuple(open_.run(*inputs)), inputs).ok
    fixed.run(*inputs)

    def body(kernel: Kernel) -> str:
        (name,) = kernel.emulation.kernels
        at = kernel.source.rindex(f" {name}(")
        return kernel.source[kernel.source.index("{\n", at) :].split("\n}")[0]

    assert body(open_) == body(fixed)


@BOTH
@pytest.mark.parametrize("how", [{"packing": 4}, {"rows": 2}], ids=["packing", "rows"])
def test_full_groups_have_no_guards(how: dict[str, Any], target: str) -> None:
    """Two axes of rows, both open: their product is what counts."""
    shape = ((symbol("b"), symbol("s"), 40), "float32")
    kernel = Kernel(topi_func(softmax, shape), target, Candidate(width=32, reuse="private", **how))
    names = []
    for rows in ((1, 1), (2, 4), (1, 4), (3, 1), (1, 5)):
        x = drawn(*rows, 40)
        check(kernel.run(x)[0], np_softmax(wide(x)), columns=40)
        names += kernel.emulation.kernels
    one, full, again, few, more = names
    assert full == again != few == more != one != full
    texts = [kernel.source[kernel.source.rindex(f" {n}(") :].split("\n}")[0] for n in (one, full, few)]
    assert ["min(" in text for text in texts] == [False, False, True]


def test_small_rows_of_what_is_not_counted_by_rows() -> None:
    n, s = symbol("n"), symbol("s")
    assert state.small_rows(facts.read(topi_func(softmax, ((n, s), "float32"))).facts.program) == 0
    assert state.small_rows(facts.read(topi_func(softmax, ((7, 64), "float32"))).facts.program) == math.inf
    two = facts.read(topi_func(softmax, ((n, 4, s, 64), "float32"))).facts.program
    assert state.small_rows(two) == (2**31 - 2**16) // 256


@BOTH
def test_names_play_no_part_in_a_plan(target: str) -> None:
    """A plan from the memo, made for an equal function with other names, serves this one too."""
    from tvm import te

    plans = set()
    for one, two, name in (("n", "m", "x"), ("m", "n", "y"), ("seq", "batch", "hidden_states")):
        x = te.placeholder((symbol(one), symbol(two), 40), "float32", name=name)
        f = te.create_prim_func([x, topi.nn.softmax(x, -1)])
        p = plan(f, target)
        lower(f, p)
        plans.add(p.key)
    assert len(plans) == 1


@pytest.mark.slow
@BOTH
def test_relax_layer_norm_with_a_symbolic_hidden_size(target: str) -> None:
    n, h = symbol("n"), symbol("h")
    f = legalized(
        lambda _, v, w, b: relax.op.nn.layer_norm(v, w, b, axes=[-1], epsilon=1e-5),
        ((n, h), "float32"),
        ((h,), "float32"),
        ((h,), "float32"),
    )
    kernel = Kernel(f, target)
    for shape in ((1, 5), (3, 64), (2, 2050)):
        x, w, b = drawn(*shape), drawn(shape[1]), drawn(shape[1] + 1)[1:]
        check(
            kernel.run(x, w, np.ascontiguousarray(b))[0],
            np_layer_norm(wide(x), 1e-5) * wide(w) + wide(b),
            columns=shape[1],
        )


@BOTH
def test_as_many_rows_as_32_bits_count(target: str) -> None:
    """The last group is not full; rounding up to it takes 33 bits."""
    func = get_workload("softmax").func((2**31 - 1, 4), "float32")
    text = lower(func, force(func, Candidate(width=4, packing=16, vector=4), target)).script()
    assert f'"blockIdx.x", {2**27}' in text
