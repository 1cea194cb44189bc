"""What decides in doubt, over width, packing, vector, reuse, dtype, target and the three numeric modes of
the CPU model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special
from tvm import relax, te, tirx, topi

import tirx_reduce as tr
from tests.covering import Row, label, pairwise
from tests.faults import fault
from tests.functions import legalized, topi_func
from tests.launch import TARGETS, Kernel, check, narrow, wide
from tirx_reduce.values import Candidate

NUMERICS = ("plain", "fma", "fast")
EPS = 1e-5
INF, NAN = np.inf, np.nan


# --- rows with infinities and NaN beside good ones


def rows(columns: int, dtype: str, *specials: Callable[[Any], None]) -> Any:
    """A good row, then each special one followed by a good one."""
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((1 + 2 * len(specials), columns))
    for i, special_ in enumerate(specials):
        special_(x[1 + 2 * i])
    return narrow(x, dtype)


def all_minus_inf(row: Any) -> None:
    row[:] = -INF


def all_plus_inf(row: Any) -> None:
    row[:] = INF


def a_nan_last(row: Any) -> None:
    row[-1] = NAN


def an_inf_first(row: Any) -> None:
    row[0] = INF


def finite_only_last(row: Any) -> None:
    row[:-1] = -INF


def zeros(row: Any) -> None:
    row[:] = 0


def constant(row: Any) -> None:
    row[:] = 1234.0


def very_negative(row: Any) -> None:
    row[:] = -20000.0 - np.arange(len(row)) % 7


EVERY = (
    all_minus_inf,
    all_plus_inf,
    a_nan_last,
    an_inf_first,
    finite_only_last,
    zeros,
    constant,
    very_negative,
)
MODEST = tuple(s for s in EVERY if s is not very_negative)


def rms(x: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)


def norm(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + EPS)


def lse(x: Any) -> Any:
    top = x.max(-1)
    return np.log(np.exp(x - top[..., None]).sum(-1)) + top


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x: Any) -> Any:
    top = x.max(-1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))


def _f32(x: Any, *i: Any) -> Any:
    return x[i].astype("float32")


def _lse(x: Any) -> Any:
    top = topi.max(x, axis=-1)
    total = topi.sum(
        te.compute(x.shape, lambda i, j: tirx.exp(_f32(x, i, j) - top[i].astype("float32")), name="e"), -1
    )
    return te.compute(
        top.shape, lambda i: (tirx.log(total[i]) + top[i].astype("float32")).astype(x.dtype), name="lse"
    )


def _norm(centre: bool) -> Callable[[Any], Any]:
    def build(x: Any) -> Any:
        m, n = x.shape
        k, j = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "j")
        size = float(n.value)
        total = te.compute((m,), lambda i: te.sum(_f32(x, i, k), axis=k), name="total")

        def value(i: Any, c: Any) -> Any:
            return _f32(x, i, c) - total[i] / size if centre else _f32(x, i, c)

        square = te.compute((m,), lambda i: te.sum(value(i, j) * value(i, j), axis=j), name="square")
        return te.compute(
            x.shape,
            lambda i, c: (value(i, c) * tirx.rsqrt(square[i] / size + EPS)).astype(x.dtype),
            name="out",
        )

    return build


OPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], bool]] = {
    "softmax": (lambda x: topi.nn.softmax(x, -1), softmax, True),
    "log_softmax": (topi.nn.log_softmax, log_softmax, True),
    "logsumexp": (_lse, lse, True),
    "rms_norm": (_norm(False), rms, False),
    "layer_norm": (_norm(True), norm, False),
    "max": (lambda x: topi.max(x, -1), lambda x: x.max(-1), True),
    "min": (lambda x: topi.min(x, -1), lambda x: x.min(-1), True),
    "argmax": (lambda x: topi.argmax(x, -1), lambda x: x.argmax(-1), True),
    "argmin": (lambda x: topi.argmin(x, -1), lambda x: x.argmin(-1), True),
}
# The specials a formula has one right answer for; +inf in logsumexp is inf - inf in the PrimFunc's own
# expression.
BARE = ("max", "min", "argmax", "argmin")

FACTORS: dict[str, tuple[Any, ...]] = {
    "op": tuple(OPS),
    "columns": (1, 7, 33, 130, 1025),
    "width": (2, 8, 32, 96),
    "packing": (1, 4, 16),
    "vector": (1, 2, 4),
    "reuse": ("reload", "private", "shared"),
    "dtype": ("float32", "float16", "bfloat16"),
    "target": TARGETS,
    "numerics": NUMERICS,
}


def legal(row: Row) -> bool:
    threads = row["width"] * row["packing"]
    if threads % 32 or threads > 512 or row["vector"] > row["columns"]:
        return False
    keeps = row["op"] not in (*BARE, "logsumexp") and row["columns"] > 1
    if row["reuse"] != "reload" and not keeps:
        return False
    if row["reuse"] == "shared" and row["columns"] * row["packing"] > 8192:
        return False
    scalars = 3 * -(-row["columns"] // (row["width"] * row["vector"])) * row["vector"]
    return row["reuse"] != "private" or scalars <= 64


def covered(**fixed: Any) -> list[Row]:
    return pairwise({**FACTORS, **{k: (v,) for k, v in fixed.items()}}, legal)


def candidate(row: Row) -> Candidate:
    return Candidate(width=row["width"], packing=row["packing"], vector=row["vector"], reuse=row["reuse"])


def special_rows(row: Row) -> None:
    build, formula, keeps_range = OPS[row["op"]]
    specials = EVERY if keeps_range or row["dtype"] != "float16" else MODEST
    x = rows(row["columns"], row["dtype"], *specials)
    kernel = Kernel(topi_func(build, (x.shape, row["dtype"])), row["target"], candidate(row))
    (got,) = kernel.run(x, numerics=row["numerics"])
    values = wide(x)
    with np.errstate(all="ignore"):
        want = formula(values)
    bare = row["op"] in BARE
    if row["op"].startswith("arg"):
        assert ((got >= 0) & (got < row["columns"])).all()
    if bare:
        # NaN in a bare extremum is not promised; every other row is.
        keep = ~np.isnan(values).any(-1)
        got, want = got[keep], want[keep]
    if row["op"] in ("rms_norm", "layer_norm") and row["numerics"] == "fast":
        # 1/√∞ is 0 on the GPUs, and what a host compiler makes of it under fast math is not theirs.
        keep = ~np.isinf(values).any(-1)
        got, want, values = got[keep], want[keep], values[keep]
    if row["op"] == "log_softmax" and row["numerics"] == "fast":
        # Fast math may add the maximum and the logarithm first: then the result is rounded as they are.
        keep = ~(np.isfinite(values) & (np.abs(values) > 10000)).any(-1)
        got, want, values = got[keep], want[keep], values[keep]
    if row["op"] == "layer_norm":
        # The mean of a constant row is rounded once: what is left of it is noise over sqrt(eps).
        noise = 2 * 2.0**-24 * 1234 / np.sqrt(EPS)
        at = [i for i in range(len(want)) if np.ptp(values[i]) == 0 and np.isfinite(values[i, 0])]
        assert (np.abs(wide(got)[at]) <= noise).all()
        left = [i for i in range(len(want)) if i not in at and not (values[i] < -10000).all()]
        got, want = got[left], want[left]
    check(got, want, looser=4, columns=row["columns"], text=label(row))


@pytest.mark.parametrize("row", covered(), ids=label)
def test_rows_with_infinities_and_nan(row: Row) -> None:
    special_rows(row)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("target", TARGETS)
def test_rows_with_infinities_and_nan_at_every_width(op: str, target: str) -> None:
    """A second and a third array for each operator."""
    for seed in (1, 2):
        for row in pairwise({**FACTORS, "op": (op,), "target": (target,)}, legal, seed):
            special_rows(row)


WIDTHS = (1, 7, 31, 32, 33, 127, 128, 129, 255, 257, 1023, 1024, 1025, 4097)


@pytest.mark.parametrize("columns", [1, 33, 1024, 4097])
@pytest.mark.parametrize("target", TARGETS)
@fault(
    "B15",
    "mlx#1467",
    "all −inf row",
    "NaN, as IEEE has it: −inf − −inf is computed and nothing tests for it; the same at every width, "
    "packing and dtype",
)
def test_a_row_of_minus_infinity_is_nan_whatever_the_plan(columns: int, target: str) -> None:
    minus_infinity(columns, target, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("columns", [*WIDTHS, 50257])
def test_a_row_of_minus_infinity_at_each_row_length(columns: int, dtype: str) -> None:
    for target in TARGETS:
        minus_infinity(columns, target, dtype)


def minus_infinity(columns: int, target: str, dtype: str) -> None:
    x = rows(columns, dtype, all_minus_inf)
    kernel = Kernel(topi_func(lambda v: topi.nn.softmax(v, -1), (x.shape, dtype)), target)
    for numerics in NUMERICS:
        (got,) = kernel.run(x, numerics=numerics)
        with np.errstate(all="ignore"):
            check(got, softmax(wide(x)), columns=columns)
        assert np.isnan(wide(got)[1]).all()


# --- ties and ranges of indices


def tied(row: Row) -> Any:
    """Few distinct values, so that ties stand in other lanes, other packets and other subgroups."""
    rng = np.random.default_rng(row["columns"])
    return narrow(rng.integers(0, 2, (5, row["columns"])), row["dtype"])


@pytest.mark.parametrize(
    "row",
    pairwise(
        {
            **{k: v for k, v in FACTORS.items() if k != "reuse"},
            "op": ("argmax", "argmin"),
            "reuse": ("reload",),
        },
        legal,
        seed=5,
    )[::4],
    ids=label,
)
def test_ties_keep_the_lowest_index(row: Row) -> None:
    x = tied(row)
    build, formula, _ = OPS[row["op"]]
    kernel = Kernel(topi_func(build, (x.shape, row["dtype"])), row["target"], candidate(row))
    (got,) = kernel.run(x, numerics=row["numerics"])
    np.testing.assert_array_equal(got, formula(wide(x)))


# --- integers


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_integers_wrap_in_their_own_dtype(name: str, target: str) -> None:
    x = np.random.default_rng(0).integers(-128, 128, (3, 100)).astype(np.int8)
    kernel = Kernel(
        topi_func(lambda v: getattr(topi, name)(v, -1), (x.shape, "int8")),
        target,
        Candidate(width=64, vector=4),
    )
    (got,) = kernel.run(x)
    np.testing.assert_array_equal(got, getattr(np, name)(x, -1, dtype=np.int8))


# --- casts, and nothing but casts, round


def _add_rms(cast: bool) -> Callable[..., Any]:
    """The residual is stored rounded; the variance sees it rounded only where the PrimFunc casts."""

    def build(x: Any, r: Any, g: Any) -> Any:
        m, n = x.shape
        total = te.compute(x.shape, lambda i, j: _f32(x, i, j) + _f32(r, i, j), name="sum")
        stored = te.compute(x.shape, lambda i, j: total[i, j].astype(x.dtype), name="residual")
        k = te.reduce_axis((0, n), "k")

        def value(i: Any, j: Any) -> Any:
            return stored[i, j].astype("float32") if cast else total[i, j]

        square = te.compute((m,), lambda i: te.sum(value(i, k) * value(i, k), axis=k), name="square")
        y = te.compute(
            x.shape,
            lambda i, j: (value(i, j) * tirx.rsqrt(square[i] / float(n.value)) * _f32(g, j)).astype(x.dtype),
            name="y",
        )
        return [stored, y]

    return build


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cast", [False, True])
@fault(
    "B12",
    "vllm#52104",
    "cast order",
    "contract of the PrimFunc: the variance sees the rounded sum exactly where a Cast stands",
    "our decision",
)
def test_the_residual_is_rounded_where_a_cast_stands(cast: bool, target: str) -> None:
    x = narrow(np.full((1, 128), 256.0), "bfloat16")
    r = narrow(np.tile([1.0, -1.0], 64)[None], "bfloat16")
    g = narrow(np.full(128, 100.0), "bfloat16")
    func = topi_func(_add_rms(cast), (x.shape, "bfloat16"), (r.shape, "bfloat16"), (g.shape, "bfloat16"))
    for reuse in ("reload", "private"):
        residual, y = Kernel(func, target, Candidate(width=32, vector=4, reuse=reuse)).run(x, r, g)
        np.testing.assert_array_equal(wide(residual), np.tile([256.0, 255.0], 64)[None])
        want = np.tile([100.0, 100.0] if cast else [100.5, 99.5], 64)[None]
        np.testing.assert_array_equal(wide(y), narrow(want, "bfloat16").astype(np.float64))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("early", [False, True])
@fault(
    "B13",
    "TransformerEngine#1132",
    "cast order",
    "contract of the PrimFunc, held by count of equal bits",
    "our decision",
)
def test_the_weight_is_applied_before_or_after_the_cast(early: bool, target: str) -> None:
    """By count of equal bits: the two orders differ in a quarter of the places."""
    rng = np.random.default_rng(0)
    x = narrow(rng.standard_normal((4, 512)), "bfloat16")
    g = narrow(1 + 0.1 * rng.standard_normal(512), "bfloat16")

    def build(v: Any, w: Any) -> Any:
        k = te.reduce_axis((0, 512), "k")
        square = te.compute((4,), lambda i: te.sum(_f32(v, i, k) * _f32(v, i, k), axis=k), name="square")

        def out(i: Any, j: Any) -> Any:
            y = _f32(v, i, j) * tirx.rsqrt(square[i] / 512.0 + 1e-6)
            return (y.astype("bfloat16") * w[j]) if early else (y * _f32(w, j)).astype("bfloat16")

        return te.compute((4, 512), out, name="out")

    (got,) = Kernel(topi_func(build, (x.shape, "bfloat16"), (g.shape, "bfloat16")), target).run(x, g)
    wide_x, wide_g = wide(x), wide(g)
    y = wide_x / np.sqrt((wide_x**2).mean(-1, keepdims=True) + 1e-6)
    late_want = (y * wide_g).astype(ml_dtypes.bfloat16)
    early_want = (y.astype(ml_dtypes.bfloat16).astype(np.float64) * wide_g).astype(ml_dtypes.bfloat16)
    same = [(got == w).mean() for w in (late_want, early_want)]
    assert same[early] >= 0.995
    assert same[not early] < 0.9


@pytest.mark.parametrize("target", TARGETS)
@fault(
    "B14",
    "ROCm/aiter#5151",
    "rounding mode",
    "narrowing is the backend's round-to-nearest-even; on Metal, where TVM has none for bf16, the "
    "same in integers",
)
def test_narrowing_rounds_half_to_even(target: str) -> None:
    x = narrow([[1.0, 1.0, 1 + 2**-7, 1.0]], "bfloat16")
    r = narrow([[1.5 * 2**-8, 2**-8, 2**-8, -(2**-8)]], "bfloat16")
    g = narrow(np.ones(4), "bfloat16")
    func = topi_func(_add_rms(True), (x.shape, "bfloat16"), (r.shape, "bfloat16"), (g.shape, "bfloat16"))
    for numerics in NUMERICS:
        residual, _ = Kernel(func, target).run(x, r, g, numerics=numerics)
        np.testing.assert_array_equal(wide(residual), [[1.0078125, 1.0, 1.015625, 0.99609375]])


@pytest.mark.parametrize("target", TARGETS)
def test_eps_stands_where_the_primfunc_has_it(target: str) -> None:
    """Inside the root; under a maximum; and an RMS kernel is not an L2 kernel."""
    x = np.full((1, 128), 1e-4, np.float32)

    def build(v: Any) -> Any:
        square = topi.sum(te.compute(v.shape, lambda i, j: v[i, j] * v[i, j], name="sq"), -1)
        one = tirx.const(1e-6, "float32")
        forms = (
            lambda i, j: v[i, j] / tirx.sqrt(square[i] + one),
            lambda i, j: v[i, j] / tirx.max(tirx.sqrt(square[i]), one),
            lambda i, j: v[i, j] * tirx.rsqrt(square[i] / 128.0 + one),
            lambda i, j: v[i, j] / (tirx.sqrt(square[i] / 128.0) + one),
        )
        return [te.compute(v.shape, f, name=f"y{n}") for n, f in enumerate(forms)]

    got = Kernel(topi_func(build, (x.shape, "float32")), target).run(x)
    wants = (0.06622662, 0.08838835, 1e-4 / np.sqrt(1e-8 + 1e-6), 1e-4 / (1e-4 + 1e-6))
    for y, want in zip(got, wants, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5)


# --- quantising


def _quantise(dtype: str, limit: float, round_: bool) -> Callable[..., Any]:
    def build(v: Any, g: Any) -> Any:
        k = te.reduce_axis((0, v.shape[1]), "k")
        top = te.compute((v.shape[0],), lambda i: te.max(tirx.abs(v[i, k]), axis=k), name="top")

        def q(i: Any, j: Any) -> Any:
            # Divided by a power of two that depends on the row, so that the value itself is exact.
            y = v[i, j] / top[i] * g[j]
            y = tirx.nearbyint(y) if round_ else y
            y = tirx.max(tirx.min(y, tirx.const(limit, "float32")), tirx.const(-limit, "float32"))
            return y.astype(dtype)

        return te.compute(v.shape, q, name="q")

    return build


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", NUMERICS)
def test_int8_is_half_to_even_and_saturates(target: str, numerics: str) -> None:
    g = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 128, 1e6, -127.5, -1e6, 3.4999], np.float32)
    x = np.ones((1, 12), np.float32)
    (got,) = Kernel(
        topi_func(_quantise("int8", 127.0, True), (x.shape, "float32"), (g.shape, "float32")), target
    ).run(x, g, numerics=numerics)
    np.testing.assert_array_equal(got, [[0, 2, 2, 0, -2, 126, 127, 127, 127, -127, -127, 3]])


@pytest.mark.parametrize("numerics", NUMERICS)
@fault(
    "B58",
    "flashinfer#4160",
    "fp8 double rounding",
    "one conversion, float32 to fp8; on Metal declined",
    "right or refused",
)
def test_fp8_rounds_once_and_saturates(numerics: str) -> None:
    """1.0634765625 is 1.125 in e4m3 and 1.0 after a stop at bfloat16."""
    g = np.array([1.0634765625, 1.1865234375, 17.015625, 449, 500, 1e6, -1e6, 0.0], np.float32)
    x = np.ones((1, 8), np.float32)
    func = topi_func(_quantise("float8_e4m3fn", 448.0, False), (x.shape, "float32"), (g.shape, "float32"))
    (got,) = Kernel(func, "cuda").run(x, g, numerics=numerics)
    np.testing.assert_array_equal(wide(got), [[1.125, 1.125, 18, 448, 448, 448, -448, 0]])
    with pytest.raises(tr.Unsupported, match="float8_e4m3fn on metal"):
        tr.plan(func, "metal")


@pytest.mark.parametrize("target", TARGETS)
@fault(
    "B59",
    "HF kernels-community PR 680",
    "zero scale",
    "the scale is the PrimFunc's own expression; a row's infinity stays in its row",
)
def test_a_row_of_zeros_has_a_scale_and_other_rows_do_not_see_an_infinity(target: str) -> None:
    from tests.zoo_norms import _dynamic

    x = np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32)
    x[1], x[3, 5] = 0, INF
    q, scale = Kernel(topi_func(_dynamic("int8", 127.0), (x.shape, "float32")), target).run(x)
    assert (q[1] == 0).all()
    assert 0 < scale[1] < 1e-12
    assert np.isinf(scale[3])
    for i in (0, 2, 4):
        want = np.abs(wide(x[i])).max() / 127
        np.testing.assert_allclose(scale[i], want, rtol=1e-6)
        np.testing.assert_array_equal(q[i], np.clip(np.rint(x[i] / want), -127, 127))


# --- cheaper arithmetic


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", ["plain", "fma"])
def test_a_sum_of_exponentials_without_their_maximum_is_divided_by(target: str, numerics: str) -> None:
    """Its reciprocal would be subnormal. (Fast math makes zeros of it with either: it divides by
    reciprocals itself.)
    """
    from tests.zoo_softmax import _naive

    x = np.full((3, 24), -200, np.float32)
    x[:, 0] = 87.9
    (y,) = Kernel(topi_func(_naive, (x.shape, "float32")), target).run(x, numerics=numerics)
    np.testing.assert_allclose(y[:, 0], 1, rtol=1e-6)
    np.testing.assert_array_equal(y[:, 1:], 0)


# --- masks


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", NUMERICS)
@fault(
    "B18",
    "intel/torch-xpu-ops PR 5022",
    "NaN hidden by a mask rule",
    "there is no mask rule: a masked softmax follows its own expression",
)
def test_a_masked_softmax_follows_its_own_expression(target: str, numerics: str) -> None:
    x = np.array([[1, NAN, 2], [NAN, 1, 2], [1, 2, 3], [0, 1, 2]], np.float32)
    keep = np.array([[0, 1, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1]], bool)

    def build(v: Any, m: Any) -> Any:
        low = tirx.const(-INF, "float32")
        return topi.nn.softmax(
            te.compute(v.shape, lambda i, j: tirx.Select(m[i, j], v[i, j], low), name="masked"), -1
        )

    (y,) = Kernel(topi_func(build, (x.shape, "float32"), (x.shape, "bool")), target).run(
        x, keep, numerics=numerics
    )
    assert np.isnan(y[0]).all()  # a NaN that is kept reaches its row
    np.testing.assert_allclose(y[1], [0, 0.26894142, 0.73105858], rtol=1e-5)  # a NaN that is masked does not
    assert np.isnan(y[2]).all()  # filled with -inf throughout: the expression says -inf - -inf
    np.testing.assert_allclose(y[3], softmax(np.arange(3.0)), rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("either", [tirx.all, tirx.any], ids=["and", "or"])
def test_an_operand_that_does_not_count_is_read_inside_its_tensor(either: Any, target: str) -> None:
    """`j < n - 1 and m[i, j + 1] > 0`: the mask of the column behind, which the last one does not have."""
    x = np.random.default_rng(3).standard_normal((5, 40)).astype(np.float32)
    mask = np.random.default_rng(4).integers(-1, 2, (5, 40)).astype(np.int32)

    def build(v: Any, m: Any) -> Any:
        def kept(i: Any, j: Any) -> Any:
            last = j >= 39 if either is tirx.any else j < 39
            return tirx.if_then_else(either(last, m[i, j + 1] > 0), v[i, j], tirx.const(-1e30, "float32"))

        return topi.nn.softmax(te.compute(v.shape, kept, name="masked"), -1)

    (y,) = Kernel(topi_func(build, (x.shape, "float32"), (x.shape, "int32")), target).run(x, mask)
    keep = np.full(x.shape, either is tirx.any)
    keep[:, :-1] = mask[:, 1:] > 0
    np.testing.assert_allclose(y, softmax(np.where(keep, x, -1e30)), rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_masked_by_the_lowest_number_is_uniform(target: str) -> None:
    x, keep = np.ones((2, 4), np.float32), np.array([[0] * 4, [1] * 4], np.int8)

    def build(v: Any, m: Any) -> Any:
        low = tirx.min_value("float32")
        masked = te.compute(v.shape, lambda i, j: tirx.Select(m[i, j] != 0, v[i, j], low), name="masked")
        return topi.nn.softmax(masked, -1)

    (y,) = Kernel(topi_func(build, (x.shape, "float32"), (x.shape, "int8")), target).run(x, keep)
    np.testing.assert_allclose(y, 0.25)


# --- the same row, whatever surrounds it


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "softmax"])
@fault(
    "B70",
    "vllm#48271",
    "batch variance",
    "under one mapping a row's bits do not depend on the rows around it; another row count may get "
    "another mapping, then rounding differs",
    "our decision",
)
def test_row_count_and_place_do_not_change_a_row(op: str, target: str) -> None:
    """Under one mapping the bits are the same; the default policy's mapping may differ by row count."""
    rng = np.random.default_rng(1)
    row = narrow(rng.standard_normal(300), "bfloat16")
    build, formula, _ = OPS[op]
    seen = set()
    for m, at in ((1, 0), (2, 1), (7, 3), (33, 32)):
        x = narrow(rng.standard_normal((m, 300)), "bfloat16")
        x[at] = row
        kernel = Kernel(
            topi_func(build, (x.shape, "bfloat16")), target, Candidate(width=64, packing=2, vector=4)
        )
        (y,) = kernel.run(x)
        check(y, formula(wide(x)), looser=2, columns=300)
        seen.add(y[at].tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("op", ["softmax", "layer_norm", "rms_norm"])
def test_the_mapping_changes_a_row_by_rounding_only(op: str) -> None:
    x = narrow(np.random.default_rng(2).standard_normal((3, 130)), "float32")
    build, formula, _ = OPS[op]
    for c in (
        Candidate(width=32, vector=1),
        Candidate(width=96, vector=4, reuse="private"),
        Candidate(width=8, packing=4, vector=2, reuse="shared"),
    ):
        (y,) = Kernel(topi_func(build, (x.shape, "float32")), "metal", c).run(x)
        check(y, formula(wide(x)), columns=130)


_ = (relax, legalized, special)
