"""Tables of the sweeps after the exchange by mail: what each variant and each kind of mapping is worth."""

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
_VARIANT = re.compile(r" ([DOBHFA]\d+)(?= |$)")
_WEIGHTED = ("rms_norm", "layer_norm")
READ_PAST = 5
"""The sweep in which operators with weights read their matrices past the first cache unless a mapping says O0."""
_NAMES = {
    "D0": "the group folds its values first, one lane a value sends",
    "D1024": "every subgroup sends its own values",
    "O0": "matrices through the first cache, not past it",
    "H1": "weights stay in the first cache (evict_last)",
    "H2": "the same, matrices leave it first (evict_first)",
    "H3": "matrices leave it first alone",
    "B2": "launch bounds for 2 groups a multiprocessor",
    "B3": "for 3",
    "B4": "for 4",
    "F8": "8 scalars of a stream in flight",
    "F32": "32 scalars of a stream in flight",
    "A64": "64 scalars of weights ahead",
    "A128": "128 scalars of weights ahead",
    "m": "rows that are reloaded: one walk for two reductions",
}
# One group a row, where it is kept, two rows a program.
_KINDS = {
    (True, "private", False): "one group, registers",
    (True, "shared", False): "one group, shared",
    (True, "private", True): "two rows a program",
    (False, "private", False): "cluster, registers",
    (False, "shared", False): "cluster, shared",
}


def tables(path: Path, table: Table) -> str:
    """All of it."""
    lines = json.loads(gzip.decompress(path.read_bytes()))["lines"]
    return _variants(lines, table) + "\n" + _kinds(lines, table)


def _best(lines: Sequence[Mapping[str, Any]]) -> dict[Key, dict[str, float]]:
    """By line, the shares of the copy's time of every mapping as it is emitted now: median over sweeps."""
    found: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in lines:
        for name, us in one["rows"]:
            plain = name
            if one["sweep"] == READ_PAST and one["operator"] in _WEIGHTED:
                if not name.endswith(" O0"):
                    continue
                plain = name.removesuffix(" O0")
            if not _VARIANT.search(plain):
                found[one["dtype"], one["operator"], one["shape"]][plain].append(us / one["copy_us"])
    return {line: {name: median(v) for name, v in of.items()} for line, of in found.items()}


def _pairs(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """By variant, its time over that of the same mapping without it, on the same line of the same sweep."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in lines:
        times = dict(one["rows"])
        for name, us in times.items():
            variants = _VARIANT.findall(name)
            plain = _VARIANT.sub("", name)
            if "reload" in name and name.endswith(" m") and name.removesuffix(" m") in times:
                found["m"].append(us / times[name.removesuffix(" m")])
            if len(variants) == 1 and plain in times:
                found[variants[0]].append(us / times[plain])
    return found


def _variants(lines: Sequence[Mapping[str, Any]], table: Table) -> str:
    found = _pairs(lines)
    body = [[_NAMES[v], str(len(found[v])), *spread(found[v])] for v in _NAMES if len(found.get(v, ())) > 3]
    head = ["variant ÷ without", "pairs", "least", "quartile", "median", "quartile", "most"]
    return "### What each variant is worth\n\nBelow 1 the variant is faster.\n\n" + table(head, body)


def _kinds(lines: Sequence[Mapping[str, Any]], table: Table) -> str:
    """Best of each kind of mapping, as shares of the best of all, for lines of 1000 columns and more."""
    body = []
    for (dtype, operator, shape), of in _best(lines).items():
        if int(shape.split("x")[1]) < 1000:
            continue
        kinds: dict[tuple[bool, str, bool], list[float]] = defaultdict(list)
        for name, share in of.items():
            parts = name.split()
            kinds["S1" in parts, parts[3], "r2" in parts].append(share)
        least = min(of.values())
        cells = [f"{min(kinds[k]) / least:.3f}" if k in kinds else "−" for k in _KINDS]
        body.append([f"{dtype} {operator} {shape.replace('x', '×')}", *cells])
    head = ["line", *_KINDS.values()]
    return "### Kinds of mapping\n\nThe best of each kind over the best of all.\n\n" + table(head, body)
