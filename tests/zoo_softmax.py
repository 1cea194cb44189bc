"""Softmax, log-softmax, log-sum-exp and losses: with scale, masks, temperature, producers and epilogues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special
from tvm import relax, te, tirx, topi
from tvm.relax.dpl import is_op, wildcard
from tvm.script import tirx as T  # noqa: N812

from tests.functions import fused, fused_by_pattern, legalized, topi_func
from tests.zoo import FLOATS, HALVES, WIDE, Entry

# mypy cannot read TVMScript.
# mypy: ignore-errors

ENTRIES: list[Entry] = []
LOWEST = {"float32": -3.4028234663852886e38, "float16": -65504.0, "bfloat16": -3.3895313892515355e38}


def c(value: float, dtype: str) -> Any:
    return tirx.const(value, dtype)


def entry(name: str, origin: str, want: Callable[..., Any], *specs: Any, **more: Any) -> Callable[[Any], Any]:
    family = more.pop("family", "softmax")

    def add(make: Any) -> Any:
        ENTRIES.append(
            Entry(name=name, family=family, origin=origin, make=make, specs=specs, want=want, **more)
        )
        return make

    return add


def of_topi(name: str, want: Any, build: Any, *specs: Any, origin: str = "TOPI", **more: Any) -> None:
    entry(name, origin, want, *specs, **more)(lambda dtype: topi_func(build, *_typed(specs, dtype)))


def of_te(name: str, want: Any, build: Any, *specs: Any, **more: Any) -> None:
    of_topi(name, want, build, *specs, origin="te", **more)


def of_relax(name: str, want: Any, build: Any, *specs: Any, **more: Any) -> None:
    entry(name, "Relax", want, *specs, **more)(
        lambda dtype: legalized(lambda _, *v: build(*v), *_typed(specs, dtype))
    )


def of_pattern(name: str, want: Any, build: Any, pattern: Any, *specs: Any, **more: Any) -> None:
    def make(dtype: str) -> Any:
        funcs = fused_by_pattern(build, pattern() if callable(pattern) else pattern, *_typed(specs, dtype))
        return max(funcs, key=lambda f: len(f.params))

    entry(name, "Relax, by pattern", want, *specs, **more)(make)


def of_fusion(name: str, want: Any, build: Any, *specs: Any, **more: Any) -> None:
    entry(name, "Relax, fused", want, *specs, **more)(
        lambda dtype: max(fused(build, *_typed(specs, dtype)), key=lambda f: len(f.params))
    )


def _typed(specs: Any, dtype: str) -> Any:
    return tuple((s, dtype if d == "float" else d) for s, d in specs)


def x(*shape: int) -> Any:
    return shape, "float"


def softmax(v: Any, axis: int = -1) -> Any:
    with np.errstate(all="ignore"):
        return special.softmax(v, axis=axis)


def log_softmax(v: Any, axis: int = -1) -> Any:
    return special.log_softmax(v, axis=axis)


nn = relax.op.nn

of_relax("softmax", softmax, lambda v: nn.softmax(v, -1), x(3, 33))
of_relax("softmax, rank 1", softmax, lambda v: nn.softmax(v, -1), x(33))
of_relax("softmax, rank 4", softmax, lambda v: nn.softmax(v, -1), x(2, 1, 2, 24))
of_relax("softmax, unit dims", softmax, lambda v: nn.softmax(v, -1), x(1, 3, 1, 24))
of_relax("softmax, one column", softmax, lambda v: nn.softmax(v, -1), x(5, 1))
of_relax("softmax, axis 1 of 3", lambda v: softmax(v, 1), lambda v: nn.softmax(v, 1), x(2, 24, 3))
of_relax("softmax, axis 0", lambda v: softmax(v, 0), lambda v: nn.softmax(v, 0), x(24, 2))
of_topi("softmax of TOPI", softmax, lambda v: topi.nn.softmax(v, -1), x(3, 40))
of_topi(
    "fast softmax of TOPI", softmax, lambda v: topi.nn.fast_softmax(v, -1), x(3, 40), dtypes=WIDE, looser=64
)
of_relax("log_softmax", log_softmax, lambda v: nn.log_softmax(v, -1), x(3, 33), looser=4)
of_topi("log_softmax of TOPI", log_softmax, lambda v: topi.nn.log_softmax(v), x(3, 40), looser=4)
of_te(
    "softmin",
    lambda v: softmax(-v),
    lambda v: topi.nn.softmax(te.compute(v.shape, lambda i, j: -v[i, j], name="negated"), -1),
    x(3, 40),
)


def _scaled(v: Any, scale: Any) -> Any:
    return te.compute(v.shape, lambda *i: v[i] * scale, name="scaled")


of_te(
    "softmax, scale",
    lambda v: softmax(v * 0.125),
    lambda v: topi.nn.softmax(_scaled(v, c(0.125, v.dtype)), -1),
    x(3, 40),
)
of_te(
    "softmax, temperature of each row",
    lambda v, t: softmax(v / t[:, None]),
    lambda v, t: topi.nn.softmax(te.compute(v.shape, lambda i, j: v[i, j] / t[i], name="tempered"), -1),
    x(3, 40),
    x(3),
    draw="unit",
)


@entry(
    "softmax, temperature as a scalar",
    "TVMScript",
    lambda v, t: softmax(v / t),
    x(3, 8),
    x(),
    dtypes=WIDE,
    draw="unit",
)
def _temperature(_: str) -> Any:
    @T.prim_func(s_tir=True)
    def func(v: T.Buffer((3, 8), "float32"), t: T.float32, y: T.Buffer((3, 8), "float32")):
        top = T.sblock_alloc_buffer((3,))
        total = T.sblock_alloc_buffer((3,))
        for i, k in T.grid(3, 8):
            with T.sblock("top"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    top[vi] = T.float32("-inf")
                top[vi] = T.max(top[vi], v[vi, vk] / t)
        for i, k in T.grid(3, 8):
            with T.sblock("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + T.exp(v[vi, vk] / t - top[vi])
        for i, k in T.grid(3, 8):
            with T.sblock("out"):
                vi, vk = T.axis.remap("SS", [i, k])
                y[vi, vk] = T.exp(v[vi, vk] / t - top[vi]) / total[vi]

    return func


@entry("softmax, blocks under one row loop", "TVMScript", softmax, x(4, 8), dtypes=WIDE)
def _by_rows(_: str) -> Any:
    from tests.test_facts_forms import by_rows

    return by_rows


@entry("softmax, online, by hand", "TVMScript", softmax, x(4, 8), dtypes=WIDE)
def _online(_: str) -> Any:
    @T.prim_func(s_tir=True)
    def func(v: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        top = T.sblock_alloc_buffer((4,))
        total = T.sblock_alloc_buffer((4,))
        for i, k in T.grid(4, 8):
            with T.sblock("pair"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    top[vi] = T.float32("-inf")
                    total[vi] = T.float32(0)
                new: T.let[T.float32] = T.max(top[vi], v[vi, vk])
                old: T.let[T.float32] = top[vi]
                total[vi] = total[vi] * T.exp(old - new) + T.exp(v[vi, vk] - new)
                top[vi] = new
        for i, k in T.grid(4, 8):
            with T.sblock("out"):
                vi, vk = T.axis.remap("SS", [i, k])
                y[vi, vk] = T.exp(v[vi, vk] - top[vi]) / total[vi]

    return func


def _online_combiner(v: Any) -> Any:
    def combine(a: Any, b: Any) -> Any:
        top = tirx.max(a[0], b[0])
        return top, a[1] * tirx.exp(a[0] - top) + b[1] * tirx.exp(b[0] - top)

    k = te.reduce_axis((0, 24), "k")
    lowest = (tirx.min_value("float32"), tirx.const(0.0, "float32"))
    reducer = te.comm_reducer(combine, lambda *_: lowest, name="online")
    one = tirx.const(1.0, "float32")
    top, total = te.compute((3,), lambda i: reducer((v[i, k].astype("float32"), one), axis=k), name="pair")
    return te.compute(
        (3, 24),
        lambda i, j: (tirx.exp(v[i, j].astype("float32") - top[i]) / total[i]).astype(v.dtype),
        name="out",
    )


of_te(
    "softmax, online, as a combiner",
    softmax,
    _online_combiner,
    x(3, 24),
    note="read as the maximum and the sum about it",
)


@entry(
    "softmax, flat buffers", "TVMScript", lambda v: softmax(v.reshape(4, 8)).reshape(32), x(32), dtypes=WIDE
)
def _flat(_: str) -> Any:
    from tests.test_facts_forms import flat_buffers

    return flat_buffers


def _scale_mask_pattern() -> Any:
    return is_op("relax.nn.softmax")(
        is_op("relax.add")(is_op("relax.multiply")(wildcard(), wildcard()), wildcard())
    )


def _scale_mask(bb: Any, v: Any, m: Any) -> Any:
    scaled = bb.emit(relax.op.multiply(v, relax.const(0.25, v.ty.dtype)))
    return nn.softmax(bb.emit(relax.op.add(scaled, m)), -1)


for shape, label in (
    ((2, 1, 3, 24), "batch"),
    ((1, 1, 3, 24), "all"),
    ((2, 2, 1, 24), "head"),
    ((1, 1, 1, 24), "columns"),
):
    of_pattern(
        f"softmax, scale and additive mask by {label}",
        lambda v, m: softmax(v * 0.25 + m),
        _scale_mask,
        _scale_mask_pattern,
        x(2, 2, 3, 24),
        x(*shape),
    )


def _where_mask(keep: Any, v: Any) -> Any:
    low = topi.full_like(v, c(LOWEST[str(v.dtype)], v.dtype))
    return topi.nn.softmax(topi.where(keep, v, low), -1)


of_topi(
    "softmax, boolean mask by batch",
    lambda keep, v: softmax(np.where(keep, v, -np.inf)),
    _where_mask,
    ((2, 1, 3, 24), "bool"),
    x(2, 2, 3, 24),
)


def _infinite_mask(v: Any, keep: Any) -> Any:
    masked = te.compute(
        v.shape,
        lambda i, j: tirx.Select(keep[i, j], v[i, j].astype("float32"), tirx.const(float("-inf"), "float32")),
        name="masked",
    )
    return topi.nn.softmax(masked, -1)


of_te(
    "softmax, boolean mask filled with -inf",
    lambda v, keep: softmax(np.where(keep, v, -np.inf)),
    _infinite_mask,
    x(3, 24),
    ((3, 24), "bool"),
)


def _int_mask(v: Any, keep: Any) -> Any:
    masked = te.compute(
        v.shape,
        lambda i, j: tirx.if_then_else(keep[i, j] != 0, v[i, j], c(LOWEST[str(v.dtype)], v.dtype)),
        name="masked",
    )
    return topi.nn.softmax(masked, -1)


of_te(
    "softmax, mask of int8",
    lambda v, keep: softmax(np.where(keep != 0, v, -np.inf)),
    _int_mask,
    x(3, 24),
    ((3, 24), "int8"),
)


def _causal(v: Any) -> Any:
    def masked(b: Any, i: Any, j: Any) -> Any:
        return tirx.if_then_else(j <= i, v[b, i, j], c(LOWEST[str(v.dtype)], v.dtype))

    return topi.nn.softmax(te.compute(v.shape, masked, name="masked"), -1)


of_te(
    "softmax, causal",
    lambda v: softmax(np.where(np.tril(np.ones(v.shape[-2:], bool)), v, -np.inf)),
    _causal,
    x(2, 9, 9),
)


def _alibi(v: Any, slope: Any) -> Any:
    def biased(h: Any, i: Any, j: Any) -> Any:
        return v[h, i, j] + slope[h] * (j - i).astype(v.dtype)

    return topi.nn.softmax(te.compute(v.shape, biased, name="biased"), -1)


of_te(
    "softmax, ALiBi",
    lambda v, s: softmax(v + s[:, None, None] * (np.arange(12)[None, None, :] - np.arange(5)[None, :, None])),
    _alibi,
    x(2, 5, 12),
    x(2),
)
of_te(
    "softmax, logits capped by tanh",
    lambda v: softmax(5 * np.tanh(v / 5)),
    lambda v: topi.nn.softmax(
        te.compute(v.shape, lambda i, j: tirx.tanh(v[i, j] / c(5, v.dtype)) * c(5, v.dtype), name="capped"),
        -1,
    ),
    x(3, 24),
)


def _sink(v: Any, sink: Any) -> Any:
    top = topi.max(v, axis=-1)
    m = te.compute((3,), lambda i: tirx.max(top[i], sink[i]), name="m")
    e = te.compute(v.shape, lambda i, j: tirx.exp(v[i, j] - m[i]), name="e")
    total = topi.sum(e, axis=-1)
    return te.compute(v.shape, lambda i, j: e[i, j] / (total[i] + tirx.exp(sink[i] - m[i])), name="out")


of_te(
    "softmax with a sink logit",
    lambda v, s: softmax(np.concatenate([v, s[:, None]], 1))[:, :-1],
    _sink,
    x(3, 24),
    x(3),
)


def _naive(v: Any) -> Any:
    e = topi.exp(v)
    total = topi.sum(e, axis=-1)
    return te.compute(v.shape, lambda i, j: e[i, j] / total[i], name="out")


of_te("softmax without a maximum", softmax, _naive, x(3, 24))
of_fusion(
    "softmax, cast after it",
    softmax,
    lambda bb, v: relax.op.astype(bb.emit(nn.softmax(v, -1)), "float16"),
    x(3, 24),
    dtypes=WIDE,
)
of_fusion(
    "softmax, scale after it",
    lambda v: softmax(v) * 3,
    lambda bb, v: relax.op.multiply(bb.emit(nn.softmax(v, -1)), relax.const(3.0, v.ty.dtype)),
    x(3, 24),
)


def _dropout(bb: Any, v: Any, keep: Any) -> Any:
    return relax.op.multiply(bb.emit(nn.softmax(v, -1)), keep)


of_pattern(
    "softmax, product with a matrix after it",
    lambda v, k: softmax(v) * k,
    _dropout,
    lambda: is_op("relax.multiply")(is_op("relax.nn.softmax")(wildcard()), wildcard()),
    x(3, 24),
    x(3, 24),
)


def _with_lse(v: Any) -> Any:
    top = topi.max(v, axis=-1, keepdims=True)
    total = topi.sum(topi.exp(v - top), axis=-1, keepdims=True)
    y = te.compute(v.shape, lambda i, j: tirx.exp(v[i, j] - top[i, 0]) / total[i, 0], name="y")
    return [y, te.compute((v.shape[0],), lambda i: tirx.log(total[i, 0]) + top[i, 0], name="lse")]


of_te(
    "softmax and its log-sum-exp",
    lambda v: (softmax(v), special.logsumexp(v, axis=-1)),
    _with_lse,
    x(3, 24),
    looser=4,
)


def _transposed(v: Any) -> Any:
    y = topi.nn.softmax(v, -1)
    return te.compute((24, 3), lambda j, i: y[i, j], name="turned")


of_te("softmax, written transposed", lambda v: softmax(v).T, _transposed, x(3, 24))
of_te(
    "softmax of a transposed read",
    lambda v: softmax(v.T),
    lambda v: topi.nn.softmax(te.compute((3, 24), lambda i, j: v[j, i], name="turned"), -1),
    x(24, 3),
)
of_te(
    "softmax of a column slice",
    lambda v: softmax(v[:, 4:20]),
    lambda v: topi.nn.softmax(topi.strided_slice(v, [0, 4], [3, 20], [1, 1]), -1),
    x(3, 24),
)
of_te(
    "softmax of every second column",
    lambda v: softmax(v[:, ::2]),
    lambda v: topi.nn.softmax(topi.strided_slice(v, [0, 0], [3, 24], [1, 2]), -1),
    x(3, 24),
)
of_te(
    "softmax of a padded row",
    lambda v: softmax(np.pad(v, ((0, 0), (2, 2)), constant_values=-1)),
    lambda v: topi.nn.softmax(topi.nn.pad(v, (0, 2), (0, 2), pad_value=-1.0), -1),
    x(3, 24),
)
of_te(
    "softmax of softmax",
    lambda v: softmax(softmax(v)),
    lambda v: topi.nn.softmax(topi.nn.softmax(v, -1), -1),
    x(3, 24),
)
of_te(
    "softmax of int8 logits with a scale",
    lambda v: softmax(v * 0.05),
    lambda v: topi.nn.softmax(
        te.compute(v.shape, lambda i, j: v[i, j].astype("float32") * 0.05, name="wide"), -1
    ),
    ((3, 24), "int8"),
    dtypes=WIDE,
)

# --- log-sum-exp and losses


def _lse(v: Any) -> Any:
    top = topi.max(v, axis=-1, keepdims=True)
    total = topi.sum(topi.exp(v - top), axis=-1)
    return te.compute(total.shape, lambda i: tirx.log(total[i]) + top[i, 0], name="lse")


of_te("logsumexp", lambda v: special.logsumexp(v, axis=-1), _lse, x(3, 24), family="loss", looser=4)
of_te(
    "logsumexp without a maximum",
    lambda v: np.log(np.exp(v).sum(-1)),
    lambda v: topi.log(topi.sum(topi.exp(v), axis=-1)),
    x(3, 24),
    family="loss",
    looser=4,
)


def _cross_entropy(v: Any, label: Any) -> Any:
    logs = topi.nn.log_softmax(v)
    return te.compute((v.shape[0],), lambda i: -logs[i, label[i]], name="loss")


def picked(v: Any, label: Any) -> Any:
    return np.take_along_axis(v, label[:, None].astype(np.int64), 1)[:, 0]


for index in ("int32", "int64"):
    of_te(
        f"cross entropy, {index} labels",
        lambda v, label: -picked(log_softmax(v), label),
        _cross_entropy,
        x(5, 24),
        ((5,), index),
        family="loss",
        draw="label",
        looser=4,
    )


def _ignored(v: Any, label: Any) -> Any:
    logs = topi.nn.log_softmax(v)

    def loss(i: Any) -> Any:
        safe = tirx.max(label[i], tirx.const(0, "int32"))
        return tirx.Select(label[i] < 3, c(0, v.dtype), -logs[i, safe])

    return te.compute((v.shape[0],), loss, name="loss")


of_te(
    "cross entropy, some labels ignored",
    lambda v, label: np.where(label < 3, 0, -picked(log_softmax(v), label)),
    _ignored,
    x(5, 24),
    ((5,), "int32"),
    family="loss",
    draw="label",
    looser=4,
)


def _smoothed(v: Any, label: Any) -> Any:
    logs = topi.nn.log_softmax(v)
    mean = topi.sum(logs, axis=-1)
    d = v.dtype
    return te.compute((5,), lambda i: -logs[i, label[i]] * c(0.9, d) - mean[i] * c(0.1 / 24, d), name="loss")


of_te(
    "cross entropy, smoothed labels",
    lambda v, label: -0.9 * picked(log_softmax(v), label) - 0.1 * log_softmax(v).mean(-1),
    _smoothed,
    x(5, 24),
    ((5,), "int32"),
    family="loss",
    draw="label",
    dtypes=WIDE,
    looser=8,
)


def _entropy(v: Any) -> Any:
    p, logs = topi.nn.softmax(v, -1), topi.nn.log_softmax(v)
    return topi.sum(te.compute(v.shape, lambda i, j: -p[i, j] * logs[i, j], name="terms"), axis=-1)


of_te("entropy", lambda v: special.entr(softmax(v)).sum(-1), _entropy, x(3, 24), family="loss", looser=8)


def _kl(v: Any, w: Any) -> Any:
    p, q = topi.nn.log_softmax(v), topi.nn.log_softmax(w)
    terms = te.compute(v.shape, lambda i, j: tirx.exp(p[i, j]) * (p[i, j] - q[i, j]), name="terms")
    return topi.sum(terms, axis=-1)


of_te(
    "Kullback-Leibler divergence",
    lambda v, w: (softmax(v) * (log_softmax(v) - log_softmax(w))).sum(-1),
    _kl,
    x(3, 24),
    x(3, 24),
    family="loss",
    looser=16,
)


def _soft_labels(v: Any, p: Any) -> Any:
    logs = topi.nn.log_softmax(v)
    return topi.sum(te.compute(v.shape, lambda i, j: -p[i, j] * logs[i, j], name="terms"), axis=-1)


of_te(
    "cross entropy, soft labels",
    lambda v, p: -(p * log_softmax(v)).sum(-1),
    _soft_labels,
    x(3, 24),
    x(3, 24),
    family="loss",
    looser=16,
)


def _softmax_backward(y: Any, dy: Any) -> Any:
    dot = topi.sum(te.compute(y.shape, lambda i, j: y[i, j] * dy[i, j], name="terms"), axis=-1)
    return te.compute(y.shape, lambda i, j: y[i, j] * (dy[i, j] - dot[i]), name="dx")


of_te(
    "softmax, backward",
    lambda y, dy: y * (dy - (y * dy).sum(-1, keepdims=True)),
    _softmax_backward,
    x(3, 24),
    x(3, 24),
    looser=8,
)
_ = (FLOATS, HALVES)
