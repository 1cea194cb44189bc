"""Torch operands of a grid line, and their float64 reference on the same device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.operators import EPSILON
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError

MOST_SETS = 64
"""Operand sets of a rotation."""
COLD_BYTES = 300e6
"""Least bytes of input that a cold run rotates over: six times the L2 of an H200."""
LEAST_LAUNCHES = 40
"""Of one CUDA graph."""
SMALL_BYTES = 4e6
"""Launches that move fewer take a few µs: their graph holds twice as many."""
SMALLEST = 2.0**-126
"""Below the smallest normal number GPUs flush to zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Tensors of one side of one launch."""

    tensors: tuple[Any, ...]
    matrices: Any
    """The storage of all whole matrices among them, so that one copy moves them."""


def rotation(case: Case, cold_bytes: float = COLD_BYTES) -> tuple[int, int]:
    """How many operand sets a cold run rotates over, and how many launches its graph has: whole rotations."""
    workload = get_workload(case.operator)
    moved = workload.bytes_moved(case.shape, case.dtype)
    inputs = moved - sum(math.prod(s) * _bytes(d) for s, d in workload.outputs(case.shape, case.dtype))
    sets = max(1, min(MOST_SETS, math.ceil(cold_bytes / inputs)))
    least = LEAST_LAUNCHES * (2 if moved < SMALL_BYTES else 1)
    return sets, math.ceil(least / sets) * sets


def copied_bytes(case: Case) -> int:
    """Bytes that the copy reads and writes: the whole matrices, without vectors and broadcast masks."""
    workload = get_workload(case.operator)
    each = math.prod(case.shape) * _bytes(case.dtype)
    return each * (_matrices(workload.operands) + _matrices(workload.results))


def draw_inputs(case: Case, device: str, *, seed: int) -> Buffers:
    """Operands as the workload has them, drawn on the device."""
    import torch

    workload = get_workload(case.operator)
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    whole = _matrices(workload.operands)
    dtype = getattr(torch, case.dtype)
    spread = 4.0 if "softmax" in case.operator else 1.0
    base = torch.randn((whole, *case.shape), generator=generator, device=device).mul_(spread).to(dtype)
    tensors: list[Any] = []
    taken = 0
    for operand in workload.operands:
        shape = operand.shape(case.shape)
        if operand.axes == "rows columns":
            tensors.append(base[taken])
            taken += 1
            continue
        drawn = torch.randn(shape, generator=generator, device=device)
        if operand.name == "weight":
            drawn = 1.0 + 0.25 * drawn
        if operand.name == "mask":
            drawn = torch.where(drawn < -0.6745, -10000.0, 0.0)  # a quarter of a normal distribution
            drawn[..., 0] = 0.0
        tensors.append(drawn.to(dtype))
    return Buffers(tensors=tuple(tensors), matrices=base)


def empty_outputs(case: Case, device: str) -> Buffers:
    """Memory for all results of one launch."""
    import torch

    count = len(get_workload(case.operator).results)
    base = torch.empty((count, *case.shape), dtype=getattr(torch, case.dtype), device=device)
    return Buffers(tensors=tuple(base[i] for i in range(count)), matrices=base)


def spoil(tensors: Sequence[Any]) -> None:
    """Overwrite outputs with NaN, so that what a replay does not write is seen."""
    for tensor in tensors:
        tensor.fill_(math.nan)


def references(case: Case, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], ...]:
    """Float64 results; where the operator begins with a sum of matrices, also with that sum rounded.

    Torch rounds between two operations, a fused kernel does not: both are right.
    """
    return (_reference(case, inputs, rounded=False), _reference(case, inputs, rounded=True))[
        : 2 if case.operator in ("add_rms_norm", "masked_softmax") else 1
    ]


def check(
    case: Case, outputs: Sequence[Any], wanted: Sequence[Sequence[Any]], slack: float
) -> dict[str, Any]:
    """Compare every element; `share` is the largest error as a share of what is allowed (times `slack`)."""
    if len(outputs) != len(wanted[0]):
        raise ReduceError(f"{len(outputs)} outputs; needs {len(wanted[0])}")
    relative, allowed = get_workload(case.operator).tolerance(case.dtype, case.shape[-1])
    share = min(
        max(_share(got, want, relative * slack) for got, want in zip(outputs, one, strict=True))
        for one in wanted
    )
    # JSON knows no infinity.
    return {
        "ok": share <= 1.0,
        "share": share if math.isfinite(share) else "inf",
        "allowed": f"{slack:g} × ({allowed})",
    }


def _share(got: Any, want: Any, relative: float) -> float:
    import torch

    if tuple(got.shape) != tuple(want.shape):
        raise ReduceError(f"an output of shape {tuple(got.shape)}; needs {tuple(want.shape)}")
    bound = want.abs().amax(dim=-1, keepdim=True) * relative + SMALLEST
    error = (got.to(torch.float64) - want).abs() / bound
    found = float(error.amax())
    return found if math.isfinite(found) else math.inf


def _reference(case: Case, inputs: Sequence[Any], *, rounded: bool) -> tuple[Any, ...]:
    import torch

    wide = [t.to(torch.float64) for t in inputs]
    dtype = inputs[0].dtype
    x = wide[0]
    if case.operator in ("add_rms_norm", "masked_softmax"):
        x = x + wide[1]
        x = x.to(dtype).to(torch.float64) if rounded else x
    if case.operator in ("softmax", "masked_softmax"):
        return (torch.softmax(x, -1),)
    if case.operator == "layer_norm":
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPSILON)
        return (centred * scale * wide[1] + wide[2],)
    normal = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPSILON) * wide[-1]
    if case.operator == "add_rms_norm":
        return (x, normal)
    if case.operator == "rms_norm":
        return (normal,)
    raise ReduceError(f"the grid has no reference for {case.operator}")


def _matrices(operands: Sequence[Any]) -> int:
    return sum(o.axes == "rows columns" for o in operands)


def _bytes(dtype: str) -> int:
    from tirx_reduce.bench.dtypes import numpy_dtype

    return int(numpy_dtype(dtype).itemsize)
