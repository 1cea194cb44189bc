"""Outputs against the float64 reference: every element, relative to what its computation can promise."""

from __future__ import annotations

import math

import numpy as np

from tirx_reduce.errors import ReduceError

from .workloads import Array, Verdict, Workload

# Below the smallest normal number GPUs flush to zero.
_SMALLEST = {"float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}


def compare(
    workload: Workload,
    outputs: tuple[Array, ...],
    inputs: tuple[Array, ...],
    *,
    expected: tuple[Array, ...] | None = None,
) -> Verdict:
    """Compare `outputs` of `workload` with the reference of `inputs`, which `expected` saves computing again.

    Raises
    ------
    ReduceError
        Where the number, shape or dtype of the outputs is not the workload's.
    """
    expected = workload.expected(inputs) if expected is None else expected
    if len(outputs) != len(expected):
        raise ReduceError(f"{workload.name} has {len(expected)} outputs; {len(outputs)} were given")
    columns = inputs[0].shape[-1] if inputs[0].ndim else 1
    ok, max_abs, max_rel, worst, where, allowed = True, 0.0, 0.0, 0.0, "", ""
    for result, got, want in zip(workload.results, outputs, expected, strict=True):
        if got.shape != want.shape:
            raise ReduceError(f"{workload.name}.{result.name} has shape {got.shape}; needs {want.shape}")
        relative, text = workload.tolerance(str(got.dtype), columns)
        allowed = allowed or text
        share, absolute, own = _errors(got, want, relative, _scale(workload, want, inputs))
        index = (
            np.unravel_index(int(np.argmax(np.nan_to_num(share, nan=math.inf))), share.shape)
            if share.size
            else ()
        )
        top = float(np.nan_to_num(share[index], nan=math.inf)) if share.size else 0.0
        ok = ok and top <= 1.0
        max_abs = max(max_abs, float(np.max(absolute, initial=0.0)))
        max_rel = max(max_rel, float(np.max(own, initial=0.0)))
        if top >= worst:
            worst, where = top, f"{result.name}[{', '.join(str(int(i)) for i in index)}]"
    return Verdict(ok=ok, max_abs=max_abs, max_rel=max_rel, share=worst, where=where, allowed=allowed)


def _errors(got: Array, want: Array, relative: float, scale: Array) -> tuple[Array, Array, Array]:
    wide = got.astype(np.float64)
    reference = want.astype(np.float64)
    alike = (wide == reference) | (np.isnan(wide) & np.isnan(reference))
    with np.errstate(all="ignore"):
        absolute = np.where(alike, 0.0, np.abs(wide - reference))
        # A number against a NaN or an infinity is wrong by any measure.
        absolute = np.where(np.isfinite(absolute), absolute, math.inf)
        floor = _SMALLEST.get(str(got.dtype), 0.0) if relative else 0.0
        bound = relative * np.nan_to_num(scale, nan=0.0, posinf=0.0, neginf=0.0) + floor
        share = np.where(
            alike, 0.0, np.where(bound > 0, absolute / np.where(bound > 0, bound, 1.0), math.inf)
        )
        own = np.where((reference != 0) & ~alike, absolute / np.abs(reference), 0.0)
    return share, absolute, own


def _scale(workload: Workload, want: Array, inputs: tuple[Array, ...]) -> Array:
    magnitude: Array = np.abs(want.astype(np.float64))
    if workload.scale in ("sum", "mean"):
        # A sum may cancel: what it rounds is as large as its terms, not as its result.
        fold = np.sum if workload.scale == "sum" else np.mean
        terms = fold(np.abs(inputs[0].astype(np.float64)), axis=-1)
        return np.maximum(magnitude, np.reshape(terms, want.shape))
    if workload.scale == "row" and want.shape == inputs[0].shape:
        finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
        return np.broadcast_to(np.max(finite, axis=-1, keepdims=True, initial=0.0), want.shape)
    return magnitude
