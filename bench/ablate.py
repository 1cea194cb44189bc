"""The ablation: the incumbent's width and the model's, each with reload and private, the profile frozen.

It says whether width, reuse or both make a difference; it selects nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Case, Progress, Workers, quiet
from tirx_reduce.bench.measure import REPLAY, Options
from tirx_reduce.bench.records import Writer, keep_once, of_kind, read
from tirx_reduce.bench.replay import CANDIDATE, PLAN, REFERENCE, ROUNDS, keep_plan
from tirx_reduce.bench.rounds import MEASUREMENT, run_rounds
from tirx_reduce.bench.search import DESIGN
from tirx_reduce.bench.stand import Stand, target_json
from tirx_reduce.bench.statistics import FASTER
from tirx_reduce.bench.summary import SUMMARY, summarize
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError, Unsupported
from tirx_reduce.values import Candidate, DeviceLimits, GroupPlan


def ablate(
    stand: Stand,
    out: Path,
    widths: Mapping[Case, tuple[int, int]],
    *,
    limits: DeviceLimits | None = None,
    vector: int = 4,
    rounds: int = ROUNDS,
    options: Options = REPLAY,
    workers: int | Workers = 0,
    progress: Progress = quiet,
) -> Path:
    """Measure the four corners of each case.

    Parameters
    ----------
    stand, out
        Where kernels run, and the record file.
    widths
        By case: the incumbent's width and the model's.
    limits, vector, rounds, options, workers, progress
        As in a replay.

    Raises
    ------
    ReduceError
        Two widths are the same, or a corner is illegal: then it is no 2×2.
    """
    variants = {case: corners(stand, case, pair, limits, vector) for case, pair in widths.items()}
    design = {
        "cohort": [case.to_json() for case in widths],
        "widths": [list(pair) for pair in widths.values()],
        "rounds": rounds,
        "replay_options": asdict(options),
        "target": target_json(stand.target),
        "stand_in": stand.stand_in,
    }
    environment = stand.environment()
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
            torch=False,
            workers=workers,
            device_name=environment["device"],
            progress=progress,
        )
        if not writer.of_kind(SUMMARY):
            names = [tuple(named) for named in variants.values()]
            measured = writer.of_kind(MEASUREMENT)
            parts = [
                summarize(measured, (case,), corner[0], corner[1:])["cases"][0]
                for case, corner in zip(widths, names, strict=True)
            ]
            writer.append(SUMMARY, {"reference": "the first of each case", "cases": parts})
        writer.finish(measurements=len(writer.of_kind(MEASUREMENT)))
    return out


def corners(
    stand: Stand, case: Case, widths: tuple[int, int], limits: DeviceLimits | None, vector: int
) -> dict[str, GroupPlan]:
    """The four plans of a case, the incumbent's width with reload first."""
    from tirx_reduce import schedules

    if widths[0] == widths[1]:
        raise ReduceError(f"{case.label}: both widths are {widths[0]}; needs two that differ")
    func = get_workload(case.operator).func(case.shape, case.dtype)
    found = {}
    for width in widths:
        for reuse in ("reload", "private"):
            candidate = Candidate(width=width, vector=vector, reuse=reuse)
            try:
                plan = schedules.force(func, candidate, stand.target, limits)
            except Unsupported as reason:
                raise ReduceError(f"{case.label}: W={width} {reuse} is illegal ({reason})") from reason
            found[f"W={width} {reuse}"] = plan
    return found


def from_replay(
    path: Path | str, cases: Sequence[Case] | None = None, *, at_most: int = 4
) -> dict[Case, tuple[int, int]]:
    """Widths of the smallest cases of a replay that are not faster in every pair, or of those named.

    Left out are cases of which no 2×2 can be made: both plans have one width, or private state of the smaller
    width is over the budget.
    """
    records = read(path)
    summary = of_kind(records, SUMMARY)
    if not summary:
        raise ReduceError(f"{path} holds no summary; needs a finished replay")
    plans = {p["key"]: p["plan"] for p in of_kind(records, PLAN)}
    frozen = of_kind(records, "freeze")[0]
    found: dict[Case, tuple[int, int]] = {}
    for entry in summary[0]["cases"]:
        case = Case.from_json(entry["case"])
        if cases is not None and case not in cases:
            continue
        if cases is None and _faster(entry):
            continue
        two = [plans[frozen["plans"][case.label][role]] for role in (REFERENCE, CANDIDATE)]
        pair = (int(two[0]["candidate"]["width"]), int(two[1]["candidate"]["width"]))
        if pair[0] != pair[1] and _fits(two[0], min(pair)):
            found[case] = pair
    smallest = sorted(found, key=lambda c: (prod(c.shape), c.label))[:at_most]
    return {case: found[case] for case in found if case in smallest}


def _fits(plan: Mapping[str, Any], width: int) -> bool:
    """Whether a width keeps a row inside the private budget, which the refusals of a plan tell."""
    refused = [
        c for c, verdict in plan["rejected"] if isinstance(verdict, str) and "scalars a lane" in verdict
    ]
    return all(c["width"] != width or c["reuse"] != "private" for c in refused)


def _faster(entry: Mapping[str, Any]) -> bool:
    gain = entry["gain"][CANDIDATE].get("gpu_batch")
    return gain is not None and gain["verdict"] == FASTER
