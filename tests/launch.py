"""Runs a PrimFunc on the CPU model of a GPU: plan (or force), lower, build, execute, hand back the
outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx

import tirx_reduce as tr
from tirx_reduce import emulator, facts
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.schedules import build, force, lower, plan
from tirx_reduce.values import Candidate, DeviceLimits

TARGETS = ("metal", "cuda")
HOPPER: dict[str, Any] = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 232448,
}
"""sm_90 with the shared memory that a kernel may ask for."""
_NARROW = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
}
ROUNDOFF = {
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}


def numpy_dtype(dtype: str) -> Any:
    """The NumPy dtype in memory."""
    return np.dtype(_NARROW.get(dtype, dtype))


def narrow(values: Any, dtype: str) -> Any:
    """`values` rounded to `dtype`, as an array of it."""
    return np.asarray(values).astype(numpy_dtype(dtype))


def wide(array: Any) -> Any:
    """Floats in float64, the rest as they are."""
    array = np.asarray(array)
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def poisoned(shape: Sequence[int], dtype: str) -> Any:
    """An array that no result equals by chance: NaN, -77, or 0xFF bytes."""
    array = np.empty(tuple(shape), numpy_dtype(dtype))
    array.reshape(-1).view(np.uint8)[...] = 0xFF
    if array.dtype.kind in "iu":
        array[...] = array.dtype.type(-77 & (2 ** (8 * array.dtype.itemsize - 1) - 1))
    if dtype == "bool":
        array[...] = False
    return array


class Kernel:
    """One built function; `run` may be called many times."""

    def __init__(
        self,
        func: Any,
        target: Any,
        candidate: Candidate | None = None,
        limits: DeviceLimits | None = None,
    ) -> None:
        self.func, self.target = func, target
        self.tensors = facts.read(func).facts.program.tensors
        self.plan = (
            plan(func, target, limits=limits) if candidate is None else force(func, candidate, target, limits)
        )
        self.scheduled = lower(func, self.plan)
        self.executable = build(self.scheduled, target)
        self.emulation: Any = None

    @property
    def source(self) -> str:
        """The device text."""
        return str(self.executable.mod.imports[0].inspect_source())

    def run(
        self,
        *inputs: Any,
        numerics: str = "plain",
        orders: Sequence[str] = ("forward",),
        symbols: Mapping[str, int] | None = None,
    ) -> list[Any]:
        """Outputs in the order of the parameters, given the inputs (scalars included) in that order."""
        known = dict(symbols or {})
        outs = {t.param: t for t in self.tensors if t.role == "out"}
        given = iter(inputs)
        arguments: list[Any] = [None if i in outs else next(given) for i in range(len(self.func.params))]
        for param, argument in zip(self.func.params, arguments, strict=True):
            if isinstance(argument, np.ndarray):
                for extent, size in zip(param.shape, argument.shape, strict=True):
                    if isinstance(extent, tirx.Var):
                        known[extent.name] = size
        for i, tensor in outs.items():
            arguments[i] = poisoned([_size(e, known) for e in self.func.params[i].shape], tensor.dtype)
        self.emulation = emulator.emulate(
            self.executable, *arguments, target=self.target, numerics=numerics, orders=tuple(orders)
        )
        return [arguments[i] for i in outs]


def _size(extent: Any, known: Mapping[str, int]) -> int:
    if isinstance(extent, tirx.IntImm):
        return int(extent.value)
    if isinstance(extent, tirx.Var):
        return known[extent.name]
    if isinstance(extent, tirx.Mul):
        return _size(extent.a, known) * _size(extent.b, known)
    raise ValueError(f"extent {extent} of an output")


def run(func: Any, target: Any, *inputs: Any, candidate: Candidate | None = None, **how: Any) -> list[Any]:
    """Build and run once."""
    return Kernel(func, target, candidate).run(*inputs, **how)


def verified(
    what: Mapping[str, Any], shape: tuple[int, int], candidate: Candidate, orders: Sequence[str]
) -> None:
    """Run `what["op"]` of a dtype on a target on so many rows and columns, and ask the workload whether it is right."""
    workload = get_workload(what["op"])
    full = (1, 1, *shape) if what["op"] == "masked_softmax" else shape
    kernel = Kernel(workload.func(full, what["dtype"]), what["target"], candidate)
    inputs = workload.inputs(full, what["dtype"])
    verdict = workload.verify(tuple(kernel.run(*inputs, orders=orders)), inputs)
    assert verdict.ok, verdict


def check(
    got: Any,
    want: Any,
    *,
    looser: float = 1.0,
    columns: int = 64,
    casts: int = 0,
    ties: bool = False,
    text: str = "",
) -> None:
    """Equal to the float64 reference within fast-math functions, the walk of an fp32 sum, and the store's
    rounding.

    NaN and infinities must stand where the reference has them. Integers must be equal.
    """
    want = np.asarray(want)
    got = np.asarray(got).reshape(want.shape)
    if got.dtype.kind in "iub" and ties:
        assert np.abs(got.astype(np.int64) - want).max(initial=0) <= 1, text
        assert (got != want).mean() < 0.05, text
        return
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want.astype(got.dtype), err_msg=text)
        return
    narrowed = want.astype(got.dtype).astype(np.float64)
    seen = got.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(seen), np.isnan(narrowed), err_msg=f"NaN: {text}")
    finite = np.isfinite(narrowed) & np.isfinite(seen)
    off = ~finite & ~np.isnan(narrowed)
    limit = float(ml_dtypes.finfo(got.dtype).max)
    # Next to the largest value a result may round to infinity on one side only.
    border = off & (np.abs(np.where(np.isfinite(want), want, limit)) > 0.999 * limit)
    np.testing.assert_array_equal(seen[off & ~border], narrowed[off & ~border], err_msg=f"inf: {text}")
    if not finite.any():
        return
    scale = np.where(finite, np.abs(narrowed), 0.0)
    row = np.max(scale, axis=-1, keepdims=True, initial=0.0) if scale.ndim else scale
    computed = (64 + 4 * np.sqrt(columns)) * 2.0**-24
    # The smallest step of the output dtype counts, too: results may be subnormal there.
    step = float(ml_dtypes.finfo(got.dtype).smallest_subnormal)
    allowed = (
        looser
        * (computed * np.maximum(scale, row) + 1.02 * ROUNDOFF[got.dtype.name] * 2 * (scale + casts * row))
        + step
    )
    error = np.where(finite, np.abs(seen - np.where(finite, want.astype(np.float64), 0.0)), 0.0)
    worst = np.unravel_index(int(np.argmax(error - allowed)), error.shape) if error.ndim else ()
    assert (error <= allowed).all(), (
        f"{text}: at {tuple(int(i) for i in worst)} got {seen[worst]!r}, want {want[worst]!r}, "
        f"error {error[worst]:.3g}, allowed {np.broadcast_to(allowed, error.shape)[worst]:.3g}"
    )


__all__ = ["HOPPER", "TARGETS", "Kernel", "check", "narrow", "numpy_dtype", "poisoned", "run", "tr", "wide"]
