"""Tables of the peers' grid from its records: rows for a plot as JSON, and Markdown.

Ratios are best peer ÷ ours, each taken inside one run; one whose range over the rounds includes 1.00 counts
as 1.00.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.grid_lines import GROUPS, NEIGHBOURS, ODD, OTHER, TABLE, group_of
from tirx_reduce.bench.peers import COPY, DLIGHT, PEERS
from tirx_reduce.bench.records import check_identity, of_kind, read
from tirx_reduce.bench.shapes import shape_text
from tirx_reduce.bench.statistics import median, paired
from tirx_reduce.errors import ReduceError

LINE, SETTINGS = "grid line", "grid settings"
OTHERS = (*(p.name for peers in PEERS.values() for p in peers), DLIGHT)
"""Everything that ours is held against; the copy is no peer."""
Row = dict[str, Any]


def rows_of(paths: Iterable[Path | str], policy: str | None = None) -> list[Row]:
    """One row a line, put together from runs on one device.

    Parameters
    ----------
    paths
        Record files of the grid; where two have the same contender, the first one's counts.
    policy
        Whose plans stand against the peers; the first of each run's, where None.

    Raises
    ------
    BadRecords
        A file is bad, or two are of different machines.
    """
    found: dict[Case, Row] = {}
    first: tuple[str, Mapping[str, Any]] | None = None
    for path in paths:
        records = read(path)
        first = first or (str(path), records[0].data)
        check_identity(first[1], records[0].data, f"{first[0]} and {path}")
        settings = of_kind(records, SETTINGS)
        policies = settings[0]["policies"] if settings else []
        for line in of_kind(records, LINE):
            case = Case.from_json(line["case"])
            main = policy or (policies[0] if policies else "")
            row = found.setdefault(case, {**_empty(case, main), "device": records[0].data["device"]})
            _add(row, line, main, policies)
    for row in found.values():
        _conclude(row)
    return list(found.values())


def _empty(case: Case, main: str) -> Row:
    return {
        "case": case.to_json(),
        "dtype": case.dtype,
        "operator": case.operator,
        "shape": shape_text(case.shape),
        "group": group_of(case),
        "policy": main,
        "regime": "",
        "copied_bytes": 0,
        "peers": {},
        "ours": {},
        "failures": {},
    }


def _add(row: Row, line: Mapping[str, Any], main: str, policies: Sequence[str]) -> None:
    contenders = line["contenders"]
    if row["regime"] not in ("", line["regime"]):
        raise ReduceError(
            f"{row['shape']} is both {row['regime']} and {line['regime']}; needs one regime a table"
        )
    row["regime"] = line["regime"]
    row["copied_bytes"] = line.get("copied_bytes", 0) or row["copied_bytes"]
    if "reason" in line:
        row["failures"].setdefault("line", line["reason"])
    mine = contenders.get(line["aliases"].get(main, main), {})
    for name in (*OTHERS, COPY):
        if name not in contenders or _measured(row["peers"].get(name)):
            continue
        row["peers"][name] = _against(contenders[name], mine)
        if contenders[name]["status"] != "measured":
            row["failures"].setdefault(name, contenders[name].get("reason", ""))
    # By the run's own order: the records have their keys sorted.
    for policy in sorted(line["plans"], key=lambda p: policies.index(p) if p in policies else len(policies)):
        plan = line["plans"][policy]
        if _measured(row["ours"].get(policy)):
            continue
        own = contenders.get(line["aliases"].get(policy, policy), {})
        entry: Row = {"status": own.get("status", plan["status"]), "candidate": plan.get("candidate")}
        if "resources" in plan:
            entry["resources"] = plan["resources"]
        if entry["status"] == "measured":
            entry["us"] = median(_valid(own))
            entry["source_sha256"] = plan.get("source_sha256", "")
            if COPY in contenders:
                against = _against(contenders[COPY], own)
                entry["of_copy"] = against.get("ratio")
        else:
            row["failures"].setdefault(policy, own.get("reason") or plan.get("reason", ""))
        row["ours"][policy] = entry


def _against(other: Mapping[str, Any], mine: Mapping[str, Any]) -> Row:
    """Time of another contender, and its ratio to ours over the rounds that have both."""
    if other["status"] != "measured":
        return {"status": other["status"], "reason": other.get("reason", "")}
    entry: Row = {"status": "measured", "us": median(_valid(other))}
    if mine.get("status") != "measured":
        return entry
    both = [
        (a, b)
        for a, b in zip(other["samples_us"], mine["samples_us"], strict=True)
        if a is not None and b is not None
    ]
    if not both:
        return entry
    ratios = paired([a for a, _ in both], [b for _, b in both])
    counted = 1.0 if ratios.low <= 1.0 <= ratios.high else ratios.median
    return {
        **entry,
        "ratio": ratios.median,
        "low": ratios.low,
        "high": ratios.high,
        "counted": counted,
        "pairs": len(both),
    }


def _conclude(row: Row) -> None:
    rated = {n: p for n, p in row["peers"].items() if n != COPY and "ratio" in p}
    if rated:
        name = min(rated, key=lambda n: float(rated[n]["ratio"]))
        # Another peer may be ahead in every round where the nearest one is not.
        counted = min(float(p["counted"]) for p in rated.values())
        row["best"] = {"name": name, **rated[name], "counted": counted}
        return
    # Without a kernel of ours the best peer is still known, within one run.
    timed = {n: p for n, p in row["peers"].items() if n != COPY and "us" in p}
    if timed:
        name = min(timed, key=lambda n: float(timed[n]["us"]))
        row["best"] = {"name": name, **timed[name]}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Numbers over the lines of the table alone: how many are level or ahead, the worst, the means."""
    best = [(r, r["best"]) for r in rows if r["group"] == TABLE and "ratio" in r.get("best", {})]
    found: dict[str, Any] = {"lines": sum(r["group"] == TABLE for r in rows), "compared": len(best)}
    if not best:
        return found
    counted = [float(b["counted"]) for _, b in best]
    worst = min(best, key=lambda one: float(one[1]["counted"]))
    return found | {
        "at_least_level": sum(c >= 1.0 for c in counted),
        "at_least_0.98": sum(c >= 0.98 for c in counted),
        "worst": float(worst[1]["counted"]),
        "worst_line": f"{_where(worst[0])} against {worst[1]['name']}",
        "geometric_mean": geometric_mean([float(b["ratio"]) for _, b in best]),
        "geometric_mean_counted": geometric_mean(counted),
    }


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows and their summary."""
    return {"summary": summary(rows), "rows": list(rows)}


def markdown(rows: Sequence[Row], *, wide: bool = False) -> str:
    """The table, its summary, the odd columns beside their neighbours, and what failed."""
    policies = list(dict.fromkeys(p for r in rows for p in r["ours"]))
    others = [n for n in OTHERS if any(n in r["peers"] for r in rows)] if wide else []
    out: list[str] = []
    for group in (*GROUPS, OTHER):
        mine = [r for r in rows if r["group"] == group]
        if mine:
            out += [f"**{group}** on {mine[0]['device']}, {mine[0]['regime']}, median µs of one launch", ""]
            out += [*_table(mine, policies, others), ""]
            out += _neighbours(mine, rows) if group == ODD else []
    numbers = summary(rows)
    if "worst" in numbers:
        out.append(
            f"Of {numbers['compared']} compared lines of {numbers['lines']}: best peer ÷ ours ≥ 1.00 on "
            f"{numbers['at_least_level']}, ≥ 0.98 on {numbers['at_least_0.98']}, "
            f"worst {numbers['worst']:.3f} ({numbers['worst_line']}), "
            f"geometric mean {numbers['geometric_mean']:.3f}."
        )
    out += _resources(rows)
    out += _failures(rows)
    return "\n".join(out).strip()


def _table(rows: Sequence[Row], policies: Sequence[str], others: Sequence[str]) -> list[str]:
    head = ["line", COPY, *others, "best peer", *policies, "best ÷ ours [range]", "of copy %"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        best = row.get("best")
        own = row["ours"].get(row["policy"], {})
        cells = [
            f"{row['dtype']} {row['operator']} {row['shape'].replace('x', '×')}",
            _us(row["peers"].get(COPY)),
            *(_us(row["peers"].get(name)) for name in others),
            f"{best['us']:.2f} {best['name']}" if best else "−",
            *(_us(row["ours"].get(policy)) for policy in policies),
            f"{best['ratio']:.3f} [{best['low']:.3f}–{best['high']:.3f}]"
            if best and "ratio" in best
            else "−",
            f"{100 * own['of_copy']:.1f}" if own.get("of_copy") else "−",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _neighbours(odd: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    """How much of an aligned neighbour's rate odd columns reach."""
    rates = {(r["dtype"], r["operator"], r["shape"]): _rate(r) for r in rows}
    parts = []
    for row in odd:
        beside = NEIGHBOURS.get(tuple(row["case"]["shape"]))
        other = rates.get((row["dtype"], row["operator"], shape_text(beside))) if beside else None
        own = _rate(row)
        if other and own:
            parts.append(f"{row['dtype']} {row['operator']} {row['shape']} {own / other:.2f}")
    return [f"Rate of ours beside the aligned neighbour: {'; '.join(parts)}.", ""] if parts else []


