"""The fit: against SciPy, on made-up devices, byte for byte."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import nnls

from tests.cost_cases import LIMITS, OPERATORS, counts
from tests.study_cases import QUICK, MadeUpStand, edit, made_up
from tirx_reduce.bench import fit
from tirx_reduce.bench.cohorts import TRAINING_SHAPES, TRAINING_WIDTHS, cases, grid
from tirx_reduce.bench.records import BadRecords
from tirx_reduce.bench.search import search
from tirx_reduce.cost import features
from tirx_reduce.cost.calibration import dumps, load
from tirx_reduce.errors import BadCalibration, ReduceError
from tirx_reduce.values import REUSES, Candidate

TRUE = np.array([2.0, 0.02, 0.05, 0.0, 1e-6, 1e-4])


def rows(noise: float, seed: int = 0, capacity: float = 512) -> list[fit.Row]:
    """The published cohort on a device that is the model itself, times noise."""
    rng = np.random.default_rng(seed)
    found = []
    for shape in TRAINING_SHAPES:
        for operator in sorted(OPERATORS):
            for width in TRAINING_WIDTHS:
                for reuse in ("reload", "private"):
                    c = Candidate(width=width, vector=4, reuse=reuse)
                    if reuse == "private" and -(-shape[1] // (width * 4)) * 4 > 64:
                        continue
                    f = features(c, counts(operator, reuse), shape[0], shape[1], LIMITS)
                    row = fit.Row(
                        shape=shape,
                        case=(operator, shape),
                        order=(width, REUSES.index(reuse)),
                        label_us=1.0,
                        scalar_rounds=f.scalar_rounds,
                        collectives=f.reductions * f.subgroups_per_program,
                        private_bytes=f.worker_private_access_bytes,
                        launch_bytes=f.programs * f.program_global_access_bytes,
                        worker_bytes=f.worker_global_access_bytes,
                        subgroups=f.threadgroups * f.subgroups_per_program,
                    )
                    us = float(np.array(row.terms(capacity)) @ TRUE * np.exp(noise * rng.standard_normal()))
                    found.append(replace(row, label_us=us))
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("capacity", fit.CAPACITIES)
def test_active_sets_agree_with_scipy(seed: int, capacity: int) -> None:
    data = rows(0.2, seed)
    matrix = np.array([r.terms(capacity) for r in data]) / np.array([[r.label_us] for r in data])
    ours = fit.nonnegative(matrix, np.ones(len(data)))
    # SciPy on the same scaled columns: unscaled, its own stopping rule is what differs.
    scale = np.linalg.norm(matrix, axis=0)
    theirs = nnls(matrix / scale, np.ones(len(data)))[0] / scale
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-12)
    assert (ours >= 0).all()


def test_random_problems_agree_with_scipy() -> None:
    rng = np.random.default_rng(7)
    for _ in range(25):
        matrix, wanted = rng.standard_normal((30, 6)), rng.standard_normal(30)
        np.testing.assert_allclose(
            fit.nonnegative(matrix, wanted), nnls(matrix, wanted)[0], rtol=1e-8, atol=1e-12
        )


def test_columns_of_zeros_get_zero() -> None:
    matrix = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert fit.nonnegative(matrix, np.array([2.0, 4.0])).tolist() == [2.0, 0.0]


def test_coefficients_of_a_device_that_is_the_model_are_found() -> None:
    found = fit.fit_rows(rows(0.0))
    assert found.coefficients.capacity == 512
    got = [getattr(found.coefficients, n) for n in "DRKPGW"]
    np.testing.assert_allclose(got, TRUE, rtol=1e-6, atol=1e-9)
    best = next(r for r in found.capacities if r.capacity == 512)
    assert best.mean_regret == 0
    assert best.relative_rmse < 1e-9


def test_ties_of_regret_go_to_the_smaller_capacity() -> None:
    # No launch of this cohort fills 64 subgroups, so that every capacity is the same model.
    few = [replace(r, subgroups=32.0) for r in rows(0.0, capacity=1e9)]
    found = fit.fit_rows(few)
    assert found.coefficients.capacity == 64
    assert len({r.mean_regret for r in found.capacities}) == 1


def test_the_left_out_shape_is_not_trained_on() -> None:
    data = rows(0.1)
    spoiled = [replace(r, label_us=r.label_us * 1000) if r.shape == (23, 769) else r for r in data]
    # The spoiled shape's own regrets compare its labels with each other, and its coefficients come from
    # the other shapes: a factor on all of its labels changes nothing for it.
    before, after = fit.left_out_regrets(data, 512), fit.left_out_regrets(spoiled, 512)
    for case in before:
        if case[1] == (23, 769):
            assert after[case] == pytest.approx(before[case], rel=1e-9)
    assert not np.allclose(fit.solve(spoiled, 512), fit.solve(data, 512), rtol=1e-3)


def test_contradictory_labels_move_no_pick_by_price() -> None:
    data = [r for r in rows(0.1) if r.case == ("softmax", (128, 2048))]
    coefficients = fit.solve(rows(0.1), 512)
    first = fit.predict(data, coefficients, 512)
    turned = [replace(r, label_us=1.0 / r.label_us) for r in data]
    assert fit.predict(turned, coefficients, 512).tolist() == first.tolist()


def test_too_little_to_fit_is_refused() -> None:
    with pytest.raises(ReduceError, match="fewer than two shapes"):
        fit.fit_rows([r for r in rows(0.1) if r.shape == (23, 769)])
    data = rows(0.1)
    with pytest.raises(ReduceError, match="5 valid trials; needs 6"):
        fit.fit_rows([*data[:3], *data[-2:]])


def test_it_takes_less_than_a_second() -> None:
    data = rows(0.2)
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        fit.fit_rows(data)
        best = min(best, time.process_time() - start)
    assert best < 1.0


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    with pytest.MonkeyPatch.context() as patch:
        made_up(patch)
        return search(
            MadeUpStand(folder),  # type: ignore[arg-type]
            folder / "search.jsonl",
            cohort=cases(operators=("softmax", "rms_norm"), shapes=((23, 769), (16, 8193))),
            candidates=grid(widths=(64, 128, 256)),
            options=QUICK,
        )


def test_the_same_records_give_the_same_bytes(searched: Path, tmp_path: Path) -> None:
    first = fit.write(fit.fit(searched), tmp_path / "a.json").read_bytes()
    second = fit.write(fit.fit(searched), tmp_path / "b.json").read_bytes()
    assert first == second
    assert load(tmp_path / "a.json") == (fit.fit(searched),)


def test_a_profile_says_what_it_was_made_of(searched: Path) -> None:
    found = fit.fit(searched)
    assert (found.target_kind, found.device, found.dtype) == ("cuda", "Made-up GPU", "float32")
    assert (found.trials, found.infeasible) == (20, 4)
    assert found.widths == (64, 128, 256)
    assert found.families == ("reload", "private")
    assert found.shapes == ((16, 8193), (23, 769))
    assert found.date == "2026-01-02"
    assert [r.capacity for r in found.capacities] == [64, 128, 256, 512, 1024, 2048]


def test_writing_keeps_other_profiles(searched: Path, tmp_path: Path) -> None:
    mine = fit.fit(searched)
    path = tmp_path / "calibration.json"
    path.write_text(dumps((replace(mine, device="Other GPU"), replace(mine, driver="older"))))
    fit.write(mine, path)
    kept = load(path)
    assert isinstance(kept, tuple)
    assert {(p.device, p.driver) for p in kept} == {("Made-up GPU", "1.0"), ("Other GPU", "1.0")}


def test_bare_coefficients_are_not_overwritten(searched: Path, tmp_path: Path) -> None:
    path = tmp_path / "bare.json"
    path.write_text('{"D":1,"R":1,"K":1,"P":0,"G":0,"W":0,"capacity":64}')
    with pytest.raises(BadCalibration, match="holds bare coefficients"):
        fit.write(fit.fit(searched), path)


def test_labels_come_from_raw_samples_and_winners_are_no_training_rows(
    searched: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "search.jsonl"
    changed.write_text(searched.read_text())
    before = fit.fit(searched)

    def winners_lie(records: list[dict[str, object]]) -> None:
        for record in records:
            if record["kind"] == "winner":
                record["data"]["timing"]["phases"]["gpu_batch"]["samples_us"] = [1e9]  # type: ignore[index]

    edit(changed, winners_lie)
    assert fit.fit(changed).coefficients == before.coefficients
    assert fit.fit(changed).trials == before.trials

    def one_label(records: list[dict[str, object]]) -> None:
        record = next(r for r in records if r["kind"] == "trial" and r["data"]["status"] == "measured")  # type: ignore[index]
        record["data"]["timing"]["phases"]["gpu_batch"]["samples_us"] = [500.0]  # type: ignore[index]

    edit(changed, one_label)
    assert fit.fit(changed).coefficients != before.coefficients


def test_a_search_without_labels_is_refused(searched: Path, tmp_path: Path) -> None:
    empty = tmp_path / "search.jsonl"
    empty.write_text(searched.read_text())

    def fail(records: list[dict[str, object]]) -> None:
        for record in records:
            if record["kind"] == "trial":
                record["data"].update(status="failed", reason="run: no")  # type: ignore[attr-defined]

    edit(empty, fail)
    with pytest.raises(BadRecords, match="no trial was measured"):
        fit.fit(empty)


def test_edited_records_are_not_fitted(searched: Path, tmp_path: Path) -> None:
    broken = tmp_path / "search.jsonl"
    broken.write_text(searched.read_text().replace('"status":"measured"', '"status":"failed"', 1))
    with pytest.raises(BadRecords, match="edited"):
        fit.fit(broken)
