"""One walk for two reductions (reload, merged): what it reads, what it computes, and to what error."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

import tirx_reduce as tr
from tests.faults import add_layer_norm, np_layer_norm, np_softmax, softmax
from tests.functions import symbol, topi_func
from tests.launch import TARGETS, Kernel, check, narrow, wide
from tests.test_semantics import EVERY
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.schedules import as_target
from tirx_reduce.values import Candidate, DeviceLimits

BOTH = pytest.mark.parametrize("target", TARGETS)
NUMERICS = ("plain", "fma", "fast")
ORDERS = ("forward", "reverse", "random")
EPS = 1e-5
INF = np.inf


def once(**how: Any) -> Candidate:
    return Candidate(reuse="reload", merged=True, **how)


def layer_norm(x: Any) -> Any:
    """LayerNorm without weights, its columns fixed or symbolic."""
    m, n = x.shape
    k, j = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "j")
    size = n.astype("float32") if isinstance(n, tirx.Var) else float(n.value)
    total = te.compute((m,), lambda i: te.sum(x[i, k].astype("float32"), axis=k), name="total")

    def centred(i: Any, c: Any) -> Any:
        return x[i, c].astype("float32") - total[i] / size

    square = te.compute((m,), lambda i: te.sum(centred(i, j) * centred(i, j), axis=j), name="square")
    return te.compute(
        x.shape,
        lambda i, c: (centred(i, c) * tirx.rsqrt(square[i] / size + tirx.const(EPS, "float32"))).astype(
            x.dtype
        ),
        name="out",
    )


def logsumexp(x: Any) -> Any:
    m, n = x.shape
    k, j = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "j")
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="top")
    total = te.compute((m,), lambda i: te.sum(tirx.exp(x[i, j] - top[i]), axis=j), name="total")
    return te.compute((m,), lambda i: tirx.log(total[i]) + top[i], name="out")


def variance(x: Any) -> Any:
    m, n = x.shape
    k, j = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "j")
    total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), name="total")
    size = float(n.value)

    def centred(i: Any, c: Any) -> Any:
        return x[i, c] - total[i] / size

    square = te.compute((m,), lambda i: te.sum(centred(i, j) * centred(i, j), axis=j), name="square")
    return te.compute((m,), lambda i: square[i] / size, name="out")


def np_logsumexp(x: Any) -> Any:
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]


OPERATORS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "softmax": (softmax, np_softmax),
    "layer_norm": (layer_norm, lambda x: np_layer_norm(x, EPS)),
    "logsumexp": (logsumexp, np_logsumexp),
    "variance": (variance, lambda x: x.var(-1)),
}
MAPS = pytest.mark.parametrize("op", ["softmax", "layer_norm"])
EACH = pytest.mark.parametrize("op", OPERATORS)


@lru_cache(maxsize=64)
def kernel(op: str, rows: int, columns: int, target: str, c: Candidate, dtype: str = "float32") -> Kernel:
    return Kernel(topi_func(OPERATORS[op][0], ((rows, columns), dtype)), target, c)


def drawn(*shape: int, dtype: str = "float32") -> Any:
    return narrow(np.random.default_rng(sum(shape)).standard_normal(shape), dtype)


def loaded(k: Kernel) -> list[int]:
    """Bytes that each launch read from device memory, in order."""
    return [c.load_bytes["device"] for c in k.emulation.counters.values()]


# --- what it reads ---------------------------------------------------------------------------------------------------


@BOTH
@EACH
@pytest.mark.parametrize("columns", [1000, 1024])
def test_a_row_is_read_once_for_two_reductions(op: str, columns: int, target: str) -> None:
    x = drawn(3, columns)
    want = OPERATORS[op][1]
    last = 1 if op in ("softmax", "layer_norm") else 0
    for merged, walks in ((True, 1 + last), (False, 2 + last)):
        c = Candidate(width=64, vector=4, reuse="reload", merged=merged)
        k = kernel(op, 3, columns, target, c)
        (y,) = k.run(x)
        check(y, want(wide(x)), columns=columns)
        assert loaded(k) == [walks * x.nbytes]


@MAPS
@pytest.mark.parametrize("columns", [1537, 2048])
@pytest.mark.parametrize("target", ["metal", {"kind": "cuda", "arch": "sm_80"}], ids=["metal", "cuda"])
def test_each_launch_of_a_split_row_reads_its_part_once(op: str, columns: int, target: Any) -> None:
    """Where groups form no clusters."""
    x, c = drawn(3, columns), once(width=64, vector=2, splits=4)
    k = Kernel(topi_func(OPERATORS[op][0], ((3, columns), "float32")), as_target(target), c)
    (y,) = k.run(x, orders=ORDERS)
    check(y, OPERATORS[op][1](wide(x)), columns=columns)
    first, second = loaded(k)
    assert first == x.nbytes
    # Each subgroup of the second launch reads the four partial results of both reductions, each once.
    assert second == x.nbytes + 3 * 4 * 2 * (4 * 2 * 4)


def softmax_pair(rows: int, columns: int) -> tuple[Any, Any, Any]:
    """A matrix, the maximum of each row, and the sum of exponentials about it."""
    x = te.placeholder((rows, columns), "float32", name="x")
    a, b = (te.reduce_axis((0, columns), name) for name in "ab")
    top = te.compute((rows,), lambda i: te.max(x[i, a], axis=a), name="top")
    total = te.compute((rows,), lambda i: te.sum(tirx.exp(x[i, b] - top[i]), axis=b), name="total")
    return x, top, total


@BOTH
@pytest.mark.parametrize(
    "c",
    [
        Candidate(width=64, vector=4, reuse="private", merged=True),
        Candidate(width=64, vector=4, reuse="mixed", merged=True),
        Candidate(width=64, vector=4, reuse="shared", merged=True),
    ],
    ids=lambda c: c.reuse,
)
def test_a_softmax_that_is_normalised_again(c: Candidate, target: str) -> None:
    """Its second walk puts the product in the exponential's place; the third reads that one."""
    rows, columns = 2, 3000
    x, top, total = softmax_pair(rows, columns)
    d = te.reduce_axis((0, columns), "d")
    share = te.compute((rows, columns), lambda i, j: tirx.exp(x[i, j] - top[i]) / total[i], name="share")
    square = te.compute((rows,), lambda i: te.sum(share[i, d] * share[i, d], axis=d), name="square")
    y = te.compute((rows, columns), lambda i, j: share[i, j] / tirx.sqrt(square[i]), name="y")
    k = Kernel(te.create_prim_func([x, y]), as_target(target), c)
    data = drawn(rows, columns)
    (found,) = k.run(data)
    below = np.exp(wide(data) - wide(data).max(1, keepdims=True))
    check(found, below / np.sqrt((below**2).sum(1, keepdims=True)), columns=columns)


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("target", ["metal", {"kind": "cuda", "arch": "sm_80"}], ids=["metal", "cuda"])
def test_a_reduction_behind_a_pair_over_launches(target: Any, merged: bool) -> None:
    """The entropy of a long row: the third launch leaves what a fourth takes up, where the pair is known already."""
    rows, columns = 3, 1024
    x, top, total = softmax_pair(rows, columns)
    c = te.reduce_axis((0, columns), "c")
    entropy = te.compute(
        (rows,),
        lambda i: te.sum(tirx.exp(x[i, c] - top[i]) / total[i] * (x[i, c] - top[i]), axis=c),
        name="entropy",
    )
    func = te.create_prim_func([x, entropy])
    k = Kernel(func, as_target(target), Candidate(width=64, vector=4, splits=4, merged=merged))
    data = drawn(rows, columns)
    (found,) = k.run(data, orders=ORDERS)
    below = wide(data) - wide(data).max(1, keepdims=True)
    share = np.exp(below) / np.exp(below).sum(1, keepdims=True)
    check(found, (share * below).sum(1), columns=columns)