def _resources(rows: Sequence[Row]) -> list[str]:
    """Kernels of ours that keep something in local memory: spills, or arrays indexed by a variable."""
    seen, local = 0, []
    for row in rows:
        for policy, entry in row["ours"].items():
            kernels = entry.get("resources", {}).get("kernels", {})
            seen += len(kernels)
            most = max((k["local_bytes"] for k in kernels.values()), default=0)
            if most:
                local.append(f"{policy} {_where(row)} ({most} bytes a lane)")
    if not seen:
        return []
    return [
        "",
        f"Kernels with local memory: {len(local)} of {seen}{': ' if local else ''}{', '.join(local)}.",
    ]


def _failures(rows: Sequence[Row]) -> list[str]:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, reason in row["failures"].items():
            by_reason.setdefault((name, str(reason)), []).append(_where(row))
    if not by_reason:
        return []
    lines = ["", "Not measured:", ""]
    for (name, reason), places in by_reason.items():
        shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        lines.append(f"- {name}: {reason[:200] or 'no reason given'} ({shown})")
    return lines


def _where(row: Row) -> str:
    return f"{row['dtype']} {row['operator']} {row['shape']}"


def _rate(row: Row) -> float | None:
    own = row["ours"].get(row["policy"], {})
    return row["copied_bytes"] / own["us"] if own.get("us") else None


