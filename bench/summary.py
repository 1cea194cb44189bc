"""What the raw samples of rounds say: medians, paired ratios and verdicts for every case, none left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.measure import DIAGNOSTIC, PHASES
from tirx_reduce.bench.rounds import medians_us, pairs, torch_pairs
from tirx_reduce.bench.statistics import Paired, median

SUMMARY = "summary"
"""Kind of record: derived from the raw samples before it, so that a reader can compare."""


def summarize(
    measurements: Sequence[Mapping[str, Any]],
    cohort: Sequence[Case],
    reference: str,
    candidates: Sequence[str],
) -> dict[str, Any]:
    """Every case with its phases; a failure stays in as a failure.

    Parameters
    ----------
    measurements
        Records of kind `measurement`.
    cohort
        Cases, in order.
    reference
        The variant that ratios are taken against.
    candidates
        The variants that are compared with it.
    """
    return {
        "reference": reference,
        "cases": [_case(measurements, case, reference, candidates) for case in cohort],
    }


def _case(
    measurements: Sequence[Mapping[str, Any]], case: Case, reference: str, candidates: Sequence[str]
) -> dict[str, Any]:
    mine = [m for m in measurements if m["case"] == case.to_json()]
    names = (reference, *candidates)
    return {
        "case": case.to_json(),
        "native_us": {n: _phases(mine, case, n, "native") for n in names},
        "torch_us": {n: _phases(mine, case, n, "torch") for n in names},
        "gain": {n: _ratios(lambda p, n=n: pairs(mine, case, reference, n, p)) for n in candidates},
        "torch_over_native": {n: _ratios(lambda p, n=n: torch_pairs(mine, case, n, p)) for n in names},
        "failures": [
            {"round": m["round"], "variant": m["variant"], "side": side, "reason": m[side].get("reason", "")}
            for m in mine
            for side in ("native", "torch")
            if m[side] is not None and m[side]["status"] not in ("measured", "absent")
        ],
        "rejected_samples": sum(
            len(phase["rejected"])
            for m in mine
            for side in ("native", "torch")
            if m[side] is not None and m[side]["status"] == "measured"
            for phase in m[side]["timing"]["phases"].values()
        ),
    }


def _phases(
    measurements: Sequence[Mapping[str, Any]], case: Case, variant: str, side: str
) -> dict[str, float]:
    found = {}
    for phase in (*PHASES, DIAGNOSTIC):
        by_round = medians_us(measurements, case, variant, phase, side)
        if by_round:
            found[phase] = median(list(by_round.values()))
    return found


def _ratios(of: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for phase in (*PHASES, DIAGNOSTIC):
        ratio: Paired | None = of(phase)
        if ratio is not None:
            found[phase] = {**asdict(ratio), "ratios": list(ratio.ratios)}
    return found
