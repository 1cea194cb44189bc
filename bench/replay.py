"""The replay: plans are collected, everything is frozen, and only then the held-out labels are measured.

All phases stand in one record file, in that order. A measurement before the freeze, or under another
calibration, package or plan than the frozen ones, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Case, Progress, Workers, build_plans, quiet
from tirx_reduce.bench.cohorts import FREEZE, HELD_OUT_SHAPES, cases, refuse_spent
from tirx_reduce.bench.measure import COLLECT, REPLAY, Options
from tirx_reduce.bench.records import Record, Writer, content, digest, keep_once, of_kind, read
from tirx_reduce.bench.rounds import MEASUREMENT, run_rounds
from tirx_reduce.bench.stand import Stand, target_json
from tirx_reduce.bench.summary import SUMMARY, summarize
from tirx_reduce.bench.trial import keep_source, try_out
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.cost import Profile
from tirx_reduce.cost.calibration import Bare, load
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import DeviceLimits, GroupPlan

DESIGN, PROFILE, PLAN, COLLECTED = "design", "profile", "plan", "collected"
REFERENCE, CANDIDATE = "reference", "candidate"
"""Variants of the replay: the incumbent with reload, and the policy's choice by price alone."""
GUARDED = "guarded"
"""Frozen beside them and not measured apart: its mapping is always one of the two."""
INCUMBENT_POLICY = "analytic"
ROUNDS = 4


class NotFrozen(ReduceError):
    """A held-out label was asked for before, or under something else than, what was frozen."""


def collect(
    stand: Stand,
    out: Path,
    *,
    policy: str = "service",
    calibration: Any = None,
    cohort: Sequence[Case] | None = None,
    limits: DeviceLimits | None = None,
    rounds: int = ROUNDS,
    collect_options: Options = COLLECT,
    replay_options: Options = REPLAY,
    torch: bool = True,
    workers: int | Workers = 0,
    history: Sequence[Path] = (),
    progress: Progress = quiet,
) -> Path:
    """Plan every case, execute and verify the plan and its alternatives, and select by no timing.

    Parameters
    ----------
    stand, out
        Where kernels run, and the record file of this replay.
    policy, calibration
        What is put to the test.
    cohort
        Cases; the published held-out cohort where it is None.
    limits, rounds, collect_options, replay_options, torch
        The design, recorded and frozen with the rest.
    workers
        Build processes.
    history
        Record files of earlier replays: their cohorts are spent. Those beside `out` are always asked.
    progress
        Told of every step.

    Raises
    ------
    SpentCohort
        The labels of the cohort have been seen.
    """
    cohort = tuple(cases(shapes=HELD_OUT_SHAPES) if cohort is None else cohort)
    environment = stand.environment()
    profile = profile_for(stand, calibration, environment, cohort[0].dtype)
    design = {
        "cohort": [case.to_json() for case in cohort],
        "policy": policy,
        "reference": INCUMBENT_POLICY,
        "rounds": rounds,
        "collect_options": asdict(collect_options),
        "replay_options": asdict(replay_options),
        "torch": torch,
        "target": target_json(stand.target),
        "limits": None if limits is None else asdict(limits),
        "stand_in": stand.stand_in,
    }
    earlier = [read(path) for path in (*history, *beside(out)) if Path(path) != out]
    refuse_spent(
        cohort,
        profile,
        earlier,
        calibration_sha256=digest(profile.to_dict()),
        package_sha256=environment["package_sha256"],
    )
    with Writer(out, environment) as writer:
        keep_once(writer, DESIGN, design)
        keep_once(writer, PROFILE, profile.to_dict())
        if writer.of_kind(FREEZE):
            return out
        plans = plan_cohort(stand, cohort, policy, profile, limits)
        jobs = {
            digest([case.to_json(), role])[:16]: (case, role, plan)
            for case, roles in plans.items()
            for role, plan in roles.items()
        }
        seen = {digest([c["case"], c["role"]])[:16] for c in writer.of_kind(COLLECTED)}
        todo = {k: v for k, v in jobs.items() if k not in seen}
        progress(len(seen), len(jobs), "building")
        built = build_plans(
            stand, {k: (c, p) for k, (c, _, p) in todo.items()}, stand.folder / "collect", workers=workers
        )
        for key, (case, role, plan) in todo.items():
            result = try_out(stand, case, built[key], collect_options, device_name=environment["device"])
            keep_plan(writer, plan)
            keep_source(writer, built[key].source, built[key].source_sha256)
            writer.append(COLLECTED, {"case": case.to_json(), "role": role, "plan_key": plan.key, **result})
            seen.add(key)
            progress(len(seen), len(jobs), f"{case.label} {role}: {result['status']}")
    return out


