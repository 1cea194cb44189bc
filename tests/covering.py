"""Pairwise covering arrays: few combinations in which every two values of two factors meet, wherever that
is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from random import Random
from typing import Any

import pytest

Row = dict[str, Any]


def pairwise(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Row], bool] = lambda _: True, seed: int = 0
) -> list[Row]:
    """Rows of one value a factor, chosen greedily among random ones; the same for the same seed.

    A pair that no drawn row could hold is left out, so `allowed` decides what is possible.
    """
    rng = Random(seed)
    names = list(factors)
    missing = {
        ((a, va), (b, vb)) for a, b in combinations(names, 2) for va, vb in product(factors[a], factors[b])
    }
    rows: list[Row] = []
    while missing:
        wanted = min(missing, key=repr)
        best: tuple[int, Row] | None = None
        for _ in range(200):
            row = {n: rng.choice(list(factors[n])) for n in names}
            row.update(dict(wanted))
            if not allowed(row):
                continue
            gain = len(_pairs(row, names) & missing)
            if best is None or gain > best[0]:
                best = gain, row
        if best is None:
            missing.discard(wanted)
            continue
        rows.append(best[1])
        missing -= _pairs(best[1], names)
    return rows


def _pairs(row: Row, names: Sequence[str]) -> set[Any]:
    return {((a, row[a]), (b, row[b])) for a, b in combinations(names, 2)}


def long_sweep(
    factors: Mapping[str, Sequence[Any]],
    allowed: Callable[[Row], bool],
    right: Callable[[Row, tuple[str, ...]], None],
) -> Callable[[str, str], None]:
    """A slow test for each operator and target, of all pairs of the other factors, in every order of lanes."""

    @pytest.mark.slow
    @pytest.mark.parametrize("target", factors["target"])
    @pytest.mark.parametrize("op", factors["op"])
    def sweep(op: str, target: str) -> None:
        for row in pairwise({**factors, "op": (op,), "target": (target,)}, allowed):
            right(row, ("forward", "reverse", "random"))

    return sweep


def label(row: Row) -> str:
    """A row as a test id."""
    return "-".join(str(v) for v in row.values())
