"""One planned kernel run on the GPU where there is one, else on the CPU model with the rows it can afford."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

from tirx_reduce.bench.shapes import Shape, limit_rows, row_count, shape_text
from tirx_reduce.bench.workloads import Verdict, Workload
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import GroupPlan

AFFORDABLE_ELEMENTS = 1 << 18
"""Elements of one operand that the CPU model goes through in seconds."""
MOST_ROWS = 64
MOST_ELEMENTS = 1 << 24
"""Elements of one operand that the CPU model can hold: with results and reference a softmax takes 2 GiB (measured)."""
METAL_WORDS = (
    "emitted MSL executed on a CPU model of Metal; not compiled by Apple's compiler, not run on a GPU"
)
CUDA_WORDS = (
    "emitted CUDA executed on a CPU model of the GPU; not compiled by nvcc or NVRTC, not run on a GPU"
)
WORDS = {"metal": METAL_WORDS, "cuda": CUDA_WORDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One run with its verdict."""

    where: str
    """Device name, or the words for the CPU model."""
    on_gpu: bool
    shape: Shape
    """What ran: the whole shape, or its first rows."""
    seconds: float
    """Wall time of the run; no timing of the kernel."""
    verdict: Verdict
    counters: dict[str, int]
    """What the CPU model counted; empty on a GPU."""
    missed: str = ""
    """What of the planned kernel so few rows do not reach."""


def affordable(shape: Shape, rows_limit: int | None, clusters: int = 0) -> Shape:
    """The rows that the CPU model can go through in seconds: at least one, at most 64, or `rows_limit`.

    Of `clusters` that stay, if there are any, each takes two rows and one a third, where that is some seconds, too.

    Raises
    ------
    ReduceError
        They hold more than 2^24 elements: rows can be cut, columns cannot.
    """
    rows = rows_limit or max(1, min(MOST_ROWS, AFFORDABLE_ELEMENTS // shape[-1]))
    several = 2 * clusters + 1
    if clusters and not rows_limit and several * shape[-1] <= MOST_ELEMENTS // 2:
        rows = max(rows, several)
    cut = limit_rows(shape, rows)
    if prod(cut) > MOST_ELEMENTS:
        raise ReduceError(
            f"{row_count(cut)} rows of {cut[-1]} columns on the CPU model; "
            f"needs at most {MOST_ELEMENTS} elements, or a GPU"
        )
    return cut


def run_on_gpu(
    workload: Workload, shape: Shape, dtype: str, plan: GroupPlan, target: Any, device: Any, seed: int
) -> Execution:
    """Build, run on `device`, verify."""
    import numpy as np
    import tvm

    from tirx_reduce import schedules

    built = schedules.build(schedules.lower(workload.func(shape, dtype), plan), target)
    inputs = workload.inputs(shape, dtype, seed=seed)
    outputs = workload.empty(shape, dtype)
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(a), device) for a in (*inputs, *outputs)]
    start = time.perf_counter()
    built(*tensors)
    device.sync()
    seconds = time.perf_counter() - start
    results = tuple(t.numpy().view(o.dtype) for t, o in zip(tensors[len(inputs) :], outputs, strict=True))
    return Execution(
        where=str(device.device_name or target.kind.name),
        on_gpu=True,
        shape=shape,
        seconds=seconds,
        verdict=workload.verify(results, inputs),
        counters={},
    )


def run_on_model(
    workload: Workload,
    shape: Shape,
    dtype: str,
    plan: GroupPlan,
    target: Any,
    *,
    rows_limit: int | None = None,
    seed: int = 0,
    orders: tuple[str, ...] = ("forward",),
    numerics: str = "plain",
) -> Execution:
    """Build the planned mapping for the rows that can be afforded, run it on the CPU model, verify."""
    from tirx_reduce import emulator, schedules

    c = plan.candidate
    clusters = c.resident // c.splits
    small = affordable(shape, rows_limit, clusters)
    # The mapping is that of the whole launch; only groups are fewer, or the rows that each takes where groups stay.
    mapping = plan if small == shape else replace(plan, subject="")
    built = schedules.build(schedules.lower(workload.func(small, dtype), mapping), target)
    inputs = workload.inputs(small, dtype, seed=seed)
    outputs = workload.empty(small, dtype)
    start = time.perf_counter()
    emulation = emulator.emulate(built, *inputs, *outputs, target=target, orders=orders, numerics=numerics)
    seconds = time.perf_counter() - start
    return Execution(
        where=WORDS[plan.target_kind],
        on_gpu=False,
        shape=small,
        seconds=seconds,
        verdict=workload.verify(outputs, inputs),
        counters=_counters(emulation),
        missed="no group took a second row" if small != shape and row_count(small) <= clusters else "",
    )


def _counters(emulation: Any) -> dict[str, int]:
    """All kernels together, those that are not zero: by memory space where there are several."""
    out: dict[str, int] = {}
    for counters in emulation.counters.values():
        for name in (f.name for f in fields(counters)):
            value = getattr(counters, name)
            parts = (
                {f"{space} {name}": n for space, n in value.items()}
                if isinstance(value, dict)
                else {name: value}
            )
            for key, n in parts.items():
                if n:
                    out[key] = out.get(key, 0) + int(n)
    return out


def rows_text(whole: Shape, ran: Shape) -> str:
    """Which rows ran."""
    if ran == whole:
        return f"all {row_count(whole)} rows"
    return f"the first {row_count(ran)} of {row_count(whole)} rows ({shape_text(ran)})"
