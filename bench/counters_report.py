"""Tables of hardware counters, and what they say about a line that falls short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.peers import DLIGHT, PEERS
from tirx_reduce.bench.records import check_identity, of_kind, read
from tirx_reduce.bench.shapes import shape_text
from tirx_reduce.bench.statistics import median
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError

COUNTERS = "counters"
DURATION = "gpu__time_duration.sum"
READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
ISSUE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
INSTRUCTIONS = "smsp__inst_executed.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
REGISTERS = "launch__registers_per_thread"
STALL, PER_ISSUE = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
LIMIT = "launch__occupancy_limit_"
NOTICEABLE = 1.05
"""Times as many bytes: beyond that they explain a difference."""
BUSY_PERCENT = 60.0
"""Of issue slots: beyond that instructions bound a kernel."""
SATURATED_PERCENT = 88.0
"""Of the memory's peak: beyond that nothing but bytes can gain."""
Row = dict[str, Any]


def rows_of(paths: Iterable[Path | str]) -> list[Row]:
    """One row a contender of a line: the median over its calls of every metric of its longest kernel."""
    rows: list[Row] = []
    first: tuple[str, Mapping[str, Any]] | None = None
    for path in paths:
        records = read(path)
        first = first or (str(path), records[0].data)
        check_identity(first[1], records[0].data, f"{first[0]} and {path}")
        rows += [_row(entry) for entry in of_kind(records, COUNTERS)]
    return rows


def _row(entry: Mapping[str, Any]) -> Row:
    longest = [kernels[0] for kernels in entry["calls"] if kernels]
    names = {name for kernel in longest for name in kernel["metrics"]}
    metrics = {
        name: median([float(k["metrics"][name]) for k in longest if name in k["metrics"]]) for name in names
    }
    return {
        "case": entry["case"],
        "name": entry["name"],
        "regime": entry["regime"],
        "status": entry["status"],
        "reason": entry.get("reason", ""),
        "kernel": longest[0]["kernel"] if longest else "",
        "kernels": max((len(k) for k in entry["calls"]), default=0),
        "metrics": metrics,
        "candidate": entry.get("plan", {}).get("candidate"),
    }


def stalls(metrics: Mapping[str, float]) -> dict[str, float]:
    """Warps that wait for each reason at an issue, most first."""
    found = {
        name.removeprefix(STALL).removesuffix(PER_ISSUE): value
        for name, value in metrics.items()
        if name.startswith(STALL)
    }
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def limited_by(metrics: Mapping[str, float]) -> str:
    """What bounds the groups of a multiprocessor."""
    limits = {name.removeprefix(LIMIT): v for name, v in metrics.items() if name.startswith(LIMIT) and v}
    return min(sorted(limits), key=lambda name: limits[name]) if limits else ""


def reading(ours: Mapping[str, float], peer: Mapping[str, float] | None, least_bytes: float) -> str:
    """The first of these that the counters show: bytes, instructions, occupancy, a stall."""
    if DURATION not in ours:
        return ""
    moved = ours.get(READ, 0.0) + ours.get(WRITTEN, 0.0)
    # Writes may stay in the cache, so fewer bytes than the least are possible.
    against = max(least_bytes, (peer or {}).get(READ, 0.0) + (peer or {}).get(WRITTEN, 0.0))
    if moved > NOTICEABLE * against:
        return f"bytes: {moved / least_bytes:.2f} × the least"
    if ours.get(MEMORY, 0.0) >= SATURATED_PERCENT:
        return f"none: memory at {ours[MEMORY]:.0f} % of its peak"
    if ours.get(ISSUE, 0.0) >= BUSY_PERCENT:
        return f"instructions: {ours[ISSUE]:.0f} % of issue slots busy"
    if peer and peer.get(WARPS, 0.0) > 1.2 * ours.get(WARPS, 0.0):
        bound = limited_by(ours)
        text = f"occupancy: {ours.get(WARPS, 0.0):.0f} % of warps, {peer[WARPS]:.0f} % of the peer's"
        return text + (f"; bound by {bound}" if bound else "")
    waits = {name: v for name, v in stalls(ours).items() if name not in ("not_selected", "wait")}
    if not waits:
        return ""
    name = next(iter(waits))
    kind = {"barrier": "barrier", "membar": "barrier", "sleeping": "barrier"}.get(name, "latency")
    return f"{kind}: {name} {waits[name]:.1f} warps an issue"


