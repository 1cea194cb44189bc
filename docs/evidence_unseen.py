"""Tables of the sweeps over shapes that are not the grid's: the ladder beside the best of its neighbours."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
Line = Mapping[str, Any]
OPERATORS = ("softmax", "rms_norm", "layer_norm")
NEAR = 1.03
MOST = 20


def tables(path: Path, table: Table) -> str:
    """All of it."""
    lines = json.loads(gzip.decompress(path.read_bytes()))["lines"]
    return "\n".join((_first_look(lines, table), _since(lines, table), _by_shape(lines, table)))


def _first_look(lines: Sequence[Line], table: Table) -> str:
    """How far the ladder of the time was from the best, on shapes that no rule was made on."""
    body = []
    for sweep in sorted({line["sweep"] for line in lines if line["first_seen"]}):
        ratios, counts = [], []
        for line in lines:
            if line["sweep"] != sweep or not line["first_seen"] or line["ladder_then"] is None:
                continue
            times = dict(line["rows"])
            ratios.append(times[line["ladder_then"]] / min(times.values()))
            counts.append(len(times))
        near = sum(r <= NEAR for r in ratios)
        body.append([str(sweep), str(len(ratios)), f"{sum(counts) / len(counts):.0f}", f"{geometric_mean(ratios):.3f}",
                     f"{max(ratios):.2f}", f"{near} of {len(ratios)}"])  # fmt: skip
    head = ["sweep", "lines", "mappings a line", "ladder ÷ best, geometric mean", "most", "within 3 %"]
    return "### Seen for the first time\n\n" + table(head, body)


def _since(lines: Sequence[Line], table: Table) -> str:
    """What the rules gained where they were changed: both mappings in one run."""
    found: dict[str, list[float]] = defaultdict(list)
    before = {_key(line): line["ladder_then"] for line in lines if line["sweep"] == 14}
    for line in lines:
        old, times = before.get(_key(line)), dict(line["rows"])
        now = line["ladder_now"]
        if line["sweep"] > 14 and old and old != now and old in times and now in times:
            found[line["dtype"]].append(times[old] / times[now])
    body = [
        [dtype, str(len(v)), f"{geometric_mean(v):.3f}", f"{min(v):.3f}", f"{max(v):.3f}"]
        for dtype, v in sorted(found.items())
    ]
    head = ["dtype", "lines", "before ÷ now, geometric mean", "least", "most"]
    return "### Where rules changed after sweep 14\n\n" + table(head, body)


def _by_shape(lines: Sequence[Line], table: Table) -> str:
    """The ladder as it is now over the best, of the last run that has both."""
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for line in lines:
        times = dict(line["rows"])
        if line["ladder_now"] in times:
            ratio = times[line["ladder_now"]] / min(times.values())
            found[line["shape"], line["dtype"]][line["operator"]] = ratio
    every = [r for of in found.values() for r in of.values()]
    body = [
        [shape.replace("x", "×"), dtype, *(f"{of[op]:.3f}" if op in of else "−" for op in OPERATORS)]
        for (shape, dtype), of in sorted(found.items(), key=lambda item: _order(item[0]))
    ]
    near = sum(r <= NEAR for r in every)
    told = (
        f"`−`: what the ladder plans now was not in a sweep. Over all {len(every)}: geometric mean "
        f"{geometric_mean(every):.3f}, {max(every):.2f} at most, within 3 % on {near}. Rules were changed on these "
        "sweeps, so that this is no look at unseen shapes.\n\n"
    )
    return (
        "### The ladder now beside the best of the same run\n\n"
        + told
        + table(["shape", "dtype", *OPERATORS], body)
    )


def decode(path: Path, table: Table) -> str:
    """Some rows, as a model has them that writes: the ladder then and now, and the best."""
    body, then, now = [], [], []
    for line in json.loads(gzip.decompress(path.read_bytes()))["lines"]:
        times = dict(line["rows"])
        best = min(times, key=times.__getitem__)
        before, after = times[line["ladder_then"]], times[line["ladder_now"]]
        then.append(before / times[best])
        now.append(after / times[best])
        told = [
            f"{after:.2f}" if after != before else "",
            best.replace(" P1 V8 private", ""),
            f"{times[best]:.2f}",
        ]
        body.append(
            [
                line["operator"],
                line["shape"].replace("x", "×"),
                f"{line['copy_us']:.2f}",
                f"{before:.2f}",
                *told,
            ]
        )
    said = (
        f"Ladder ÷ best, geometric mean: {geometric_mean(then):.3f} when first seen ({max(then):.2f} at most, "
        f"within 3 % on {sum(r <= NEAR for r in then)} of {len(then)}), {geometric_mean(now):.3f} now ({max(now):.2f}, "
        f"{sum(r <= NEAR for r in now)}).\n\n"
    )
    return said + table(
        ["operator", "shape", "copy, µs", "ladder then", "now", "best of the sweep", "µs"], body
    )


def models(path: Path, table: Table) -> str:
    """Shapes of models and what lies around them: the ladder then and now beside the best, sweep by sweep."""
    lines = json.loads(gzip.decompress(path.read_bytes()))["lines"]
    body, gained = [], []
    for sweep in sorted({line["sweep"] for line in lines}):
        mine = [line for line in lines if line["sweep"] == sweep]
        both = [line for line in mine if line["ladder_now"] in dict(line["rows"])]
        body.append(
            [
                str(sweep),
                str(len(mine)),
                str(sum(len(line["rows"]) for line in mine)),
                *(
                    _shown([_from_best(line, when) for line in of])
                    for of, when in ((mine, "then"), (both, "now"))
                ),
                str(len(both)),
            ]
        )
        gained += [(_from_best(line, "then") / _from_best(line, "now"), line) for line in both]
    head = ["sweep", "lines", "kernels", "ladder then ÷ best: mean, most", "ladder now ÷ best: mean, most",
            "lines that hold the ladder's mapping now"]  # fmt: skip
    most = sorted(gained, key=lambda one: -one[0])[:MOST]
    rows = [
        [
            f"{line['dtype']} {line['operator']} {line['shape'].replace('x', '×')}",
            f"{line['copy_us']:.2f}",
            *(f"{line[key]}: {dict(line['rows'])[line[key]]:.2f}" for key in ("ladder_then", "ladder_now")),
            f"{gain:.2f}",
        ]
        for gain, line in most
    ]
    lost = sum(gain < 0.99 for gain, _ in gained)
    said = (
        f"\nThe {MOST} lines that gained most, in µs; of all {len(gained)} with both mappings, {lost} are slower "
        f"now by more than 1 %, {min(g for g, _ in gained):.2f} at least.\n\n"
    )
    return table(head, body) + said + table(["line", "copy", "then", "now", "then ÷ now"], rows)


def _from_best(line: Line, when: str) -> float:
    times = dict(line["rows"])
    return float(times[line[f"ladder_{when}"]] / min(times.values()))


def _shown(ratios: Sequence[float]) -> str:
    return f"{geometric_mean(ratios):.3f}, {max(ratios):.2f}"


def _key(line: Line) -> tuple[str, str, str]:
    return line["dtype"], line["operator"], line["shape"]


def _order(key: tuple[str, str]) -> tuple[int, ...]:
    rows, columns = (int(e) for e in key[0].split("x"))
    return columns, rows, ("float32", "bfloat16").index(key[1])
