"""Real PrimFuncs are read as row programs that compute what an independent NumPy formula computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special
from tvm import relax, te, tirx, topi
from tvm.relax.dpl import is_op, wildcard

from tests.functions import Spec, fused, fused_by_pattern, legalized, symbol, topi_func
from tests.interpret import by_order, numpy_dtype, run
from tirx_reduce import facts
from tirx_reduce.values import RowFacts

nn = relax.op.nn
EPS = 1e-5


@dataclass(frozen=True)
class Case:
    """One PrimFunc, its NumPy formula, and what its facts say."""

    name: str
    func: Callable[[], Any]
    specs: tuple[Spec, ...]
    """Concrete inputs."""
    formula: Callable[..., Any]
    passes: int
    reductions: int
    kept: int
    rows: int | None
    columns: int | None
    symbols: tuple[tuple[str, int], ...] = ()
    atol: float = 1e-6


def f32(*shape: Any) -> Spec:
    return shape, "float32"


def f16(*shape: Any) -> Spec:
    return shape, "float16"


def softmax(x: Any, axis: int = -1) -> Any:
    return special.softmax(x, axis=axis)


def rms(x: Any, w: Any, axis: Any = -1) -> Any:
    return x / np.sqrt(np.mean(x * x, axis=axis, keepdims=True) + EPS) * w


def norm(x: Any, axis: Any = -1) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + EPS)


def half(x: Any) -> Any:
    return x.astype(np.float16).astype(np.float64)


def group_norm(x: Any, w: Any, b: Any) -> Any:
    n, c = x.shape[:2]
    y = norm(x.reshape(n, 2, -1)).reshape(x.shape)
    return y * w.reshape(1, c, 1, 1) + b.reshape(1, c, 1, 1)


def lse(x: Any) -> Any:
    return special.logsumexp(x, axis=-1)


def _relax_rms(*lead: int, dtype: str = "float32") -> Callable[[], Any]:
    shape = (*lead, 24)
    return lambda: legalized(
        lambda _, x, w: nn.rms_norm(x, w, axes=[-1], epsilon=EPS), (shape, dtype), ((24,), dtype)
    )


def _one(op: Callable[..., Any], *specs: Spec) -> Callable[[], Any]:
    return lambda: legalized(lambda _, *v: op(*v), *specs)


def _add_rms() -> Any:
    pattern = is_op("relax.nn.rms_norm")(is_op("relax.add")(wildcard(), wildcard()), wildcard())

    def build(bb: Any, a: Any, b: Any, w: Any) -> Any:
        total = bb.emit(relax.op.add(a, b))
        return relax.Tuple([bb.emit(nn.rms_norm(total, w, axes=[-1], epsilon=EPS)), total])

    (func,) = fused_by_pattern(build, pattern, f16(2, 3, 24), f16(2, 3, 24), f16(24))
    return func


def _abs_max() -> Any:
    def build(bb: Any, x: Any) -> Any:
        return relax.op.max(bb.emit(relax.op.abs(x)), axis=[-1], keepdims=True)

    (func,) = fused(build, f16(5, 24))
    return func


def _softmax_cast() -> Any:
    (func,) = fused(lambda bb, x: relax.op.astype(bb.emit(nn.softmax(x, -1)), "float16"), f32(5, 24))
    return func


def _masked() -> Any:
    pattern = is_op("relax.nn.softmax")(
        is_op("relax.add")(is_op("relax.multiply")(wildcard(), wildcard()), wildcard())
    )

    def build(bb: Any, x: Any, m: Any) -> Any:
        scaled = bb.emit(relax.op.multiply(x, relax.const(np.float32(0.25))))
        return nn.softmax(bb.emit(relax.op.add(scaled, m)), -1)

    funcs = fused_by_pattern(build, pattern, f32(2, 3, 4, 24), f32(2, 1, 4, 24))
    (func,) = [f for f in funcs if len(f.params) == 3]
    return func


def _causal() -> Any:
    def build(x: Any) -> Any:
        def masked(b: Any, i: Any, j: Any) -> Any:
            return tirx.if_then_else(j <= i, x[b, i, j], tirx.min_value("float32"))

        return topi.nn.softmax(te.compute(x.shape, masked, name="masked"), -1)

    return topi_func(build, f32(2, 8, 8))


def causal_softmax(x: Any) -> Any:
    keep = np.tril(np.ones(x.shape[-2:], bool))
    return softmax(np.where(keep, x, float(np.finfo(np.float32).min)))


def _quantise() -> Any:
    """Per-row symmetric int8: the scale is an output too."""

    def build(x: Any) -> Any:
        big = topi.max(topi.abs(x), axis=-1, keepdims=True)
        scale = te.compute(big.shape, lambda i, j: big[i, j] / 127.0, name="scale")

        def quantised(i: Any, j: Any) -> Any:
            y = tirx.nearbyint(x[i, j] / scale[i, 0])
            return tirx.max(tirx.min(y, tirx.const(127.0, "float32")), tirx.const(-128.0, "float32")).astype(
                "int8"
            )

        return [te.compute(x.shape, quantised, name="q"), scale]

    return topi_func(build, f32(5, 24))


def quantised(x: Any) -> Any:
    scale = np.abs(x).max(-1, keepdims=True) / 127
    return np.clip(np.rint(x / scale), -128, 127).astype(np.int8), scale


def _cross_entropy() -> Any:
    """Loss of one label a row: the label is looked up."""

    def build(x: Any, label: Any) -> Any:
        logs = topi.nn.log_softmax(x)
        return te.compute((x.shape[0],), lambda i: -logs[i, label[i]], name="loss")

    return topi_func(build, f32(5, 24), ((5,), "int32"))


def _l2() -> Any:
    def build(x: Any) -> Any:
        total = topi.sum(x * x, axis=-1, keepdims=True)
        return te.compute(x.shape, lambda i, j: x[i, j] / tirx.sqrt(total[i, 0] + 1e-12), name="l2")

    return topi_func(build, f32(5, 24))


def _lse() -> Any:
    def build(x: Any) -> Any:
        top = topi.max(x, axis=-1, keepdims=True)
        total = topi.sum(topi.exp(x - top), axis=-1)
        return te.compute((5,), lambda i: tirx.log(total[i]) + top[i, 0], name="lse")

    return topi_func(build, f32(5, 24))


def _transposed() -> Any:
    """The result is written with rows and columns exchanged."""

    def build(x: Any) -> Any:
        y = topi.nn.softmax(x, -1)
        return te.compute((8, 8), lambda j, i: y[i, j] * 2.0, name="turned")

    return topi_func(build, f32(8, 8))


def _symbolic(dims: tuple[Any, ...], op: Callable[..., Any], *more: Spec) -> Callable[[], Any]:
    def make() -> Any:
        names = {d: symbol(d) for d in dims if isinstance(d, str)}
        shape = tuple(names.get(d, d) for d in dims)
        rest = tuple((tuple(names.get(d, d) for d in s), t) for s, t in more)
        return topi_func(op, (shape, "float32"), *rest)

    return make


def layer_norm(dtype: str, *lead: int) -> Callable[[], Any]:
    return _one(
        lambda x, w, b: nn.layer_norm(x, w, b, axes=[-1], epsilon=EPS),
        ((*lead, 24), dtype),
        ((24,), dtype),
        ((24,), dtype),
    )


CASES = (
    Case(
        "softmax", _one(lambda x: nn.softmax(x, -1), f32(2, 3, 24)), (f32(2, 3, 24),), softmax, 3, 2, 1, 6, 24
    ),
    Case(
        "softmax_f16",
        _one(lambda x: nn.softmax(x, -1), f16(5, 24)),
        (f16(5, 24),),
        softmax,
        3,
        2,
        1,
        5,
        24,
        atol=1e-3,
    ),
    Case("softmax_rank1", _one(lambda x: nn.softmax(x, -1), f32(24)), (f32(24),), softmax, 3, 2, 1, 1, 24),
    Case(
        "softmax_units",
        _one(lambda x: nn.softmax(x, -1), f32(1, 3, 1, 24)),
        (f32(1, 3, 1, 24),),
        softmax,
        3,
        2,
        1,
        3,
        24,
    ),
    Case(
        "softmax_one_column",
        _one(lambda x: nn.softmax(x, -1), f32(3, 1)),
        (f32(3, 1),),
        softmax,
        2,
        2,
        0,
        3,
        1,
    ),
    Case(
        "softmax_axis1",
        _one(lambda x: nn.softmax(x, 1), f32(2, 24, 3)),
        (f32(2, 24, 3),),
        lambda x: softmax(x, 1),
        3,
        2,
        1,
        6,
        24,
    ),
    Case(
        "log_softmax",
        _one(lambda x: nn.log_softmax(x, -1), f32(5, 24)),
        (f32(5, 24),),
        lambda x: special.log_softmax(x, -1),
        3,
        2,
        1,
        5,
        24,
    ),
    Case("softmax_cast", _softmax_cast, (f32(5, 24),), lambda x: half(softmax(x)), 3, 2, 1, 5, 24, atol=1e-3),
    Case(
        "masked_softmax",
        _masked,
        (f32(2, 3, 4, 24), f32(2, 1, 4, 24)),
        lambda x, m: softmax(x * 0.25 + m),
        3,
        2,
        1,
        24,
        24,
    ),
    Case("causal_softmax", _causal, (f32(2, 8, 8),), causal_softmax, 3, 2, 1, 16, 8),
    Case("logsumexp", _lse, (f32(5, 24),), lse, 2, 2, 1, 5, 24),
    Case("rms_norm", _relax_rms(2, 3), (f32(2, 3, 24), f32(24)), rms, 2, 1, 1, 6, 24),
    Case("rms_norm_units", _relax_rms(1, 1), (f32(1, 1, 24), f32(24)), rms, 2, 1, 1, 1, 24),
    Case("rms_norm_rank5", _relax_rms(2, 1, 3, 2), (f32(2, 1, 3, 2, 24), f32(24)), rms, 2, 1, 1, 12, 24),
    Case(
        "rms_norm_f16",
        _relax_rms(2, 3, dtype="float16"),
        (f16(2, 3, 24), f16(24)),
        rms,
        2,
        1,
        1,
        6,
        24,
        atol=4e-3,
    ),
    Case(
        "layer_norm",
        layer_norm("float32", 5),
        (f32(5, 24), f32(24), f32(24)),
        lambda x, w, b: norm(x) * w + b,
        3,
        2,
        1,
        5,
        24,
    ),
    Case(
        "layer_norm_f16",
        layer_norm("float16", 2, 3),
        (f16(2, 3, 24), f16(24), f16(24)),
        # Relax applies the affine part after the Cast.
        lambda x, w, b: half(norm(x)) * w + b,
        3,
        2,
        1,
        6,
        24,
        atol=4e-3,
    ),
    Case(
        "layer_norm_two_axes",
        lambda: topi_func(
            lambda x, w, b: topi.nn.layer_norm(x, w, b, [1, 2], EPS), f32(5, 4, 6), f32(4, 6), f32(4, 6)
        ),
        (f32(5, 4, 6), f32(4, 6), f32(4, 6)),
        lambda x, w, b: norm(x, (1, 2)) * w + b,
        3,
        2,
        1,
        5,
        24,
    ),
    Case(
        "group_norm",
        lambda: topi_func(
            lambda x, w, b: topi.nn.group_norm(x, w, b, 2, 1, [2, 3], EPS), f32(3, 8, 2, 3), f32(8), f32(8)
        ),
        (f32(3, 8, 2, 3), f32(8), f32(8)),
        group_norm,
        2,
        2,
        1,
        6,
        24,
    ),
    Case(
        "instance_norm",
        lambda: topi_func(
            lambda x, w, b: topi.nn.instance_norm(x, w, b, 1, [2, 3], EPS), f32(3, 8, 4, 6), f32(8), f32(8)
        ),
        (f32(3, 8, 4, 6), f32(8), f32(8)),
        lambda x, w, b: norm(x, (2, 3)) * w.reshape(8, 1, 1) + b.reshape(8, 1, 1),
        2,
        2,
        1,
        24,
        24,
    ),
    Case(
        "batch_statistics",
        _one(lambda x: relax.op.mean(x, [0, 2, 3]), f32(2, 8, 3, 4)),
        (f32(2, 8, 3, 4),),
        lambda x: x.mean((0, 2, 3)),
        1,
        1,
        0,
        8,
        24,
    ),
    Case(
        "add_rms_norm",
        _add_rms,
        (f16(2, 3, 24), f16(2, 3, 24), f16(24)),
        lambda a, b, w: (rms(a + b, w), a + b),
        2,
        1,
        1,
        6,
        24,
        atol=8e-3,
    ),
    Case(
        "l2_normalise",
        _l2,
        (f32(5, 24),),
        lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)),
        2,
        1,
        1,
        5,
        24,
    ),
    Case(
        "sum",
        _one(lambda x: relax.op.sum(x, -1), f32(2, 3, 24)),
        (f32(2, 3, 24),),
        lambda x: x.sum(-1),
        1,
        1,
        0,
        6,
        24,
    ),
    Case(
        "sum_first",
        _one(lambda x: relax.op.sum(x, 0), f32(24, 5)),
        (f32(24, 5),),
        lambda x: x.sum(0),
        1,
        1,
        0,
        5,
        24,
    ),
    Case(
        "sum_middle",
        _one(lambda x: relax.op.sum(x, 1), f32(2, 24, 3)),
        (f32(2, 24, 3),),
        lambda x: x.sum(1),
        1,
        1,
        0,
        6,
        24,
    ),
    Case(
        "sum_all", _one(lambda x: relax.op.sum(x), f32(4, 6)), (f32(4, 6),), lambda x: x.sum(), 1, 1, 0, 1, 24
    ),
    Case(
        "mean",
        _one(lambda x: relax.op.mean(x, -1), f32(5, 24)),
        (f32(5, 24),),
        lambda x: x.mean(-1),
        1,
        1,
        0,
        5,
        24,
    ),
    Case(
        "variance",
        _one(lambda x: relax.op.variance(x, -1), f32(5, 24)),
        (f32(5, 24),),
        lambda x: x.var(-1),
        2,
        2,
        1,
        5,
        24,
    ),
    Case(
        "std",
        _one(lambda x: relax.op.std(x, -1), f32(5, 24)),
        (f32(5, 24),),
        lambda x: x.std(-1),
        2,
        2,
        1,
        5,
        24,
    ),
    Case(
        "max",
        _one(lambda x: relax.op.max(x, -1), f32(5, 24)),
        (f32(5, 24),),
        lambda x: x.max(-1),
        1,
        1,
        0,
        5,
        24,
    ),
    Case(
        "min",
        _one(lambda x: relax.op.min(x, -1), f32(5, 24)),
        (f32(5, 24),),
        lambda x: x.min(-1),
        1,
        1,
        0,
        5,
        24,
    ),
    Case(
        "prod",
        _one(lambda x: relax.op.prod(x, -1), f32(5, 24)),
        (f32(5, 24),),
        lambda x: x.prod(-1),
        1,
        1,
        0,
        5,
        24,
    ),
    Case(
        "abs_max_kept",
        _abs_max,
        (f16(5, 24),),
        lambda x: np.abs(x).max(-1, keepdims=True),
        1,
        1,
        0,
        5,
        24,
        atol=0,
    ),
    Case(
        "argmax",
        _one(lambda x: relax.op.argmax(x, -1), f32(5, 24)),
        (f32(5, 24),),
        lambda x: x.argmax(-1),
        1,
        1,
        0,
        5,
        24,
    ),
    Case(
        "argmin_all",
        _one(lambda x: relax.op.argmin(x), f32(4, 6)),
        (f32(4, 6),),
        lambda x: x.argmin(),
        1,
        1,
        0,
        1,
        24,
    ),
    Case(
        "argmax_int32",
        lambda: topi_func(lambda x: topi.argmax(x, -1), f16(5, 24)),
        (f16(5, 24),),
        lambda x: x.argmax(-1).astype(np.int32),
        1,
        1,
        0,
        5,
        24,
    ),
    Case(
        "argmax_one_column",
        _one(lambda x: relax.op.argmax(x, -1), f32(5, 1)),
        (f32(5, 1),),
        lambda x: x.argmax(-1),
        1,
        1,
        0,
        5,
        1,
    ),
    Case(
        "sum_int8",
        lambda: topi_func(lambda x: topi.sum(x, -1), ((5, 24), "int8")),
        (((5, 24), "int8"),),
        lambda x: x.sum(-1, dtype=np.int8),
        1,
        1,
        0,
        5,
        24,
        atol=0,
    ),
    Case(
        "any",
        lambda: topi_func(lambda x: topi.any(x, -1), ((5, 24), "bool")),
        (((5, 24), "bool"),),
        lambda x: x.any(-1),
        1,
        1,
        0,
        5,
        24,
    ),
    Case(
        "all",
        lambda: topi_func(lambda x: topi.all(x, -1), ((5, 24), "bool")),
        (((5, 24), "bool"),),
        lambda x: x.all(-1),
        1,
        1,
        0,
        5,
        24,
    ),
    Case("quantise_int8", _quantise, (f32(5, 24),), quantised, 2, 1, 1, 5, 24),
    Case(
        "cross_entropy",
        _cross_entropy,
        (f32(5, 24), ((5,), "int32")),
        lambda x, label: -np.take_along_axis(special.log_softmax(x, -1), label[:, None], 1)[:, 0],
        2,
        2,
        1,
        5,
        24,
    ),
    Case("transposed_output", _transposed, (f32(8, 8),), lambda x: 2 * softmax(x).T, 3, 2, 1, 8, 8),
    Case(
        "softmax_symbolic_rows",
        _symbolic(("n", 3, 24), lambda x: topi.nn.softmax(x, -1)),
        (f32(5, 3, 24),),
        softmax,
        3,
        2,
        1,
        None,
        24,
        symbols=(("n", 5),),
    ),
    Case(
        "softmax_symbolic_both",
        _symbolic(("n", 3, "m"), lambda x: topi.nn.softmax(x, -1)),
        (f32(5, 3, 24),),
        softmax,
        3,
        2,
        1,
        None,
        None,
        symbols=(("n", 5), ("m", 24)),
    ),
    Case(
        "layer_norm_symbolic_axes",
        _symbolic(
            ("n", "h", "w"),
            lambda x, w, b: topi.nn.layer_norm(x, w, b, [1, 2], EPS),
            f32("h", "w"),
            f32("h", "w"),
        ),
        (f32(5, 4, 6), f32(4, 6), f32(4, 6)),
        lambda x, w, b: norm(x, (1, 2)) * w + b,
        3,
        2,
        1,
        None,
        None,
        symbols=(("n", 5), ("h", 4), ("w", 6)),
    ),
    Case(
        "group_norm_symbolic",
        _symbolic(
            ("n", 8, 2, 3), lambda x, w, b: topi.nn.group_norm(x, w, b, 2, 1, [2, 3], EPS), f32(8), f32(8)
        ),
        (f32(3, 8, 2, 3), f32(8), f32(8)),
        group_norm,
        2,
        2,
        1,
        None,
        24,
        symbols=(("n", 3),),
    ),
)


def inputs_for(case: Case) -> list[Any]:
    """Seeded inputs: floats around 0, integers over their range, booleans mostly alike."""
    rng = np.random.default_rng(len(case.name))
    made = []
    for shape, dtype in case.specs:
        if dtype == "bool":
            made.append(rng.random(shape) < 0.9)
        elif dtype == "int8":
            made.append(rng.integers(-128, 128, shape).astype(dtype))
        elif "int" in dtype:
            made.append(rng.integers(0, 24, shape).astype(dtype))
        else:
            made.append(rng.standard_normal(shape).astype(numpy_dtype(dtype)))
    return made


def outputs_of(read: RowFacts, inputs: list[Any], symbols: tuple[tuple[str, int], ...] = ()) -> list[Any]:
    """The interpreted outputs in the function's order."""
    found = run(read.program, by_order(read.program, inputs), dict(symbols))
    return [found[t.param] for t in read.program.tensors if t.role == "out"]


def wide(values: Any) -> Any:
    """Floats in float64, the rest as they are."""
    is_float = values.dtype.kind == "f" or values.dtype == ml_dtypes.bfloat16
    return values.astype(np.float64) if is_float else values


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_meaning_and_counts(case: Case) -> None:
    read = facts.analyze(case.func())
    inputs = inputs_for(case)
    wanted = case.formula(*(wide(x) for x in inputs))
    for got, want in zip(
        outputs_of(read, inputs, case.symbols),
        wanted if isinstance(wanted, tuple) else (wanted,),
        strict=True,
    ):
        np.testing.assert_allclose(
            got.astype(np.float64).reshape(np.shape(want)),
            np.asarray(want, np.float64),
            rtol=0,
            atol=case.atol,
        )
    seen = (read.passes, read.reductions, read.kept, read.rows, read.columns)
    assert seen == (case.passes, case.reductions, case.kept, case.rows, case.columns)
