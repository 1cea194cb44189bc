"""Public faults in shapes: short and long rows, tails, many rows, odd thread counts, broadcast inputs,
several outputs.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx, topi

import tirx_reduce as tr
from tests.faults import (
    add_layer_norm,
    add_rms_norm,
    f32,
    fault,
    func,
    layer_norm,
    np_layer_norm,
    np_rms_norm,
    np_softmax,
    rms_norm,
    softmax,
)
from tests.launch import TARGETS, Kernel, check, narrow, run, wide
from tirx_reduce.values import Candidate

BOTH = pytest.mark.parametrize("target", TARGETS)


def arg_max(v: Any) -> Any:
    return topi.argmax(v, -1)


def row_max(v: Any) -> Any:
    return topi.max(v, -1)


def row_sum(v: Any) -> Any:
    return topi.sum(v, -1)


def drawn(seed: int, *shape: int, dtype: str = "float32") -> Any:
    return narrow(np.random.default_rng(seed).standard_normal(shape), dtype)


def one_column(rows: int, target: str) -> None:
    x = drawn(1, rows, 1)
    g, b = np.full(1, 2, np.float32), np.full(1, 0.5, np.float32)
    np.testing.assert_array_equal(run(func(softmax, x), target, x)[0], 1)
    np.testing.assert_array_equal(run(func(topi.nn.log_softmax, x), target, x)[0], 0)
    np.testing.assert_array_equal(run(func(layer_norm(1e-5), x, g, b), target, x, g, b)[0], 0.5)
    (y,) = run(func(rms_norm(1e-5), x, g), target, x, g)
    np.testing.assert_allclose(wide(y), 2 * wide(x) / np.sqrt(wide(x) ** 2 + 1e-5), rtol=1e-5)
    np.testing.assert_array_equal(run(func(arg_max, x), target, x)[0], 0)
    x[0] = -np.inf
    assert np.isnan(run(func(softmax, x), target, x)[0][0]).all()


@BOTH
@fault("B28", "pytorch#38922", "N = 1", "a row of one column is a row: the same emission, no special path")
def test_rows_of_one_column(target: str) -> None:
    one_column(5, target)


@pytest.mark.slow
@BOTH
@fault("B28", "pytorch#38922", "N = 1", "as above, at 1000 and 36001 rows")
def test_many_rows_of_one_column(target: str) -> None:
    one_column(1000, target)
    x = np.ones((36001, 1), np.float32)
    np.testing.assert_array_equal(run(func(arg_max, x), target, x)[0], 0)


@BOTH
@fault(
    "B29",
    "tvm#12274",
    "sub-warp width",
    "lanes without data hold the combiner's identity; programs narrower than a subgroup are packed "
    "into whole ones",
)
def test_maxima_of_negatives_in_short_rows(target: str) -> None:
    for n, c in ((2, (2, 16, 1)), (7, (8, 4, 2)), (23, (16, 2, 4)), (33, (32, 2, 1)), (47, (64, 1, 4))):
        x = -1 - np.abs(drawn(n, 9, n))
        candidate = Candidate(width=c[0], packing=c[1], vector=c[2])
        np.testing.assert_array_equal(run(func(row_max, x), target, x, candidate=candidate)[0], x.max(-1))
        np.testing.assert_array_equal(run(func(lambda v: topi.min(v, -1), -x), target, -x)[0], -x.max(-1))


@pytest.mark.slow
@BOTH
@fault("B29", "tvm#12274", "sub-warp width", "as above, 1024 rows of every prime length")
def test_maxima_of_negatives_in_1024_rows(target: str) -> None:
    for n in (2, 3, 5, 7, 11, 13, 17, 23, 31, 33, 47):
        x = -1 - np.abs(drawn(n, 1024, n))
        np.testing.assert_array_equal(run(func(row_max, x), target, x)[0], x.max(-1))


@BOTH
@fault(
    "B30",
    "tilelang#2542",
    "threads that are no power of two",
    "any multiple of the subgroup is folded over its slots, however many; other counts are refused "
    "before anything is emitted",
    "right or refused",
)
def test_sums_with_odd_thread_counts(target: str) -> None:
    x = np.arange(1, 49, dtype=np.float32)[None]
    for width in (96, 160, 224, 832):
        np.testing.assert_array_equal(
            run(func(row_sum, x), target, x, candidate=Candidate(width=width))[0], [1176]
        )
    for width in (24, 48):
        with pytest.raises(tr.Unsupported, match=f"width: {width} lanes; needs"):
            run(func(row_sum, x), target, x, candidate=Candidate(width=width))
    x = np.arange(96, dtype=np.float32).reshape(32, 3)
    np.testing.assert_array_equal(run(func(lambda v: topi.max(v, 0), x), target, x)[0], [93, 94, 95])


@BOTH
@fault(
    "B31",
    "tvm PR 15399",
    "several rows a block over several warps",
    "slots are a program's own, and every row's result is checked by itself",
)
def test_rows_of_different_size_in_one_group(target: str) -> None:
    for m in (1, 3, 9):
        x = (drawn(1, m, 1024) * 10.0 ** np.arange(m)[:, None]).astype(np.float32)
        for c in (Candidate(width=64, packing=4, vector=4), Candidate(width=96, packing=2, vector=1)):
            (y,) = run(func(row_sum, x), target, x, candidate=c)
            np.testing.assert_allclose(
                y, wide(x).sum(-1), rtol=1e-5, atol=1e-5 * float(np.abs(wide(x)).sum(-1).max())
            )
            for got, row in zip(y, wide(x), strict=True):
                assert abs(got - row.sum()) <= 1e-5 * np.abs(row).sum()


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("n", [100001, 131072, 262144])
@fault("B33", "xformers#785", "N above the block", "as below, up to 262144 columns")
def test_very_long_rows(n: int, target: str) -> None:
    long_row(n, target)


@BOTH
@fault(
    "B33",
    "xformers#785",
    "N above the block",
    "a lane walks the row in rounds; no reuse family bounds the columns, and what would not fit is refused",
)
def test_long_rows(target: str) -> None:
    long_row(65537, target)


def long_row(n: int, target: str) -> None:
    x = np.zeros((1, n), np.float32)
    x[0, -1] = 20 if n == 262144 else 10
    (y,) = run(func(softmax, x), target, x)
    np.testing.assert_allclose(wide(y), np_softmax(wide(x)), rtol=2e-5)
    if n == 131072:
        np.testing.assert_allclose(y[0, [0, -1]], [6.53178676e-6, 0.143872178], rtol=2e-5)
    if n == 262144:
        np.testing.assert_allclose(y[0, [0, -1]], [2.06004055e-9, 0.999459975], rtol=2e-5)
    x[0, -1] = 1e3
    (y,) = run(func(layer_norm(1e-5, False, False), x), target, x)
    check(y, np_layer_norm(wide(x), 1e-5), columns=n)


def spikes(m: int, target: str) -> None:
    x = np.zeros((m, 5), np.float32)
    x[np.arange(m), np.arange(m) * 3 % 5] = 1
    np.testing.assert_array_equal(run(func(arg_max, x), target, x)[0], np.arange(m) * 3 % 5)


@BOTH
@fault(
    "B34",
    "ggml PR 1019",
    "rows above the thread limit",
    "rows are groups of the grid, never threads of one group",
)
def test_more_rows_than_threads(target: str) -> None:
    spikes(1, target)
    spikes(1025, target)


@pytest.mark.slow
@BOTH
@fault("B34", "ggml PR 1019", "rows above the thread limit", "as above, 1023, 1024 and 70000 rows")
def test_far_more_rows_than_threads(target: str) -> None:
    for m in (1023, 1024, 70000):
        spikes(m, target)


@BOTH
@fault(
    "B35",
    "pytorch PR 150566",
    "64-bit values on Metal",
    "64-bit values are shuffled as two halves on Metal; all lanes of a subgroup reach every shuffle",
)
def test_int64_values(target: str) -> None:
    for n in (1, 5, 33, 100):
        x = 2**33 + np.arange(3 * n, dtype=np.int64).reshape(3, n)
        kernel = Kernel(func(row_sum, x), target)
        np.testing.assert_array_equal(kernel.run(x)[0], x.sum(-1))
        np.testing.assert_array_equal(run(func(arg_max, x), target, x)[0], n - 1)
        if target == "metal":
            assert not re.search(r"simd_shuffle_xor\(\(?\(?(long|ulong)", kernel.source)


TAILS = [
    (769, "float16"),
    (3, "bfloat16"),
    (513, "bfloat16"),
    (1025, "float16"),
    (4097, "float16"),
    (1, "float16"),
]


@BOTH
@pytest.mark.parametrize(
    ("n", "dtype"), TAILS[:2] + [pytest.param(*t, marks=pytest.mark.slow) for t in TAILS[2:]]
)
@fault(
    "B36",
    "ROCm/aiter#5044",
    "vector tail",
    "a packet that is not wholly inside the row is accessed element by element; the CPU model checks "
    "every access against its tensor",
)
def test_odd_row_lengths(n: int, dtype: str, target: str) -> None:
    x = narrow(np.random.default_rng(n).standard_normal((7, n)) * np.arange(1, 8)[:, None], dtype)
    for build, want in (
        (softmax, np_softmax(wide(x))),
        (rms_norm(1e-5, False), np_rms_norm(wide(x), 1e-5)),
        (layer_norm(1e-5, False, False), np_layer_norm(wide(x), 1e-5)),
    ):
        kernel = Kernel(func(build, x), target)
        (y,) = kernel.run(x, orders=("forward", "reverse", "random"))
        check(y, want, columns=n)
        (again,) = kernel.run(x, orders=("random",))
        np.testing.assert_array_equal(y.view(np.uint16), again.view(np.uint16))


SCRATCH = [(3584, 1), (1200, 3), (2880, 1), (5120, 2), (18432, 1), (3584, 19)]


@BOTH
@pytest.mark.parametrize(
    ("n", "m"), SCRATCH[:2] + [pytest.param(*t, marks=pytest.mark.slow) for t in SCRATCH[2:]]
)
@fault(
    "B37",
    "flashinfer#634",
    "misaligned scratch",
    "vector accesses are proved aligned, in threadgroup memory too; the CPU model refuses one that is not",
)
def test_widths_whose_scratch_was_misaligned(n: int, m: int, target: str) -> None:
    x, r = drawn(1, m, n, dtype="float16"), drawn(2, m, n, dtype="float16")
    g, b = drawn(3, n, dtype="float16"), drawn(4, n, dtype="float16")
    total = (wide(x) + wide(r)).astype(np.float16)
    for reuse in ("shared", "reload"):
        if n * 2 > 32768 and reuse == "shared":
            continue
        c = Candidate(width=96, vector=4, reuse=reuse)
        got, y = run(func(add_rms_norm(1e-5), x, r, g), target, x, r, g, candidate=c)
        np.testing.assert_array_equal(got, total)
        check(y, np_rms_norm(wide(total), 1e-5) * wide(g), columns=n)
    got, y = run(func(add_layer_norm(1e-5), x, r, g, b), target, x, r, g, b)
    np.testing.assert_array_equal(got, total)
    check(y, np_layer_norm(wide(total), 1e-5) * wide(g) + wide(b), columns=n, casts=1)


@BOTH
@fault(
    "B42",
    "apex#411",
    "grid limit",
    "rows go along blockIdx.x alone (2^31 − 1 groups on CUDA); no second grid axis is used",
)
def test_rows_lie_along_one_grid_axis(target: str) -> None:
    for shape in ((65537, 33), (1048577, 8)):
        x = te.placeholder(shape, "float32", name="x")
        text = tr.lower(
            f := te.create_prim_func([x, layer_norm(1e-5, False, False)(x)]), tr.plan(f, target)
        ).script()
        assert "blockIdx.y" not in text
        assert "blockIdx.z" not in text


@pytest.mark.slow
@BOTH
@fault("B42", "apex#411", "grid limit", "as above, run at 65535, 65536 and 65537 rows and with batch dims")
def test_more_rows_than_a_short_counts(target: str) -> None:
    for m, n in ((65535, 16), (65536, 16), (65537, 33), (100800, 1)):
        x = ((13 * np.arange(m)[:, None] + 7 * np.arange(n)) % 17 - 8).astype(np.float32)
        (y,) = run(
            func(rms_norm(1e-5, False), x), target, x, candidate=Candidate(width=8, packing=64, vector=1)
        )
        check(y, np_rms_norm(wide(x), 1e-5))


@BOTH
@fault(
    "B44",
    "onnxruntime#32299",
    "2^31 elements",
    "offsets are 64-bit as soon as a tensor holds 2^31 − 2^16 elements; the run itself needs 8.6 GB "
    "and a GPU, a smaller view of the same text runs here",
)
def test_offsets_beyond_int32(target: str) -> None:
    big, small = ((2**21 + 8, 1024), "int64"), ((2**11 + 8, 1024), "int32")
    for shape, dtype in (big, small):
        x = te.placeholder(shape, "float16", name="x")
        f = te.create_prim_func([x, softmax(x)])
        text = tr.lower(f, tr.plan(f, target)).script()
        # The offset of a row is computed in that dtype from the row on, not widened afterwards.
        assert ('T.Cast("int64"' in text) == (dtype == "int64")
    x = (((7 * np.arange(40)[:, None] + np.arange(1024)) % 13) / 4).astype(np.float16)
    check(run(func(softmax, x), target, x)[0], np_softmax(wide(x)), columns=1024)


@BOTH
@fault(
    "B49",
    "tvm#18002",
    "rank 1, rank 0",
    "no rows at all is one row; a scalar has no reduced axis and is left to TVM",
    "right or refused",
)
def test_all_axes_reduced(target: str) -> None:
    x = np.arange(5, dtype=np.float32)

    # TOPI itself ends the process where its weight is None.
    g = np.ones(5, np.float32)
    (y,) = run(func(lambda v, w: topi.nn.layer_norm(v, w, None, [0], 1e-5), x, g), target, x, g)
    np.testing.assert_allclose(y, [-1.41421, -0.70711, 0, 0.70711, 1.41421], atol=1e-4)
    assert run(func(lambda v: topi.max(v, 0), x), target, x)[0] == 4
    scalar = te.placeholder((), "float32", name="x")
    f = te.create_prim_func([scalar, te.compute((), lambda: scalar() + 1.0, name="y")])
    with pytest.raises(tr.Unsupported, match="needs at least one reduced iterator"):
        tr.plan(f, target)


@BOTH
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@fault(
    "B50",
    "tvm#19517",
    "axis that is not last",
    "the index of every access is read as a polynomial over rows and columns; whichever axis is "
    "reduced, rows are what is left",
)
def test_sum_over_each_axis(axis: int, target: str) -> None:
    shape = (2, 3, 4, 8)
    x = drawn(axis, *shape)
    for a in (axis, axis - 4):
        (y,) = run(func(lambda v, a=a: topi.sum(v, a), x), target, x)
        np.testing.assert_allclose(y, wide(x).sum(axis), atol=1e-5)


@BOTH
@fault("B50", "tvm#19517", "axis that is not last", "as above for softmax, and for two axes as one row")
def test_softmax_over_an_outer_axis(target: str) -> None:
    for shape, axis in (((64, 2), 0), ((2, 3, 4), 1)):
        x = drawn(1, *shape)
        (y,) = run(func(lambda v, a=axis: topi.nn.softmax(v, a), x), target, x)
        want = np.moveaxis(np_softmax(np.moveaxis(wide(x), axis, -1)), -1, axis)
        np.testing.assert_allclose(y, want, rtol=2e-5, atol=1e-6)
    x = drawn(2, 2, 3, 4)
    (y,) = run(func(lambda v: topi.max(v, [1, 2]), x), target, x)
    np.testing.assert_array_equal(y, x.max((1, 2)))


@BOTH
@pytest.mark.parametrize(
    ("x_dtype", "g_dtype"), [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float16")]
)
@fault("B51", "pytorch#190054", "mixed dtypes", "each tensor is read in its own dtype and widened")
def test_weights_of_another_dtype(x_dtype: str, g_dtype: str, target: str) -> None:
    x, g, b = drawn(1, 4, 8, dtype=x_dtype), drawn(2, 8, dtype=g_dtype), drawn(3, 8, dtype=g_dtype)
    (y,) = run(func(layer_norm(1e-5), x, g, b), target, x, g, b)
    check(y, np_layer_norm(wide(x), 1e-5) * wide(g) + wide(b), casts=1)


@BOTH
@fault(
    "B52",
    "onnxruntime PR 28971",
    "weight broadcast",
    "a weight is read at the index that the PrimFunc gives it, rows included",
)
def test_weights_of_each_group(target: str) -> None:
    x = drawn(1, 3, 4, 60, dtype="float16")
    for shape in ((4, 60), (60,), (1,)):
        g = drawn(2, *shape, dtype="float16")

        def build(v: Any, w: Any) -> Any:
            k = te.reduce_axis((0, 60), "k")
            square = te.compute(
                (3, 4), lambda i, j: te.sum(f32(v, i, j, k) * f32(v, i, j, k), axis=k), name="square"
            )

            def weight(*i: Any) -> Any:
                index = i[3 - len(w.shape) :] if int(w.shape[-1]) != 1 else (0,)
                return f32(w, *index)

            def out(*i: Any) -> Any:
                return (f32(v, *i) * tirx.rsqrt(square[i[:2]] / 60.0 + 1e-5) * weight(*i)).astype("float16")

            return te.compute((3, 4, 60), out, name="out")

        (y,) = run(func(build, x, g), target, x, g)
        check(y, np_rms_norm(wide(x), 1e-5) * wide(g), columns=60)


@BOTH
@fault(
    "B54",
    "Paddle PR 79050",
    "several outputs",
    "every output is its own expression and dtype; a row's values have the shape that the PrimFunc "
    "gives them",
)
def test_statistics_beside_the_result(target: str) -> None:
    x = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float16)

    def build(v: Any) -> Any:
        k, j = te.reduce_axis((0, 4), "k"), te.reduce_axis((0, 4), "j")
        total = te.compute((2,), lambda i: te.sum(f32(v, i, k), axis=k), name="total")
        mean = te.compute((2,), lambda i: total[i] / 4.0, name="mean")
        square = te.compute(
            (2,), lambda i: te.sum((f32(v, i, j) - mean[i]) * (f32(v, i, j) - mean[i]), axis=j), name="sq"
        )
        rstd = te.compute((2, 1), lambda i, _: tirx.rsqrt(square[i] / 4.0 + 1e-5), name="rstd")
        y = te.compute(
            (2, 4), lambda i, c: ((f32(v, i, c) - mean[i]) * rstd[i, 0]).astype("float16"), name="y"
        )
        return [y, mean, rstd]

    y, mean, rstd = run(func(build, x), target, x)
    assert (mean.dtype, mean.shape, rstd.dtype, rstd.shape) == (np.float32, (2,), np.float32, (2, 1))
    np.testing.assert_array_equal(mean, 2.5)
    np.testing.assert_allclose(rstd, 0.89442361, rtol=1e-5)
    check(y, np_layer_norm(wide(x), 1e-5))


@BOTH
@pytest.mark.parametrize("mask_shape", [(32, 1, 3, 32), (1, 1, 3, 32), (32, 4, 1, 32)])
@fault(
    "B55",
    "llama.cpp#10683",
    "mask broadcast",
    "the mask's index is read from the PrimFunc, not from its rank",
)
def test_masks_of_every_broadcast(mask_shape: tuple[int, ...], target: str) -> None:
    shape = (32, 4, 3, 32)
    x = drawn(1, *shape)
    mask = np.zeros(mask_shape, np.float32)
    mask[..., ::2] = -np.arange(mask_shape[0])[:, None, None, None]

    def build(v: Any, m: Any) -> Any:
        def at(*i: Any) -> Any:
            return m[tuple(0 if int(n) == 1 else j for n, j in zip(m.shape, i, strict=True))]

        return topi.nn.softmax(te.compute(v.shape, lambda *i: v[i] + at(*i), name="masked"), -1)

    (y,) = run(func(build, x, mask), target, x, mask)
    check(y, np_softmax(wide(x) + wide(mask)), columns=32)


@BOTH
@fault(
    "B64",
    "tvm#20061",
    "nested reductions",
    "a mean of means over one row space is one reduction; reductions of a row that depend on each "
    "other are further passes",
)
def test_nested_reductions(target: str) -> None:
    from tests.zoo_reductions import _b64

    x = narrow(0.1 + 0.9 * np.random.default_rng(0).random((6, 6)), "float32")
    (y,) = run(func(_b64, x), target, x)
    np.testing.assert_allclose(y, (1 / (1 + np.exp(-1 / np.sqrt(wide(x))))).mean(), rtol=1e-5)
    (y,) = run(func(lambda v: softmax(softmax(v)), x), target, x)
    check(y, np_softmax(np_softmax(wide(x))))
    twice = layer_norm(1e-5, False, False)
    (y,) = run(func(lambda v: twice(twice(v)), x), target, x)
    check(y, np_layer_norm(np_layer_norm(wide(x), 1e-5), 1e-5), looser=2)
