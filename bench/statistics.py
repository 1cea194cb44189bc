"""Medians, paired ratios and verdicts of timing samples; no wording beyond the verdict, no rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tirx_reduce.errors import ReduceError

FASTER, SLOWER, NOT_SEPARABLE = "faster", "slower", "not separable"
LEAST_PAIRS = 3
"""Fewer pairs separate nothing: two agree by chance every second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Ratios reference / candidate over the pairs of a comparison: above 1, the candidate is faster."""

    ratios: tuple[float, ...]
    median: float
    low: float
    """Observed minimum, no confidence bound."""
    high: float
    verdict: str
    """`faster` or `slower` where every pair agrees, else `not separable`."""


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle.

    Raises
    ------
    ReduceError
        There are no values, or one is NaN.
    """
    if not values:
        raise ReduceError("median of no values; needs one or more")
    if any(math.isnan(v) for v in values):
        raise ReduceError("median of values with a NaN; needs numbers")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def paired(references: Sequence[float], candidates: Sequence[float]) -> Paired:
    """Compare pairs that were measured side by side.

    Parameters
    ----------
    references, candidates
        Times of the same rounds, in order.

    Raises
    ------
    ReduceError
        The lengths differ, there are no pairs, or a time is not finite and positive.
    """
    if len(references) != len(candidates):
        raise ReduceError(f"{len(references)} references to {len(candidates)} candidates; needs pairs")
    if not all(math.isfinite(t) and t > 0 for t in (*references, *candidates)):
        raise ReduceError("a time that is not finite and positive; needs valid times")
    ratios = tuple(r / c for r, c in zip(references, candidates, strict=True))
    return Paired(
        ratios=ratios,
        median=median(ratios),
        low=min(ratios),
        high=max(ratios),
        verdict=verdict(ratios),
    )


def verdict(ratios: Sequence[float]) -> str:
    """Whether all pairs agree; doubt is `not separable`."""
    if len(ratios) < LEAST_PAIRS:
        return NOT_SEPARABLE
    if all(r > 1 for r in ratios):
        return FASTER
    if all(r < 1 for r in ratios):
        return SLOWER
    return NOT_SEPARABLE


def spread(values: Sequence[float]) -> float:
    """(maximum - minimum) / median: how far the samples of one run lie apart."""
    return (max(values) - min(values)) / median(values)


def regret(times: Sequence[float], picked: int) -> float:
    """What a pick lost against the best of its case: 0.05 is 5 %. The best of noisy times is optimistic."""
    return times[picked] / min(times) - 1
