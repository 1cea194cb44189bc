"""Medians, paired ratios, verdicts, regret."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tirx_reduce.bench.statistics import median, paired, regret, spread, verdict
from tirx_reduce.errors import ReduceError

TIMES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=12)


@given(TIMES)
def test_median_is_numpys(values: list[float]) -> None:
    assert median(values) == pytest.approx(float(np.median(values)), rel=1e-12)


@given(TIMES.flatmap(lambda a: st.tuples(st.just(a), st.permutations(a))))
def test_median_does_not_depend_on_order(both: tuple[list[float], list[float]]) -> None:
    assert median(both[0]) == median(both[1])


def test_medians_of_nothing_and_of_nan_are_refused() -> None:
    with pytest.raises(ReduceError, match="median of no values"):
        median([])
    with pytest.raises(ReduceError, match="NaN"):
        median([1.0, math.nan])


def test_ratios_are_paired_round_by_round() -> None:
    found = paired([10.0, 20.0, 30.0], [5.0, 16.0, 25.0])
    assert found.ratios == (2.0, 1.25, 1.2)
    assert (found.median, found.low, found.high, found.verdict) == (1.25, 1.2, 2.0, "faster")


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ((1.1, 1.2, 1.3), "faster"),
        ((0.9, 0.8, 0.7), "slower"),
        ((0.9, 1.1, 1.2), "not separable"),
        ((1.0, 1.1, 1.2), "not separable"),
        ((1.1, 1.2), "not separable"),
        ((), "not separable"),
    ],
)
def test_doubt_is_not_separable(ratios: tuple[float, ...], word: str) -> None:
    assert verdict(ratios) == word


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=6))
def test_no_difference_is_never_separable(times: list[float]) -> None:
    assert paired(times, times).verdict == "not separable"


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(bad: float) -> None:
    with pytest.raises(ReduceError, match="needs valid times"):
        paired([1.0], [bad])


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ReduceError, match="2 references to 1 candidates"):
        paired([1.0, 2.0], [1.0])


def test_regret_and_spread() -> None:
    assert regret([2.0, 3.0], 1) == 0.5
    assert regret([2.0, 3.0], 0) == 0.0
    assert spread([1.0, 2.0, 3.0]) == 1.0
