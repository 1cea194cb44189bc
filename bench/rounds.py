"""Rounds: variants of each case measured side by side, freshly built in every round, orders balanced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tirx_reduce.bench.build import Case, Progress, Workers, build_plans, quiet
from tirx_reduce.bench.eager import try_torch
from tirx_reduce.bench.measure import Options
from tirx_reduce.bench.records import Writer, digest
from tirx_reduce.bench.stand import Stand
from tirx_reduce.bench.statistics import Paired, median, paired
from tirx_reduce.bench.trial import Streak, keep_source, try_out
from tirx_reduce.values import GroupPlan

MEASUREMENT = "measurement"
"""Kind of record: one variant of one case in one round, and Torch beside it."""
Variants = Mapping[Case, Mapping[str, GroupPlan]]


def order_of(names: Sequence[str], round_number: int, position: int) -> tuple[str, ...]:
    """Variants of a case in the order of one round: each is first equally often."""
    start = (round_number + position) % len(names)
    return tuple(names[(start + i) % len(names)] for i in range(len(names)))


def native_first(round_number: int, position: int) -> bool:
    """Whether our kernel comes before Torch: balanced apart from the order of variants."""
    return (round_number // 2 + position) % 2 == 0


def rotated(cases: Sequence[Case], round_number: int) -> tuple[Case, ...]:
    """Cases in the order of one round: no case is always the coldest."""
    start = round_number % len(cases)
    return (*cases[start:], *cases[:start])


def run_rounds(
    stand: Stand,
    writer: Writer,
    variants: Variants,
    *,
    rounds: int,
    options: Options,
    torch: bool,
    workers: int | Workers,
    device_name: str,
    frozen_sources: Mapping[str, str] | None = None,
    progress: Progress = quiet,
) -> None:
    """Measure every variant of every case in every round, or go on with it.

    Parameters
    ----------
    stand, writer
        Where kernels run, and where records go.
    variants
        By case, then by name.
    rounds
        Each builds every kernel afresh.
    options
        Of each measurement.
    torch
        Whether Torch's operator is measured beside each.
    workers
        Build processes.
    device_name
        For the bandwidth below which no time is believed.
    frozen_sources
        SHA-256 of the emitted text by plan key; a build that differs is a failure.
    progress
        Told of every step.
    """
    cases = tuple(variants)
    have = {_key(m["round"], m["case"], m["variant"]) for m in writer.of_kind(MEASUREMENT)}
    total = rounds * sum(len(v) for v in variants.values())
    streak = Streak()
    for number in range(rounds):
        wanted = {
            _key(number, case.to_json(), name): (case, plan)
            for case, named in variants.items()
            for name, plan in named.items()
            if _key(number, case.to_json(), name) not in have
        }
        if not wanted:
            continue
        progress(len(have), total, f"round {number + 1}: building")
        folder = stand.folder / f"{writer.path.stem}-round-{number}"
        built = build_plans(stand, wanted, folder, workers=workers)
        for position, case in enumerate(rotated(cases, number)):
            # The position in the unrotated list, so that the order of a case alternates from round to round.
            place = cases.index(case)
            for name in order_of(tuple(variants[case]), number, place):
                key = _key(number, case.to_json(), name)
                if key not in wanted:
                    continue
                first = native_first(number, place)
                plan = variants[case][name]
                other = try_torch(case, options, stand.kind) if torch and not first else None
                native = try_out(stand, case, built[key], options, device_name=device_name)
                if torch and first:
                    other = try_torch(case, options, stand.kind)
                keep_source(writer, built[key].source, built[key].source_sha256)
                expected = (frozen_sources or {}).get(plan.key, built[key].source_sha256)
                if native["status"] == "measured" and expected != built[key].source_sha256:
                    native = {
                        **native,
                        "status": "failed",
                        "reason": "the emitted text is not the frozen one",
                    }
                writer.append(
                    MEASUREMENT,
                    {
                        "round": number,
                        "case": case.to_json(),
                        "variant": name,
                        "position": position,
                        "native_first": first,
                        "plan_key": plan.key,
                        "native": native,
                        "torch": other,
                    },
                )
                have.add(key)
                streak.add(native)
                progress(len(have), total, f"round {number + 1}: {case.label} {name}: {native['status']}")


def medians_us(
    measurements: Sequence[Mapping[str, Any]], case: Case, variant: str, phase: str, side: str = "native"
) -> dict[int, float]:
    """Median of one phase in each round that has it, by round."""
    found = {}
    for m in measurements:
        if m["variant"] != variant or m["case"] != case.to_json():
            continue
        result = m[side]
        if result is None or result["status"] != "measured" or phase not in result["timing"]["phases"]:
            continue
        found[int(m["round"])] = median(result["timing"]["phases"][phase]["samples_us"])
    return found


def pairs(
    measurements: Sequence[Mapping[str, Any]], case: Case, reference: str, candidate: str, phase: str
) -> Paired | None:
    """Ratios reference / candidate over the rounds that have both; None where none has."""
    a = medians_us(measurements, case, reference, phase)
    b = medians_us(measurements, case, candidate, phase)
    both = sorted(set(a) & set(b))
    return paired([a[r] for r in both], [b[r] for r in both]) if both else None


def torch_pairs(
    measurements: Sequence[Mapping[str, Any]], case: Case, variant: str, phase: str
) -> Paired | None:
    """Ratios torch / native of one variant, each pair from one run; None where there is none."""
    a = medians_us(measurements, case, variant, phase, "torch")
    b = medians_us(measurements, case, variant, phase)
    both = sorted(set(a) & set(b))
    return paired([a[r] for r in both], [b[r] for r in both]) if both else None


def _key(number: int, case: Mapping[str, Any], variant: str) -> str:
    return digest([number, dict(case), variant])[:16]
