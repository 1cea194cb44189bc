"""The comparison: plans of any policies over a cohort, side by side, with Torch beside them if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Case, Progress, Workers, quiet
from tirx_reduce.bench.measure import REPLAY, Options
from tirx_reduce.bench.records import Writer, keep_once
from tirx_reduce.bench.replay import ROUNDS, keep_plan
from tirx_reduce.bench.rounds import MEASUREMENT, run_rounds
from tirx_reduce.bench.search import DESIGN
from tirx_reduce.bench.stand import Stand, target_json
from tirx_reduce.bench.summary import SUMMARY, summarize
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import DeviceLimits, GroupPlan


def compare_policies(
    stand: Stand,
    out: Path,
    policies: Sequence[str],
    cohort: Sequence[Case],
    *,
    calibration: Any = None,
    limits: DeviceLimits | None = None,
    rounds: int = ROUNDS,
    options: Options = REPLAY,
    torch: bool = False,
    workers: int | Workers = 0,
    progress: Progress = quiet,
) -> Path:
    """Measure the plans of each policy; the first is what ratios are taken against.

    Parameters
    ----------
    stand, out
        Where kernels run, and the record file.
    policies
        Two or more names.
    cohort
        Cases. This is no held-out study: any will do.
    calibration, limits, rounds, options, torch, workers, progress
        As in a replay.

    Raises
    ------
    ReduceError
        Fewer than two policies, or one twice.
    """
    if len(policies) < 2 or len(set(policies)) != len(policies):
        raise ReduceError(f"policies {', '.join(policies)}; needs two or more that differ")
    environment = stand.environment()
    variants = {
        case: {name: _plan(stand, case, name, calibration, limits, environment) for name in policies}
        for case in cohort
    }
    design = {
        "cohort": [case.to_json() for case in cohort],
        "policies": list(policies),
        "plans": {c.label: {name: p.key for name, p in named.items()} for c, named in variants.items()},
        "rounds": rounds,
        "replay_options": asdict(options),
        "torch": torch,
        "target": target_json(stand.target),
        "stand_in": stand.stand_in,
    }
    with Writer(out, environment) as writer:
        keep_once(writer, DESIGN, design)
        for named in variants.values():
            for plan in named.values():
                keep_plan(writer, plan)
        run_rounds(
            stand,
            writer,
            variants,
            rounds=rounds,
            options=options,
            torch=torch,
            workers=workers,
            device_name=environment["device"],
            progress=progress,
        )
        if not writer.of_kind(SUMMARY):
            measured = writer.of_kind(MEASUREMENT)
            writer.append(SUMMARY, summarize(measured, cohort, policies[0], policies[1:]))
        writer.finish(measurements=len(writer.of_kind(MEASUREMENT)))
    return out


def _plan(
    stand: Stand,
    case: Case,
    policy: str,
    calibration: Any,
    limits: DeviceLimits | None,
    environment: dict[str, Any],
) -> GroupPlan:
    from tirx_reduce import schedules

    func = get_workload(case.operator).func(case.shape, case.dtype)
    found: GroupPlan = schedules.plan(
        func,
        stand.target,
        policy=policy,
        calibration=calibration,
        limits=limits,
        device=environment["device"],
    )
    return found
