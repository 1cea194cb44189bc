"""The search: every candidate of a grid measured at every case of a cohort; a fit trains on its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Built, Case, Progress, Workers, build_plans, quiet
from tirx_reduce.bench.cohorts import cases, grid
from tirx_reduce.bench.measure import SEARCH, Options
from tirx_reduce.bench.records import Writer, digest, keep_once
from tirx_reduce.bench.stand import Stand, target_json
from tirx_reduce.bench.trial import WARM, Streak, keep_source, label_us, try_out
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import Unsupported
from tirx_reduce.values import Candidate, DeviceLimits, Features, GroupPlan

DESIGN, TRIAL, WINNER = "design", "trial", "winner"
"""Kinds of record: what is measured; a training trial; a fresh build of a case's best, no training row."""


def search(
    stand: Stand,
    out: Path,
    *,
    cohort: Sequence[Case] | None = None,
    candidates: Sequence[Candidate] | None = None,
    limits: DeviceLimits | None = None,
    options: Options = SEARCH,
    workers: int | Workers = 0,
    winners: bool = True,
    regime: str = WARM,
    progress: Progress = quiet,
) -> Path:
    """Measure, or go on measuring, and return the record file.

    Parameters
    ----------
    stand
        Where kernels run.
    out
        Record file; one that exists is resumed, nothing in it is measured again.
    cohort, candidates
        The published training cohort and grid where they are None.
    limits
        In place of the target's.
    options
        Of the measurement.
    workers
        Build processes; 0 builds in this one.
    winners
        Whether to build each case's best afresh at the end, and measure it once more.
    regime
        `warm` or `cold`.
    progress
        Told of every step.
    """
    cohort = tuple(cases() if cohort is None else cohort)
    candidates = tuple(grid() if candidates is None else candidates)
    design = {
        "cohort": [case.to_json() for case in cohort],
        "candidates": [asdict(c) for c in candidates],
        "options": asdict(options),
        "regime": regime,
        "target": target_json(stand.target),
        "limits": None if limits is None else asdict(limits),
        "stand_in": stand.stand_in,
    }
    environment = stand.environment()
    with Writer(out, environment) as writer:
        keep_once(writer, DESIGN, design)
        have = {_key(t["case"], t["candidate"]) for t in writer.of_kind(TRIAL)}
        todo = [
            (case, c) for case in cohort for c in candidates if _key(case.to_json(), asdict(c)) not in have
        ]
        total = len(cohort) * len(candidates)
        plans = _plan_all(stand, todo, limits)
        for case, c in todo:
            plan = plans[case, c]
            if isinstance(plan, str):
                writer.append(TRIAL, _trial(case, c, None, {"status": "infeasible", "reason": plan}))
        jobs = {
            _key(case.to_json(), asdict(c)): (case, c, plan)
            for (case, c), plan in plans.items()
            if isinstance(plan, GroupPlan)
        }
        done = total - len(jobs)
        progress(done, total, "building")
        built = _build(stand, {k: (case, plan) for k, (case, _, plan) in jobs.items()}, workers, progress)
        streak = Streak()
        for key, (case, c, plan) in jobs.items():
            result = try_out(
                stand,
                case,
                built[key],
                options,
                regime=regime,
                cache_bytes=environment.get("cache_bytes", 0),
                device_name=environment["device"],
            )
            keep_source(writer, built[key].source, built[key].source_sha256)
            writer.append(TRIAL, _trial(case, c, plan, result))
            streak.add(result)
            done += 1
            progress(done, total, f"{case.label} W={c.width} {c.reuse}: {result['status']}")
        if winners:
            _winners(stand, writer, cohort, limits, options, environment, workers)
        writer.finish(trials=len(writer.of_kind(TRIAL)))
    return out


def trials(records: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """The trials of a search, winners left out."""
    from tirx_reduce.bench.records import of_kind

    return of_kind(records, TRIAL)


def _key(case: dict[str, Any], candidate: dict[str, Any]) -> str:
    return digest([case, candidate])[:16]


def _trial(
    case: Case, candidate: Candidate, plan: GroupPlan | None, result: dict[str, Any]
) -> dict[str, Any]:
    return {
        "case": case.to_json(),
        "candidate": asdict(candidate),
        "features": None if plan is None else features_json(plan.features),
        "plan_key": None if plan is None else plan.key,
        **result,
    }


def features_json(features: Features) -> dict[str, Any]:
    """Demand without the incumbent, JSON-able."""
    found = asdict(features)
    found.pop("incumbent")
    return found


def _plan_all(
    stand: Stand, todo: Sequence[tuple[Case, Candidate]], limits: DeviceLimits | None
) -> dict[tuple[Case, Candidate], GroupPlan | str]:
    from tirx_reduce import schedules

    found: dict[tuple[Case, Candidate], GroupPlan | str] = {}
    for case, candidate in todo:
        func = get_workload(case.operator).func(case.shape, case.dtype)
        try:
            found[case, candidate] = schedules.force(func, candidate, stand.target, limits)
        except Unsupported as reason:
            found[case, candidate] = str(reason)
    return found


def _build(
    stand: Stand, plans: dict[str, tuple[Case, GroupPlan]], workers: int | Workers, progress: Progress
) -> dict[str, Built]:
    return build_plans(stand, plans, stand.folder / "search", workers=workers, progress=progress)


def _winners(
    stand: Stand,
    writer: Writer,
    cohort: Sequence[Case],
    limits: DeviceLimits | None,
    options: Options,
    environment: dict[str, Any],
    workers: int | Workers,
) -> None:
    """Build the best of each case afresh and time it again: what its training label owes to luck."""
    have = {digest(w["case"]) for w in writer.of_kind(WINNER)}
    best: dict[str, tuple[Case, Candidate]] = {}
    for case in cohort:
        if digest(case.to_json()) in have:
            continue
        measured = [
            t for t in writer.of_kind(TRIAL) if t["case"] == case.to_json() and t["status"] == "measured"
        ]
        if measured:
            best[_key(case.to_json(), {})] = (
                case,
                Candidate(**min(measured, key=label_us)["candidate"]),
            )
    plans = _plan_all(stand, list(best.values()), limits)
    jobs = {k: (case, plan) for k, (case, c) in best.items() if isinstance(plan := plans[case, c], GroupPlan)}
    built = build_plans(stand, jobs, stand.folder / "winners", workers=workers)
    for key, (case, plan) in jobs.items():
        result = try_out(stand, case, built[key], options, device_name=environment["device"])
        writer.append(WINNER, _trial(case, plan.candidate, plan, result))
