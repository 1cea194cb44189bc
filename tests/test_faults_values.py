"""Public faults in values: cancellation, overflow, underflow, infinities and NaN, accumulators that stick."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import te, tirx, topi

from tests import faults
from tests.faults import (
    add_rms_norm,
    fault,
    func,
    l2_norm,
    layer_norm,
    np_layer_norm,
    np_rms_norm,
    np_softmax,
    rms_norm,
    softmax,
    wide_mean,
    wide_sum,
    wide_variance,
)
from tests.launch import TARGETS, check, narrow, run, wide
from tirx_reduce.values import Candidate

BOTH = pytest.mark.parametrize("target", TARGETS)
INF, NAN = np.inf, np.nan


def plain_layer_norm(x: Any, eps: float, target: str, **how: Any) -> Any:
    return wide(run(func(layer_norm(eps, False, False), x), target, x, **how)[0])


def mean_noise(x: Any, eps: float) -> float:
    """What one rounding of the mean in float32 can do to a LayerNorm."""
    ulp = float(np.spacing(np.float32(np.abs(wide(x)).max())))
    return 2 * ulp / float(np.sqrt(wide(x).var(-1).min() + eps))


@BOTH
@fault(
    "B01",
    "apache/tvm#19592",
    "cancellation",
    "the variance is Σ(x − mean)², in a second pass or by chunks about their own mean; nothing is rewritten into "
    "E[x²] − mean²",
)
def test_variance_of_a_large_mean(target: str) -> None:
    x = np.array([[80000, 80001, 80002, 80003]], np.float32)
    np.testing.assert_allclose(
        plain_layer_norm(x, 1e-5, target),
        [[-1.3416354, -0.4472118, 0.4472118, 1.3416354]],
        atol=mean_noise(x, 1e-5),
    )
    for row in (np.tile(x[0], 64), 8192 + 0.25 * (np.arange(1024) % 5)):
        row = narrow(row[None], "float32")
        got = plain_layer_norm(row, 1e-5, target)
        np.testing.assert_allclose(got, np_layer_norm(wide(row), 1e-5), atol=mean_noise(row, 1e-5))


@BOTH
@fault(
    "B02",
    "NVIDIA/trt-samples-for-hackathon-cn#88",
    "cancellation, long row",
    "as B01; sums run in V independent chains a lane and trees across lanes",
)
def test_nearly_constant_long_row(target: str) -> None:
    x = np.full((1, 10240), 256.0, np.float32)
    x[0, -1] = 255.0
    y = plain_layer_norm(x, 1e-5, target)
    np.testing.assert_allclose(y[0, :-1], 0.00941238, atol=1.5e-3)
    assert abs(y[0, -1]) > 50
    x = narrow(1450 + 0.5 * np.sin(np.arange(16))[None], "float32")
    np.testing.assert_allclose(
        plain_layer_norm(x, 1e-5, target), np_layer_norm(wide(x), 1e-5), atol=mean_noise(x, 1e-5)
    )


@BOTH
@fault(
    "B03",
    "pytorch#190491",
    "variance clamp",
    "no variance is clamped: what the PrimFunc does not say is not done",
)
def test_small_variance_is_not_clamped(target: str) -> None:
    x = np.array([[-9.9e-4, -9.9e-4, 9.9e-4, 9.9e-4]], np.float32)
    np.testing.assert_allclose(
        plain_layer_norm(x, 1e-12, target), [[-0.9999995] * 2 + [0.9999995] * 2], rtol=2e-5
    )
    x = np.array([[1, 1.001, 0.999, 1]], np.float32)
    got = plain_layer_norm(x, 1e-7, target)
    np.testing.assert_allclose(got, [[0, 1.2909945, -1.2909945, 0]], rtol=1e-3, atol=1e-3)


@BOTH
@fault("B04", "pytorch#41527", "eps underflow, constant row", "eps stays float32, whatever the storage dtype")
def test_constant_rows(target: str) -> None:
    x, g, b = np.zeros((1, 10), np.float16), np.ones(10, np.float16), np.full(10, 0.25, np.float16)
    (y,) = run(func(layer_norm(1e-12), x, g, b), target, x, g, b)
    np.testing.assert_array_equal(y, np.full((1, 10), 0.25))
    for n in (256, 257):
        y = plain_layer_norm(np.full((1, n), 1234.0, np.float32), 1e-5, target)
        assert np.abs(y).max() <= 0.039
    (y,) = run(func(rms_norm(1e-12), x, g), target, x, g)
    np.testing.assert_array_equal(y, np.zeros((1, 10)))


@BOTH
@fault(
    "B05", "pytorch PR 133085", "f16 overflow", "every float is widened to float32 before its first operation"
)
def test_squares_beyond_float16(target: str) -> None:
    signs = np.tile([1.0, -1.0], 2048)
    for size, eps, want in ((300.0, 1e-5, 1.0), (60000.0, 1e-5, 1.0), (2.0**-13, 1e-8, 0.77357)):
        x = narrow(size * np.stack([signs, -signs]), "float16")
        (y,) = run(func(rms_norm(eps, False), x), target, x)
        np.testing.assert_allclose(wide(y), want * np.sign(wide(x)), rtol=2**-10 if want < 1 else 0)
        (y,) = run(func(layer_norm(eps, False, False), x), target, x)
        np.testing.assert_allclose(wide(y), want * np.sign(wide(x)), rtol=2**-10 if want < 1 else 0)
        (y,) = run(func(l2_norm(eps), x), target, x)
        exact = wide(x) / np.sqrt((wide(x) ** 2).sum(-1, keepdims=True) + eps)
        np.testing.assert_allclose(wide(y), exact, rtol=2**-9, atol=2**-23)


@BOTH
@fault(
    "B06",
    "onnxruntime#29034",
    "f16 overflow in a fused add",
    "the sum is float32; the residual is rounded where it is stored, and an explicit Cast makes an "
    "overflow infinite for all that follows",
)
def test_residual_beyond_float16(target: str) -> None:
    signs, g = np.tile([1.0, -1.0], 448)[None], np.ones(896, np.float16)
    x = narrow(20000 * signs, "float16")
    build = func(add_rms_norm(1e-6), x, x, g)
    total, y = run(build, target, x, x, g)
    np.testing.assert_array_equal(wide(total), 40000 * signs)
    np.testing.assert_array_equal(wide(y), signs)
    x = narrow(40000 * signs, "float16")
    total, y = run(build, target, x, x, g)
    np.testing.assert_array_equal(wide(total), INF * signs)
    assert np.isnan(wide(y)).all()


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@fault(
    "B07",
    "apple/coremltools PR 2822",
    "eps after a rescale",
    "rows are not rescaled: float32 squares need none for float16, and float32 rows follow the PrimFunc",
)
def test_a_spike_and_zeros(dtype: str, target: str) -> None:
    x = np.full((2, 16384), 0.01)
    x[0, 0], x[1] = 1000, 0
    x = narrow(x, dtype)
    (y,) = run(func(rms_norm(1e-5, False), x), target, x)
    tolerance = 2e-5 if dtype == "float32" else 2**-9
    np.testing.assert_allclose(wide(y)[0, 0], 127.99988, rtol=tolerance)
    np.testing.assert_allclose(
        wide(y)[0, 1:], 1.2799988e-3, rtol=max(tolerance, 2**-9 if dtype == "float16" else 0)
    )
    np.testing.assert_array_equal(wide(y)[1], 0)


@BOTH
@fault(
    "B08",
    "allenai/OLMo#281",
    "eps placement",
    "eps stands where the PrimFunc has it (see also the table of semantics)",
)
def test_eps_inside_the_root(target: str) -> None:
    x = np.float32(1e-3) * np.tile([1.0, -1.0], 32)[None].astype(np.float32)
    (y,) = run(func(rms_norm(1e-5, False), x), target, x)
    np.testing.assert_allclose(np.abs(wide(y)), 0.30151136, rtol=2e-5)
    x = np.full((1, 128), 1e-4, np.float32)
    (y,) = run(func(l2_norm(1e-6), x), target, x)
    np.testing.assert_allclose(wide(y), 0.06622662, rtol=2e-5)


@BOTH
@fault(
    "B09",
    "executorch PR 20089",
    "accumulator saturation",
    "sums of 16-bit floats accumulate in float32 whatever the PrimFunc says",
)
def test_accumulators_do_not_stick(target: str) -> None:
    x = np.zeros((3, 4096), np.float16)
    np.testing.assert_array_equal(wide(run(func(softmax, x), target, x)[0]), 1 / 4096)
    x = narrow(np.zeros((1, 512)), "bfloat16")
    np.testing.assert_array_equal(wide(run(func(softmax, x), target, x)[0]), 1 / 512)
    x = np.ones((1, 20000), np.float16)
    np.testing.assert_array_equal(wide(run(func(wide_sum, x), target, x)[0]), 20000)
    x = narrow(1 + 2.0**-7 * (np.arange(4096) % 2)[None], "bfloat16")
    (y,) = run(func(layer_norm(1e-5, False, False), x), target, x)
    check(y, np_layer_norm(wide(x), 1e-5), columns=4096)


@pytest.mark.slow
@BOTH
@fault("B09", "executorch PR 20089", "accumulator saturation", "as above, at 70000 columns")
def test_accumulators_do_not_stick_in_long_rows(target: str) -> None:
    x = np.zeros((1, 70000), np.float16)
    y = wide(run(func(softmax, x), target, x)[0])
    np.testing.assert_array_equal(y, float(np.float16(1 / 70000)))
    assert abs(y.sum() - 1) < 0.01
    x = narrow(np.ones((1, 70000)), "bfloat16")
    np.testing.assert_array_equal(wide(run(func(wide_mean, x), target, x)[0]), 1)
    np.testing.assert_array_equal(wide(run(func(wide_sum, x), target, x)[0]), 70144)


@BOTH
@fault(
    "B10",
    "pytorch#91597",
    "f16 count overflow",
    "the count is a float32 or an integer; a float16 literal above 65504 never arises from us",
)
def test_more_columns_than_float16_counts(target: str) -> None:
    for row in (np.ones(100000), np.arange(100000) % 3):
        x = narrow(row[None], "float16")
        np.testing.assert_allclose(wide(run(func(wide_mean, x), target, x)[0]), wide(x).mean(-1), rtol=2**-10)
        np.testing.assert_allclose(
            wide(run(func(wide_variance, x), target, x)[0]), wide(x).var(-1), atol=2**-10
        )
        (y,) = run(func(layer_norm(1e-5, False, False), x), target, x)
        check(y, np_layer_norm(wide(x), 1e-5), columns=100000)
        (y,) = run(func(rms_norm(1e-5, False), x), target, x)
        check(y, np_rms_norm(wide(x), 1e-5), columns=100000)


@BOTH
@fault(
    "B11",
    "burn PR 4697",
    "NaN guard too blunt",
    "nothing is guarded: the maximum is subtracted, whatever it is",
)
def test_very_negative_rows(target: str) -> None:
    x = np.array([[-20000, -20001, -20002]], np.float32)
    np.testing.assert_allclose(
        run(func(softmax, x), target, x)[0], [[0.66524096, 0.24472847, 0.09003057]], rtol=2e-5
    )
    x = np.array([[-20000, -20016]], np.float16)
    (y,) = run(func(topi.nn.log_softmax, x), target, x)
    np.testing.assert_allclose(wide(y), [[0, -16]], atol=2**-23, rtol=2**-10)
    x = np.full((1, 2), -3.0e38, np.float32)
    np.testing.assert_array_equal(run(func(softmax, x), target, x)[0], [[0.5, 0.5]])


@pytest.mark.slow
@BOTH
@fault(
    "B16", "flashinfer PR 1178", "−inf slice of one thread", "as below, at the vocabulary's 151936 columns"
)
def test_one_finite_logit_in_a_vocabulary(target: str) -> None:
    one_finite(151936, target)


@BOTH
@fault(
    "B16",
    "flashinfer PR 1178",
    "−inf slice of one thread",
    "lanes hold −inf as a value and combine by max; exponents are taken only after the row's maximum "
    "is known",
)
def test_one_finite_logit(target: str) -> None:
    one_finite(3001, target)
    for n in (5, 20, 100):
        x = np.random.default_rng(n).standard_normal((2, n)).astype(np.float16)
        (y,) = run(func(softmax, x), target, x, candidate=Candidate(width=1024))
        check(y, np_softmax(wide(x)))


def one_finite(n: int, target: str) -> None:
    x = np.full((2, n), -INF, np.float16)
    x[0, n - 1], x[1, n // 2] = 3, 3
    (y,) = run(func(softmax, x), target, x)
    np.testing.assert_array_equal(y, np.isfinite(x))
    (y,) = run(func(topi.nn.log_softmax, x), target, x)
    np.testing.assert_array_equal(y, np.where(np.isfinite(x), 0, -INF))


@BOTH
@pytest.mark.parametrize("numerics", ["plain", "fast"])
@fault(
    "B17",
    "openvino#33456",
    "+inf or NaN in a row",
    "NaN flows through the sum; no branch tests for it. Row 0 is all NaN, the stable form",
)
def test_infinity_and_nan_stay_in_their_row(numerics: str, target: str) -> None:
    x = np.array([[INF, 1, 2, 3], [1, NAN, 2, 3], [-INF, 1, 2, 3], [1, 2, 3, 4]], np.float32)
    (y,) = run(func(softmax, x), target, x, numerics=numerics)
    assert np.isnan(y[:2]).all()
    np.testing.assert_allclose(y[2], [0, 0.0900306, 0.2447285, 0.6652410], rtol=1e-5)
    np.testing.assert_allclose(y[3], np_softmax(np.arange(4.0)), rtol=1e-5)


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@fault(
    "B19",
    "mxnet PR 16226",
    "identity of max and min",
    "the lowest finite initial value of a max is taken as −inf, as a value: lanes without data never win",
)
def test_extrema_of_infinities(dtype: str, target: str) -> None:
    for n in (1, 8, 1000):
        x = narrow([[-INF] * n, [INF] * n], dtype)
        np.testing.assert_array_equal(
            wide(run(func(lambda v: topi.max(v, -1), x), target, x)[0]), [-INF, INF]
        )
        np.testing.assert_array_equal(
            wide(run(func(lambda v: topi.min(v, -1), x), target, x)[0]), [-INF, INF]
        )


@BOTH
@pytest.mark.parametrize("numerics", ["plain", "fast"])
@fault(
    "B20",
    "tvm#19518",
    "NaN in max and min",
    "not promised (TVM's own is order-dependent, fast math leaves none): the row is NaN or one of "
    "its elements, other rows are untouched",
    "our decision",
)
def test_nan_in_a_bare_maximum_touches_no_other_row(numerics: str, target: str) -> None:
    x = np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32)
    for i, at in enumerate((0, 31, 32, 99)):
        x[i, at] = NAN
    (y,) = run(func(lambda v: topi.max(v, -1), x), target, x, numerics=numerics)
    np.testing.assert_array_equal(y[4:], x[4:].max(-1))
    for row, got in zip(x[:4], y[:4], strict=True):
        assert np.isnan(got) or got == np.nanmax(row)


@BOTH
@fault(
    "B21",
    "mlx#576",
    "inf in logsumexp",
    "as its own expression: −inf − −inf is NaN where it is written so; the log-softmax and the sum "
    "without a maximum give the limits",
)
def test_logsumexp_of_infinities(target: str) -> None:
    x = np.array([[-INF, 0], [0, -INF]], np.float32)
    (y,) = run(func(topi.nn.log_softmax, x), target, x)
    np.testing.assert_array_equal(y, x)

    def plain(v: Any) -> Any:
        return topi.log(topi.sum(topi.exp(v), axis=-1))

    x = np.array([[INF, 2, 3], [-INF] * 3, [-INF, -INF, 0]], np.float32)
    np.testing.assert_array_equal(run(func(plain, x), target, x)[0], [INF, -INF, 0])


@BOTH
@pytest.mark.parametrize("numerics", ["plain", "fast"])
@fault(
    "B24",
    "mlx#4274",
    "NaN in argmax",
    "which index a row with NaN gives is not promised, as in B20; it is in range, and other rows are "
    "untouched",
    "our decision",
)
def test_nan_in_argmax_stays_in_range(numerics: str, target: str) -> None:
    for dtype, n in (("float32", 4), ("float16", 5000)):
        x = np.random.default_rng(0).standard_normal((5, n))
        x[0, 1], x[1, 0], x[2, n - 1], x[3] = NAN, NAN, NAN, NAN
        x = narrow(x, dtype)
        (y,) = run(func(lambda v: topi.argmax(v, -1), x), target, x, numerics=numerics)
        assert ((y >= 0) & (y < n)).all()
        assert y[4] == x[4].argmax()


@BOTH
@fault(
    "B25",
    "tinygrad PR 3600",
    "fused producer computed twice",
    "one pass computes the producer once and keeps value and index as a pair; the index is that of "
    "the values compared",
)
def test_argmax_of_a_fused_producer(target: str) -> None:
    x = np.full((1, 1000), -5, np.float32)
    x[0, :4] = [4, 3, 2, 1]
    for build in (lambda v: topi.argmax(topi.exp(v), -1), lambda v: topi.argmax(softmax(v), -1)):
        np.testing.assert_array_equal(run(func(build, x), target, x)[0], [0])
    argmax_of_stored((3, 700), target)


@pytest.mark.slow
@BOTH
@fault(
    "B25", "tinygrad PR 3600", "fused producer computed twice", "as above, at the vocabulary's 50257 columns"
)
def test_argmax_of_a_fused_producer_over_a_vocabulary(target: str) -> None:
    argmax_of_stored((8, 50257), target)


def argmax_of_stored(shape: tuple[int, int], target: str) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float16)

    def both(v: Any) -> Any:
        y = softmax(v)
        return [y, topi.argmax(y, -1)]

    y, at = run(func(both, x), target, x)
    np.testing.assert_array_equal(y[np.arange(len(y)), at], y.max(-1))


@BOTH
@fault(
    "B27",
    "kulinseth/pytorch PR 193",
    "argmax of infinities",
    "the start is (largest index, −inf) and equals are decided by the lower index, so the first "
    "infinity is taken",
)
def test_argmax_of_infinities(target: str) -> None:
    from tvm import relax

    from tests.functions import legalized

    for n in (8, 4097):
        x = np.array([[-INF] * n, [INF] * n], np.float32)
        for name in ("argmax", "argmin"):
            np.testing.assert_array_equal(
                run(func(lambda v, f=name: getattr(topi, f)(v, -1), x), target, x)[0], [0, 0]
            )
    wide_index = legalized(lambda _, v: relax.op.argmax(v, -1), (x.shape, "float32"))
    (y,) = run(wide_index, target, x)
    assert y.dtype == np.int64
    np.testing.assert_array_equal(y, [0, 0])


@BOTH
@fault(
    "B53",
    "tvm#19691",
    "optional affine",
    "what is absent is absent from the PrimFunc, and nothing is put in its place",
)
def test_absent_weights_equal_ones_and_zeros(target: str) -> None:
    for dtype in ("float16", "float32"):
        x = narrow(np.random.default_rng(3).standard_normal((6, 8)), dtype)
        g, b = np.ones(8, x.dtype), np.zeros(8, x.dtype)
        (want,) = run(func(layer_norm(1e-5), x, g, b), target, x, g, b)
        for weight, bias in ((False, False), (True, False), (False, True)):
            given = [v for v, there in ((g, weight), (b, bias)) if there]
            (y,) = run(func(layer_norm(1e-5, weight, bias), x, *given), target, x, *given)
            np.testing.assert_array_equal(y, want)
        (want,) = run(func(rms_norm(1e-5), x, g), target, x, g)
        np.testing.assert_array_equal(run(func(rms_norm(1e-5, False), x), target, x)[0], want)


@BOTH
@fault(
    "B56",
    "tvm#13796",
    "integer accumulator",
    "integer sums keep the PrimFunc's dtype, wrap-around included; a wider sum is written as a Cast",
    "our decision",
)
def test_integer_sums(target: str) -> None:
    x = np.full((2, 300), 100, np.int8)
    np.testing.assert_array_equal(run(func(wide_sum, x), target, x)[0], [48, 48])

    def cast_first(v: Any) -> Any:
        return topi.sum(te.compute(v.shape, lambda i, j: v[i, j].astype("int32"), name="wide"), -1)

    np.testing.assert_array_equal(run(func(cast_first, x), target, x)[0], [30000, 30000])
    ones = np.ones((2, 300), bool)
    np.testing.assert_array_equal(run(func(cast_first, ones), target, ones)[0], [300, 300])

    def mean(v: Any) -> Any:
        total = cast_first(v)
        return te.compute(total.shape, lambda i: tirx.floordiv(total[i], 3).astype("int8"), name="mean")

    x = np.full((1, 3), 127, np.int8)
    np.testing.assert_array_equal(run(func(mean, x), target, x)[0], [127])


_ = (faults, ml_dtypes)
