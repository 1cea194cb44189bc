"""Tables of the sweeps with prologues: the ladder beside the best, what is asked for early, weights, two launches."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from evidence_sweeps import spread

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
Key = tuple[str, str, str]
Line = Mapping[str, Any]
PARTS = 10
"""The sweep that takes the prologue apart."""
BOTH = 12
"""The sweep that has every weighted mapping with weights early and late."""
_SHORT = 264
# What sweep 10 asked for before the wait: rows of so many groups, weights by so many.
_ASKED = {"neither": "E0 N0", "weights": "E0 N16", "rows": "E132 N0", "both": "E132 N16"}


def tables(path: Path, grid: Sequence[Line], table: Table) -> str:
    """All of it; `grid` holds the rows of the final run, with the plans that were measured there."""
    lines = json.loads(gzip.decompress(path.read_bytes()))["lines"]
    parts = [line for line in lines if line["sweep"] == PARTS]
    rest = [line for line in lines if line["sweep"] != PARTS]
    return "\n".join(
        (_ladder(rest, grid, table), _asked(parts, table), _weights(rest, table), _launches(rest, table))
    )


def _groups(shape: str, name: str) -> tuple[int, int]:
    """Groups of a launch, and of a row."""
    rows = 1
    for extent in shape.split("x")[:-1]:
        rows *= int(extent)
    _, packing, _, _, splits = name.split()[:5]
    found = re.search(r" r(\d+)", name)
    each = int(packing[1:]) * (int(found[1]) if found else 1)
    return -(-rows // each) * int(splits[1:]), int(splits[1:])


def _as_emitted(line: Line, name: str) -> bool:
    """Whether a variant is what the mapping is now: late weights are two of a launch that streams, one group a row.

    Texts that are alike were measured once: where there is no room ahead, under `late`.
    """
    if re.search(r" (E\d+|nostraddle)", name):
        return False
    groups, splits = _groups(line["shape"], name)
    late = line["operator"] == "layer_norm" and splits == 1 and groups > _SHORT
    if not late and line["sweep"] == BOTH and _plain(name) + " ahead" not in dict(line["rows"]):
        return True
    return not name.endswith(" ahead" if late else " late")


def _plain(name: str) -> str:
    return re.sub(r" (ahead|late)", "", name)


def _best(lines: Sequence[Line]) -> dict[Key, dict[str, float]]:
    """By line, the shares of the copy's time of every mapping as it is emitted now: median over sweeps."""
    found: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        for name, us in line["rows"]:
            if _as_emitted(line, name):
                found[line["dtype"], line["operator"], line["shape"]][_plain(name)].append(
                    us / line["copy_us"]
                )
    return {key: {name: median(v) for name, v in of.items()} for key, of in found.items()}


def _mapping(c: Mapping[str, Any]) -> str:
    name = f"W{c['width']} P{c['packing']} V{c['vector']} {c['reuse']} S{c['splits']}"
    return name + (" m" if c.get("merged") else "") + (f" r{c['rows']}" if c.get("rows", 1) > 1 else "")


def _title(line: Line) -> str:
    return f"{line['dtype']} {line['operator']} {line['shape'].replace('x', '×')}"


def _ladder(lines: Sequence[Line], grid: Sequence[Line], table: Table) -> str:
    best = _best(lines)
    body, ratios = [], []
    for row in grid:
        of = best.get((row["dtype"], row["operator"], row["shape"]), {})
        if not of:
            continue
        least = min(of, key=lambda name: of[name])
        mine = _mapping(row["ours"]["ladder"]["candidate"])
        cells = ["−", "−"]
        if mine in of:
            ratios.append(of[mine] / of[least])
            cells = [f"{of[mine]:.3f}", f"{ratios[-1]:.3f}"]
        body.append([_title(row), str(len(of)), least, f"{of[least]:.3f}", mine, *cells])
    near = sum(r <= 1.02 for r in ratios)
    head = ["line", "mappings", "best", "÷ copy", "ladder", "÷ copy", "ladder ÷ best"]
    return (
        "### The ladder beside the best mapping\n\nMedians over the sweeps in which a mapping stands; the ladder is "
        "that of the grid's run, `−` where no sweep had its mapping. It is "
        f"within 2 % of the best on {near} of {len(ratios)} lines, {median(ratios):.3f} at the median, "
        f"{max(ratios):.3f} at most. The best of many noisy medians is optimistic.\n\n" + table(head, body)
    )


def _asked(lines: Sequence[Line], table: Table) -> str:
    """Time without either over the time with it, on the lines of sweep 10."""
    body = []
    for line in lines:
        times = dict(line["rows"])
        names = list(dict.fromkeys(re.sub(r" E\d+ N\d+| U0", "", n) for n in times))
        for name in names:
            of = {what: times.get(f"{name.rsplit(' ', 1)[0]} {code} {name.rsplit(' ', 1)[1]}",
                                  times.get(f"{name} {code}")) for what, code in _ASKED.items()}  # fmt: skip
            if of["neither"] is None or of["both"] is None:
                continue
            cells = [f"{t / line['copy_us']:.3f}" if t is not None else "−" for t in of.values()]
            body.append([_title(line), name, *cells, f"{of['neither'] / of['both']:.3f}"])
    head = ["line", "mapping", *_ASKED, "neither ÷ both"]
    return (
        "### What is asked for before the wait\n\nShares of the time of the copy. A text that does not change was "
        "measured once.\n\n" + table(head, body)
    )


def _weights(lines: Sequence[Line], table: Table) -> str:
    """Late over ahead: above 1, ahead is faster."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        times = dict(line["rows"])
        for name, us in times.items():
            if not name.endswith(" ahead") or _plain(name) + " late" not in times:
                continue
            groups, splits = _groups(line["shape"], name)
            kind = "short launch" if groups <= _SHORT else "cluster" if splits > 1 else "one group a row"
            found[line["operator"], kind].append(times[_plain(name) + " late"] / us)
    body = []
    for (operator, kind), values in sorted(found.items()):
        if len(values) > 3:
            body.append([operator, kind, str(len(values)), *spread(values)])
    head = ["operator", "launch", "pairs", "least", "quartile", "median", "quartile", "most"]
    return (
        "### Weights ahead of the first collective\n\nTime with weights loaded when they are used, over the time with "
        "weights loaded ahead.\n\n" + table(head, body)
    )


def _launches(lines: Sequence[Line], table: Table) -> str:
    body = []
    for key, of in _best(lines).items():
        two = {name: share for name, share in of.items() if " reload " in name}
        one = {name: share for name, share in of.items() if " reload " not in name}
        if not two or not one or not key[2].endswith("x131072"):
            continue
        a, b = (min(kind, key=lambda name: kind[name]) for kind in (one, two))
        line = {"dtype": key[0], "operator": key[1], "shape": key[2]}
        body.append([_title(line), a, f"{one[a]:.3f}", b, f"{two[b]:.3f}", f"{one[a] / two[b]:.3f}"])
    head = ["line", "best in one launch", "÷ copy", "best in two", "÷ copy", "one ÷ two"]
    return "### One launch or two\n\n" + table(head, body)