@BOTH
@pytest.mark.parametrize(("op", "matrices", "vectors"), [("layer_norm", 1, 2), ("masked_softmax", 2, 0)])
def test_what_rides_along_is_read_as_often(op: str, matrices: int, vectors: int, target: str) -> None:
    workload, shape = get_workload(op), (2, 3, 5, 700) if op == "masked_softmax" else (30, 700)
    k = Kernel(workload.func(shape), target, once(width=64, vector=4))
    inputs = workload.inputs(shape)
    assert workload.verify(tuple(k.run(*inputs)), inputs).ok
    assert loaded(k) == [(2 * matrices + vectors) * 30 * 700 * 4]


@BOTH
def test_a_residual(target: str) -> None:
    """It is written by the last walk, which reads its operands again in any case."""
    inputs = [drawn(3, 700), drawn(700, 3).reshape(3, 700), drawn(700), drawn(700)[::-1].copy()]
    func = topi_func(add_layer_norm(EPS), *((i.shape, "float32") for i in inputs))
    k = Kernel(func, target, once(width=64, vector=4))
    total = wide(inputs[0]) + wide(inputs[1])
    outputs = k.run(*inputs)
    found = dict(zip(("sum", "norm"), outputs, strict=True))
    check(found["sum"], total, columns=700)
    check(found["norm"], np_layer_norm(total, EPS) * wide(inputs[2]) + wide(inputs[3]), columns=700)
    assert loaded(k) == [2 * 2 * inputs[0].nbytes + 3 * 2 * inputs[2].nbytes]


