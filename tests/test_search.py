"""The search: complete, resumable, honest about what failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.study_cases import QUICK, MadeUpStand, made_up, made_up_us
from tirx_reduce.bench import search as module
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.cohorts import cases, grid
from tirx_reduce.bench.records import BadRecords, finished, of_kind, read
from tirx_reduce.bench.search import search, trials
from tirx_reduce.bench.trial import label_us
from tirx_reduce.errors import ReduceError

COHORT = cases(operators=("softmax",), shapes=((23, 769), (16, 8193)))
GRID = grid(widths=(64, 256))


def run(folder: Path, **changes: Any) -> Path:
    stand: Any = changes.pop("stand", None) or MadeUpStand(folder)
    given: dict[str, Any] = {"cohort": COHORT, "candidates": GRID, "options": QUICK, **changes}
    return search(stand, folder / "search.jsonl", **given)


def test_the_published_cohort_is_120_trials() -> None:
    assert len(cases()) * len(grid()) == 120
    assert {c.vector for c in grid()} == {4}


def test_every_trial_is_there_and_infeasible_ones_have_no_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch)
    records = read(run(tmp_path))
    found = trials(records)
    assert len(found) == 8
    assert finished(records)
    infeasible = [t for t in found if t["status"] == "infeasible"]
    assert [(t["candidate"]["width"], t["reason"]) for t in infeasible] == [
        (64, "private: 132 scalars a lane; limit 64")
    ]
    assert all("timing" not in t for t in infeasible)
    assert all(
        len(t["timing"]["phases"]["gpu_batch"]["samples_us"]) == 3 for t in found if t not in infeasible
    )


def test_each_best_is_built_afresh_and_measured_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch)
    records = read(run(tmp_path))
    winners = of_kind(records, "winner")
    assert [w["case"]["shape"] for w in winners] == [[23, 769], [16, 8193]]
    for winner in winners:
        mine = [t for t in trials(records) if t["case"] == winner["case"] and t["status"] == "measured"]
        best = min(mine, key=label_us)
        assert winner["candidate"] == best["candidate"]
        assert winner["timing"] != best["timing"]


def test_an_interrupted_search_goes_on_and_measures_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []

    def stop_after_three(case: Case, plan: Any, salt: Any = "") -> float:
        runs.append(f"{case.label} {plan['candidate']['width']} {plan['candidate']['reuse']}")
        if len(runs) == 4:
            raise KeyboardInterrupt
        return made_up_us(case, plan, salt)

    made_up(monkeypatch, stop_after_three)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    before = of_kind(read(tmp_path / "search.jsonl"), "trial")
    assert len(before) == 4  # one infeasible, three measured
    records = read(run(tmp_path, winners=False))
    assert finished(records)
    assert len(trials(records)) == 8
    assert trials(records)[:4] == before
    assert len(runs) == 4 + 4
    assert len(set(runs)) == 7  # only the one that was cut off runs again


def test_another_design_is_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(case: Case, plan: Any, salt: Any = "") -> float:
        raise KeyboardInterrupt

    made_up(monkeypatch, never)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    with pytest.raises(BadRecords, match="begun with another design"):
        run(tmp_path, candidates=grid(widths=(128,)))


def test_another_machine_does_not_go_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch)
    run(tmp_path)
    with pytest.raises(BadRecords, match="differ in driver"):
        run(tmp_path, stand=MadeUpStand(tmp_path, driver="2.0"))


def test_another_package_does_not_go_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch)
    before = run(tmp_path).read_bytes()
    with pytest.raises(BadRecords, match="differ in package_sha256"):
        run(tmp_path, stand=MadeUpStand(tmp_path, package_sha256="7" * 64))
    assert (tmp_path / "search.jsonl").read_bytes() == before


def test_a_device_in_an_error_state_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch)

    def fail(*_: Any, **__: Any) -> dict[str, Any]:
        return {"status": "failed", "reason": "run: RuntimeError: illegal address"}

    monkeypatch.setattr(module, "try_out", fail)
    with pytest.raises(ReduceError, match="3 kernels in a row failed to run; the last: run: RuntimeError"):
        run(tmp_path)
    assert sum(t["status"] == "failed" for t in trials(read(tmp_path / "search.jsonl"))) == 3


def test_failed_builds_stay_in_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(monkeypatch)

    def fail(stand: Any, case: Case, built: Any, options: Any, **_: Any) -> dict[str, Any]:
        return {"status": "failed", "reason": "build: RuntimeError: ptxas", **built.hashes()}

    monkeypatch.setattr(module, "try_out", fail)
    records = read(run(tmp_path))
    assert sum(t["status"] == "failed" for t in trials(records)) == 7
    assert finished(records)
    assert of_kind(records, "winner") == ()
