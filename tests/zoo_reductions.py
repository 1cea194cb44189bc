"""Bare reductions: sums, extrema, their indices, statistics, nested ones; and near misses that are
declined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.script import tirx as T  # noqa: N812

from tests import zoo_norms, zoo_softmax
from tests.zoo import WIDE, Entry
from tests.zoo_softmax import c, x

# mypy cannot read TVMScript.
# mypy: ignore-errors

ENTRIES: list[Entry] = []
op = relax.op


def _into(adder: Any) -> Any:
    def add(*args: Any, **more: Any) -> None:
        before = len(zoo_softmax.ENTRIES)
        adder(*args, **{"family": "reduction", **more})
        ENTRIES.extend(zoo_softmax.ENTRIES[before:])
        del zoo_softmax.ENTRIES[before:]

    return add


of_te, of_topi, of_relax = _into(zoo_softmax.of_te), _into(zoo_softmax.of_topi), _into(zoo_softmax.of_relax)
of_fusion = _into(zoo_softmax.of_fusion)

for name, relaxed, formula in (
    ("sum", op.sum, np.sum),
    ("mean", op.mean, np.mean),
    ("max", op.max, np.max),
    ("min", op.min, np.min),
):
    of_relax(name, lambda v, f=formula: f(v, -1), lambda v, r=relaxed: r(v, -1), x(3, 33), looser=4)
    of_relax(
        f"{name}, kept dim",
        lambda v, f=formula: f(v, -1, keepdims=True),
        lambda v, r=relaxed: r(v, -1, keepdims=True),
        x(2, 3, 24),
        looser=4,
    )
    of_relax(
        f"{name} over axis 0", lambda v, f=formula: f(v, 0), lambda v, r=relaxed: r(v, 0), x(24, 3), looser=4
    )
    of_relax(
        f"{name} over the middle axis",
        lambda v, f=formula: f(v, 1),
        lambda v, r=relaxed: r(v, 1),
        x(2, 24, 3),
        looser=4,
    )
    of_relax(
        f"{name} over two axes",
        lambda v, f=formula: f(v, (1, 2)),
        lambda v, r=relaxed: r(v, [1, 2]),
        x(3, 4, 6),
        looser=4,
    )
    of_relax(
        f"{name} over outer and inner axis",
        lambda v, f=formula: f(v, (0, 2)),
        lambda v, r=relaxed: r(v, [0, 2]),
        x(4, 3, 6),
        looser=4,
    )
    of_relax(f"{name} of everything", lambda v, f=formula: f(v), lambda v, r=relaxed: r(v), x(4, 6), looser=8)

of_relax("variance", lambda v: v.var(-1), lambda v: op.variance(v, -1), x(3, 33), looser=4)
of_relax("std", lambda v: v.std(-1), lambda v: op.std(v, -1), x(3, 33), looser=4)
of_relax("prod", lambda v: v.prod(-1), lambda v: op.prod(v, -1), x(3, 33), draw="unit", looser=4)
of_topi("sum of TOPI", lambda v: v.sum(-1), lambda v: topi.sum(v, -1), x(3, 40), looser=4)
of_topi("max of TOPI", lambda v: v.max(-1), lambda v: topi.max(v, -1), x(3, 40))
of_topi("sum, one column", lambda v: v.sum(-1), lambda v: topi.sum(v, -1), x(5, 1))
of_topi("sum of rank 1", lambda v: v.sum(), lambda v: topi.sum(v, 0), x(24), looser=8)

for name, function in (("argmax", np.argmax), ("argmin", np.argmin)):
    relaxed, topied = getattr(op, name), getattr(topi, name)
    of_relax(f"{name}, int64", lambda v, f=function: f(v, -1), lambda v, r=relaxed: r(v, -1), x(3, 33))
    of_topi(
        f"{name}, int32",
        lambda v, f=function: f(v, -1).astype(np.int32),
        lambda v, r=topied: r(v, -1),
        x(3, 40),
    )
    of_relax(f"{name} over axis 0", lambda v, f=function: f(v, 0), lambda v, r=relaxed: r(v, 0), x(24, 3))
    of_relax(f"{name} of everything", lambda v, f=function: f(v), lambda v, r=relaxed: r(v), x(4, 6))


def _pair(v: Any) -> Any:
    return [topi.max(v, -1), topi.argmax(v, -1)]


of_te("max and argmax", lambda v: (v.max(-1), v.argmax(-1).astype(np.int32)), _pair, x(3, 24))


def _argmax_of_softmax(v: Any) -> Any:
    return topi.argmax(topi.nn.softmax(v, -1), -1)


of_te("argmax of softmax", lambda v: v.argmax(-1).astype(np.int32), _argmax_of_softmax, x(3, 24), dtypes=WIDE)


def squares(v: Any) -> Any:
    return te.compute(v.shape, lambda i, j: v[i, j] * v[i, j], name="squares")


of_te("sum of squares", lambda v: (v * v).sum(-1), lambda v: topi.sum(squares(v), -1), x(3, 24), looser=4)
of_te(
    "L2 norm",
    lambda v: np.sqrt((v * v).sum(-1)),
    lambda v: topi.sqrt(topi.sum(squares(v), -1)),
    x(3, 24),
    looser=4,
)
of_te("largest magnitude", lambda v: np.abs(v).max(-1), lambda v: topi.max(topi.abs(v), -1), x(3, 24))
of_te(
    "sum and sum of squares",
    lambda v: (v.sum(-1), (v * v).sum(-1)),
    lambda v: [topi.sum(v, -1), topi.sum(squares(v), -1)],
    x(3, 24),
    looser=8,
)
of_te(
    "least and largest",
    lambda v: (v.min(-1), v.max(-1)),
    lambda v: [topi.min(v, -1), topi.max(v, -1)],
    x(3, 24),
)


def _dot(v: Any, w: Any) -> Any:
    return topi.sum(te.compute(v.shape, lambda i, j: v[i, j] * w[i, j], name="terms"), -1)


of_te("dot product of rows", lambda v, w: (v * w).sum(-1), _dot, x(3, 24), x(3, 24), looser=8)


def _cosine(v: Any, w: Any) -> Any:
    dot = _dot(v, w)
    a, b = topi.sum(squares(v), -1), topi.sum(squares(w), -1)
    return te.compute((3,), lambda i: dot[i] * tirx.rsqrt(a[i] * b[i]), name="cosine")


of_te(
    "cosine of rows",
    lambda v, w: (v * w).sum(-1) / np.sqrt((v * v).sum(-1) * (w * w).sum(-1)),
    _cosine,
    x(3, 24),
    x(3, 24),
    dtypes=WIDE,
    looser=8,
)


def _masked_mean(v: Any, keep: Any) -> Any:
    total = topi.sum(
        te.compute(v.shape, lambda i, j: tirx.Select(keep[i, j], v[i, j], c(0, v.dtype)), name="k"), -1
    )
    count = topi.sum(te.compute(v.shape, lambda i, j: keep[i, j].astype("int32"), name="n"), -1)
    return te.compute((3,), lambda i: total[i] / count[i].astype(v.dtype), name="mean")


of_te(
    "mean of what a mask keeps",
    lambda v, keep: np.where(keep, v, 0).sum(-1) / keep.sum(-1),
    _masked_mean,
    x(3, 24),
    ((3, 24), "bool"),
    looser=8,
)
of_te(
    "count above zero",
    lambda v: (v > 0).sum(-1).astype(np.int32),
    lambda v: topi.sum(
        te.compute(v.shape, lambda i, j: (v[i, j] > c(0, v.dtype)).astype("int32"), name="n"), -1
    ),
    x(3, 24),
)
of_topi("any", lambda v: v.any(-1), lambda v: topi.any(v, -1), ((3, 24), "bool"), dtypes=WIDE)
of_topi("all", lambda v: v.all(-1), lambda v: topi.all(v, -1), ((3, 24), "bool"), dtypes=WIDE)

for dtype in ("int8", "uint8", "int16", "int32", "int64", "uint32", "uint64"):
    of_topi(
        f"sum of {dtype}",
        lambda v, d=dtype: v.sum(-1, dtype=d),
        lambda v: topi.sum(v, -1),
        ((3, 24), dtype),
        dtypes=WIDE,
        family="integer",
    )
    of_topi(
        f"max of {dtype}",
        lambda v: v.max(-1),
        lambda v: topi.max(v, -1),
        ((3, 24), dtype),
        dtypes=WIDE,
        family="integer",
    )
for dtype in ("int8", "int32", "int64"):
    of_topi(
        f"min of {dtype}",
        lambda v: v.min(-1),
        lambda v: topi.min(v, -1),
        ((3, 24), dtype),
        dtypes=WIDE,
        family="integer",
    )
    of_topi(
        f"argmax of {dtype}",
        lambda v: v.argmax(-1).astype(np.int32),
        lambda v: topi.argmax(v, -1),
        ((3, 24), dtype),
        dtypes=WIDE,
        family="integer",
    )
    of_topi(
        f"prod of {dtype}",
        lambda v, d=dtype: v.prod(-1, dtype=d),
        lambda v: topi.prod(v, -1),
        ((3, 24), dtype),
        dtypes=WIDE,
        family="integer",
    )
for source in ("int8", "bool"):
    of_te(
        f"sum of {source} in int32",
        lambda v: v.sum(-1, dtype=np.int32),
        lambda v: topi.sum(te.compute(v.shape, lambda i, j: v[i, j].astype("int32"), name="wide"), -1),
        ((3, 300), source),
        dtypes=WIDE,
        family="integer",
    )
of_te(
    "mean of int8 in float32",
    lambda v: v.mean(-1),
    lambda v: topi.sum(te.compute(v.shape, lambda i, j: v[i, j].astype("float32") / 24.0, name="wide"), -1),
    ((3, 24), "int8"),
    dtypes=WIDE,
    looser=4,
    family="integer",
)

# --- nested


def mean(v: Any, axis: int, n: float) -> Any:
    return (
        te.compute(
            tuple(e for k, e in enumerate(v.shape) if k != axis),
            lambda *i: topi_sum[i] / c(n, v.dtype),
            name="mean",
        )
        if (topi_sum := topi.sum(v, axis)) is not None
        else None
    )


of_te(
    "mean of means",
    lambda v: v.mean((1, 2)),
    lambda v: mean(mean(v, 2, 8.0), 1, 6.0),
    x(3, 6, 8),
    looser=8,
    family="nested",
)
of_te(
    "max of maxima",
    lambda v: v.max((1, 2)),
    lambda v: topi.max(topi.max(v, -1), -1),
    x(3, 6, 8),
    family="nested",
)


def _b64(v: Any) -> Any:
    inner = te.compute((6, 6), lambda i, j: tirx.sigmoid(tirx.rsqrt(v[i, j])), name="inner")
    first = topi.sum(inner, -1)
    second = te.compute((6,), lambda i: first[i] / 6.0, name="mean")
    total = topi.sum(second, 0)
    return te.compute((), lambda: total() / 6.0, name="out")


of_te(
    "mean of mean of a sigmoid",
    lambda v: (1 / (1 + np.exp(-1 / np.sqrt(v)))).mean(),
    _b64,
    x(6, 6),
    dtypes=WIDE,
    draw="positive",
    looser=8,
    family="nested",
)


def _rms_of_sums(v: Any) -> Any:
    inner = topi.sum(v, -1)
    return topi.sum(te.compute((3, 6), lambda i, j: inner[i, j] * inner[i, j], name="sq"), -1)


of_te(
    "sum of squared sums",
    lambda v: (v.sum(-1) ** 2).sum(-1),
    _rms_of_sums,
    x(3, 6, 8),
    dtypes=WIDE,
    family="nested",
    declined="reduces another reduction",
    note="the inner sums would have to be kept for each of the outer columns",
)

# --- near misses: none of these is a row reduction

of_topi(
    "matmul",
    lambda a, b: a @ b,
    lambda a, b: topi.matmul(a, b),
    x(4, 8),
    x(8, 4),
    dtypes=WIDE,
    family="other",
    declined="matmul",
)
of_te(
    "matrix times vector",
    lambda a, w: a @ w,
    lambda a, w: _gemv(a, w),
    x(4, 8),
    x(8),
    dtypes=WIDE,
    family="other",
    declined="matrix-vector product",
)


def _gemv(a: Any, w: Any) -> Any:
    k = te.reduce_axis((0, 8), "k")
    return te.compute((4,), lambda i: te.sum(a[i, k] * w[k], axis=k), name="out")


of_topi(
    "elementwise",
    lambda v: v + 1,
    lambda v: topi.add(v, tirx.const(1.0, "float32")),
    x(4, 8),
    dtypes=WIDE,
    family="other",
    declined="without a reduction",
)
of_topi(
    "max pool",
    None,
    lambda v: topi.nn.pool2d(v, [2, 2], [1, 1], [1, 1], [0, 0, 0, 0], "max"),
    x(1, 2, 6, 6),
    dtypes=WIDE,
    family="other",
    declined="; needs",
)
of_topi("cumsum", None, lambda v: topi.cumsum(v, 1), x(3, 8), dtypes=WIDE, family="other", declined="; needs")
_ = (T, zoo_norms)