def test_kept_rows_and_the_plain_form_have_their_walks() -> None:
    """A second walk over registers reads no memory; features are counted on walks written out."""
    x = drawn(3, 1024)
    for c in (
        Candidate(width=64, vector=4, reuse="private", merged=True),
        Candidate(width=64, vector=4, reuse="shared", merged=True),
    ):
        k = kernel("softmax", 3, 1024, "metal", c)
        check(k.run(x)[0], np_softmax(wide(x)), columns=1024)
        assert loaded(k) == [x.nbytes]
    merged, plain = (
        kernel("softmax", 3, 1024, "metal", Candidate(width=64, vector=4, reuse="reload", merged=m)).plan
        for m in (True, False)
    )
    assert merged.features == plain.features


@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
def test_ladder_takes_it_where_rows_are_reloaded(op: str) -> None:
    func = get_workload(op).func((256, 131072), "float32")
    assert tr.plan(func, "metal", policy="ladder").candidate.merged
    n = symbol("n")
    func = topi_func(OPERATORS[op][0], ((3, n), "float32"))
    limits = DeviceLimits(kind="metal")
    plan = tr.plan(func, "metal", policy="ladder", limits=limits)
    assert (plan.reuse, plan.candidate.merged) == ("reload", True)


# --- what it computes ------------------------------------------------------------------------------------------------

SIZES = (1, 2, 3, 5, 32, 33, 127, 257, 1000, 4099)
MORE = (4, 31, 63, 64, 65, 128, 129, 255, 256, 512, 521, 1024, 1025, 2049)
NAMED = {
    f"{c.width}-{c.packing}-{c.vector}-{c.rows}": c
    for c in (
        once(width=64, vector=4),
        once(width=8, packing=8),
        once(width=64, vector=2, packing=2),
        once(width=96, vector=1),
        once(width=32, vector=4),
        once(width=64, vector=2, rows=2),
    )
}


def sizes(op: str, c: Candidate, target: str, some: tuple[int, ...]) -> None:
    build, want = OPERATORS[op]
    k = Kernel(topi_func(build, ((3, symbol("n")), "float32")), target, c)
    for at, columns in enumerate(some):
        x = drawn(3, columns)
        (y,) = k.run(x, numerics=NUMERICS[at % 3], orders=ORDERS[at % 3 : at % 3 + 1])
        check(y, want(wide(x)), columns=columns, text=f"{columns} columns")
        assert loaded(k) == [2 * x.nbytes]


