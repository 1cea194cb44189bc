"""The HTML of a plan: well formed, complete, escaped."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tirx_reduce import schedules
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.describe_html import SHOWN, mapping, plan_to_html
from tirx_reduce.facts import analyze
from tirx_reduce.values import Candidate, CostEstimate, GroupPlan

VOID = {"br", "hr", "img"}


class Balance(HTMLParser):
    """Open tags, and the texts of cells."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def softmax_plan() -> GroupPlan:
    return schedules.plan(get_workload("softmax").func((768, 6144)), "metal")


def test_every_priced_candidate_and_every_kind_of_refusal_stands_there() -> None:
    plan = softmax_plan()
    page = Balance()
    page.feed(plan_to_html(plan))
    page.close()
    assert page.open == []
    priced = [c for c, v in plan.rejected if isinstance(v, CostEstimate)]
    assert page.cells.count("W=384 V=4 reload") == 1
    assert sum(f"W={c.width} V={c.vector} {c.reuse}" in page.cells for c in priced) == len(priced)
    assert len(priced) > SHOWN
    assert "winner, incumbent" in page.cells
    assert "private: 192 scalars a lane; limit 64" in page.cells


def test_a_rung_is_a_place_and_no_price() -> None:
    html = plan_to_html(schedules.plan(get_workload("softmax").func((768, 6144)), "metal", policy="ladder"))
    assert "rung  1 (1 is what its rules want" in html
    assert "× winner" not in html
    assert "× winner" in plan_to_html(softmax_plan())


def test_names_are_escaped() -> None:
    plan = replace(softmax_plan(), policy="<b>&", extrapolated=True)
    html = plan_to_html(plan)
    assert "&lt;b&gt;&amp;" in html
    assert "<b>&" not in html
    assert "extrapolated" in html


@pytest.mark.parametrize("name", ["softmax", "argmax", "add_rms_norm", "layer_norm"])
def test_the_row_program_is_a_box_a_pass(name: str) -> None:
    facts = analyze(get_workload(name).func((768, 6144)))
    html = facts._repr_html_()
    page = Balance()
    page.feed(html)
    page.close()
    assert page.open == []
    assert html.count("<small>pass ") == facts.passes
    assert html.count("<small>in</small>") == html.count("<small>out</small>") == 1
    assert ("kept: 1 value a column" in html) == (facts.kept == 1)
    assert ("<small>row</small>" in html) == (name == "argmax")


def test_notebooks_show_it() -> None:
    plan = softmax_plan()
    assert plan._repr_html_() == plan_to_html(plan)


def test_a_mapping_in_short_says_how_many_rows_a_program_takes() -> None:
    usual = Candidate(width=64, vector=8, reuse="private")
    assert mapping(usual) == "W=64 V=8 private"
    assert mapping(replace(usual, rows=2)) == "W=64 V=8 rows=2 private"
    assert mapping(replace(usual, merged=True)) == "W=64 V=8 private merged"


def test_a_plan_prints_as_one_line() -> None:
    text = str(softmax_plan())
    assert text.startswith("GroupPlan(width=")
    assert "\n" not in text
    assert len(text) < 160
    assert repr(softmax_plan()).startswith("GroupPlan(candidate=Candidate(")
