"""Counts of the peers' grid from its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from tirx_reduce.bench.grid_lines import FUSED, NEIGHBOURS, ODD, TABLE
from tirx_reduce.bench.shapes import shape_text

Row = dict[str, Any]
Line = tuple[str, str, tuple[int, ...]]
"""Dtype, operator, shape."""
Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
AIMS = ((64e6, 0.95), (16e6, 0.88))
"""Bytes moved, and the share of the copy's rate from there on."""
ODD_AIM = 0.85
CLASSES = ((64e6, "64 MB and more"), (16e6, "16 to 64 MB"), (4e6, "4 to 16 MB"), (0.0, "under 4 MB"))


def counts(
    final: Sequence[Row],
    before: Mapping[tuple[str, str, str], float],
    table: Table,
    counted: Mapping[Line, str] | None = None,
    beside: Sequence[Row] = (),
) -> str:
    """All of it.

    `before` holds ours ÷ copy in an earlier run, `counted` what hardware counters say of a line, `beside` a run with
    the neighbours of odd lines that the grid has not.
    """
    parts = [
        _level(final, table), _short(final, table, counted or {}), _sizes(final, table),
        _slow(final, table, counted or {}), _targets(final, table),
        _odd(final, beside, table), _fused(final, table), _policies(final, table), _since(final, before, table),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def at_first_sight(rows: Sequence[Row], table: Table) -> str:
    """Best peer ÷ ours by dtype and operator."""
    body = []
    for dtype in ("float32", "bfloat16", "float16"):
        for operator in ("softmax", "rms_norm", "layer_norm", "add_rms_norm"):
            best = [r["best"] for r in rows if (r["dtype"], r["operator"]) == (dtype, operator)]
            if not best:
                continue
            raw = [float(b["ratio"]) for b in best]
            body.append([dtype, operator, *_standing(best), f"{geometric_mean(raw):.3f}", f"{min(raw):.3f}"])
    head = ["dtype", "operator", "lines", *STANDING, "geometric mean of best peer ÷ ours", "worst"]
    return table(head, body)


STANDING = ("≥ 1.00, ranges that include 1 counted as level", "≥ 1.00 by median alone")


def _standing(best: Sequence[Row]) -> list[str]:
    """How many lines there are, and on how many the best peer is level or behind, counted two ways."""
    ahead = (sum(float(b[how]) >= 1.0 for b in best) for how in ("counted", "ratio"))
    return [str(len(best)), *map(str, ahead)]


def _name(row: Row) -> str:
    return f"{row['dtype']} {row['operator']} {row['shape'].replace('x', '×')}"


def _group(rows: Sequence[Row], group: str) -> list[Row]:
    return [r for r in rows if r["group"] == group and "ratio" in r.get("best", {})]


def _level(rows: Sequence[Row], table: Table) -> str:
    """Worst ratio of a line over all peers of all runs."""
    body = []
    for group in (TABLE, ODD, FUSED):
        mine = _group(rows, group)
        raw = [float(r["best"]["ratio"]) for r in mine]
        worst = min(mine, key=lambda r: float(r["best"]["ratio"]))
        body.append(
            [group, *_standing([r["best"] for r in mine]), f"{sum(v >= 0.98 for v in raw)}",
             f"{geometric_mean(raw):.3f}", f"{min(raw):.3f}, {_name(worst)}, {worst['best']['name']}"]
        )  # fmt: skip
    head = ["lines", "compared", *STANDING, "≥ 0.98 by median", "geometric mean", "worst"]
    text = "## Level or ahead\n\nBest peer ÷ ours: the smallest ratio of a line over all peers of "
    text += "both runs, each ratio taken inside its run.\n\n"
    text += table(head, body)
    names = list(dict.fromkeys(n for r in rows for n in r["peers"] if n != "copy"))
    each = []
    for name in names:
        ratios = [
            float(r["peers"][name]["ratio"])
            for r in _group(rows, TABLE)
            if "ratio" in r["peers"].get(name, {})
        ]
        if ratios:
            each.append([name, str(len(ratios)), f"{sum(v >= 1.0 for v in ratios)}", f"{geometric_mean(ratios):.3f}",
                         f"{min(ratios):.3f}"])  # fmt: skip
    return (
        text
        + "\nBy peer, over the 72 lines:\n\n"
        + table(
            ["peer", "lines", "ours level or faster by median", "geometric mean of peer ÷ ours", "worst"],
            each,
        )
    )


def _short(rows: Sequence[Row], table: Table, counted: Mapping[Line, str]) -> str:
    """Every line behind the best peer, with what the counters say of it."""
    body = []
    for row in rows:
        best = row.get("best", {})
        if "ratio" not in best or float(best["ratio"]) >= 1.0:
            continue
        level = float(best["counted"]) >= 1.0
        read = counted.get((row["dtype"], row["operator"], tuple(row["case"]["shape"])))
        cause = (
            f"counted: {read}" if read else "none: every range includes 1.00" if level else "not looked into"
        )
        behind = [
            f"{n} {p['ratio']:.3f} [{p['low']:.3f}–{p['high']:.3f}]"
            for n, p in sorted(row["peers"].items(), key=lambda one: one[1].get("ratio", 9.0))
            if n != "copy" and p.get("ratio", 9.0) < 1.0
        ]
        body.append([_name(row), "; ".join(behind), _mapping(row["ours"][row["policy"]]), cause])
    title = "## Lines that fall short\n\n"
    if not body:
        return title + "No line has a peer whose median is ahead.\n"
    told = "Every line where a peer's median is ahead. `counted` is what hardware counters say."
    return f"{title}{told}\n\n" + table(["line", "peers ahead", "ours", "cause"], body)


def _sizes(rows: Sequence[Row], table: Table) -> str:
    """Share of the copy's rate by the bytes moved."""
    body = []
    for low, name in CLASSES:
        high = min((c for c, _ in CLASSES if c > low), default=math.inf)
        mine = [
            (float(r["ours"][r["policy"]]["of_copy"]), r)
            for r in rows
            if r["group"] == TABLE and low <= r["copied_bytes"] < high
        ]
        if not mine:
            continue
        shares = [s for s, _ in mine]
        worst = min(mine, key=lambda one: one[0])
        body.append([name, str(len(mine)), f"{100 * geometric_mean(shares):.1f} %", f"{sum(s >= 0.95 for s in shares)}",
                     f"{sum(s >= 0.9 for s in shares)}", f"{100 * worst[0]:.1f} %, {_name(worst[1])}"])  # fmt: skip
    head = ["bytes moved", "lines", "geometric mean of the copy's rate", "≥ 95 %", "≥ 90 %", "worst"]
    return "## Rate against a copy\n\nThe copy moves the same bytes in the same rounds.\n\n" + table(
        head, body
    )


def _slow(rows: Sequence[Row], table: Table, counted: Mapping[Line, str]) -> str:
    """Every line of the whole grid that is short of the copy's rate, with what the counters say of it."""
    body = []
    for row in rows:
        mine, copy = row["ours"][row["policy"]], row["peers"]["copy"]
        aim = next((share for low, share in AIMS if row["copied_bytes"] >= low), 0.0)
        if float(mine["of_copy"]) >= aim:
            continue
        read = counted.get((row["dtype"], row["operator"], tuple(row["case"]["shape"])), "not counted")
        spread = f"{100 * copy['low']:.1f}–{100 * copy['high']:.1f}"
        body.append(
            [
                _name(row),
                f"{100 * float(mine['of_copy']):.1f} [{spread}]",
                f"{100 * aim:g}",
                _mapping(mine),
                read,
            ]
        )
    told = "Under 95 % from 64 MB on, under 88 % from 16 MB on; odd, fused and the longest rows too.\n\n"
    head = ["line", "% of the copy's rate", "aim", "ours", "what the counters say"]
    return "## Short of the copy\n\n" + told + (table(head, body) if body else "None.\n")


def _mapping(mine: Mapping[str, Any]) -> str:
    plan = mine["candidate"]
    text = f"W={plan['width']} V={plan['vector']} {plan['reuse']} S={plan['splits']}"
    return text + (" merged" if plan.get("merged") else "") + (" resident" if plan.get("resident") else "")


def _targets(rows: Sequence[Row], table: Table) -> str:
    """Few long rows against 1.5 × copy; many short ones against 1.02 × copy."""
    body = []
    for shape, factor in (("8x131072", 1.5), ("1x131072", 1.5), ("32768x256", 1.02)):
        for row in rows:
            if row["shape"] == shape and row["group"] == TABLE:
                times = 1 / float(row["ours"][row["policy"]]["of_copy"])
                body.append([_name(row), f"{row['peers']['copy']['us']:.2f}", f"{row['ours'][row['policy']]['us']:.2f}",
                             f"{times:.2f}", f"{factor:g}", "yes" if times <= factor else "no",
                             f"{row['best']['ratio']:.3f} {row['best']['name']}"])  # fmt: skip
    met = sum(line[5] == "yes" for line in body)
    head = ["line", "copy µs", "ours µs", "ours ÷ copy", "aim", "met", "best peer ÷ ours"]
    return f"## Few long rows, many short rows\n\nThe aim is met on {met} of {len(body)} lines.\n\n" + table(
        head, body
    )


def _odd(final: Sequence[Row], beside: Sequence[Row], table: Table) -> str:
    """Odd columns: rate as a share of the aligned neighbour's.

    Of the same run where that has both; else each beside the copy of its own run and line, in which it was interleaved.
    """
    same, other_run = ({_key(r): r for r in rows} for rows in (final, beside))
    body, shares = [], []
    for row in _group(final, ODD):
        key = (*_key(row)[:2], shape_text(NEIGHBOURS[tuple(row["case"]["shape"])]))
        neighbour = same.get(key) or other_run[key]
        ours, copies = (_rate(row, of) / _rate(neighbour, of) for of in (_ours, _copy))
        if key not in same:
            ours, copies = ours / copies, 1.0
        shares.append(ours)
        best = row.get("best", {})
        body.append([_name(row), f"{100 * ours:.1f} %", f"{100 * copies:.0f} %" if key in same else "by it",
                     f"{best['ratio']:.3f} {best['name']}" if "ratio" in best else "−"])  # fmt: skip
    head = ["line", "ours: rate of the aligned neighbour", "copy: the same", "best peer ÷ ours"]
    met = sum(s >= ODD_AIM for s in shares)
    told = (
        f"At least {ODD_AIM:.2f} on {met} of {len(body)} lines; {100 * min(shares):.1f} % at least. `by it`: the "
        "neighbour is from another run, and each is taken beside the copy that was interleaved with it."
    )
    return f"## Odd columns\n\n{told}\n\n" + table(head, body)


def _ours(row: Row) -> float:
    return float(row["ours"][row["policy"]]["us"])


def _copy(row: Row) -> float:
    return float(row["peers"]["copy"]["us"])


def _rate(row: Row, of: Callable[[Row], float]) -> float:
    return float(row["copied_bytes"]) / of(row)


def _key(row: Row) -> tuple[str, str, str]:
    return row["dtype"], row["operator"], row["shape"]


def _fused(rows: Sequence[Row], table: Table) -> str:
    body = [
        [_name(r), f"{r['ours'][r['policy']]['us']:.2f}",
         f"{r['best']['us']:.2f} {r['best']['name']}", f"{r['best']['ratio']:.3f}",
         f"{100 * float(r['ours'][r['policy']]['of_copy']):.1f} %"]
        for r in _group(rows, FUSED)
    ]  # fmt: skip
    head = ["line", "ours µs", "best peer µs", "best peer ÷ ours", "of the copy's rate"]
    return "## Fused lines\n\n" + table(head, body)


def _policies(rows: Sequence[Row], table: Table) -> str:
    """Policies in one run: medians of one over medians of another, over the lines that have both."""
    body = []
    for one, other in (("analytic", "ladder"), ("service", "ladder"), ("analytic", "service")):
        for dtype in ("float32", "bfloat16"):
            pairs = [
                (r["ours"][one]["us"] / r["ours"][other]["us"], r)
                for r in rows
                if r["dtype"] == dtype and all("us" in r["ours"].get(p, {}) for p in (one, other))
            ]
            if not pairs:
                continue
            ratios = [p for p, _ in pairs]
            least, most = (f(pairs, key=lambda p: p[0]) for f in (min, max))
            body.append([f"{one} ÷ {other}", dtype, str(len(pairs)), f"{geometric_mean(ratios):.3f}",
                         f"{least[0]:.3f}, {_name(least[1])}", f"{most[0]:.2f}, {_name(most[1])}"])  # fmt: skip
    head = ["times", "dtype", "lines", "geometric mean", "least", "most"]
    return (
        "## Policies side by side\n\nAbove 1: the second is faster. `service` has a profile for float32 alone.\n\n"
        + table(head, body)
    )


def _since(rows: Sequence[Row], before: Mapping[tuple[str, str, str], float], table: Table) -> str:
    """Shares of the copy's time in an earlier run and in this one."""
    found = []
    for row in rows:
        key = row["dtype"], row["operator"], row["shape"]
        if key in before and row["group"] != FUSED:
            now = 1 / float(row["ours"]["ladder"]["of_copy"])
            found.append((before[key] / now, before[key], now, row))
    found.sort(key=lambda one: -one[0])
    slower = sum(gain < 0.99 for gain, *_ in found)
    body = [[_name(r), f"{was:.3f}", f"{now:.3f}", f"{gain:.3f}"] for gain, was, now, r in found]
    return (
        "## Since the run before prologues\n\nThe earlier run (`before_prologue.json`) has launches that ask for "
        "nothing before they wait, and an earlier ladder: geometric mean "
        f"{geometric_mean([g for g, *_ in found]):.3f}, slower by more than 1 % on {slower} of {len(found)} lines.\n\n"
        + table(["line", "ours ÷ copy before", "ours ÷ copy now", "before ÷ now"], body)
    )
