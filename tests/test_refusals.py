"""Near misses are declined with what was seen and what is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax, s_tir, te, tirx, topi
from tvm.script import tirx as T  # noqa: N812

import tirx_reduce as tr
from tests.functions import legalized, symbol, topi_func
from tirx_reduce import facts
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError, Unsupported
from tirx_reduce.schedules import force
from tirx_reduce.values import Candidate

# mypy cannot read TVMScript.
# mypy: ignore-errors


def f32(*shape: Any) -> Any:
    return shape, "float32"


@T.prim_func(s_tir=True)
def in_place(x: T.Buffer((4, 8), "float32")):
    s = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float32(0)
            s[vi] = s[vi] + x[vi, vk]
    for i, k in T.grid(4, 8):
        with T.sblock("scale"):
            vi, vk = T.axis.remap("SS", [i, k])
            x[vi, vk] = x[vi, vk] / s[vi]


@T.prim_func(s_tir=True)
def written_twice(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]
    for i in range(4):
        with T.sblock("again"):
            vi = T.axis.spatial(4, i)
            y[vi] = T.float32(1)


@T.prim_func(s_tir=True)
def partly_written(x: T.Buffer((4, 8), "float32"), y: T.Buffer((5,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


@T.prim_func(s_tir=True)
def same_element(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((1,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]
    for i in range(4):
        with T.sblock("last"):
            vi = T.axis.spatial(4, i)
            z[0] = y[vi]


@T.prim_func(s_tir=True)
def other_row(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
    s = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float32(0)
            s[vi] = s[vi] + x[vi, vk]
    for i, k in T.grid(4, 8):
        with T.sblock("scale"):
            vi, vk = T.axis.remap("SS", [i, k])
            y[vi, vk] = x[vi, vk] / s[(vi + 1) % 4]


@T.prim_func(s_tir=True)
def welford(x: T.Buffer((4, 8), "float32"), mean: T.Buffer((4,), "float32"), m2: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("welford"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                mean[vi] = T.float32(0)
                m2[vi] = T.float32(0)
            d: T.let[T.float32] = x[vi, vk] - mean[vi]
            mean[vi] = mean[vi] + d / T.Cast("float32", vk + 1)
            m2[vi] = m2[vi] + d * d


@T.prim_func(s_tir=True)
def difference(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("alternate"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = x[vi, vk] - y[vi]


@T.prim_func(s_tir=True)
def no_init(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            y[vi] = y[vi] + x[vi, vk]


@T.prim_func(s_tir=True)
def predicated(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.where(k < 5)
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


@T.prim_func(s_tir=True)
def threads(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i in T.thread_binding(4, thread="blockIdx.x"):
        for k in range(8):
            with T.sblock("sum"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    y[vi] = T.float32(0)
                y[vi] = y[vi] + x[vi, vk]


@T.prim_func(s_tir=True)
def plain_loops(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        y[i] = x[i, 0]


@T.prim_func(s_tir=True)
def unknown_call(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + T.call_extern("float32", "mystery", x[vi, vk])


@T.prim_func(s_tir=True)
def two_spaces(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((8,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("by_row"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]
    for j, k in T.grid(8, 4):
        with T.sblock("by_column"):
            vj, vk = T.axis.remap("SR", [j, k])
            with T.init():
                z[vj] = T.float32(0)
            z[vj] = z[vj] + x[vk, vj]


@T.prim_func(s_tir=True)
def window(x: T.Buffer((11,), "float32"), y: T.Buffer((8,), "float32")):
    for i, k in T.grid(8, 4):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi + vk]


@T.prim_func(s_tir=True)
def cumsum(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
    for i, j, k in T.grid(4, 8, 8):
        with T.sblock("sum"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                y[vi, vj] = T.float32(0)
            y[vi, vj] = y[vi, vj] + T.Select(vk <= vj, x[vi, vk], T.float32(0))


@T.prim_func(s_tir=True)
def running(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
    s = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                s[vi] = T.float32(0)
            s[vi] = s[vi] + x[vi, vk]
        with T.sblock("out"):
            vi, vk = T.axis.remap("SS", [i, k])
            y[vi, vk] = s[vi]


@T.prim_func(s_tir=True)
def gaps(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    for i_k in range(32):
        with T.sblock("sum"):
            vi = T.axis.spatial(4, i_k // 8)
            vk = T.axis.reduce(8, i_k % 4)
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk]


@T.prim_func(s_tir=True)
def early(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32"), z: T.Buffer((4,), "float32")):
    s = T.sblock_alloc_buffer((4,))
    for i in range(4):
        with T.sblock("start"):
            vi = T.axis.spatial(4, i)
            s[vi] = T.float32(0)
    for i in range(4):
        with T.sblock("early"):
            vi = T.axis.spatial(4, i)
            z[vi] = s[vi]
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            s[vi] = s[vi] + x[vi, vk]
    for i in range(4):
        with T.sblock("copy"):
            vi = T.axis.spatial(4, i)
            y[vi] = s[vi]


@T.prim_func(s_tir=True)
def unwritten(x: T.Buffer((4, 8), "float32"), y: T.Buffer((4,), "float32")):
    s = T.sblock_alloc_buffer((4,))
    for i, k in T.grid(4, 8):
        with T.sblock("sum"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float32(0)
            y[vi] = y[vi] + x[vi, vk] * s[vi]


def nested_nonlinear() -> Any:
    def build(x: Any) -> Any:
        inner = topi.sum(x, -1)
        k = te.reduce_axis((0, 6))
        return te.compute((4,), lambda i: te.sum(inner[i, k] * inner[i, k], k), name="outer")

    return topi_func(build, f32(4, 6, 8))


@T.prim_func(s_tir=True)
def online(x: T.Buffer((4, 8), "float32"), m: T.Buffer((4,), "float32"), s: T.Buffer((4,), "float32")):
    for i, k in T.grid(4, 8):
        with T.sblock("online"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                m[vi] = T.float32("-inf")
                s[vi] = T.float32(0)
            m[vi] = T.max(m[vi], x[vi, vk])
            s[vi] = s[vi] + T.exp(x[vi, vk] - m[vi])


@T.prim_func(s_tir=True)
def stale(x: T.Buffer((4, 8), "float32"), top: T.Buffer((4,), "float32"), at: T.Buffer((4,), "int32")):
    for i, k in T.grid(4, 8):
        with T.sblock("stale"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                top[vi] = T.float32("-inf")
                at[vi] = 0
            top[vi] = T.max(top[vi], x[vi, vk])
            at[vi] = T.Select(x[vi, vk] > top[vi], vk, at[vi])


def argmax_last() -> Any:
    return topi_func(lambda x: topi.argmax(x, -1, select_last_index=True), f32(4, 8))


def float64_sum() -> Any:
    return topi_func(lambda x: topi.sum(x, -1), ((4, 8), "float64"))


def conv() -> Any:
    return legalized(lambda _, x, w: relax.op.nn.conv2d(x, w), f32(1, 4, 8, 8), f32(6, 4, 3, 3))


def depthwise() -> Any:
    return legalized(lambda _, x, w: relax.op.nn.conv2d(x, w, groups=4), f32(1, 4, 8, 8), f32(4, 1, 3, 3))


def pool() -> Any:
    return legalized(lambda _, x: relax.op.nn.max_pool2d(x, (3, 3), (1, 1)), f32(1, 4, 8, 8))


def pool_apart() -> Any:
    return legalized(lambda _, x: relax.op.nn.max_pool2d(x, (2, 2), (2, 2)), f32(1, 4, 8, 8))


def matmul() -> Any:
    return legalized(lambda _, a, b: relax.op.matmul(a, b), f32(4, 8), f32(8, 5))


def matmul_transposed() -> Any:
    def build(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, 8))
        return te.compute((4, 5), lambda i, j: te.sum(a[i, k] * b[j, k], k))

    return topi_func(build, f32(4, 8), f32(5, 8))


def matmul_batched() -> Any:
    return legalized(lambda _, a, b: relax.op.matmul(a, b), f32(2, 4, 8), f32(2, 8, 5))


def matvec_symbolic() -> Any:
    n = symbol("n")
    return legalized(lambda _, a, b: relax.op.matmul(a, b), f32(n, 8), f32(8, 5))


def matvec() -> Any:
    return legalized(lambda _, a, b: relax.op.matmul(a, b), ((4, 8), "float16"), ((8,), "float16"))


def one_row_matmul() -> Any:
    return legalized(lambda _, a, b: relax.op.matmul(a, b), f32(1, 8), f32(8, 5))


def matvec_wide() -> Any:
    """Products in float32 of float16 tensors."""
    return legalized(
        lambda _, a, b: relax.op.matmul(a, b, out_dtype="float32"), ((1, 8), "float16"), ((8, 5), "float16")
    )


def elementwise() -> Any:
    return topi_func(lambda x: topi.exp(x), f32(4, 8))


def strided() -> Any:
    n = symbol("n")
    x = tirx.decl_buffer((4, 8), "float32", strides=[n, 1], name="x")
    return _rowsum(x)


def offset() -> Any:
    n = symbol("n")
    x = tirx.decl_buffer((4, 8), "float32", elem_offset=n, name="x")
    return _rowsum(x)


def in_texture() -> Any:
    return _rowsum(tirx.decl_buffer((4, 8), "float32", scope="global.texture", name="x"))


def tiled() -> Any:
    from tvm.tirx.layout import S, TileLayout

    return _rowsum(tirx.decl_buffer((4, 8), "float32", name="x", layout=TileLayout(S[(4, 8) : (1, 4)])))


def deep() -> Any:
    def build(x: Any) -> Any:
        for _ in range(400):
            x = topi.exp(x)
        return topi.sum(x, -1)

    return topi_func(build, f32(4, 8))


def _rowsum(x: Any) -> Any:
    template = topi_func(lambda a: topi.sum(a, -1), f32(4, 8))
    import tvm_ffi

    old = template.params[0]
    body = tvm_ffi.structural_map(template.body, (tirx.Var, lambda v: x if v.same_as(old) else v))
    return tirx.PrimFunc([x, template.params[1]], body, None, template.attrs)


REFUSALS: tuple[tuple[Callable[[], Any] | Any, str], ...] = (
    (in_place, "block scale reads x before it is written (in place); needs outputs apart from inputs"),
    (written_twice, "y is written by more than one block; needs each tensor written once"),
    (partly_written, "block sum writes y[vi] for 4 of 5 elements; needs all of them written"),
    (same_element, "block last writes z[0] many times; needs every element written once"),
    (other_row, "s is read at another row"),
    (welford, "block welford"),
    (difference, "block alternate combines in a way that is not recognised (sub(load, acc)); needs a sum"),
    (no_init, "block sum reduces without an initial value; needs T.init()"),
    (predicated, "block sum runs under a predicate; needs every iteration to run"),
    (threads, "loop i bound to threads or vectorised; needs unscheduled loops"),
    (plain_loops, "a BufferStore outside the blocks; needs only loops and S/R blocks"),
    (unknown_call, "a call of tirx.call_extern; needs arithmetic that a row program has"),
    (
        two_spaces,
        "block by_column reduces 8 rows of 4 columns beside 4 rows of 8 columns; needs one row space",
    ),
    (window, "a reduction in which no input (x) has an element for each row and column, as in a matmul"),
    (online, "block online combines in a way that is not recognised"),
    (stale, "block stale combines in a way that is not recognised"),
    (argmax_last, "combines in a way that is not recognised"),
    (float64_sum, "dtype float64; needs floats of at most 32 bits, integers or bool"),
    (conv, "a reduction in which no input"),
    (depthwise, "a reduction in which no input"),
    (pool, "a reduction in which no input"),
    (pool_apart, "a reduction in which no input"),
    (cumsum, "a reduction in which no input (x) has an element for each row and column"),
    (running, "block out reads s[vi] inside a loop that fills it (i, k); needs it complete"),
    (gaps, "block sum binds vi to i_k // 8, vk to i_k % 4; needs loops that run through all its iterations"),
    (early, "block early reads s between two writes; needs it complete"),
    (unwritten, "s is read but never written; needs values to be computed first"),
    (nested_nonlinear, "block outer reduces"),
    (matmul, "a reduction in which no input (a0, a1) has an element for each row and column, as in a matmul"),
    (matmul_transposed, "a reduction in which no input (a0, a1) has an element for each row and column"),
    (matmul_batched, "a reduction in which no input (a0, a1) has an element for each row and column"),
    (matvec_symbolic, "a reduction in which no input (a0, a1) has an element for each row and column"),
    (
        matvec,
        "a sum of products with a1, which has no element for each row and column, as in a matrix-vector",
    ),
    (one_row_matmul, "a sum of products with a0, which has no element for each row and column"),
    (matvec_wide, "a sum of products with a0, which has no element for each row and column"),
    (elementwise, "a function without a reduction; needs at least one reduced iterator"),
    (in_texture, "x in scope global.texture; needs tensors in global memory"),
    (tiled, "x with a layout of its own; needs a row-major tensor"),
    (deep, "an expression nested too deeply; needs a depth of a few hundred at most"),
    (strided, "x has symbolic strides; needs fixed strides or a compact tensor"),
    (offset, "x starts at the symbolic offset n; needs a fixed one"),
)


@pytest.mark.parametrize(("made", "text"), REFUSALS, ids=[getattr(m, "__name__", "?") for m, _ in REFUSALS])
def test_refused(made: Any, text: str) -> None:
    func = made if isinstance(made, tirx.PrimFunc) else made()
    before = str(func)
    with pytest.raises(Unsupported, match=re.escape(text)) as caught:
        facts.analyze(func)
    assert "; needs " in str(caught.value)
    assert str(func) == before


def test_scheduled_is_left_alone() -> None:
    func = topi_func(lambda x: topi.sum(x, -1), f32(4, 8)).with_attr("tirx.is_scheduled", True)
    with pytest.raises(Unsupported, match=r"marked tirx\.is_scheduled"):
        facts.analyze(func)


def test_not_a_primfunc() -> None:
    with pytest.raises(Unsupported, match=r"^func is of type str; needs a PrimFunc$"):
        facts.analyze("softmax")
    mod = tvm.IRModule({"main": get_workload("softmax").func((4, 8))})
    with pytest.raises(
        Unsupported, match=r"^func is of type IRModule; needs a PrimFunc, such as mod\['main'\]$"
    ):
        tr.plan(mod, "cuda")


def columns_from(start: int, element: Callable[[Any, Any], Any]) -> tirx.PrimFunc:
    """Sums of 65 elements of rows of 64, each made by `element(row, column)`."""

    def sums(x: Any) -> Any:
        k = te.reduce_axis((0, 65), "k")
        return te.compute((64,), lambda i: te.sum(element(lambda at: x[i, at], k + start), axis=k))

    return topi_func(sums, f32(64, 64))


@pytest.mark.parametrize(("start", "seen"), [(0, "0 to 64"), (-1, "-1 to 63"), (1, "1 to 65")])
def test_an_index_that_leaves_its_tensor(start: int, seen: str) -> None:
    text = rf"^a0 is accessed from {seen} along an axis of 64; needs indices within it, or a condition around"
    with pytest.raises(Unsupported, match=text):
        facts.analyze(columns_from(start, lambda row, at: row(at)))


@pytest.mark.parametrize(
    "element",
    [
        lambda row, at: tirx.if_then_else(at < 64, row(at), 0.0),
        lambda row, at: tirx.Select(at < 64, row(at), tirx.FloatImm("float32", 0.0)),
        lambda row, at: tirx.Cast("float32", tirx.all(at < 64, row(at) > 0.0)),
        lambda row, at: row(tirx.Min(at, tirx.IntImm("int32", 63))),
    ],
    ids=["if_then_else", "select", "and", "clamp"],
)
def test_an_index_that_is_guarded(element: Any) -> None:
    facts.analyze(columns_from(0, element))


@pytest.mark.parametrize(
    ("shape", "seen"),
    [
        ((2**31, 64), "2147483648 rows"),
        ((2**16, 2**15, 64), "2147483648 rows"),
        ((4, 2**33), "8589934592 columns"),
    ],
)
def test_rows_and_columns_are_counted_in_32_bits(shape: tuple[int, ...], seen: str) -> None:
    with pytest.raises(Unsupported, match=rf"^{seen}; needs fewer than 2\^31$"):
        tr.plan(get_workload("softmax").func(shape), "cuda")
    tr.plan(get_workload("softmax").func((2**31 - 1, 64)), "cuda")


@pytest.mark.parametrize(
    "at", ["i * 7 + k", "i * 9 + k", "i * 8 + k + 1", "i * 8 + k * 2", "i + k", "k * 8 + i"]
)
def test_a_flat_index_that_covers_its_tensor_otherwise(at: str) -> None:
    """Digits that overlap, leave holes, or start elsewhere."""
    i, k = tirx.Var("i", "int32"), tirx.Var("k", "int32")
    index = eval(at, {"i": i, "k": k})
    x = tirx.decl_buffer((4, 8), "float32", name="x")
    y = tirx.decl_buffer((32,), "float32", name="y")
    s = tirx.decl_buffer((4,), "float32", name="s")
    value = tirx.BufferLoad(x, [i, k]) / tirx.BufferLoad(s, [i])

    def block(name: str, body: Any, kind: int, init: Any = None) -> Any:
        loops = [tirx.Var("a", "int32"), tirx.Var("b", "int32")]
        axes = [
            tirx.IterVar(tvm.ir.Range(0, 4), i, tirx.IterVar.DataPar),
            tirx.IterVar(tvm.ir.Range(0, 8), k, kind),
        ]
        inner = s_tir.SBlockRealize(
            loops, tirx.IntImm("bool", 1), s_tir.SBlock(axes, [], [], name, body, init)
        )
        for var, extent in zip(loops[::-1], (8, 4), strict=True):
            inner = tirx.For(var, 0, extent, tirx.ForKind.SERIAL, inner)
        return inner

    here = tirx.BufferLoad(s, [i])
    total = tirx.BufferStore(s, here + tirx.BufferLoad(x, [i, k]), [i])
    zero = tirx.BufferStore(s, tirx.FloatImm("float32", 0.0), [i])
    body = tirx.SeqStmt(
        [
            block("sum", total, tirx.IterVar.CommReduce, zero),
            block("out", tirx.BufferStore(y, value, [index]), tirx.IterVar.DataPar),
        ]
    )
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=[s])
    func = tirx.PrimFunc([x, y], s_tir.SBlockRealize([], tirx.IntImm("bool", 1), root))
    with pytest.raises(
        Unsupported, match=r"block out writes y\[.*\]; needs each element owned by one iteration"
    ):
        facts.analyze(func)


@pytest.mark.parametrize("arch", ["sm_70", "sm_75"])
def test_bfloat16_needs_a_gpu_that_has_it(arch: str) -> None:
    """TVM legalises it there, and would lose the tensors that our kernels name; its own rules go through."""
    target = tvm.target.Target({"kind": "cuda", "arch": arch, "max_threads_per_block": 1024})
    f = get_workload("softmax").func((64, 256), "bfloat16")
    with pytest.raises(Unsupported, match=rf"^dtype: bfloat16 on cuda {arch}; needs sm_80 or later$"):
        tr.plan(f, target)
    with pytest.raises(Unsupported, match="needs sm_80"):
        force(f, Candidate(width=32, reuse="reload"), target)
    tr.plan(get_workload("softmax").func((64, 256), "float16"), target)
    built = tvm.compile(tvm.IRModule({"main": f}), target, tir_pipeline="tirx_reduce")
    assert "tirx_reduce" not in built.mod.imports[0].inspect_source()


def test_what_is_no_candidate_is_refused_by_force() -> None:
    func = get_workload("softmax").func((8, 64))
    number: Any = 64
    with pytest.raises(ReduceError, match=r"^candidate is of type int; needs a Candidate, such as "):
        force(func, number, "metal")
    with pytest.raises(Unsupported, match=r"^rows: 1000 a program, written out one after another; limit 16$"):
        force(func, Candidate(width=64, rows=1000), "metal")
