"""The study's tables: every case, every regression, nothing that the records do not hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.study_cases import QUICK, MadeUpStand, made_up, made_up_us
from tirx_reduce.bench import ablate, fit, replay
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.cohorts import cases, grid
from tirx_reduce.bench.records import compress
from tirx_reduce.bench.search import search
from tirx_reduce.bench.study_report import main, study_report

HELD_OUT = cases(operators=("softmax", "rms_norm"), shapes=((37, 1537),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")

    def worse(case: Case, plan: Any, salt: Any = "") -> float:
        # Held-out softmax regresses wherever the row is kept.
        us = made_up_us(case, plan, salt)
        kept = plan["candidate"]["reuse"] == "private" and case == HELD_OUT[0]
        return us * 3 if kept else us

    with pytest.MonkeyPatch.context() as patch:
        made_up(patch, worse)
        stand: Any = MadeUpStand(out)
        training = cases(operators=("softmax", "rms_norm"), shapes=((23, 769), (64, 2048)))
        given: dict[str, Any] = {"cohort": training, "candidates": grid(widths=(64, 512)), "options": QUICK}
        search(stand, out / "search.jsonl", **given)
        fit.write(fit.fit(out / "search.jsonl"), out / "calibration.json")
        replay.collect(
            stand,
            out / "replay.jsonl",
            calibration=out / "calibration.json",
            cohort=HELD_OUT,
            rounds=3,
            collect_options=QUICK,
            replay_options=QUICK,
        )
        replay.freeze(out / "replay.jsonl", stand)
        replay.run(stand, out / "replay.jsonl", calibration=out / "calibration.json")
        widths = ablate.from_replay(out / "replay.jsonl")
        ablate.ablate(stand, out / "ablate.jsonl", widths, rounds=3, options=QUICK)
    return out


def test_regressions_stand_in_the_table(folder: Path) -> None:
    rows = [
        line
        for line in study_report(folder).split("## Width and reuse")[0].splitlines()
        if line.startswith("| softmax 37x1537 | W=192")
    ]
    assert len(rows) == 1
    assert "slower" in rows[0]
    assert "private" in rows[0]


def test_only_what_does_not_gain_is_ablated(folder: Path) -> None:
    assert list(ablate.from_replay(folder / "replay.jsonl")) == [HELD_OUT[0]]
    corners = study_report(folder).split("## Width and reuse apart")[1]
    assert corners.count("| softmax 37x1537 |") == 4
    assert "rms_norm" not in corners


def test_all_capacities_and_all_cases_are_shown(folder: Path) -> None:
    text = study_report(folder)
    for capacity in (64, 128, 256, 512, 1024, 2048):
        assert f"\n| {capacity}" in text
    assert text.count("selected |") == 1
    assert "16 trials: 16 measured, 0 infeasible, 0 failed." in text
    assert "functional norms allocate theirs inside the timing" in text


def test_instrumented_timing_is_shown_as_a_diagnostic(folder: Path) -> None:
    text = study_report(folder)
    assert "it selects and corrects nothing" in text
    assert "| rms_norm 37x1537 | 0.900 | 0.900 |" in text


def test_compressed_records_give_the_same_tables(folder: Path, tmp_path: Path) -> None:
    for name in ("search", "replay", "ablate"):
        compress(folder / f"{name}.jsonl").replace(tmp_path / f"{name}.jsonl.gz")
    plain, packed = study_report(folder), study_report(tmp_path)
    assert packed.replace(".jsonl.gz`", ".jsonl`") == plain


def test_a_folder_without_records_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "holds no search.jsonl; needs one" in capsys.readouterr().err