def markdown(rows: Sequence[Row]) -> str:
    """A table of all contenders, ours with a reading against the fastest other of the line."""
    if not rows:
        raise ReduceError("no counters in these records; needs python -m tirx_reduce.bench.counters")
    head = ["line", "contender", "µs", "bytes ÷ least", "memory %", "warps %", "issue %",
            "instructions a 32 elements", "bank conflicts", "registers", "threads × groups", "bound by",
            "stalls (warps an issue)", "reading"]  # fmt: skip
    out = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        if row["metrics"]:
            out.append(f"| {' | '.join(_cells(row, rows))} |")
    failed = [f"- {r['name']}: {r['reason'][:300]} ({_where(r)})" for r in rows if not r["metrics"]]
    return "\n".join([*out, *(["", "Not counted:", "", *failed] if failed else [])])


def readings(rows: Sequence[Row]) -> dict[tuple[str, str, tuple[int, ...]], str]:
    """By dtype, operator and shape: what the counters say of our kernel against the fastest other of its line."""
    return {
        (case.dtype, case.operator, case.shape): text
        for row in rows
        for case in (Case.from_json(row["case"]),)
        for text in (_reading(row, rows),)
        if text
    }


def _reading(row: Row, rows: Sequence[Row]) -> str:
    if _foreign(row["name"]):
        return ""
    case = Case.from_json(row["case"])
    least = float(get_workload(case.operator).bytes_moved(case.shape, case.dtype))
    beside = [
        r for r in rows if r["case"] == row["case"] and _foreign(r["name"]) and DURATION in r["metrics"]
    ]
    peer = min(beside, key=lambda r: float(r["metrics"][DURATION])) if beside else None
    return reading(row["metrics"], peer["metrics"] if peer else None, least)


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    case, m = Case.from_json(row["case"]), row["metrics"]
    least = float(get_workload(case.operator).bytes_moved(case.shape, case.dtype))
    elements = case.rows * case.shape[-1]
    few = [f"{name} {value:.1f}" for name, value in list(stalls(m).items())[:3]]
    more = f" (+{row['kernels'] - 1} kernels)" if row["kernels"] > 1 else ""
    return [
        _where(row),
        row["name"] + more,
        _number(m, DURATION, 1e-3),
        f"{(m[READ] + m[WRITTEN]) / least:.2f}" if READ in m and WRITTEN in m else "−",
        _number(m, MEMORY),
        _number(m, WARPS),
        _number(m, ISSUE),
        f"{32 * m[INSTRUCTIONS] / elements:.1f}" if INSTRUCTIONS in m else "−",
        f"{m[CONFLICTS]:.0f}" if CONFLICTS in m else "−",
        f"{m[REGISTERS]:.0f}" if REGISTERS in m else "−",
        f"{m.get('launch__block_size', 0):.0f} × {m.get('launch__grid_size', 0):.0f}",
        limited_by(m) or "−",
        ", ".join(few) or "−",
        _reading(row, rows),
    ]


def _foreign(name: str) -> bool:
    return name == DLIGHT or any(name == p.name for peers in PEERS.values() for p in peers)


def _number(metrics: Mapping[str, float], name: str, scale: float = 1.0) -> str:
    return f"{metrics[name] * scale:.1f}" if name in metrics else "−"


def _where(row: Row) -> str:
    case = Case.from_json(row["case"])
    return f"{case.dtype} {case.operator} {shape_text(case.shape).replace('x', '×')}"
