"""Values: validation, and plans through JSON and back, exactly and in every process alike."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tirx_reduce.errors import ReduceError
from tirx_reduce.values import (
    REUSES,
    Candidate,
    CostEstimate,
    DeviceLimits,
    FamilyCounts,
    Features,
    GroupPlan,
)

PRICES = st.floats(0, 1e300, allow_nan=False)
TEXTS = st.text(max_size=20)


def _candidates() -> st.SearchStrategy[Candidate]:
    return st.builds(
        Candidate,
        width=st.integers(1, 1024),
        packing=st.integers(1, 32),
        vector=st.sampled_from([1, 2, 4, 8]),
        unroll=st.just(1),
        reuse=st.sampled_from(REUSES),
        splits=st.integers(1, 64),
    )


def _features(depth: int = 1) -> st.SearchStrategy[Features]:
    counts = {
        name: st.integers(0, 2**48)
        for name in Features.__dataclass_fields__
        if name != "incumbent"
    }  # fmt: skip
    inner: Any = st.none()
    if depth:
        inner = st.none() | st.tuples(_candidates(), _features(depth - 1))
    return st.builds(Features, **counts, incumbent=inner)


ESTIMATES = st.builds(CostEstimate, local=PRICES, launch=PRICES, kernel_score=PRICES, unit=TEXTS)
LIMITS = st.builds(DeviceLimits, max_threads=st.integers(1, 2048), kind=st.sampled_from(["metal", "cuda"]))


def _plans(depth: int = 1) -> st.SearchStrategy[GroupPlan]:
    variants: Any = st.just(())
    if depth:
        interval = st.tuples(st.integers(0, 9), st.none() | st.integers(9, 99))
        variants = st.lists(st.tuples(interval, _plans(0)), max_size=2).map(tuple)
    return st.builds(
        GroupPlan,
        candidate=_candidates(),
        estimate=ESTIMATES,
        policy=TEXTS,
        features=_features(),
        limits=LIMITS,
        rejected=st.lists(st.tuples(_candidates(), ESTIMATES | TEXTS), max_size=3).map(tuple),
        incumbent=st.none() | _candidates(),
        extrapolated=st.booleans(),
        variants=variants,
        subject=TEXTS,
    )


@given(_plans())
def test_plans_survive_json_exactly(plan: GroupPlan) -> None:
    back = GroupPlan.from_json(plan.to_json())
    assert back == plan
    assert back.key == plan.key
    assert back.to_json() == plan.to_json()


def small_plan(width: int = 64) -> GroupPlan:
    numbers: dict[str, Any] = {name: 7 for name in Features.__dataclass_fields__ if name != "incumbent"}
    return GroupPlan(
        candidate=Candidate(width=width, vector=4),
        estimate=CostEstimate(local=0.1, launch=3.0, kernel_score=0.1 + 0.2, unit="us"),
        policy="service",
        features=Features(**numbers),
        limits=DeviceLimits(),
    )


def test_the_key_is_the_same_in_another_process() -> None:
    text = "from tests.test_values import small_plan; print(small_plan().key)"
    found = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"}
    )
    assert found.stdout.strip() == small_plan().key


def test_the_key_follows_every_field() -> None:
    assert small_plan(64).key != small_plan(96).key


def test_properties_are_those_of_the_candidate() -> None:
    plan = small_plan()
    assert (plan.width, plan.packing, plan.vector, plan.unroll, plan.reuse, plan.splits) == (
        64, 1, 4, 1, "reload", 1,
    )  # fmt: skip
    assert plan.target_kind == "metal"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", '{"format": 1}', "null"])
def test_texts_that_are_no_plans_are_refused(text: str) -> None:
    with pytest.raises(ReduceError, match="not a plan"):
        GroupPlan.from_json(text)


def test_plans_of_another_format_are_refused() -> None:
    other = small_plan().to_json().replace('"format":1', '"format":2')
    with pytest.raises(ReduceError, match="plan of format 2; this version reads 1"):
        GroupPlan.from_json(other)


def test_plans_with_impossible_candidates_are_refused() -> None:
    with pytest.raises(ReduceError, match=r"Candidate\.width is 0"):
        GroupPlan.from_json(small_plan().to_json().replace('"width":64', '"width":0'))


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "64"])
@pytest.mark.parametrize(
    "name", ["subgroup_size", "max_threads", "shared_bytes", "max_arguments", "private_scalars"]
)
def test_limits_are_positive_ints(name: str, value: Any) -> None:
    with pytest.raises(ReduceError, match=f"DeviceLimits.{name} is {value!r}; needs a positive int"):
        DeviceLimits(**{name: value})


def test_subgroups_are_powers_of_two() -> None:
    with pytest.raises(ReduceError, match="needs a power of two"):
        DeviceLimits(subgroup_size=24)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 64.0}, r"^Candidate\.width is 64\.0; needs an int$"),
        ({"width": "64"}, r"^Candidate\.width is '64'; needs an int$"),
        ({"width": 64, "packing": True}, r"^Candidate\.packing is True; needs an int$"),
        ({"width": 64, "resident": None}, r"^Candidate\.resident is None; needs an int$"),
        ({"width": 64, "merged": 1}, r"^Candidate\.merged is 1; needs True or False$"),
        ({"width": 64, "rows": 0}, r"^Candidate\.rows is 0; needs 1 or more$"),
        ({"width": 64, "resident": -1}, r"^Candidate\.resident is -1; needs 0 or more$"),
    ],
)
def test_candidates_hold_whole_numbers(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ReduceError, match=message):
        Candidate(**fields)


def test_candidates_and_counts_refuse_unknown_reuse() -> None:
    with pytest.raises(ReduceError, match=r"Candidate\.reuse is 'cache'; needs one of reload"):
        Candidate(width=32, reuse="cache")
    fields: dict[str, Any] = {
        "passes": 3,
        "reductions": 2,
        "column_bytes_per_row_column": 16,
        "kept": 0,
        "storage_bytes": 4,
        "accumulation_bytes": 4,
    }
    with pytest.raises(ReduceError, match=r"FamilyCounts\.reuse is 'cache'"):
        FamilyCounts(reuse="cache", **fields)
    with pytest.raises(ReduceError, match=r"FamilyCounts\.passes is -1"):
        FamilyCounts(reuse="reload", **{**fields, "passes": -1})