@MAPS
@pytest.mark.parametrize(
    ("name", "target"), [(name, TARGETS[i % 2]) for i, name in enumerate(NAMED)], ids=lambda v: v
)
def test_symbolic_columns(op: str, name: str, target: str) -> None:
    sizes(op, NAMED[name], target, SIZES)


@pytest.mark.slow
@BOTH
@MAPS
@pytest.mark.parametrize("name", NAMED)
def test_more_symbolic_columns(op: str, name: str, target: str) -> None:
    sizes(op, NAMED[name], target, (*SIZES, *MORE))


@pytest.mark.parametrize(
    "op",
    [pytest.param(op, marks=pytest.mark.slow if op in ("logsumexp", "variance") else ()) for op in OPERATORS],
)
@pytest.mark.parametrize(
    ("columns", "c"),
    [
        (1, once(width=32)),
        (1, once(width=4, packing=16)),
        (2, once(width=64, vector=2)),
        (3, once(width=64)),
        (3, once(width=8, packing=4, vector=2)),
        (37, once(width=64, packing=2, vector=4)),
        (509, once(width=96, vector=4)),
        (521, once(width=64, vector=1, splits=8)),
        (1537, once(width=256, vector=4)),
        (4096, once(width=64, vector=4, splits=4)),
        (4099, once(width=64, vector=4, splits=4)),
    ],
    ids=lambda v: str(v) if isinstance(v, int) else f"{v.width}-{v.packing}-{v.vector}-{v.splits}",
)
def test_fixed_columns(op: str, columns: int, c: Candidate) -> None:
    x = drawn(5, columns)
    k = kernel(op, 5, columns, "metal", c)
    for numerics in ("plain", "fast"):
        (y,) = k.run(x, numerics=numerics, orders=ORDERS)
        # A variance of a few numbers may cancel.
        check(y, OPERATORS[op][1](wide(x)), columns=columns, looser=4 if op == "variance" else 1)


@BOTH
@MAPS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(op: str, dtype: str, target: str) -> None:
    x = drawn(3, 1003, dtype=dtype)
    (y,) = kernel(op, 3, 1003, target, once(width=64, vector=4), dtype).run(x, numerics="fast")
    check(y, OPERATORS[op][1](wide(x)), columns=1003)


@MAPS
@pytest.mark.parametrize("c", [once(width=1024, vector=4), once(width=512, vector=4, splits=32)], ids=str)
def test_rows_of_a_quarter_million(op: str, c: Candidate) -> None:
    x = drawn(2, 262144)
    (y,) = kernel(op, 2, 262144, "metal", c).run(x)
    check(y, OPERATORS[op][1](wide(x)), columns=262144)


# --- infinities, NaN, masks ------------------------------------------------------------------------------------------


def prefix(n: int, value: float = -200.0) -> Callable[[Any], None]:
    def masked(row: Any) -> None:
        row += value
        row[:n] = -INF

    return masked


