"""Tables of the sweeps of candidates from their compact records."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

Line = Mapping[str, Any]
Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]


def tables(path: Path, table: Table) -> str:
    """All of it."""
    lines = json.loads(path.read_text())["lines"]
    parts = [
        _sizes(lines, table), _launch(lines, table), _hints(lines, table), _ahead(lines, table),
        _clusters(lines, table), _cluster_exchange(lines, table), _merged(lines, table),
        _barrier(lines, table), _resident(lines, table), _odd(lines, table),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _right(line: Line) -> dict[str, float]:
    """Median of each mapping that computed what it should."""
    return {row[0]: row[1] for row in line["rows"] if len(row) == 2}


def _of(lines: Sequence[Line], sweep: int) -> list[Line]:
    return [one for one in lines if one["sweep"] == sweep]


def _varied(lines: Sequence[Line], sweep: int, name: str) -> list[tuple[Line, float, float]]:
    """Lines with the varied and the plain time of one right mapping."""
    return [
        (one, one["variants"][name], one["variants"]["base"])
        for one in _of(lines, sweep)
        if name in one.get("variants", {}) and one["base"] in _right(one)
    ]


def _name(line: Line) -> str:
    return f"{line['dtype']} {line['operator']} {line['shape'].replace('x', '×')}"


def spread(values: Sequence[float]) -> list[str]:
    """The least, the quartiles and the most of some numbers, as cells."""
    low, middle, high = quantiles(values, n=4)
    return [f"{v:.3f}" for v in (min(values), low, middle, high, max(values))]


def _least(times: Mapping[str, float]) -> tuple[str, float]:
    return min(times.items(), key=lambda one: one[1])


def _sizes(lines: Sequence[Line], table: Table) -> str:
    body = []
    for sweep in sorted({one["sweep"] for one in lines}):
        mine = _of(lines, sweep)
        rows = [r for one in mine for r in one["rows"]]
        wrong = [r for r in rows if len(r) > 2]
        body.append([str(sweep), str(len(mine)), str(len(rows)), str(len(wrong)),
                     f"{max((r[2] for r in wrong), default=0.0):g}"])  # fmt: skip
    head = ["sweep", "lines", "kernels timed", "wrong, left out", "largest relative error of those"]
    return "### What was swept\n\n" + table(head, body)


def _launch(lines: Sequence[Line], table: Table) -> str:
    found = [(one, off - on) for one, off, on in _varied(lines, 1, "nopdl")]
    gains = [g for _, g in found]
    inside = sum(0.3 <= g <= 0.8 for g in gains)
    most = max(found, key=lambda one: one[1])
    least = min(found, key=lambda one: one[1])
    return (
        "### Programmatic dependent launch\n\nMicroseconds that a launch costs more without it, best mapping of each "
        f"line, {len(gains)} lines; {inside} of them between 0.3 and 0.8. Least: {_name(least[0])} ({least[1]:.2f}); "
        f"most: {_name(most[0])} ({most[1]:.2f}).\n\n"
        + table(["", "least", "lower quartile", "median", "upper quartile", "most"], [["µs", *spread(gains)]])
    )


def _hints(lines: Sequence[Line], table: Table) -> str:
    body = []
    for name, text in (("st", "stores"), ("ldst", "loads and stores")):
        ratios = [with_ / without for _, with_, without in _varied(lines, 1, name)]
        body.append([text, str(len(ratios)), *spread(ratios)])
    head = ["streaming hints on", "lines", "least", "lower quartile", "median", "upper quartile", "most"]
    return "### Streaming hints\n\nTime with ÷ time without; under 1 is a gain.\n\n" + table(head, body)


def _ahead(lines: Sequence[Line], table: Table) -> str:
    shapes: dict[str, list[float]] = {}
    for sweep in (1, 2):
        for one, late, ahead in _varied(lines, sweep, "noahead"):
            shapes.setdefault(one["shape"], []).append(late / ahead)
    body = [
        [shape.replace("x", "×"), str(len(v)), f"{min(v):.3f}", f"{median(v):.3f}", f"{max(v):.3f}"]
        for shape, v in sorted(shapes.items(), key=lambda one: -max(one[1]))
    ]
    head = ["shape", "measurements", "least", "median", "most"]
    return (
        "### Weights ahead\n\nTime with the weights loaded when they are needed ÷ time with them loaded before the "
        "row's exchange; above 1 is a gain. RMSNorm and LayerNorm, both dtypes, sweeps 1 and 2.\n\n"
        + table(head, body)
    )


def _splits(mapping: str) -> int:
    return int(re.search(r" S(\d+)", mapping)[1])  # type: ignore[index]


def _clusters(lines: Sequence[Line], table: Table) -> str:
    body = []
    for one in (*_of(lines, 1), *_of(lines, 4)):
        times = _right(one)
        alone = {k: v for k, v in times.items() if _splits(k) == 1}
        split = {k: v for k, v in times.items() if _splits(k) > 1}
        if alone and split:
            a, s = _least(alone), _least(split)
            body.append(
                [
                    _name(one),
                    str(one["sweep"]),
                    f"{a[1]:.2f}",
                    a[0],
                    f"{s[1]:.2f}",
                    s[0],
                    f"{a[1] / s[1]:.3f}",
                ]
            )
    wins = sum(float(row[-1]) > 1.0 for row in body)
    head = [
        "line",
        "sweep",
        "one group µs",
        "its mapping",
        "cluster µs",
        "its mapping",
        "one group ÷ cluster",
    ]
    return (
        "### Clusters\n\nBest mapping of one group a row against the best of several, where a sweep has both (rows of "
        f"131072 columns fit no single group here). The cluster is faster in {wins} of {len(body)}.\n\n"
        + table(head, body)
    )


def _cluster_exchange(lines: Sequence[Line], table: Table) -> str:
    body = []
    for one, each, once in _varied(lines, 2, "nomerge"):
        if _splits(one["base"]) > 1:
            body.append([_name(one), one["base"], f"{each:.2f}", f"{once:.2f}", f"{each / once:.3f}"])
    head = ["line", "mapping", "an exchange each µs", "one exchange µs", "ratio"]
    return (
        "### One exchange over a cluster for two reductions\n\nSweep 2, lines whose best mapping splits the row; "
        "LayerNorm on split rows is left out, its kernels were wrong then. RMSNorm has one reduction, and "
        "shows the noise.\n\n" + table(head, body)
    )


def _merged(lines: Sequence[Line], table: Table) -> str:
    body = []
    for one in _of(lines, 4):
        times = _right(one)
        for mapping, merged in times.items():
            plain = mapping.removesuffix(" merged")
            if plain != mapping and plain in times:
                body.append(
                    [
                        _name(one),
                        plain,
                        f"{times[plain]:.2f}",
                        f"{merged:.2f}",
                        f"{times[plain] / merged:.3f}",
                    ]
                )
    wins = sum(float(row[-1]) > 1.0 for row in body)
    head = ["line", "mapping", "two exchanges µs", "merged µs", "two ÷ merged"]
    return (
        f"### One exchange of a group for two reductions\n\nSweep 4, the same mapping both ways; merged is faster "
        f"on {wins} of {len(body)}.\n\n" + table(head, body)
    )


def _barrier(lines: Sequence[Line], table: Table) -> str:
    case = ("bfloat16", "softmax", "1024x32768")
    mine = [one for one in lines if (one["dtype"], one["operator"], one["shape"]) == case]
    wanted = [
        f"W{w} P1 V8 {r} S1{m}" for w in (512, 1024) for r in ("shared", "private") for m in ("", " merged")
    ]
    wanted = [w for w in wanted if any(w in _right(one) for one in mine)]
    body = [[w, *(f"{_right(one)[w]:.2f}" if w in _right(one) else "−" for one in mine)] for w in wanted]
    head = ["mapping", *(f"sweep {one['sweep']} µs" for one in mine)]
    return "### A barrier between two walks\n\nbfloat16 softmax 1024×32768.\n\n" + table(head, body)


def _resident(lines: Sequence[Line], table: Table) -> str:
    body = []
    for one in (*_of(lines, 2), *_of(lines, 3)):
        times = _right(one)
        stays = {k: v for k, v in times.items() if re.search(r" R\d", k)}
        goes = {k: v for k, v in times.items() if k not in stays}
        if stays and goes:
            s, g = _least(stays), _least(goes)
            body.append(
                [
                    _name(one),
                    str(one["sweep"]),
                    f"{g[1]:.2f}",
                    g[0],
                    f"{s[1]:.2f}",
                    s[0],
                    f"{s[1] / g[1]:.3f}",
                ]
            )
    ratios = [float(row[-1]) for row in body]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    ahead = (
        "; ".join(f"{row[0]} in sweep {row[1]} ({row[-1]})" for row in body if float(row[-1]) < 1.0) or "none"
    )
    head = [
        "line",
        "sweep",
        "a group a row µs",
        "its mapping",
        "resident µs",
        "its mapping",
        "resident ÷ other",
    ]
    return (
        f"### Resident groups with prefetch\n\nBest of each, {len(body)} comparisons: geometric mean {mean:.3f}, from "
        f"{min(ratios):.3f} to {max(ratios):.3f}; resident is ahead on: {ahead}.\n\n" + table(head, body)
    )


def _odd(lines: Sequence[Line], table: Table) -> str:
    body = []
    for one in _of(lines, 4):
        if int(one["shape"].split("x")[1]) % 2 == 0:
            continue
        times = _right(one)
        by_width: dict[int, tuple[str, float]] = {}
        for mapping, us in times.items():
            vector = int(re.search(r" V(\d+)", mapping)[1])  # type: ignore[index]
            if vector not in by_width or us < by_width[vector][1]:
                by_width[vector] = (mapping, us)
        cells = [f"{by_width[v][1]:.2f} ({by_width[v][0]})" if v in by_width else "−" for v in (1, 2, 4)]
        widest = max(by_width)
        body.append([_name(one), *cells, f"{by_width[widest][1] / by_width[1][1]:.2f}"])
    head = ["line", "V=1 µs", "V=2 µs", "V=4 µs", "widest ÷ V=1"]
    return (
        "### Odd columns: narrow accesses\n\nBest mapping of each vector, sweep 4. A vector that does not divide the "
        "row takes partial packets.\n\n" + table(head, body)
    )