def beside(out: Path) -> tuple[Path, ...]:
    """Other files of the folder that hold a freeze."""
    mark = f'"kind":"{FREEZE}"'.encode()
    files = sorted(p for p in out.parent.glob("*.jsonl*") if p.suffix in (".jsonl", ".gz"))
    mine = (out, out.with_name(out.name + ".gz"))
    return tuple(p for p in files if p not in mine and mark in content(p))


def plan_cohort(
    stand: Stand, cohort: Sequence[Case], policy: str, profile: Any, limits: DeviceLimits | None
) -> dict[Case, dict[str, GroupPlan]]:
    """For each case: the incumbent's plan, the policy's, the guarded one, and the cheapest of each family."""
    from tirx_reduce import schedules

    found: dict[Case, dict[str, GroupPlan]] = {}
    for case in cohort:
        func = get_workload(case.operator).func(case.shape, case.dtype)
        device = profile.device if isinstance(profile, Profile) else None
        reference = schedules.plan(func, stand.target, policy=INCUMBENT_POLICY, limits=limits)
        chosen, guarded = (
            schedules.plan(func, stand.target, policy=name, calibration=profile, limits=limits, device=device)
            for name in (policy, GUARDED)
        )
        found[case] = {REFERENCE: reference, CANDIDATE: chosen, GUARDED: guarded}
        for reuse in ("reload", "private"):
            best = cheapest(chosen, reuse)
            if best is not None:
                forced = schedules.force(func, best, stand.target, limits)
                found[case][f"best {reuse}"] = forced
    return found


def took(plans: Mapping[str, GroupPlan]) -> str:
    """Which of the two measured variants the guarded policy takes."""
    return REFERENCE if plans[GUARDED].candidate == plans[REFERENCE].candidate else CANDIDATE


def cheapest(plan: GroupPlan, reuse: str) -> Any:
    """The candidate of least price in one reuse family, the winner included; None where none was priced."""
    priced = [(plan.estimate.kernel_score, 0, plan.candidate)] + [
        (verdict.kernel_score, i + 1, candidate)
        for i, (candidate, verdict) in enumerate(plan.rejected)
        if not isinstance(verdict, str)
    ]
    family = [offer for offer in priced if offer[2].reuse == reuse]
    return min(family, key=lambda offer: offer[:2])[2] if family else None


def freeze(out: Path, stand: Stand) -> Record:
    """Bind coefficients, sources, plans and design, before any held-out label.

    Raises
    ------
    NotFrozen
        A plan was not collected, or did not verify.
    """
    with Writer(out, stand.environment()) as writer:
        known = writer.of_kind(FREEZE)
        if known:
            return next(r for r in writer.records if r.kind == FREEZE)
        if writer.of_kind(MEASUREMENT):
            raise NotFrozen(f"{out} holds held-out labels; needs a freeze before the first of them")
        design, profile = _one(writer.records, DESIGN), _one(writer.records, PROFILE)
        environment = writer.environment
        plans: dict[str, dict[str, str]] = {}
        sources: dict[str, str] = {}
        for case in map(Case.from_json, design["cohort"]):
            for role in (REFERENCE, CANDIDATE, GUARDED):
                row = _collected(writer.records, case, role)
                if row["status"] != "measured":
                    raise NotFrozen(
                        f"{case.label}, {role}: {row.get('reason', row['status'])}; needs a verified plan"
                    )
                plans.setdefault(case.label, {})[role] = row["plan_key"]
                sources[row["plan_key"]] = row["source_sha256"]
        return writer.append(
            FREEZE,
            {
                "cohort": design["cohort"],
                "calibration_sha256": digest(profile),
                "design_sha256": digest(design),
                "package_sha256": environment["package_sha256"],
                "library_sha256": environment["library_sha256"],
                "plans": plans,
                "sources": sources,
                "commit": environment["commit"],
                "dirty": environment["dirty"],
            },
        )


