"""Fits and summaries as tables: every case, every range, nothing left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirx_reduce.bench.terminal import Style, number, table

_MEANING = {
    "D": "fixed, a launch",
    "R": "a scalar round",
    "K": "a subgroup's part in a collective",
    "P": "a private byte a lane",
    "G": "a global byte, all programs",
    "W": "a global byte of the busiest lane",
}


def coefficient_lines(profile: Any, style: Style) -> list[str]:
    """The six coefficients with what they are the price of."""
    rows = [
        [name, f"{getattr(profile.coefficients, name):.4g}", meaning] for name, meaning in _MEANING.items()
    ]
    return table(["", profile.unit, "price of"], rows, style=style)


def capacity_lines(profile: Any, style: Style) -> list[str]:
    """All capacities that were tried, the selected one marked."""
    chosen = profile.coefficients.capacity
    rows = [
        [
            str(row.capacity),
            f"{100 * row.mean_regret:.2f} %",
            f"{100 * row.max_regret:.2f} %",
            f"{100 * row.relative_rmse:.2f} %",
            "selected" if row.capacity == chosen else "",
        ]
        for row in profile.capacities
    ]
    return table(["capacity", "mean regret", "max regret", "relative RMSE", ""], rows, style=style)


def summary_lines(summary: Mapping[str, Any], style: Style) -> list[str]:
    """Gains over the reference for each phase and case: median and observed range of the pairs."""
    reference = summary["reference"]
    lines: list[str] = []
    names = list(dict.fromkeys(n for entry in summary["cases"] for n in entry["gain"]))
    for name in names:
        phases = list(dict.fromkeys(p for e in summary["cases"] for p in e["gain"].get(name, {})))
        head = [
            "case",
            f"{reference} µs",
            f"{name} µs",
            *(f"gain, {p.replace('_', ' ')}" for p in phases),
            "verdict",
        ]
        rows = [_summary_row(entry, reference, name, phases) for entry in summary["cases"]]
        lines += [*table(head, rows, style=style), ""]
    lines += [
        f"{_label(entry['case'])}: {failure['variant']} {failure['side']}, "
        f"round {failure['round']}: {failure['reason']}"
        for entry in summary["cases"]
        for failure in entry["failures"]
    ]
    thrown = sum(entry["rejected_samples"] for entry in summary["cases"])
    if thrown:
        lines.append(f"{thrown} samples were thrown out as impossible; they stay in the records")
    lines.append("gains are medians of paired ratios with their observed range, no confidence bounds")
    return lines


def _summary_row(entry: Mapping[str, Any], reference: str, name: str, phases: list[str]) -> list[str]:
    gains = entry["gain"].get(name, {})
    cells = [
        f"{gains[p]['median']:.3f} [{gains[p]['low']:.3f}, {gains[p]['high']:.3f}]" if p in gains else "–"
        for p in phases
    ]
    first = gains.get("gpu_batch") or next(iter(gains.values()), None)
    return [
        _label(entry["case"]),
        _us(entry["native_us"], reference),
        _us(entry["native_us"], name),
        *cells,
        first["verdict"] if first else "failed",
    ]


def _us(times: Mapping[str, Any], name: str) -> str:
    found = times.get(name, {})
    value = found.get("gpu_batch", next(iter(found.values()), None))
    return "–" if value is None else number(float(value))


def _label(case: Mapping[str, Any]) -> str:
    shape = "x".join(str(e) for e in case["shape"])
    return f"{case['operator']} {shape}" + ("" if case["dtype"] == "float32" else f" {case['dtype']}")
