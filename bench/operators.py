"""The operators that the command line and the studies know: Relax expression beside float64 reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import FLOATS
from .shapes import Shape
from .workloads import Array, Operand, Workload

EPSILON = 1e-5
"""Of every norm here, as in the Llama and GPT families."""

X = Operand(name="x")
Y = Operand(name="y")
ROW = Operand(name="y", axes="rows")


def _logits(rng: np.random.Generator, shape: Shape) -> Array:
    # Spread over several binades of exp, so that a lost maximum shows.
    return 4.0 * rng.standard_normal(shape)


def _weights(rng: np.random.Generator, shape: Shape) -> Array:
    return 1.0 + 0.25 * rng.standard_normal(shape)


def _near_one(rng: np.random.Generator, shape: Shape) -> Array:
    # A product of N of them stays inside the range of float16.
    return np.exp(rng.standard_normal(shape) / np.sqrt(max(shape[-1], 1)))


def _integers(rng: np.random.Generator, shape: Shape) -> Array:
    return rng.integers(-100, 100, shape)


def _mask(rng: np.random.Generator, shape: Shape) -> Array:
    # Additive; column 0 is always kept, so that no row is empty.
    mask = np.where(rng.random(shape) < 0.25, -10000.0, 0.0)
    mask[..., 0] = 0.0
    return mask


def _keep(rng: np.random.Generator, shape: Shape) -> Array:
    keep = rng.random(shape) < 0.75
    keep[..., 0] = True
    return keep


LOGITS = Operand(name="x", draw=_logits)
WEIGHT = Operand(name="weight", axes="columns", draw=_weights)
BIAS = Operand(name="bias", axes="columns")


def _softmax(x: Array) -> Array:
    shifted = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return np.asarray(shifted / np.sum(shifted, axis=-1, keepdims=True))


def _logsumexp_reference(x: Array) -> Array:
    top = np.max(x, axis=-1)
    return np.asarray(np.log(np.sum(np.exp(x - top[..., None]), axis=-1)) + top)


def _rms(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON))


def _standard(x: Array) -> Array:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + EPSILON))


def _layer_norm(relax: Any, x: Any, weight: Any, bias: Any) -> Any:
    norm = relax.op.nn.layer_norm
    if x.ty.dtype != "bfloat16":
        return norm(x, weight, bias, axes=[-1], epsilon=EPSILON)
    # TOPI declines bfloat16 here; models cast round it, and so do we.
    wide = [relax.op.astype(v, "float32") for v in (x, weight, bias)]
    return relax.op.astype(norm(*wide, axes=[-1], epsilon=EPSILON), "bfloat16")


def _layer_norm_reference(x: Array, weight: Array, bias: Array, *, cast: Any) -> tuple[Array, ...]:
    # In half precision Relax rounds before the affine part.
    return (cast(_standard(x)) * weight + bias,)


def _add_rms_norm(relax: Any, x: Any, residual: Any, weight: Any) -> Any:
    total = relax.op.add(x, residual)
    return relax.Tuple([total, relax.op.nn.rms_norm(total, weight, axes=[-1], epsilon=EPSILON)])


def _masked_softmax(relax: Any, x: Any, mask: Any) -> Any:
    return relax.op.nn.softmax(relax.op.add(x, mask), axis=-1)


def _where_softmax(relax: Any, x: Any, keep: Any) -> Any:
    lowest = {"float32": -3.4028234663852886e38, "float16": -65504.0, "bfloat16": -3.3895313892515355e38}
    dtype = str(x.ty.dtype)
    hidden = relax.op.full(x.ty.shape, relax.const(lowest[dtype], dtype), dtype)
    return relax.op.nn.softmax(relax.op.where(keep, x, hidden), axis=-1)


def _logsumexp(relax: Any, x: Any) -> Any:
    op = relax.op
    top = op.max(x, axis=-1, keepdims=True)
    total = op.sum(op.exp(op.subtract(x, top)), axis=-1, keepdims=True)
    return op.squeeze(op.add(op.log(total), top), axis=[-1])


def _l2_norm(relax: Any, x: Any) -> Any:
    op = relax.op
    return op.divide(x, op.sqrt(op.sum(op.multiply(x, x), axis=-1, keepdims=True)))


def _scaled_softmax(relax: Any, x: Any) -> Any:
    return relax.op.nn.softmax(relax.op.multiply(x, relax.const(0.125, str(x.ty.dtype))), axis=-1)


def _row_reduction(name: str, summary: str, reference: Any, **fields: Any) -> Workload:
    def express(relax: Any, x: Any) -> Any:
        return getattr(relax.op, name)(x, axis=-1)

    fields.setdefault("operands", (X,))
    fields.setdefault("results", (ROW,))
    return Workload(
        name="var" if name == "variance" else name,
        summary=summary,
        express=express,
        reference=lambda x, cast: (np.asarray(reference(x)),),
        **fields,
    )


INTEGERS = ("int32",)

OPERATORS: tuple[Workload, ...] = (
    Workload(
        name="softmax",
        summary="exp(x − max) / Σ exp(x − max)",
        operands=(LOGITS,),
        results=(Y,),
        express=lambda relax, x: relax.op.nn.softmax(x, axis=-1),
        reference=lambda x, cast: (_softmax(x),),
    ),
    Workload(
        name="log_softmax",
        summary="x − max − log Σ exp(x − max)",
        operands=(LOGITS,),
        results=(Y,),
        express=lambda relax, x: relax.op.nn.log_softmax(x, axis=-1),
        reference=lambda x, cast: (x - _logsumexp_reference(x)[..., None],),
    ),
    Workload(
        name="scaled_softmax",
        summary="softmax(x / 8), as attention scores have it",
        operands=(LOGITS,),
        results=(Y,),
        express=_scaled_softmax,
        reference=lambda x, cast: (_softmax(x * 0.125),),
    ),
    Workload(
        name="masked_softmax",
        summary="softmax(x + mask), the mask broadcast over the outer axes",
        operands=(LOGITS, Operand(name="mask", axes="last2", draw=_mask)),
        results=(Y,),
        express=_masked_softmax,
        reference=lambda x, mask, cast: (_softmax(x + mask),),
    ),
    Workload(
        name="where_softmax",
        summary="softmax(where(keep, x, lowest)), keep a broadcast boolean",
        operands=(LOGITS, Operand(name="keep", axes="last2", dtype="bool", draw=_keep)),
        results=(Y,),
        express=_where_softmax,
        reference=lambda x, keep, cast: (_softmax(np.where(keep, x, -np.inf)),),
    ),
    Workload(
        name="rms_norm",
        summary="x · rsqrt(mean(x²) + ε) · weight",
        operands=(X, WEIGHT),
        results=(Y,),
        express=lambda relax, x, w: relax.op.nn.rms_norm(x, w, axes=[-1], epsilon=EPSILON),
        reference=lambda x, w, cast: (_rms(x) * w,),
    ),
    Workload(
        name="add_rms_norm",
        summary="s = x + residual and rms_norm(s), both written",
        operands=(X, Operand(name="residual"), WEIGHT),
        results=(Operand(name="sum"), Y),
        express=_add_rms_norm,
        reference=lambda x, r, w, cast: (x + r, _rms(x + r) * w),
    ),
    Workload(
        name="layer_norm",
        summary="(x − mean) · rsqrt(var + ε) · weight + bias",
        operands=(X, WEIGHT, BIAS),
        results=(Y,),
        express=_layer_norm,
        reference=_layer_norm_reference,
        casts=1,
    ),
    Workload(
        name="l2_norm",
        summary="x / √Σx²",
        operands=(X,),
        results=(Y,),
        express=_l2_norm,
        reference=lambda x, cast: (x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True)),),
    ),
    Workload(
        name="logsumexp",
        summary="max + log Σ exp(x − max)",
        operands=(LOGITS,),
        results=(ROW,),
        express=_logsumexp,
        reference=lambda x, cast: (
            np.log(np.sum(np.exp(x - x.max(-1, keepdims=True)), axis=-1)) + x.max(-1),
        ),
    ),
    _row_reduction("sum", "Σ x", lambda x: np.sum(x, axis=-1), scale="sum"),
    _row_reduction("mean", "Σ x / N", lambda x: np.mean(x, axis=-1), scale="mean"),
    _row_reduction("variance", "mean((x − mean)²)", lambda x: np.var(x, axis=-1), scale="value"),
    _row_reduction("std", "√ mean((x − mean)²)", lambda x: np.std(x, axis=-1), scale="value"),
    _row_reduction(
        "prod",
        "Π x",
        lambda x: np.prod(x, axis=-1),
        scale="value",
        operands=(Operand(name="x", draw=_near_one),),
    ),
    _row_reduction(
        "max", "largest of a row", lambda x: np.max(x, axis=-1), exact=True, dtypes=FLOATS + INTEGERS
    ),
    _row_reduction(
        "min", "smallest of a row", lambda x: np.min(x, axis=-1), exact=True, dtypes=FLOATS + INTEGERS
    ),
    _row_reduction(
        "argmax",
        "column of the largest, the lowest of equals",
        lambda x: np.argmax(x, axis=-1).astype(np.int64),
        exact=True,
        results=(Operand(name="y", axes="rows", dtype="int64"),),
    ),
    _row_reduction(
        "argmin",
        "column of the smallest, the lowest of equals",
        lambda x: np.argmin(x, axis=-1).astype(np.int64),
        exact=True,
        results=(Operand(name="y", axes="rows", dtype="int64"),),
    ),
    Workload(
        name="integer_sum",
        summary="Σ x in int32, wrap-around included",
        operands=(Operand(name="x", draw=_integers),),
        results=(ROW,),
        express=lambda relax, x: relax.op.sum(x, axis=-1),
        reference=lambda x, cast: (np.sum(x, axis=-1, dtype=x.dtype),),
        dtypes=INTEGERS,
        exact=True,
    ),
)