def run(
    stand: Stand,
    out: Path,
    *,
    calibration: Any = None,
    workers: int | Workers = 0,
    progress: Progress = quiet,
) -> Path:
    """Measure the held-out labels of what was frozen, and finish the file.

    Raises
    ------
    NotFrozen
        There is no freeze, or calibration, package, libraries or plans are not the frozen ones.
    """
    environment = stand.environment()
    # The package is compared with the frozen one, which says more.
    with Writer(out, environment, same=()) as writer:
        frozen_rows = writer.of_kind(FREEZE)
        if not frozen_rows:
            raise NotFrozen(
                f"{out} holds no freeze; needs `tirx-reduce replay freeze` before any held-out label"
            )
        frozen, design = frozen_rows[0], _one(writer.records, DESIGN)
        cohort = tuple(map(Case.from_json, design["cohort"]))
        limits = None if design["limits"] is None else DeviceLimits(**design["limits"])
        profile = profile_for(stand, calibration, environment, cohort[0].dtype)
        now = {
            "calibration": digest(profile.to_dict()),
            "package": environment["package_sha256"],
            "library": environment["library_sha256"],
        }
        for what, value in now.items():
            if value != frozen[f"{what}_sha256"]:
                raise NotFrozen(f"the {what} is not the frozen one; needs a new replay, with a new cohort")
        plans = plan_cohort(stand, cohort, design["policy"], profile, limits)
        variants = {}
        for case in cohort:
            variants[case] = {role: plans[case][role] for role in (REFERENCE, CANDIDATE)}
            for role in (REFERENCE, CANDIDATE, GUARDED):
                plan = plans[case][role]
                if plan.key != frozen["plans"][case.label][role]:
                    raise NotFrozen(
                        f"{case.label}, {role}: the plan is not the frozen one; needs a new replay"
                    )
        run_rounds(
            stand,
            writer,
            variants,
            rounds=design["rounds"],
            options=Options(
                **{**design["replay_options"], "phases": tuple(design["replay_options"]["phases"])}
            ),
            torch=design["torch"],
            workers=workers,
            device_name=environment["device"],
            frozen_sources=frozen["sources"],
            progress=progress,
        )
        if not writer.of_kind(SUMMARY):
            measured = writer.of_kind(MEASUREMENT)
            summary = summarize(measured, cohort, REFERENCE, (CANDIDATE,))
            for entry, case in zip(summary["cases"], cohort, strict=True):
                entry[GUARDED] = took(plans[case])
            writer.append(SUMMARY, summary)
        writer.finish(measurements=len(writer.of_kind(MEASUREMENT)))
    return out


def profile_for(stand: Stand, calibration: Any, environment: Mapping[str, Any], dtype: str) -> Profile:
    """The profile under test: that of this device, or of the stand-in's records.

    Raises
    ------
    BadCalibration, ReduceError
        None fits; bare coefficients, which know neither training shapes nor error.
    """
    from tirx_reduce.cost.calibration import select

    loaded = load(calibration)
    found = select(
        loaded,
        target_kind=str(stand.target.kind.name),
        device=environment["device"],
        dtype=dtype,
        tvm_version=environment["tvm"],
    )
    if isinstance(found, Bare):
        raise ReduceError(
            "a replay of bare coefficients; needs a profile, which knows what it was trained on"
        )
    return found


def keep_plan(writer: Writer, plan: GroupPlan) -> None:
    """Record a plan in full, unless it stands in the file."""
    import json

    if all(p["key"] != plan.key for p in writer.of_kind(PLAN)):
        writer.append(PLAN, {"key": plan.key, "plan": json.loads(plan.to_json())})


def _one(records: Sequence[Record], kind: str) -> dict[str, Any]:
    found = of_kind(records, kind)
    if not found:
        raise NotFrozen(f"no record of kind {kind!r}; needs the plan collection first")
    return found[0]


def _collected(records: Sequence[Record], case: Case, role: str) -> dict[str, Any]:
    for row in of_kind(records, COLLECTED):
        if row["case"] == case.to_json() and row["role"] == role:
            return row
    raise NotFrozen(f"{case.label}, {role}: not collected; needs the plan collection first")
