"""The registry: exact names, duplicates, strangers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tirx_reduce import cost
from tirx_reduce.cost import registry
from tirx_reduce.errors import DuplicatePolicy, ReduceError, UnknownPolicy
from tirx_reduce.values import Candidate, CostEstimate


class Mine:
    def __init__(self, name: str = "mine") -> None:
        self.name = name

    def reduction_cost(self, candidate: Candidate, features: Any, limits: Any) -> CostEstimate:
        return CostEstimate(local=1.0, launch=1.0, kernel_score=1.0, unit="points")


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()


def installed(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=registry.GROUP)


def test_built_in_names() -> None:
    assert {"analytic", "service", "guarded"} <= set(cost.policies())


def test_registered_policies_are_found_by_name() -> None:
    mine = Mine()
    assert cost.register_policy(mine) is mine
    assert cost.get_policy("mine") is mine
    assert "mine" in cost.policies()


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownPolicy, match=r"no policy 'analitic'; known: analytic, guarded"):
        cost.get_policy("analitic")


@pytest.mark.parametrize("name", ["Mine", "my_policy", "my policy", "-x", "x-", "1x", "", "ANALYTIC"])
def test_names_are_exact_lower_kebab(name: str) -> None:
    with pytest.raises(ReduceError, match="needs lower-kebab"):
        cost.register_policy(Mine(name))
    assert name not in cost.policies()


def test_a_duplicate_names_both_origins_and_changes_nothing() -> None:
    first = cost.register_policy(Mine())
    with pytest.raises(DuplicatePolicy, match=r"policy 'mine' of tests.*Mine is already that of tests.*Mine"):
        cost.register_policy(Mine())
    assert cost.get_policy("mine") is first


def test_built_in_policies_are_not_replaced() -> None:
    with pytest.raises(DuplicatePolicy, match=r"already that of tirx_reduce\.cost\.service"):
        cost.register_policy(Mine("service"))


def test_entry_points_are_loaded_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, point("mine", "tests.test_cost_registry:Mine"))
    assert "mine" in cost.policies()
    assert isinstance(cost.get_policy("mine"), Mine)
    with pytest.raises(DuplicatePolicy, match="is already that of entry point mine"):
        cost.register_policy(Mine())


def test_entry_points_that_claim_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, point("mine", "a:b"), point("mine", "c:d"))
    with pytest.raises(DuplicatePolicy, match=r"entry point mine = a:b and by entry point mine = c:d"):
        cost.get_policy("mine")


def test_an_entry_point_may_not_claim_a_built_in_name(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, point("analytic", "a:b"))
    with pytest.raises(DuplicatePolicy, match="'analytic' of entry point analytic = a:b"):
        cost.policies()


@pytest.mark.parametrize("value", ["no_such_module_here:Mine", "tests.test_cost_registry:absent"])
def test_a_broken_entry_point_says_which(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    installed(monkeypatch, point("broken", value))
    with pytest.raises(UnknownPolicy, match=f"entry point broken = {value} failed to load"):
        cost.get_policy("broken")
    assert cost.get_policy("analytic").name == "analytic"


def test_an_entry_point_must_name_its_policy_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, point("other", "tests.test_cost_registry:Mine"))
    with pytest.raises(UnknownPolicy, match="names its policy 'mine'; needs 'other'"):
        cost.get_policy("other")
