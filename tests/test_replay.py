"""The replay: nothing is measured before the freeze, nothing else than what was frozen, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.study_cases import QUICK, MadeUpStand, edit, made_up, made_up_us
from tirx_reduce.bench import ablate, compare, fit, replay, rounds
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.cohorts import SpentCohort, cases, grid
from tirx_reduce.bench.records import BadRecords, finished, of_kind, read
from tirx_reduce.bench.search import search
from tirx_reduce.errors import BadCalibration, ReduceError

TRAINING = cases(operators=("softmax", "rms_norm"), shapes=((23, 769), (128, 2048)))
HELD_OUT = cases(operators=("softmax", "rms_norm"), shapes=((37, 1537),))


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibration")
    with pytest.MonkeyPatch.context() as patch:
        made_up(patch)
        stand: Any = MadeUpStand(folder)
        out = search(
            stand, folder / "s.jsonl", cohort=TRAINING, candidates=grid(widths=(64, 256)), options=QUICK
        )
    return fit.write(fit.fit(out), folder / "calibration.json")


def collect(folder: Path, calibration: Path, **changes: Any) -> tuple[Any, Path]:
    stand: Any = changes.pop("stand", None) or MadeUpStand(folder)
    given: dict[str, Any] = {
        "calibration": calibration,
        "cohort": HELD_OUT,
        "rounds": 4,
        "collect_options": QUICK,
        "replay_options": QUICK,
        **changes,
    }
    return stand, replay.collect(stand, folder / "replay.jsonl", **given)


@pytest.fixture
def collected(tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Path]:
    made_up(monkeypatch)
    return collect(tmp_path, calibration)


def test_alternatives_are_executed_and_no_timing_selects(collected: tuple[Any, Path]) -> None:
    _, out = collected
    rows = of_kind(read(out), "collected")
    assert [r["role"] for r in rows][:4] == ["reference", "candidate", "guarded", "best reload"]
    assert all(r["verified"]["ok"] for r in rows)
    plans = {p["key"]: p["plan"] for p in of_kind(read(out), "plan")}
    chosen = plans[rows[1]["plan_key"]]
    priced = [v["kernel_score"] for _, v in chosen["rejected"] if not isinstance(v, str)]
    assert chosen["estimate"]["kernel_score"] <= min(priced)
    assert plans[rows[0]["plan_key"]]["policy"] == "analytic"


def test_contradictory_timing_labels_change_no_choice(
    tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(folder: Path, time_of: Callable[..., float]) -> list[str]:
        made_up(monkeypatch, time_of)
        _, out = collect(folder, calibration)
        return [r["plan_key"] for r in of_kind(read(out), "collected")]

    def upside_down(case: Case, plan: Any, salt: Any = "") -> float:
        return 1000.0 / made_up_us(case, plan, salt)

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert chosen(tmp_path / "a", made_up_us) == chosen(tmp_path / "b", upside_down)


def test_no_label_without_a_freeze(collected: tuple[Any, Path], calibration: Path) -> None:
    stand, out = collected
    with pytest.raises(replay.NotFrozen, match="needs `tirx-reduce replay freeze` before any held-out label"):
        replay.run(stand, out, calibration=calibration)
    assert of_kind(read(out), "measurement") == ()


def test_a_freeze_binds_everything(collected: tuple[Any, Path]) -> None:
    stand, out = collected
    frozen = replay.freeze(out, stand).data
    assert frozen["commit"] == "2" * 40
    assert frozen["dirty"] is False
    assert set(frozen["plans"]) == {"softmax 37x1537", "rms_norm 37x1537"}
    assert replay.freeze(out, stand).data == frozen


def test_a_plan_that_failed_is_not_frozen(
    tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch)

    def fail(*_: Any, **__: Any) -> dict[str, Any]:
        return {"status": "failed", "reason": "wrong result at y[0, 3]"}

    monkeypatch.setattr(replay, "try_out", fail)
    stand, out = collect(tmp_path, calibration)
    with pytest.raises(
        replay.NotFrozen, match=r"softmax 37x1537, reference: wrong result at y\[0, 3\]; needs a verified"
    ):
        replay.freeze(out, stand)


def test_a_freeze_after_a_label_is_refused(collected: tuple[Any, Path], calibration: Path) -> None:
    stand, out = collected
    replay.freeze(out, stand)
    replay.run(stand, out, calibration=calibration)

    def unfreeze(records: list[dict[str, Any]]) -> None:
        records[:] = [r for r in records if r["kind"] not in ("freeze", "end")]

    edit(out, unfreeze)
    with pytest.raises(replay.NotFrozen, match="holds held-out labels"):
        replay.freeze(out, stand)


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"package_sha256": "9" * 64}, "package"), ({"library_sha256": {"libtvm.so": "9"}}, "library")],
)
def test_labels_of_something_else_than_was_frozen_are_refused(
    collected: tuple[Any, Path], calibration: Path, tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    stand, out = collected
    replay.freeze(out, stand)
    other: Any = MadeUpStand(tmp_path, **changes)
    before = out.read_bytes()
    with pytest.raises(replay.NotFrozen, match=f"the {what} is not the frozen one; needs a new replay"):
        replay.run(other, out, calibration=calibration)
    # A refusal leaves no trace in the records.
    assert out.read_bytes() == before


def test_another_calibration_than_the_frozen_one_is_refused(
    collected: tuple[Any, Path], calibration: Path, tmp_path: Path
) -> None:
    stand, out = collected
    replay.freeze(out, stand)
    other = tmp_path / "other.json"
    other.write_text(calibration.read_text().replace('"date": "2026-01-02"', '"date": "2026-01-03"'))
    with pytest.raises(replay.NotFrozen, match="the calibration is not the frozen one"):
        replay.run(stand, out, calibration=other)


@pytest.fixture
def replayed(collected: tuple[Any, Path], calibration: Path) -> Path:
    stand, out = collected
    replay.freeze(out, stand)
    return replay.run(stand, out, calibration=calibration)


def test_every_case_and_every_pair_is_kept(replayed: Path) -> None:
    records = read(replayed)
    assert finished(records)
    found = of_kind(records, "measurement")
    assert len(found) == 4 * 2 * 2
    summary = of_kind(records, "summary")[0]
    assert [c["case"]["operator"] for c in summary["cases"]] == ["softmax", "rms_norm"]
    for case in summary["cases"]:
        assert len(case["gain"]["candidate"]["gpu_batch"]["ratios"]) == 4
        assert set(case["torch_over_native"]) == {"reference", "candidate"}


def test_orders_are_balanced_apart_from_each_other(replayed: Path) -> None:
    found = of_kind(read(replayed), "measurement")
    softmax = [m for m in found if m["case"]["operator"] == "softmax"]
    combinations = set()
    for number in range(4):
        mine = [m for m in softmax if m["round"] == number]
        assert len({m["native_first"] for m in mine}) == 1
        combinations.add((mine[0]["variant"], mine[0]["native_first"]))
    assert len(combinations) == 4


def test_cases_rotate() -> None:
    places = [[c.operator for c in rounds.rotated(HELD_OUT, n)] for n in range(3)]
    assert places == [["softmax", "rms_norm"], ["rms_norm", "softmax"], ["softmax", "rms_norm"]]


def test_the_exact_frozen_plans_are_replayed(replayed: Path) -> None:
    records = read(replayed)
    frozen = of_kind(records, "freeze")[0]
    for m in of_kind(records, "measurement"):
        label = Case.from_json(m["case"]).label
        assert m["plan_key"] == frozen["plans"][label][m["variant"]]
        assert m["native"]["source_sha256"] == frozen["sources"][m["plan_key"]]


def test_a_text_that_changed_is_a_failure_and_no_label(
    collected: tuple[Any, Path], calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand, out = collected
    replay.freeze(out, stand)
    honest: Any = vars(rounds)["build_plans"]

    def changed(*given: Any, **named: Any) -> Any:
        from dataclasses import replace

        return {k: replace(b, source_sha256="4" * 64) for k, b in honest(*given, **named).items()}

    monkeypatch.setattr(rounds, "build_plans", changed)
    replay.run(stand, out, calibration=calibration)
    found = of_kind(read(out), "measurement")
    assert {m["native"]["status"] for m in found} == {"failed"}
    assert {m["native"]["reason"] for m in found} == {"the emitted text is not the frozen one"}
    assert all(c["gain"]["candidate"] == {} for c in of_kind(read(out), "summary")[0]["cases"])


def test_an_interrupted_replay_goes_on_and_measures_nothing_twice(
    tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch)
    stand, out = collect(tmp_path, calibration)
    replay.freeze(out, stand)
    runs: list[int] = []

    def stop(case: Case, plan: Any, salt: Any = "") -> float:
        runs.append(1)
        if len(runs) == 6:
            raise KeyboardInterrupt
        return made_up_us(case, plan, salt)

    made_up(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        replay.run(stand, out, calibration=calibration)
    before = of_kind(read(out), "measurement")
    replay.run(stand, out, calibration=calibration)
    found = of_kind(read(out), "measurement")
    assert found[: len(before)] == before
    keys = [(m["round"], m["case"]["operator"], m["variant"]) for m in found]
    assert len(keys) == len(set(keys)) == 16
    assert len(runs) == 17


def test_training_shapes_are_spent(
    tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch)
    with pytest.raises(SpentCohort, match="shapes 23x769 are training rows of the profile; needs shapes"):
        collect(tmp_path, calibration, cohort=cases(operators=("softmax",), shapes=((23, 769),)))


def test_a_cohort_replayed_for_an_earlier_revision_is_spent(
    replayed: Path, calibration: Path, tmp_path: Path
) -> None:
    later = tmp_path / "later"
    later.mkdir()
    newer: Any = MadeUpStand(later, package_sha256="8" * 64)
    with pytest.raises(SpentCohort, match="37x1537 were replayed for an earlier revision"):
        collect(later, calibration, stand=newer, history=[replayed])
    collect(later, calibration, history=[replayed])


def test_replays_beside_a_new_one_are_always_asked(replayed: Path, calibration: Path) -> None:
    newer: Any = MadeUpStand(replayed.parent, package_sha256="8" * 64)
    with pytest.raises(SpentCohort, match="37x1537 were replayed for an earlier revision"):
        replay.collect(newer, replayed.parent / "second.jsonl", calibration=calibration, cohort=HELD_OUT)
    assert not (replayed.parent / "second.jsonl").exists()


def test_another_design_is_not_mixed_in(
    collected: tuple[Any, Path], calibration: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadRecords, match="begun with another design"):
        collect(tmp_path, calibration, rounds=2)


def test_bare_coefficients_and_foreign_profiles_are_refused(
    tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch)
    bare: Any = {"D": 1.0, "R": 1.0, "K": 0.0, "P": 0.0, "G": 0.0, "W": 0.0, "capacity": 64}
    with pytest.raises(ReduceError, match="needs a profile, which knows what it was trained on"):
        collect(tmp_path, bare)
    other: Any = MadeUpStand(tmp_path, device="Other GPU")
    with pytest.raises(BadCalibration, match="device 'Made-up GPU' in place of 'Other GPU'"):
        collect(tmp_path, calibration, stand=other)


def test_ablation_is_a_two_by_two_of_the_cases_that_do_not_gain(
    replayed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch)
    widths = ablate.from_replay(replayed, HELD_OUT)
    assert all(a == 192 and b != 192 for a, b in widths.values())
    stand: Any = MadeUpStand(tmp_path)
    pair = {HELD_OUT[0]: (192, 416)}
    out = ablate.ablate(stand, tmp_path / "ablate.jsonl", pair, rounds=2, options=QUICK)
    found = of_kind(read(out), "measurement")
    assert {m["variant"] for m in found} == {
        "W=192 reload", "W=192 private", "W=416 reload", "W=416 private"
    }  # fmt: skip
    assert len(found) == 8
    summary = of_kind(read(out), "summary")[0]["cases"][0]
    assert set(summary["gain"]) == {"W=192 private", "W=416 reload", "W=416 private"}


def test_an_ablation_needs_two_legal_widths(tmp_path: Path) -> None:
    stand: Any = MadeUpStand(tmp_path)
    with pytest.raises(ReduceError, match="both widths are 192"):
        ablate.ablate(stand, tmp_path / "x.jsonl", {HELD_OUT[0]: (192, 192)})
    long_row = Case(operator="softmax", shape=(4, 12289))
    with pytest.raises(
        ReduceError, match=r"W=64 private is illegal \(private: 196 scalars a lane; limit 64\)"
    ):
        ablate.ablate(stand, tmp_path / "x.jsonl", {long_row: (64, 512)})


def test_two_policies_are_compared_side_by_side(
    tmp_path: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up(monkeypatch)
    stand: Any = MadeUpStand(tmp_path)
    out = compare.compare_policies(
        stand,
        tmp_path / "compare.jsonl",
        ("analytic", "service", "guarded"),
        HELD_OUT,
        calibration=calibration,
        rounds=3,
        options=QUICK,
    )
    summary = of_kind(read(out), "summary")[0]
    assert set(summary["cases"][0]["gain"]) == {"service", "guarded"}
    with pytest.raises(ReduceError, match="needs two or more that differ"):
        compare.compare_policies(stand, out, ("analytic", "analytic"), HELD_OUT)
