"""Forms that people write by hand, and what is proved of their accesses."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special
from tvm import te, tirx, topi
from tvm.script import tirx as T  # noqa: N812

from tests.functions import symbol, topi_func
from tests.interpret import by_order, run
from tirx_reduce import facts
from tirx_reduce.errors import Unsupported
from tirx_reduce.program import ColIndex, Const, Load, Op, walk
from tirx_reduce.values import REUSES, RowFacts

# mypy cannot read TVMScript.
# mypy: ignore-errors


def outputs(read: RowFacts, *inputs: Any, **symbols: int) -> list[Any]:
    found = run(read.program, by_order(read.program, inputs), symbols)
    return [found[t.param] for t in read.program.tensors if t.role == "out"]


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


@T.prim_func(s_tir=True)
def by_rows(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
    top = T.sblock_alloc_buffer((4,))
    total = T.sblock_alloc_buffer((4,))
    for i in range(4):
        for k in range(8):
            with T.sblock("top"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    top[vi] = T.float32("-inf")
                top[vi] = T.max(x[vi, vk], top[vi])
        for k in range(8):
            with T.sblock("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = T.exp(x[vi, vk] - top[vi]) + total[vi]
        for k in range(8):
            with T.sblock("out"):
                vi, vk = T.axis.remap("SS", [i, k])
                y[vi, vk] = T.exp(x[vi, vk] - top[vi]) / total[vi]


def test_blocks_that_share_the_row_loop() -> None:
    x = normal(4, 8)
    (y,) = outputs(facts.analyze(by_rows), x)
    np.testing.assert_allclose(y, special.softmax(x.astype(np.float64), -1), atol=1e-6)


@T.prim_func(s_tir=True)
def fused_loops(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i_k in range(32):
        with T.sblock("sum"):
            vi = T.axis.spatial(4, i_k // 8)
            vk = T.axis.reduce(8, i_k % 8)
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


def test_loops_that_were_fused() -> None:
    x = normal(4, 8)
    (y,) = outputs(facts.analyze(fused_loops), x)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(-1), atol=1e-6)


@T.prim_func(s_tir=True)
def apart(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("start"):
            vi = T.axis.spatial(4, i)
            y[vi] = T.float32(1)
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            y[vi] = y[vi] + x[vi, vk]


def test_initial_value_in_a_block_of_its_own() -> None:
    x = normal(4, 8)
    read = facts.analyze(apart)
    assert read.program.reductions[0].init == (Const(1.0, "float32"),)
    (y,) = outputs(read, x)
    np.testing.assert_allclose(y, 1 + x.astype(np.float64).sum(-1), atol=1e-6)


@T.prim_func(s_tir=True)
def floor_of_max(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("max"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(-50000)
            y[vi] = T.max(y[vi], x[vi, vk] * T.float32(1e6))


def test_initial_value_that_is_no_identity() -> None:
    x = normal(4, 8) - np.float32(10)
    read = facts.analyze(floor_of_max)
    assert read.program.reductions[0].init == (Const(-50000.0, "float32"),)
    (y,) = outputs(read, x)
    np.testing.assert_allclose(y, np.maximum(-50000, (x.astype(np.float64) * 1e6).max(-1)))


@T.prim_func(s_tir=True)
def scalars(x: T.Buffer((4, 8), "float32"), eps: T.float32, power: T.int32, y: T.Buffer((4, 8), "float32")):
    s = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float32(0)
            s[vi] = s[vi] + x[vi, vk] * x[vi, vk]
    for i, k in T.grid(4, 8):
        with T.sblock("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            y[vi, vk] = x[vi, vk] / T.sqrt(s[vi] + eps) * T.Cast("float32", power)


def test_scalar_parameters() -> None:
    x = normal(4, 8)
    (y,) = outputs(facts.analyze(scalars), x, 0.5, 3)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y, 3 * wide / np.sqrt((wide**2).sum(-1, keepdims=True) + 0.5), atol=1e-6)


@T.prim_func(s_tir=True)
def rounds(x: T.Buffer((4, 8), "float16"), y: T.Buffer((4, 8), "float16")):
    s = T.sblock_alloc_buffer((4,), "float16")
    t = T.sblock_alloc_buffer((4, 8), "float16")
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float16(0)
            s[vi] = s[vi] + x[vi, vk]
    for i, k in T.grid(4, 8):
        with T.sblock("kept_wide"):
            vi, vk = T.axis.remap("SS", [i, k])
            t[vi, vk] = x[vi, vk] * s[vi]
    for i, k in T.grid(4, 8):
        with T.sblock("rounded"):
            vi, vk = T.axis.remap("SS", [i, k])
            y[vi, vk] = T.Cast("float16", T.Cast("float32", t[vi, vk]) * T.float32(3)) + x[vi, vk]


def test_explicit_casts_round_and_buffers_do_not() -> None:
    x = normal(4, 8, dtype=np.float16)
    read = facts.analyze(rounds)
    assert read.accumulation == ("float32",)
    (y,) = outputs(read, x)
    wide = x.astype(np.float64)
    inner = (wide * wide.sum(-1, keepdims=True) * 3).astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(y, (inner + wide).astype(np.float16))
    casts = [e for e in walk(read.program.outputs[0].value) if isinstance(e, Op) and e.dtype == "float16"]
    assert len(casts) == 1


def test_every_operation_is_wide() -> None:
    func = topi_func(lambda x: topi.nn.softmax(x, -1), ((4, 8), "bfloat16"))
    read = facts.analyze(func)
    for expr in walk(
        read.program.outputs[0].value, *(e for r in read.program.reductions for e in r.elements)
    ):
        assert expr.dtype in ("float32", "int64") or isinstance(expr, Load)
    x = normal(4, 8).astype(ml_dtypes.bfloat16)
    (y,) = outputs(read, x)
    want = special.softmax(x.astype(np.float64), -1)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=2**-8)


def test_nested_means_are_one_reduction() -> None:
    for first, second in ((2, 1), (1, 1)):

        def build(x: Any, first: int = first, second: int = second) -> Any:
            mean = topi.sum(x, first) / tirx.const(float(x.shape[first].value), "float32")
            rest = [6, 8][2 - first]
            return topi.sum(mean, second) / tirx.const(float(rest), "float32")

        read = facts.analyze(topi_func(build, ((4, 6, 8), "float32")))
        assert (read.rows, read.columns, read.reductions, read.passes) == (4, 48, 1, 1)
        x = normal(4, 6, 8)
        (y,) = outputs(read, x)
        np.testing.assert_allclose(y, x.astype(np.float64).mean((1, 2)), atol=1e-6)


def test_max_of_maxima() -> None:
    read = facts.analyze(topi_func(lambda x: topi.max(topi.max(x, -1), -1), ((4, 6, 8), "float16")))
    assert (read.rows, read.columns, read.reductions) == (4, 48, 1)
    x = normal(4, 6, 8, dtype=np.float16)
    np.testing.assert_array_equal(outputs(read, x)[0], x.max((1, 2)))


def test_rows_of_a_table() -> None:
    """Embedding and RMSNorm in one: which row of the table, no analysis can tell."""

    def build(table: Any, ids: Any) -> Any:
        x = te.compute((5, 24), lambda i, k: table[ids[i], k], name="gathered")
        s = topi.sum(x * x, -1)
        return te.compute((5, 24), lambda i, k: x[i, k] * tirx.rsqrt(s[i] / 24.0 + 1e-5), name="out")

    read = facts.analyze(topi_func(build, ((9, 24), "float32"), ((5,), "int32")))
    table, ids = normal(9, 24), np.array([8, 0, 3, 3, 1], np.int32)
    (y,) = outputs(read, table, ids)
    x = table[ids].astype(np.float64)
    np.testing.assert_allclose(y, x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5), atol=1e-6)


def test_a_guarded_load_stays_in_bounds() -> None:
    def build(x: Any) -> Any:
        def padded(i: Any, k: Any) -> Any:
            return tirx.if_then_else(tirx.all(k >= 2, k < 8), x[i, k - 2], tirx.const(-1.0, "float32"))

        return topi.nn.softmax(te.compute((4, 10), padded, name="padded"), -1)

    read = facts.analyze(topi_func(build, ((4, 6), "float32")))
    x = normal(4, 6)
    (y,) = outputs(read, x)
    want = np.pad(x.astype(np.float64), ((0, 0), (2, 2)), constant_values=-1)
    np.testing.assert_allclose(y, special.softmax(want, -1), atol=1e-6)


def test_group_weights() -> None:
    def build(x: Any, g: Any) -> Any:
        s = topi.sum(x * x, -1)
        return te.compute((3, 4, 24), lambda i, j, k: x[i, j, k] * tirx.rsqrt(s[i, j]) * g[j, k], name="out")

    read = facts.analyze(topi_func(build, ((3, 4, 24), "float32"), ((4, 24), "float32")))
    x, g = normal(3, 4, 24), normal(4, 24)
    (y,) = outputs(read, x, g)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y, wide / np.sqrt((wide**2).sum(-1, keepdims=True)) * g, atol=1e-6)


def test_ties_keep_the_lowest_index() -> None:
    @T.prim_func(s_tir=True)
    def first_max(
        x: T.Buffer((4, 8), "float32"), at: T.Buffer((4,), "int32"), top: T.Buffer((4,), "float32")
    ):
        for i, k in T.grid(4, 8):
            with T.sblock("pair"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    at[vi] = 0
                    top[vi] = T.float32("-inf")
                better: T.let[T.bool] = x[vi, vk] > top[vi]
                new_at: T.let[T.int32] = T.Select(better, vk, at[vi])
                new_top: T.let[T.float32] = T.Select(better, x[vi, vk], top[vi])
                at[vi] = new_at
                top[vi] = new_top

    read = facts.analyze(first_max)
    assert [r.combiner for r in read.program.reductions] == ["argmax"]
    x = np.round(normal(4, 8))
    at, top = outputs(read, x)
    np.testing.assert_array_equal(at, x.argmax(-1))
    np.testing.assert_array_equal(top, x.max(-1))


@pytest.mark.parametrize(("dtype", "taken"), [("int32", True), ("int16", False)])
def test_an_index_may_be_widened_and_not_narrowed(dtype: str, taken: bool) -> None:
    @T.prim_func(s_tir=True)
    def first_max(x: T.Buffer((4, 8), "float32"), at: T.Buffer((4,), "int64")):
        top = T.sblock_alloc_buffer((4,), "float32")
        for i, k in T.grid(4, 8):
            with T.sblock("pair"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    at[vi] = T.int64(0)
                    top[vi] = T.float32("-inf")
                index: T.let[T.int64] = T.Cast("int64", T.Cast(dtype, vk))
                new_at: T.let[T.int64] = T.Select(x[vi, vk] > top[vi], index, at[vi])
                new_top: T.let[T.float32] = T.Select(x[vi, vk] > top[vi], x[vi, vk], top[vi])
                at[vi] = new_at
                top[vi] = new_top

    if not taken:
        with pytest.raises(
            Unsupported, match=r"block pair keeps the index cast.*; needs the index of the column"
        ):
            facts.analyze(first_max)
        return
    x = np.round(normal(4, 8))
    (at,) = outputs(facts.analyze(first_max), x)
    np.testing.assert_array_equal(at, x.argmax(-1))


@pytest.mark.parametrize(
    ("columns", "dtype", "align"),
    [(1536, "float16", 16), (1538, "float16", 2), (1537, "float32", 1), (24, "int8", 8)],
)
def test_dense_rows_and_their_alignment(columns: int, dtype: str, align: int) -> None:
    func = topi_func(lambda x: topi.max(x, -1), ((3, 5, columns), dtype))
    (load,) = {e for e in walk(*facts.analyze(func).program.reductions[0].elements) if isinstance(e, Load)}
    assert load.index.dense
    assert load.index.stride == 1
    assert load.index.align == align


def test_symbolic_columns_are_dense_but_not_aligned() -> None:
    n, m = symbol("n"), symbol("m")
    read = facts.analyze(topi_func(lambda x: topi.nn.softmax(x, -1), ((n, 3, m), "float32")))
    (output,) = read.program.outputs
    assert output.index.dense
    assert output.index.align == 1
    assert read.columns is None
    assert dict(read.payload_bytes) == dict.fromkeys(REUSES)


def test_symbolic_multiple_is_aligned() -> None:
    n, m = symbol("n"), symbol("m")
    read = facts.analyze(topi_func(lambda x: topi.nn.softmax(x, -1), ((n, m * 8), "float32")))
    assert read.program.outputs[0].index.align == 8


def test_a_reduced_axis_that_is_not_last() -> None:
    read = facts.analyze(topi_func(lambda x: topi.sum(x, 1), ((2, 24, 3), "float32")))
    (load,) = {e for e in walk(*read.program.reductions[0].elements) if isinstance(e, Load)}
    assert (load.index.dense, load.index.stride) == (False, 3)


def test_strides_and_offset_of_a_buffer() -> None:
    x = tirx.decl_buffer((4, 8), "float32", strides=[16, 1], elem_offset=4, name="x")
    func = _with_input(topi_func(lambda a: topi.sum(a, -1), ((4, 8), "float32")), x)
    memory = normal(4 * 16 + 4)
    read = facts.analyze(func)
    (y,) = outputs(read, memory)
    np.testing.assert_allclose(y, memory[4:].reshape(4, 16)[:, :8].astype(np.float64).sum(-1), atol=1e-6)


def _with_input(func: Any, buffer: Any) -> Any:
    import tvm_ffi

    old = func.params[0]
    body = tvm_ffi.structural_map(func.body, (tirx.Var, lambda v: buffer if v.same_as(old) else v))
    return tirx.PrimFunc([buffer, *func.params[1:]], body, None, func.attrs)


def test_a_flat_index_is_the_column() -> None:
    read = facts.analyze(topi_func(lambda x: topi.argmax(x, [1, 2]), ((3, 4, 6), "float32")))
    index = read.program.reductions[0].elements[0]
    assert index.args == (ColIndex(),)
    x = normal(3, 4, 6)
    np.testing.assert_array_equal(outputs(read, x)[0], x.reshape(3, -1).argmax(-1))


def test_infinity_and_nan_are_tested_by_name() -> None:
    def build(x: Any) -> Any:
        clean = te.compute(
            x.shape,
            lambda i, k: tirx.Select(tirx.isfinite(x[i, k]), x[i, k], tirx.const(0.0, "float32")),
            name="clean",
        )
        return topi.sum(clean, -1)

    read = facts.analyze(topi_func(build, ((4, 8), "float32")))
    names = {e.name for e in walk(*read.program.reductions[0].elements) if isinstance(e, Op)}
    assert "isfinite" in names
    assert not names & {"eq", "ne"}
    x = normal(4, 8)
    x[0, 0], x[1, 1], x[2, 2] = np.nan, np.inf, -np.inf
    np.testing.assert_allclose(outputs(read, x)[0], np.where(np.isfinite(x), x, 0).astype(np.float64).sum(-1))


@pytest.mark.parametrize("shape", [(0, 8), (4, 0)])
def test_empty_extents(shape: tuple[int, int]) -> None:
    read = facts.analyze(topi_func(lambda x: topi.nn.softmax(x, -1), (shape, "float32")))
    assert (read.rows, read.columns) == shape
    assert outputs(read, np.zeros(shape, np.float32))[0].shape == shape


def test_boolean_mask_and_temperature() -> None:
    def build(x: Any, mask: Any, temperature: Any) -> Any:
        def scaled(b: Any, h: Any, i: Any, j: Any) -> Any:
            value = x[b, h, i, j] / temperature()
            return tirx.if_then_else(mask[b, 0, 0, j], value, tirx.const(-np.inf, "float32"))

        return topi.nn.softmax(te.compute(x.shape, scaled, name="scaled"), -1)

    func = topi_func(build, ((2, 3, 4, 8), "float32"), ((2, 1, 1, 8), "bool"), ((), "float32"))
    read = facts.analyze(func)
    assert (read.rows, read.columns, read.passes) == (24, 8, 3)
    x, mask = normal(2, 3, 4, 8), np.arange(16).reshape(2, 1, 1, 8) % 3 > 0
    (y,) = outputs(read, x, mask, np.float32(0.7))
    want = np.where(mask, x.astype(np.float64) / np.float64(np.float32(0.7)), -np.inf)
    np.testing.assert_allclose(y, special.softmax(want, -1), atol=1e-6)


def test_norm_and_dynamic_float8() -> None:
    def build(x: Any, w: Any) -> Any:
        s = topi.sum(x * x, -1)
        y = te.compute(
            x.shape, lambda i, k: x[i, k] * tirx.rsqrt(s[i] / 24.0 + 1e-5) * (w[k] + 1.0), name="y"
        )
        scale = topi.max(topi.abs(y), -1) / tirx.const(448.0, "float32")
        q = te.compute(x.shape, lambda i, k: (y[i, k] / scale[i]).astype("float8_e4m3fn"), name="q")
        return [q, te.compute((5,), lambda i: scale[i], name="scale")]

    read = facts.analyze(topi_func(build, ((5, 24), "float32"), ((24,), "float32")))
    assert (read.passes, read.reductions, read.kept) == (3, 2, 1)
    assert read.storage == ("float32", "float8_e4m3fn")
    x, w = normal(5, 24), normal(24)
    q, scale = outputs(read, x, w)
    wide = x.astype(np.float64)
    y = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * (w.astype(np.float64) + 1)
    want = np.abs(y).max(-1) / 448
    np.testing.assert_allclose(scale, want, rtol=1e-6)
    np.testing.assert_array_equal(
        q.astype(np.float32), (y / want[:, None]).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    )


def test_rotary_after_norm() -> None:
    def build(x: Any, cos: Any, sin: Any) -> Any:
        s = topi.sum(x * x, -1)
        y = te.compute(x.shape, lambda i, k: x[i, k] * tirx.rsqrt(s[i] + 1e-5), name="y")

        def turned(i: Any, k: Any) -> Any:
            return y[i, k] * cos[k] + y[i, (k + 4) % 8] * sin[k]

        return te.compute(x.shape, turned, name="turned")

    read = facts.analyze(topi_func(build, ((5, 8), "float32"), ((8,), "float32"), ((8,), "float32")))
    x, cos, sin = normal(5, 8), normal(8), np.flip(normal(8))
    (got,) = outputs(read, x, cos, sin)
    y = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).sum(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, y * cos + np.roll(y, -4, -1) * sin, atol=1e-6)


def test_scalar_that_is_an_extent() -> None:
    """An extent that is passed as a parameter is a Scalar, not a Sym."""
    n = tirx.Var("n", "int32")
    x = tirx.decl_buffer((n, 8), "float32", name="x")
    template = topi_func(lambda a: topi.sum(a, -1), ((symbol("m", "int32"), 8), "float32"))
    import tvm_ffi

    old, out = template.params
    extent = old.ty.shape[0]
    y = tirx.decl_buffer((n,), "float32", name="y")
    names = {old: x, out: y, extent: n}
    body = tvm_ffi.structural_map(template.body, (tirx.Var, lambda v: names.get(v, v)))
    read = facts.read(tirx.PrimFunc([x, n, y], body, None, template.attrs))
    assert dict(read.symbols) == {}
    data = normal(3, 8)
    (got,) = outputs(read.facts, data, 3)
    np.testing.assert_allclose(got, data.astype(np.float64).sum(-1), atol=1e-6)


def test_symbols_of_one_name_are_told_apart() -> None:
    n, m = symbol("n"), symbol("n")
    read = facts.read(topi_func(lambda x: topi.nn.softmax(x, -1), ((n, m), "float32")))
    assert set(read.symbols) == {"n", "n_"}
    assert read.symbols["n"].same_as(n)
    assert read.symbols["n_"].same_as(m)


def test_extents_come_back_to_tvm() -> None:
    n, m = symbol("n"), symbol("m", "int32")
    x = topi_func(lambda x: topi.nn.softmax(x, -1), ((n, m.astype("int64") * 8 + 1, 4), "float32"))
    reading = facts.read(x)
    rows = [reading.extent(e) for e in reading.facts.program.rows]
    assert rows[0].same_as(n)
    assert str(rows[1]) == 'T.Cast("int64", m) * T.int64(8) + T.int64(1)'
    assert reading.extent(reading.facts.program.columns).value == 4


def test_axes_of_one_extent_in_any_order() -> None:
    """Five axes of one extent have 120 orders: the right one is read off the indices."""

    def build(x: Any) -> Any:
        return topi.transpose(topi.nn.softmax(x, -1), (4, 2, 0, 3, 1))

    x = normal(3, 3, 3, 3, 3)
    (y,) = outputs(facts.analyze(topi_func(build, ((3, 3, 3, 3, 3), "float32"))), x)
    want = special.softmax(x.astype(np.float64), -1).transpose(4, 2, 0, 3, 1)
    np.testing.assert_allclose(y, want, atol=1e-6)


def test_a_later_reduction_in_another_order_of_rows() -> None:
    def build(x: Any) -> Any:
        top = topi.max(x, -1)
        k = te.reduce_axis((0, 8))
        shape = (4, 4, 4)
        total = te.compute(
            shape, lambda c, a, b: te.sum(tirx.exp(x[a, b, c, k] - top[a, b, c]), k), name="total"
        )
        return te.compute(shape, lambda b, c, a: total[c, a, b], name="turned")

    x = normal(4, 4, 4, 8)
    (y,) = outputs(facts.analyze(topi_func(build, ((4, 4, 4, 8), "float32"))), x)
    wide = x.astype(np.float64)
    want = np.exp(wide - wide.max(-1, keepdims=True)).sum(-1)
    np.testing.assert_allclose(y, want.transpose(1, 2, 0), atol=1e-6)


def test_a_chain_that_doubles_is_read_in_linear_time() -> None:
    """Each value is used twice: 2^60 paths, 60 nodes."""

    def build(x: Any) -> Any:
        for _ in range(60):
            x = topi.add(x, x)
        return topi.sum(x, -1)

    read = facts.analyze(topi_func(build, ((4, 8), "float32")))
    assert len(set(walk(*read.program.reductions[0].elements))) < 70


@T.prim_func(s_tir=True)
def flat_buffers(x: T.Buffer((32,), "float32"), y: T.Buffer((32,), "float32")):
    e = T.sblock_alloc_buffer((32,))
    s = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 8):
        with T.sblock("e"):
            vi, vk = T.axis.remap("SS", [i, k])
            e[vi * 8 + vk] = T.exp(x[vi * 8 + vk])
    for i, k in T.grid(4, 8):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float32(0)
            s[vi] = s[vi] + e[vi * 8 + vk]
    for j in range(32):
        with T.sblock("out"):
            vj = T.axis.remap("S", [j])
            y[vj] = e[vj] / s[vj // 8]


@T.prim_func(s_tir=True)
def flat_and_symbolic(x: T.handle, y: T.handle, n: T.int64):
    m = T.int64()
    a = T.match_buffer(x, (m * n,), "float32")
    b = T.match_buffer(y, (m * n,), "float32")
    s = T.sblock_alloc_buffer((m,))
    for i, k in T.grid(m, n):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float32(0)
            s[vi] = s[vi] + a[vi * n + vk]
    for i, k in T.grid(m, n):
        with T.sblock("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            b[vi * n + vk] = a[vi * n + vk] / s[vi]


@T.prim_func(s_tir=True)
def split_rows(x: T.Buffer((2, 2, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi // 2, vi % 2, vk]


@T.prim_func(s_tir=True)
def split_columns(x: T.Buffer((4, 2, 2, 2), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, T.truncdiv(vk, 4), vk // 2 % 2, T.truncmod(vk, 2)]


@T.prim_func(s_tir=True)
def turned(x: T.Buffer((4, 8), "float32"), y: T.Buffer((32,), "float32")):
    s = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 8):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float32(0)
            s[vi] = s[vi] + x[vi, vk]
    for i, k in T.grid(4, 8):
        with T.sblock("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            y[vk * 4 + vi] = x[vi, vk] / s[vi]


def test_flat_buffers_are_rows_and_columns() -> None:
    x = np.abs(normal(4, 8)) + 1
    e = np.exp(x)
    found = facts.analyze(flat_buffers)
    (y,) = outputs(found, x.reshape(32))
    np.testing.assert_allclose(y, (e / e.sum(-1, keepdims=True)).reshape(32), rtol=1e-6)
    assert all(o.index.dense for o in found.program.outputs)
    found = facts.analyze(flat_and_symbolic)
    (y,) = outputs(found, x.reshape(32), 8, m=4)
    np.testing.assert_allclose(y, (x / x.sum(-1, keepdims=True)).reshape(32), rtol=1e-6)
    assert all(o.index.dense for o in found.program.outputs)
    (y,) = outputs(facts.analyze(turned), x)
    np.testing.assert_allclose(y, (x / x.sum(-1, keepdims=True)).T.reshape(32), rtol=1e-6)


@pytest.mark.parametrize(("func", "shape"), [(split_rows, (2, 2, 8)), (split_columns, (4, 2, 2, 2))])
def test_quotient_and_rest_are_one_index(func: Any, shape: tuple[int, ...]) -> None:
    """x // d and x % d beside one another read what x reads: dense rows, so packets are proved."""
    found = facts.analyze(func)
    x = normal(*shape)
    (y,) = outputs(found, x)
    np.testing.assert_allclose(y, x.reshape(4, 8).sum(-1), rtol=1e-5)
    loads = {e.index for r in found.program.reductions for e in walk(*r.elements) if isinstance(e, Load)}
    assert [i.dense for i in loads] == [True]