def _us(entry: Mapping[str, Any] | None) -> str:
    return f"{entry['us']:.2f}" if entry and "us" in entry else "−"


def _measured(entry: Mapping[str, Any] | None) -> bool:
    return entry is not None and entry["status"] == "measured"


def _valid(contender: Mapping[str, Any]) -> list[float]:
    return [float(s) for s in contender["samples_us"] if s is not None]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of record files, and write rows."""
    parser = argparse.ArgumentParser(prog="python -m tirx_reduce.bench.grid_report", description=__doc__)
    parser.add_argument("records", nargs="+", help="record files of the grid, plain, .gz or .xz")
    parser.add_argument(
        "--policy", help="whose plans stand against the peers (default: the first of each run)"
    )
    parser.add_argument("--wide", action="store_true", help="a column for each peer")
    parser.add_argument("--out", metavar="FILE", help="Markdown file (default: print)")
    parser.add_argument("--rows", metavar="FILE", help="JSON file of rows and summary, for a plot")
    args = parser.parse_args(argv)
    try:
        rows = rows_of(args.records, args.policy)
    except ReduceError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if args.rows:
        text = json.dumps(as_json(rows), indent=1, ensure_ascii=False, sort_keys=True)
        Path(args.rows).write_text(f"{text}\n")
    text = markdown(rows, wide=args.wide)
    if args.out:
        Path(args.out).write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
