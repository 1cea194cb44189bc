"""The incumbent of a plan is what the default policy takes, whatever the asked policy looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tirx_reduce as tr
from tirx_reduce.bench import explain
from tirx_reduce.bench.terminal import Style
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.schedules import as_target

TARGETS: dict[str, Any] = {"metal": "metal", "cuda": {"kind": "cuda", "arch": "sm_90"}}


class OnlyOne:
    """Looks at one mapping that the default policy does not."""

    name = "only-one"

    def scope(self, facts: Any, limits: Any, rows: Any, columns: Any) -> Iterator[tr.Candidate]:
        yield tr.Candidate(width=64, vector=2, reuse="private")

    def reduction_cost(self, candidate: Any, features: Any, limits: Any) -> tr.CostEstimate:
        return tr.CostEstimate(local=1.0, launch=1.0, kernel_score=1.0, unit="whim")


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("shape", [(37, 1537), (64, 1024), (8, 131072), (32768, 256)])
def test_it_is_the_same_under_every_policy(kind: str, shape: tuple[int, int]) -> None:
    func, target = get_workload("layer_norm").func(shape), as_target(TARGETS[kind])
    default = tr.plan(func, target)
    assert default.incumbent == default.candidate
    # A lane of the other one could not keep the longest row.
    for policy in ("ladder", OnlyOne()) if shape[1] < 8192 else ("ladder",):
        assert tr.plan(func, target, policy=policy).incumbent == default.candidate


def test_one_that_is_not_priced_is_told_apart() -> None:
    plan = tr.plan(get_workload("softmax").func((64, 1024)), "metal", policy=OnlyOne())
    lines = explain.candidate_lines(plan, Style(), None)
    assert lines[-1] == "the incumbent, W=128 V=4 reload, is none of those that only-one prices"
    default = tr.plan(get_workload("softmax").func((64, 1024)), "metal")
    assert not any("none of those" in line for line in explain.candidate_lines(default, Style(), None))
