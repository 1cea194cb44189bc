"""One trial: load a built kernel, check every output against the float64 oracle, then time it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np

from tirx_reduce.bench.build import Built, Case
from tirx_reduce.bench.measure import NoValidTiming, Options, measure
from tirx_reduce.bench.records import Writer
from tirx_reduce.bench.stand import Stand, floor_us
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError

Array = np.ndarray[Any, Any]
SEED = 0
WARM, COLD = "warm", "cold"
SOURCE = "source"
"""Kind of record: emitted text, once for each hash."""


@lru_cache(maxsize=16)
def inputs_of(case: Case, seed: int = SEED) -> tuple[Array, ...]:
    """The inputs of a case, the same in every trial."""
    return get_workload(case.operator).inputs(case.shape, case.dtype, seed=seed)


@lru_cache(maxsize=16)
def expected_of(case: Case, seed: int = SEED) -> tuple[Array, ...]:
    """The float64 reference of those inputs."""
    return get_workload(case.operator).expected(inputs_of(case, seed))


def check(case: Case, outputs: Sequence[Array]) -> dict[str, Any]:
    """The verdict on outputs, JSON-able."""
    from tirx_reduce.bench.verify import compare

    verdict = compare(
        get_workload(case.operator), tuple(outputs), inputs_of(case), expected=expected_of(case)
    )
    found = asdict(verdict)
    # JSON knows no infinity; an error that large is told by `ok`.
    return {k: (v if not isinstance(v, float) or np.isfinite(v) else str(v)) for k, v in found.items()}


def try_out(
    stand: Stand,
    case: Case,
    built: Built,
    options: Options,
    *,
    regime: str = WARM,
    cache_bytes: int = 0,
    device_name: str = "",
) -> dict[str, Any]:
    """Run, verify and time one kernel; what goes wrong is in the result, with `status`.

    Parameters
    ----------
    stand
        Where it runs.
    case, built
        What it is.
    options
        How to time it.
    regime
        `warm`: one set of operands; `cold`: rotating over twice the last-level cache, every output kept.
    cache_bytes, device_name
        Of the device, for cold runs and for the floor below which no time is believed.
    """
    if built.error:
        return {"status": "failed", "reason": f"build: {built.error}", **built.hashes()}
    workload = get_workload(case.operator)
    moved = workload.bytes_moved(case.shape, case.dtype)
    sets = 1
    if regime == COLD:
        from tirx_reduce.bench.clock import rotations

        sets = rotations(moved, cache_bytes)
    result: dict[str, Any] = {"status": "failed", "regime": regime, "sets": sets, **built.hashes()}
    try:
        operands = [(*inputs_of(case), *workload.empty(case.shape, case.dtype)) for _ in range(sets)]
        kernel = stand.load(built, operands)
        kernel.launch(0)
        stand.device.sync()
        outputs = [stand.read(t) for t in kernel.sets[0][len(inputs_of(case)) :]]
        result["verified"] = check(case, outputs)
        if not result["verified"]["ok"]:
            return {**result, "reason": f"wrong result at {result['verified']['where']}"}
        floor = floor_us(device_name, moved, cold=regime == COLD)
        session = stand.session(kernel)
        timing = measure(session, options, floor_us=floor)
    except NoValidTiming as error:
        return {**result, "reason": f"timing: {error}"}
    except Exception as error:  # a driver may raise anything; the study goes on and keeps the reason
        return {**result, "reason": f"run: {type(error).__name__}: {error}"}
    counters = getattr(session, "counters", None)
    extra = {"metal_counters": list(counters)} if counters else {}
    return {**result, "status": "measured", "timing": timing.to_json(), **extra}


def label_us(trial: dict[str, Any]) -> float:
    """The timing label of a measured trial: the median of its raw valid GPU-batch samples."""
    from tirx_reduce.bench.statistics import median

    return median([float(s) for s in trial["timing"]["phases"]["gpu_batch"]["samples_us"]])


def keep_source(writer: Writer, text: str, sha256: str) -> None:
    """Record an emitted text, unless it stands in the file."""
    if sha256 and all(s["sha256"] != sha256 for s in writer.of_kind(SOURCE)):
        writer.append(SOURCE, {"sha256": sha256, "text": text})


class Streak:
    """Stops a study whose kernels fail one after the other: the device is in an error state."""

    def __init__(self, most: int = 3) -> None:
        self._most = most
        self._row: list[str] = []

    def add(self, result: dict[str, Any]) -> None:
        """Count one result.

        Raises
        ------
        ReduceError
            It is the last of too many failures in a row.
        """
        reason = str(result.get("reason", ""))
        self._row = [*self._row, reason] if reason.startswith("run:") else []
        if len(self._row) >= self._most:
            raise ReduceError(f"{self._most} kernels in a row failed to run; the last: {reason}")
