"""Norms: RMSNorm, LayerNorm, group and instance norm, L2 and others; residuals, epilogues, quantisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from scipy import special
from tvm import relax, te, tirx, topi
from tvm.relax.dpl import is_op, wildcard
from tvm.script import tirx as T  # noqa: N812

# mypy cannot read TVMScript.
# mypy: ignore-errors
from tests import zoo_softmax
from tests.functions import legalized, topi_func
from tests.zoo import HALVES, WIDE, Entry
from tests.zoo_softmax import c

ENTRIES: list[Entry] = []
EPS = 1e-5
nn = relax.op.nn


def _into(adder: Callable[..., Any]) -> Callable[..., Any]:
    """The same adder for the table of this file."""

    def add(*args: Any, **more: Any) -> Any:
        before = len(zoo_softmax.ENTRIES)
        out = adder(*args, **{"family": "norm", **more})
        ENTRIES.extend(zoo_softmax.ENTRIES[before:])
        del zoo_softmax.ENTRIES[before:]
        return out

    return add


of_te, of_topi, of_relax = _into(zoo_softmax.of_te), _into(zoo_softmax.of_topi), _into(zoo_softmax.of_relax)
of_pattern, of_fusion = _into(zoo_softmax.of_pattern), _into(zoo_softmax.of_fusion)
x = zoo_softmax.x


def entry(name: str, origin: str, want: Any, *specs: Any, **more: Any) -> Any:
    def add(make: Any) -> Any:
        ENTRIES.append(
            Entry(
                name=name,
                family=more.pop("family", "norm"),
                origin=origin,
                make=make,
                specs=specs,
                want=want,
                **more,
            )
        )
        return make

    return add


def rms(v: Any, axis: Any = -1, eps: float = EPS) -> Any:
    return v / np.sqrt((v * v).mean(axis, keepdims=True) + eps)


def norm(v: Any, axis: Any = -1, eps: float = EPS) -> Any:
    return (v - v.mean(axis, keepdims=True)) / np.sqrt(v.var(axis, keepdims=True) + eps)


# --- RMSNorm

of_relax(
    "rms_norm",
    lambda v, w: rms(v) * w,
    lambda v, w: nn.rms_norm(v, w, axes=[-1], epsilon=EPS),
    x(3, 33),
    x(33),
    looser=2,
)
of_relax(
    "rms_norm, rank 4",
    lambda v, w: rms(v) * w,
    lambda v, w: nn.rms_norm(v, w, axes=[-1], epsilon=EPS),
    x(2, 1, 2, 24),
    x(24),
    looser=2,
)
of_relax(
    "rms_norm, heads (QK norm)",
    lambda v, w: rms(v) * w,
    lambda v, w: nn.rms_norm(v, w, axes=[-1], epsilon=EPS),
    x(1, 3, 4, 16),
    x(16),
    looser=2,
)
of_relax(
    "rms_norm, two axes",
    lambda v, w: rms(v, (1, 2)) * w,
    lambda v, w: nn.rms_norm(v, w, axes=[1, 2], epsilon=EPS),
    x(3, 4, 6),
    x(4, 6),
    looser=2,
)
of_relax(
    "rms_norm, one column",
    lambda v, w: rms(v) * w,
    lambda v, w: nn.rms_norm(v, w, axes=[-1], epsilon=EPS),
    x(5, 1),
    x(1),
    looser=2,
)
of_topi(
    "rms_norm of TOPI",
    lambda v, w: rms(v) * w,
    lambda v, w: topi.nn.rms_norm(v, w, [1], EPS),
    x(3, 40),
    x(40),
    looser=2,
)


def wide(v: Any, *i: Any) -> Any:
    return v[i].astype("float32")


def _rms(v: Any, finish: Callable[..., Any], *, value: Any = None, name: str = "out") -> Any:
    """An RMS norm in float32: `finish(normalised, *index)` gives the result."""
    read = value or (lambda *i: wide(v, *i))
    *lead, n = v.shape
    k = te.reduce_axis((0, n), "k")
    total = te.compute(lead, lambda *i: te.sum(read(*i, k) * read(*i, k), axis=k), name="total")
    scale = te.compute(lead, lambda *i: tirx.rsqrt(total[i] / float(n.value) + EPS), name="scale")
    return te.compute(v.shape, lambda *i: finish(read(*i) * scale[i[:-1]], *i), name=name), scale


of_te("rms_norm without weight", rms, lambda v: _rms(v, lambda y, *_: y.astype(v.dtype))[0], x(3, 24))
of_te(
    "rms_norm, Gemma (1 + w)",
    lambda v, w: rms(v) * (1 + w),
    lambda v, w: _rms(v, lambda y, *i: (y * (w[i[-1]].astype("float32") + 1.0)).astype(v.dtype))[0],
    x(2, 3, 24),
    x(24),
)


def _llama(v: Any, w: Any) -> Any:
    return _rms(v, lambda y, *i: y.astype(v.dtype) * w[i[-1]])[0]


def rounded(values: Any, like: Any) -> Any:
    return values.astype(like).astype(np.float64)


@entry("rms_norm, cast before the weight", "te", None, x(3, 24), x(24), dtypes=("bfloat16",))
def _llama_entry(dtype: str) -> Any:
    return topi_func(_llama, ((3, 24), dtype), ((24,), dtype))


ENTRIES[-1] = Entry(
    **{f: getattr(ENTRIES[-1], f) for f in ENTRIES[-1].__slots__ if f != "want"},
    want=lambda v, w: rounded(rms(v), ml_dtypes.bfloat16) * w,
)
of_te(
    "rms_norm, weights of each group",
    lambda v, w: rms(v) * w,
    lambda v, w: _rms(v, lambda y, *i: (y * wide(w, *i[1:])).astype(v.dtype))[0],
    x(3, 4, 24),
    x(4, 24),
)
of_te(
    "rms_norm, one weight",
    lambda v, w: rms(v) * w,
    lambda v, w: _rms(v, lambda y, *i: (y * wide(w, 0)).astype(v.dtype))[0],
    x(3, 24),
    x(1),
)
of_te(
    "rms_norm, weight of each row",
    lambda v, w: rms(v) * w[:, None],
    lambda v, w: _rms(v, lambda y, *i: (y * wide(w, i[0])).astype(v.dtype))[0],
    x(3, 24),
    x(3),
)
of_te(
    "rms_norm and its scale",
    lambda v: (rms(v), 1 / np.sqrt((v * v).mean(-1) + EPS)),
    lambda v: list(_rms(v, lambda y, *_: y.astype(v.dtype))),
    x(3, 24),
)
of_te(
    "rms_norm, gated by SiLU before it",
    lambda v, z, w: rms(v * z * special.expit(z)) * w,
    lambda v, z, w: _rms(
        v,
        lambda y, *i: (y * wide(w, i[-1])).astype(v.dtype),
        value=lambda *i: wide(v, *i) * wide(z, *i) * tirx.sigmoid(wide(z, *i)),
    )[0],
    x(3, 24),
    x(3, 24),
    x(24),
    looser=4,
)
of_te(
    "rms_norm, gated by SiLU after it",
    lambda v, z, w: rms(v) * w * z * special.expit(z),
    lambda v, z, w: _rms(
        v, lambda y, *i: (y * wide(w, i[-1]) * wide(z, *i) * tirx.sigmoid(wide(z, *i))).astype(v.dtype)
    )[0],
    x(3, 24),
    x(3, 24),
    x(24),
    looser=4,
)
of_te(
    "rms_norm, residual after it",
    lambda v, r, w: r + rms(v) * w,
    lambda v, r, w: _rms(v, lambda y, *i: (wide(r, *i) + y * wide(w, i[-1])).astype(v.dtype))[0],
    x(3, 24),
    x(3, 24),
    x(24),
)


@entry(
    "rms_norm, eps as a scalar",
    "TVMScript",
    lambda v, e: rms(v, eps=float(e)),
    x(3, 8),
    x(),
    dtypes=WIDE,
    draw="positive",
)
def _scalar_eps(_: str) -> Any:
    @T.prim_func(s_tir=True)
    def func(v: T.Buffer((3, 8), "float32"), eps: T.float32, y: T.Buffer((3, 8), "float32")):
        total = T.sblock_alloc_buffer((3,))
        for i, k in T.grid(3, 8):
            with T.sblock("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    total[vi] = T.float32(0)
                total[vi] = total[vi] + v[vi, vk] * v[vi, vk]
        for i, k in T.grid(3, 8):
            with T.sblock("out"):
                vi, vk = T.axis.remap("SS", [i, k])
                y[vi, vk] = v[vi, vk] * T.rsqrt(total[vi] / T.float32(8) + eps)

    return func


def _add_rms(bb: Any, a: Any, b: Any, w: Any) -> Any:
    total = bb.emit(relax.op.add(a, b))
    return relax.Tuple([bb.emit(nn.rms_norm(total, w, axes=[-1], epsilon=EPS)), total])


of_pattern(
    "residual and rms_norm",
    lambda a, b, w: (rms(a + b) * w, a + b),
    _add_rms,
    lambda: is_op("relax.nn.rms_norm")(is_op("relax.add")(wildcard(), wildcard()), wildcard()),
    x(2, 3, 24),
    x(2, 3, 24),
    x(24),
    looser=2,
)


def _three(a: Any, b: Any, d: Any, w: Any) -> Any:
    total = te.compute(a.shape, lambda *i: a[i] + b[i] + d[i], name="residual")
    return [total, _rms(total, lambda y, *i: (y * wide(w, i[-1])).astype(a.dtype))[0]]


of_te(
    "residual of three and rms_norm",
    lambda a, b, d, w: (a + b + d, rms(a + b + d) * w),
    _three,
    x(3, 24),
    x(3, 24),
    x(3, 24),
    x(24),
    looser=2,
)


def _embedded(table: Any, ids: Any) -> Any:
    v = te.compute((5, 24), lambda i, k: wide(table, ids[i], k), name="gathered")
    return _rms(v, lambda y, *i: y.astype(table.dtype))[0]


of_te(
    "embedding and rms_norm", lambda t, ids: rms(t[ids]), _embedded, x(9, 24), ((5,), "int32"), draw="label"
)


def _rms_backward(v: Any, dy: Any) -> Any:
    n = 24
    k = te.reduce_axis((0, n), "k")
    total = te.compute((3,), lambda i: te.sum(v[i, k] * v[i, k], axis=k), name="total")
    m = te.reduce_axis((0, n), "m")
    dot = te.compute((3,), lambda i: te.sum(v[i, m] * dy[i, m], axis=m), name="dot")

    def dx(i: Any, j: Any) -> Any:
        scale = tirx.rsqrt(total[i] / float(n) + EPS)
        return scale * (dy[i, j] - v[i, j] * dot[i] * scale * scale / float(n))

    return te.compute((3, n), dx, name="dx")


def rms_backward(v: Any, dy: Any) -> Any:
    scale = 1 / np.sqrt((v * v).mean(-1, keepdims=True) + EPS)
    return scale * (dy - v * (v * dy).mean(-1, keepdims=True) * scale**2)


of_te("rms_norm, backward", rms_backward, _rms_backward, x(3, 24), x(3, 24), dtypes=WIDE)

# --- LayerNorm


def _ln(v: Any, w: Any, b: Any) -> Any:
    return nn.layer_norm(v, w, b, axes=[-1], epsilon=EPS)


of_relax(
    "layer_norm",
    lambda v, w, b: norm(v) * w + b,
    _ln,
    x(3, 33),
    x(33),
    x(33),
    dtypes=HALVES,
    looser=3,
    casts=1,
)
of_relax(
    "layer_norm, rank 4",
    lambda v, w, b: norm(v) * w + b,
    _ln,
    x(2, 1, 2, 24),
    x(24),
    x(24),
    dtypes=HALVES,
    looser=3,
    casts=1,
)
of_relax(
    "layer_norm, rank 1",
    lambda v, w, b: norm(v) * w + b,
    _ln,
    x(24),
    x(24),
    x(24),
    dtypes=HALVES,
    looser=3,
    casts=1,
)
of_relax(
    "layer_norm, one column",
    lambda v, w, b: norm(v) * w + b,
    _ln,
    x(5, 1),
    x(1),
    x(1),
    dtypes=HALVES,
    looser=3,
    casts=1,
)
of_relax(
    "layer_norm, two axes",
    lambda v, w, b: norm(v, (1, 2)) * w + b,
    lambda v, w, b: nn.layer_norm(v, w, b, axes=[1, 2], epsilon=EPS),
    x(3, 4, 6),
    x(4, 6),
    x(4, 6),
    dtypes=HALVES,
    looser=3,
    casts=1,
)
of_relax(
    "layer_norm without bias",
    lambda v, w, b: norm(v) * w,
    lambda v, w, b: nn.layer_norm(v, w, b, axes=[-1], epsilon=EPS, center=False),
    x(3, 24),
    x(24),
    x(24),
    dtypes=HALVES,
    looser=3,
    casts=1,
    declined="is not used",
)
ENTRIES.pop()
of_topi(
    "layer_norm of TOPI, without bias",
    lambda v, w: norm(v) * w,
    lambda v, w: topi.nn.layer_norm(v, w, None, [1], EPS),
    x(3, 24),
    x(24),
    dtypes=HALVES,
    looser=3,
    casts=1,
)


def _stats(v: Any, read: Any = None) -> tuple[Any, Any]:
    read = read or (lambda *i: wide(v, *i))
    *lead, n = v.shape
    k, m = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "m")
    total = te.compute(lead, lambda *i: te.sum(read(*i, k), axis=k), name="total")
    mean = te.compute(lead, lambda *i: total[i] / float(n.value), name="mean")
    spread = te.compute(
        lead, lambda *i: te.sum((read(*i, m) - mean[i]) * (read(*i, m) - mean[i]), axis=m), name="spread"
    )
    rstd = te.compute(lead, lambda *i: tirx.rsqrt(spread[i] / float(n.value) + EPS), name="rstd")
    return mean, rstd


def _layer(v: Any, finish: Callable[..., Any], read: Any = None) -> Any:
    mean, rstd = _stats(v, read)
    read = read or (lambda *i: wide(v, *i))
    return te.compute(
        v.shape, lambda *i: finish((read(*i) - mean[i[:-1]]) * rstd[i[:-1]], *i).astype(v.dtype), name="out"
    )


of_te("layer_norm without weight and bias", norm, lambda v: _layer(v, lambda y, *_: y), x(3, 24))
of_te(
    "layer_norm with bias alone",
    lambda v, b: norm(v) + b,
    lambda v, b: _layer(v, lambda y, *i: y + wide(b, i[-1])),
    x(3, 24),
    x(24),
)
of_te(
    "layer_norm, float32 weights",
    lambda v, w, b: norm(v) * w + b,
    lambda v, w, b: _layer(v, lambda y, *i: y * w[i[-1]] + b[i[-1]]),
    x(3, 24),
    ((24,), "float32"),
    ((24,), "float32"),
)
of_te(
    "layer_norm, float16 weights",
    lambda v, w, b: norm(v) * w + b,
    lambda v, w, b: _layer(v, lambda y, *i: y * wide(w, i[-1]) + wide(b, i[-1])),
    x(3, 24),
    ((24,), "float16"),
    ((24,), "float16"),
)
of_te(
    "layer_norm, modulated by each batch",
    lambda v, s, b: norm(v) * (1 + s[:, None]) + b[:, None],
    lambda v, s, b: _layer(v, lambda y, *i: y * (wide(s, i[0], i[2]) + 1.0) + wide(b, i[0], i[2])),
    x(2, 3, 24),
    x(2, 24),
    x(2, 24),
)
of_te(
    "layer_norm, GELU after it",
    lambda v: norm(v) * special.ndtr(norm(v)),
    lambda v: _layer(v, lambda y, *_: y * 0.5 * (tirx.erf(y * 0.7071067811865476) + 1.0)),
    x(3, 24),
    looser=4,
)


def _layer_stats(v: Any) -> Any:
    mean, rstd = _stats(v)
    y = te.compute(v.shape, lambda i, j: ((wide(v, i, j) - mean[i]) * rstd[i]).astype(v.dtype), name="y")
    return [y, mean, rstd]


of_te(
    "layer_norm and its statistics",
    lambda v: (norm(v), v.mean(-1), 1 / np.sqrt(v.var(-1) + EPS)),
    _layer_stats,
    x(3, 24),
    looser=4,
)


def _add_ln(bb: Any, a: Any, b: Any, w: Any, z: Any) -> Any:
    total = bb.emit(relax.op.add(a, b))
    return relax.Tuple([bb.emit(nn.layer_norm(total, w, z, axes=[-1], epsilon=EPS)), total])


of_pattern(
    "residual and layer_norm",
    lambda a, b, w, z: (norm(a + b) * w + z, a + b),
    _add_ln,
    lambda: is_op("relax.nn.layer_norm")(is_op("relax.add")(wildcard(), wildcard()), wildcard(), wildcard()),
    x(3, 24),
    x(3, 24),
    x(24),
    x(24),
    dtypes=HALVES,
    looser=3,
    casts=1,
)
of_te(
    "layer_norm of layer_norm",
    lambda v: norm(norm(v)),
    lambda v: _layer(_layer(v, lambda y, *_: y), lambda y, *_: y),
    x(3, 24),
    dtypes=WIDE,
)


def _ln_backward(v: Any, dy: Any, w: Any) -> Any:
    n = 24
    mean, rstd = _stats(v)
    k, m = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "m")

    def hat(i: Any, j: Any) -> Any:
        return (v[i, j] - mean[i]) * rstd[i]

    g = te.compute((3, n), lambda i, j: dy[i, j] * w[j], name="g")
    a = te.compute((3,), lambda i: te.sum(g[i, k], axis=k), name="a")
    b = te.compute((3,), lambda i: te.sum(g[i, m] * hat(i, m), axis=m), name="b")
    return te.compute(
        (3, n), lambda i, j: rstd[i] * (g[i, j] - a[i] / float(n) - hat(i, j) * b[i] / float(n)), name="dx"
    )


def ln_backward(v: Any, dy: Any, w: Any) -> Any:
    hat, g = norm(v), dy * w
    rstd = 1 / np.sqrt(v.var(-1, keepdims=True) + EPS)
    return rstd * (g - g.mean(-1, keepdims=True) - hat * (g * hat).mean(-1, keepdims=True))


of_te("layer_norm, backward", ln_backward, _ln_backward, x(3, 24), x(3, 24), x(24), dtypes=WIDE, looser=4)


@entry(
    "layer_norm, Welford by hand",
    "TVMScript",
    norm,
    x(4, 8),
    dtypes=WIDE,
    note="read as the mean and the sum about it",
)
def _welford(_: str) -> Any:
    @T.prim_func(s_tir=True)
    def func(v: T.Buffer((4, 8), "float32"), y: T.Buffer((4, 8), "float32")):
        mean = T.sblock_alloc_buffer((4,))
        spread = T.sblock_alloc_buffer((4,))
        for i, k in T.grid(4, 8):
            with T.sblock("pair"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    mean[vi] = T.float32(0)
                    spread[vi] = T.float32(0)
                delta: T.let[T.float32] = v[vi, vk] - mean[vi]
                new: T.let[T.float32] = mean[vi] + delta / T.Cast("float32", vk + 1)
                spread[vi] = spread[vi] + delta * (v[vi, vk] - new)
                mean[vi] = new
        for i, k in T.grid(4, 8):
            with T.sblock("out"):
                vi, vk = T.axis.remap("SS", [i, k])
                y[vi, vk] = (v[vi, vk] - mean[vi]) * T.rsqrt(spread[vi] / T.float32(8) + T.float32(1e-5))

    return func


def _welford_combiner(v: Any) -> Any:
    def combine(a: Any, b: Any) -> Any:
        n, d = a[0] + b[0], b[1] - a[1]
        return n, a[1] + d * b[0] / n, a[2] + b[2] + d * d * a[0] * b[0] / n

    k = te.reduce_axis((0, 24), "k")
    zero, one = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")
    reducer = te.comm_reducer(combine, lambda *_: (zero, zero, zero), name="welford")
    n, mean, spread = te.compute((3,), lambda i: reducer((one, wide(v, i, k), zero), axis=k), name="parts")
    return te.compute(
        (3, 24),
        lambda i, j: ((wide(v, i, j) - mean[i]) * tirx.rsqrt(spread[i] / n[i] + EPS)).astype(v.dtype),
        name="out",
    )


of_te(
    "layer_norm, Welford as a combiner",
    norm,
    _welford_combiner,
    x(3, 24),
    note="read as the mean and the sum about it",
)


# --- group, instance, batch


def group(v: Any, groups: int) -> Any:
    return norm(v.reshape(v.shape[0], groups, -1)).reshape(v.shape)


def _channels(w: Any) -> Any:
    return w.reshape(1, -1, 1, 1)


of_topi(
    "group_norm of TOPI",
    lambda v, w, b: group(v, 2) * _channels(w) + _channels(b),
    lambda v, w, b: topi.nn.group_norm(v, w, b, 2, 1, [2, 3], EPS),
    x(2, 4, 2, 3),
    x(4),
    x(4),
    dtypes=HALVES,
    looser=8,
)
of_relax(
    "group_norm",
    lambda v, w, b: group(v, 2) * _channels(w) + _channels(b),
    lambda v, w, b: nn.group_norm(v, w, b, num_groups=2, channel_axis=1, axes=[2, 3], epsilon=EPS),
    x(2, 4, 2, 3),
    x(4),
    x(4),
    dtypes=HALVES,
    looser=8,
)
of_relax(
    "group_norm, one group",
    lambda v, w, b: group(v, 1) * _channels(w) + _channels(b),
    lambda v, w, b: nn.group_norm(v, w, b, num_groups=1, channel_axis=1, axes=[2, 3], epsilon=EPS),
    x(2, 4, 2, 3),
    x(4),
    x(4),
    dtypes=HALVES,
    looser=8,
)
of_topi(
    "instance_norm of TOPI",
    lambda v, w, b: norm(v, (2, 3)) * _channels(w) + _channels(b),
    lambda v, w, b: topi.nn.instance_norm(v, w, b, 1, [2, 3], EPS),
    x(2, 3, 4, 6),
    x(3),
    x(3),
    dtypes=HALVES,
    looser=8,
)
of_relax(
    "instance_norm",
    lambda v, w, b: norm(v, (2, 3)) * _channels(w) + _channels(b),
    lambda v, w, b: nn.instance_norm(v, w, b, channel_axis=1, axes=[2, 3], epsilon=EPS),
    x(2, 3, 4, 6),
    x(3),
    x(3),
    dtypes=HALVES,
    looser=8,
)


def _batch(v: Any) -> Any:
    k, h, w = (te.reduce_axis((0, n), s) for n, s in ((2, "k"), (3, "h"), (4, "w")))
    total = te.compute((5,), lambda c_: te.sum(v[k, c_, h, w], axis=[k, h, w]), name="total")
    return te.compute((5,), lambda c_: total[c_] / c(24.0, v.dtype), name="mean")


of_te("batch mean of channels", lambda v: v.mean((0, 2, 3)), _batch, x(2, 5, 3, 4))


def _batch_norm(v: Any) -> Any:
    def reduced(read: Any, name: str) -> Any:
        k, h, w = (te.reduce_axis((0, n), s) for n, s in ((2, "k"), (3, "h"), (4, "w")))
        return te.compute((5,), lambda c_: te.sum(read(k, c_, h, w), axis=[k, h, w]), name=name)

    mean = reduced(lambda *i: wide(v, *i) / 24.0, "mean")
    spread = reduced(
        lambda n, i, h, w: (wide(v, n, i, h, w) - mean[i]) * (wide(v, n, i, h, w) - mean[i]), "spread"
    )
    return te.compute(
        (2, 5, 3, 4),
        lambda n, i, h, w: ((wide(v, n, i, h, w) - mean[i]) * tirx.rsqrt(spread[i] / 24.0 + EPS)).astype(
            v.dtype
        ),
        name="out",
    )


of_te(
    "batch_norm in training",
    lambda v: norm(v, (0, 2, 3)),
    _batch_norm,
    x(2, 5, 3, 4),
    note="rows of channels lie in pieces: read and written element by element",
)

of_topi(
    "batch_norm of TOPI in training",
    lambda v, g, b, m, s: (
        norm(v, (0, 2, 3)) * _channels(g) + _channels(b),
        0.9 * m + 0.1 * v.mean((0, 2, 3)),
        0.9 * s + 0.1 * v.var((0, 2, 3)),
    ),
    lambda *args: list(topi.nn.batch_norm(*args, 1, EPS, True, True, True, 0.1)),
    x(2, 5, 3, 4),
    *[x(5)] * 4,
    dtypes=WIDE,
    looser=4,
)

# --- other norms


def _over(total: Callable[..., Any], finish: Callable[..., Any]) -> Callable[[Any], Any]:
    def build(v: Any) -> Any:
        t = total(v)
        return te.compute(v.shape, lambda i, j: finish(v, t, i, j), name="out")

    return build


of_te(
    "L2 normalise, eps inside the root",
    lambda v: v / np.sqrt((v * v).sum(-1, keepdims=True) + 1e-6),
    _over(
        lambda v: topi.sum(
            te.compute(v.shape, lambda i, j: wide(v, i, j) * wide(v, i, j), name="sq"), axis=-1
        ),
        lambda v, t, i, j: (wide(v, i, j) / tirx.sqrt(t[i] + 1e-6)).astype(v.dtype),
    ),
    x(3, 24),
)
of_te(
    "L2 normalise, at least eps",
    lambda v: v / np.maximum(np.sqrt((v * v).sum(-1, keepdims=True)), 1e-6),
    _over(
        lambda v: topi.sum(
            te.compute(v.shape, lambda i, j: wide(v, i, j) * wide(v, i, j), name="sq"), axis=-1
        ),
        lambda v, t, i, j: (wide(v, i, j) / tirx.max(tirx.sqrt(t[i]), tirx.const(1e-6, "float32"))).astype(
            v.dtype
        ),
    ),
    x(3, 24),
)
of_te(
    "L1 normalise",
    lambda v: v / np.abs(v).sum(-1, keepdims=True),
    _over(lambda v: topi.sum(topi.abs(v), axis=-1), lambda v, t, i, j: v[i, j] / t[i]),
    x(3, 24),
)
of_te(
    "normalise by the largest magnitude",
    lambda v: v / np.abs(v).max(-1, keepdims=True),
    _over(lambda v: topi.max(topi.abs(v), axis=-1), lambda v, t, i, j: v[i, j] / t[i]),
    x(3, 24),
)


def _min_max(v: Any) -> Any:
    low, high = topi.min(v, axis=-1), topi.max(v, axis=-1)
    return te.compute(v.shape, lambda i, j: (v[i, j] - low[i]) / (high[i] - low[i]), name="out")


def min_max(v: Any) -> Any:
    low, high = v.min(-1, keepdims=True), v.max(-1, keepdims=True)
    return (v - low) / (high - low)


of_te("scale to 0 … 1", min_max, _min_max, x(3, 24))
of_te(
    "centre",
    lambda v: v - v.mean(-1, keepdims=True),
    _over(lambda v: topi.sum(v, axis=-1), lambda v, t, i, j: v[i, j] - t[i] / c(24.0, v.dtype)),
    x(3, 24),
    looser=2,
)
of_te(
    "standardise by the sample deviation",
    lambda v: (v - v.mean(-1, keepdims=True)) / v.std(-1, ddof=1, keepdims=True),
    lambda v: _sample(v),
    x(3, 24),
    dtypes=WIDE,
)


def _sample(v: Any) -> Any:
    total = topi.sum(v, axis=-1)
    spread = topi.sum(
        te.compute(
            v.shape, lambda i, j: tirx.power(v[i, j] - total[i] / 24.0, tirx.const(2.0, "float32")), name="sq"
        ),
        axis=-1,
    )
    return te.compute(
        v.shape, lambda i, j: (v[i, j] - total[i] / 24.0) / tirx.sqrt(spread[i] / 23.0), name="out"
    )


# --- quantisation


def _clip(value: Any, limit: float) -> Any:
    return tirx.max(tirx.min(value, tirx.const(limit, "float32")), tirx.const(-limit, "float32"))


def _dynamic(dtype: str, limit: float) -> Callable[[Any], Any]:
    """A symmetric scale a row; a row of zeros takes the scale 1/limit·eps, which is not zero."""

    def build(v: Any) -> Any:
        top = topi.max(te.compute(v.shape, lambda i, j: tirx.abs(wide(v, i, j)), name="size"), axis=-1)
        scale = te.compute(
            top.shape, lambda i: tirx.max(top[i], tirx.const(1e-12, "float32")) / limit, name="scale"
        )

        def q(i: Any, j: Any) -> Any:
            value = wide(v, i, j) / scale[i]
            return _clip(tirx.nearbyint(value) if "int" in dtype else value, limit).astype(dtype)

        return [te.compute(v.shape, q, name="q"), scale]

    return build


def dynamic_int8(v: Any) -> Any:
    scale = np.maximum(np.abs(v).max(-1), 1e-12) / 127
    return np.clip(np.rint(v / scale[:, None]), -127, 127).astype(np.int8), scale


of_te(
    "quantise rows to int8, dynamic scale",
    dynamic_int8,
    _dynamic("int8", 127.0),
    x(3, 24),
    family="quantise",
    ties=True,
)


def _fp8(dtype: Any, limit: float) -> Callable[[Any], Any]:
    def want(v: Any) -> Any:
        scale = np.maximum(np.abs(v).max(-1), 1e-12) / limit
        return np.clip(v / scale[:, None], -limit, limit).astype(np.float32).astype(dtype).astype(
            np.float64
        ), scale

    return want


for name, kind, limit in (("e4m3", "float8_e4m3fn", 448.0), ("e5m2", "float8_e5m2", 57344.0)):
    of_te(
        f"quantise rows to fp8 {name}, dynamic scale",
        _fp8(getattr(ml_dtypes, kind), limit),
        _dynamic(kind, limit),
        x(3, 24),
        family="quantise",
        declined_on=(("metal", "float8"),),
    )


def _rms_int8(v: Any, w: Any) -> Any:
    def q(y: Any, *i: Any) -> Any:
        return _clip(tirx.nearbyint(y * wide(w, i[-1]) * 40.0), 127.0)

    y, _ = _rms(v, q)
    return te.compute(v.shape, lambda *i: y[i].astype("int8"), name="q")


of_te(
    "rms_norm, quantised to int8",
    lambda v, w: np.clip(np.rint(rms(v) * w * 40), -127, 127).astype(np.int8),
    _rms_int8,
    x(3, 24),
    x(24),
    family="quantise",
    ties=True,
)
of_te(
    "rms_norm, quantised to fp8",
    lambda v, w: (rms(v) * w).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64),
    lambda v, w: _rms_fp8(v, w),
    x(3, 24),
    x(24),
    family="quantise",
    declined_on=(("metal", "float8"),),
    looser=2,
)


def _rms_fp8(v: Any, w: Any) -> Any:
    n = 24
    k = te.reduce_axis((0, n), "k")
    total = te.compute((3,), lambda i: te.sum(wide(v, i, k) * wide(v, i, k), axis=k), name="total")
    return te.compute(
        v.shape,
        lambda i, j: _clip(wide(v, i, j) * tirx.rsqrt(total[i] / float(n) + EPS) * wide(w, j), 448.0).astype(
            "float8_e4m3fn"
        ),
        name="q",
    )


_ = legalized