def every_second_subgroup(row: Any) -> None:
    """Whole subgroups of -inf beside a maximum whose distance to 0 overflows an exponential."""
    row -= 200
    row[(np.arange(len(row)) // 128) % 2 == 0] = -INF


def large(row: Any) -> None:
    row[:] = np.where(np.arange(len(row)) % 2, 1e30, -1e30)


def rising(row: Any) -> None:
    """Every chunk has a new maximum."""
    row[:] = np.arange(len(row)) * 0.75 - 3000


def falling(row: Any) -> None:
    row[:] = 3000 - np.arange(len(row)) * 0.75


SPECIAL = (
    *EVERY,
    *(prefix(n) for n in (1, 4, 256, 300, 1023)),
    every_second_subgroup,
    large,
    rising,
    falling,
)


def special_rows(columns: int) -> Any:
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((1 + 2 * len(SPECIAL), columns))
    for i, change in enumerate(SPECIAL):
        change(x[1 + 2 * i])
    return narrow(x, "float32")


@pytest.mark.parametrize(("target", "numerics"), [("metal", "plain"), ("cuda", "fma"), ("metal", "fast")])
@pytest.mark.parametrize(
    "c",
    [once(width=64, vector=4), once(width=64, vector=2, packing=2), once(width=32), once(width=64, splits=4)],
    ids=lambda c: f"{c.width}-{c.packing}-{c.vector}-{c.splits}",
)
def test_softmax_of_infinities_and_nan(c: Candidate, numerics: str, target: str) -> None:
    """The last mapping is a cluster on CUDA, whose walks are two and whose exchange is the same."""
    x = special_rows(1024)
    with np.errstate(all="ignore"):
        want = np_softmax(wide(x))
    (y,) = kernel("softmax", len(x), 1024, target, c).run(x, numerics=numerics)
    check(y, want, columns=1024)


@BOTH
def test_kept_exponentials_beside_masked_subgroups(target: str) -> None:
    """The two-walk form: a subgroup of -inf alone took 0 for its maximum, and exp(0 - -200) overflows."""
    x = special_rows(1024)
    with np.errstate(all="ignore"):
        want = np_softmax(wide(x))
    c = Candidate(width=64, vector=4, reuse="private", merged=True)
    check(kernel("softmax", len(x), 1024, target, c).run(x)[0], want, columns=1024)


@BOTH
def test_logsumexp_of_minus_infinity(target: str) -> None:
    """As the PrimFunc has it: the exponential of -inf - -inf."""
    x = special_rows(1024)
    k = kernel("logsumexp", len(x), 1024, target, once(width=64, vector=4))
    with np.errstate(all="ignore"):
        want = np_logsumexp(wide(x))
    for numerics in NUMERICS:
        check(k.run(x, numerics=numerics)[0], want, columns=1024)


@BOTH
def test_layer_norm_of_infinities_and_nan(target: str) -> None:
    """NaN and infinity reach their whole row and no other."""
    x = special_rows(1024)
    with np.errstate(all="ignore"):
        want = np_layer_norm(wide(x), EPS)
    (y,) = kernel("layer_norm", len(x), 1024, target, once(width=64, vector=4)).run(x)
    finite = np.isfinite(x).all(-1)
    assert np.isnan(y[~finite]).all()
    good = finite & (np.abs(x).max(-1) < 10)
    check(y[good], want[good], columns=1024)
    assert good.sum() > len(SPECIAL)


@BOTH
@pytest.mark.parametrize("scale", [1e-30, 1e18, 1e20, 1e30])
def test_squares_that_overflow_are_those_of_two_walks(scale: float, target: str) -> None:
    """Their root is infinite, and what is divided by it 0."""
    x = narrow(wide(drawn(3, 1024)) * scale, "float32")
    one, two = (
        kernel("layer_norm", 3, 1024, target, Candidate(width=64, vector=4, merged=m)).run(x)[0]
        for m in (True, False)
    )
    check(one, wide(two), columns=1024, looser=2)
    assert np.isfinite(one).all()


# --- to what error ---------------------------------------------------------------------------------------------------


def adversarial(columns: int) -> Any:
    rng = np.random.default_rng(columns)
    z = rng.standard_normal((10, columns))
    z[1] += 1e4
    z[2] -= 3e5
    z[3, 0] = 1e4
    z[4, 0] = 1e6
    z[5] += 1e4
    z[5, 0] = 0
    z[6] += 1e4
    z[6, : columns // 3] = -1e4
    z[7] += np.linspace(-1e3, 1e3, columns)
    z[8] = np.exp(3 * z[8])
    z[9] = z[9] * 1e-4 + 1
    return narrow(z, "float32")


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize(
    ("columns", "c"),
    [
        (16384, once(width=32, vector=4)),
        (4099, once(width=64, vector=1)),
        (16384, once(width=256, vector=4)),
        (16385, once(width=64, vector=4, splits=4)),
    ],
    ids=["narrow", "scalar", "wide", "split"],
)
def test_a_variance_is_as_exact_as_that_of_two_walks(columns: int, c: Candidate, numerics: str) -> None:
    x = adversarial(columns)
    want = np_layer_norm(wide(x), EPS)
    two = Candidate(width=c.width, vector=c.vector, reuse="reload")

    def errors(c: Candidate) -> Any:
        (y,) = kernel("layer_norm", len(x), columns, "metal", c).run(x, numerics=numerics)
        return np.abs(wide(y) - want).max(-1)

    mine, theirs = errors(c), errors(two)
    tolerance = (64 + 4 * np.sqrt(columns)) * 2.0**-24 * np.abs(want).max(-1)
    # What no form avoids: a float32 mean is off by half a step.
    mean = 2.0**-24 * np.abs(wide(x).mean(-1)) / np.sqrt(wide(x).var(-1) + EPS)
    assert (mine <= 1.5 * theirs + tolerance + 2 * mean).all(), (mine, theirs, tolerance, mean)


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize(
    "c",
    [
        once(width=32, vector=4),
        once(width=256, vector=4),
        Candidate(width=256, vector=4, reuse="private", merged=True),
    ],
    ids=["narrow", "wide", "kept"],
)
def test_parts_meet_to_the_last_bit(c: Candidate, numerics: str) -> None:
    """A mean of 3e5 deviations: what is left is the rounding of float32 sums, a variance of (2^-6)^2 and a little."""
    x = narrow(np.random.default_rng(7).standard_normal((64, 4096)) - 3e5, "float32")
    (y,) = kernel("layer_norm", 64, 4096, "metal", c).run(x, numerics=numerics)
    spread = wide(y).std(-1)
    assert np.abs(spread - 1).mean() < 5e-4


ROWS, COLUMNS = 2, 331


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Rows with offsets, scales, outliers and masked stretches."""
    x = np.random.default_rng(draw(st.integers(0, 2**16))).standard_normal((ROWS, COLUMNS))
    for row in x:
        row *= 10.0 ** draw(st.integers(-3, 2))
        row += draw(st.sampled_from((0.0, 1.0, -100.0, 1e3)))
        for _ in range(draw(st.integers(0, 2))):
            row[draw(st.integers(0, COLUMNS - 1))] += draw(st.sampled_from((-1e3, 50.0, 1e4)))
    return narrow(x, "float32")


@settings(max_examples=25)
@given(
    x=arrays(), start=st.integers(0, COLUMNS), stop=st.integers(0, COLUMNS), target=st.sampled_from(TARGETS)
)
def test_one_walk_agrees_with_two(x: Any, start: int, stop: int, target: str) -> None:
    maps = [once(width=64, vector=2), Candidate(width=64, vector=2, reuse="reload")]
    one, two = (kernel("layer_norm", ROWS, COLUMNS, target, c).run(x)[0] for c in maps)
    exact = np_layer_norm(wide(x), EPS)
    mean = 2.0**-22 * np.abs(wide(x).mean(-1)) / np.sqrt(wide(x).var(-1) + EPS)
    tolerance = (64 + 4 * np.sqrt(COLUMNS)) * 2.0**-24 * np.abs(exact).max(-1) + mean
    assert (np.abs(wide(one) - exact).max(-1) <= tolerance).all()
    assert (np.abs(wide(one) - wide(two)).max(-1) <= 2 * tolerance).all()
    x = x.copy()
    x[:, start:stop] = -INF
    one, two = (kernel("softmax", ROWS, COLUMNS, target, c).run(x)[0] for c in maps)
    with np.errstate(all="ignore"):
        check(one, np_softmax(wide(x)), columns=COLUMNS)
        check(one, wide(two), columns=COLUMNS, looser=2)
