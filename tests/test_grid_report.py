"""Ratios, counts and tables of the grid from made-up samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.study_cases import ENVIRONMENT
from tirx_reduce.bench import grid, grid_report
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.grid_report import as_json, main, markdown, rows_of, summary
from tirx_reduce.bench.records import BadRecords, Writer
from tirx_reduce.errors import ReduceError

CASE = Case(operator="softmax", shape=(4096, 4096))


def timed(*samples: float | None) -> dict[str, Any]:
    return {"status": "measured", "samples_us": list(samples), "rejected": [], "verified": {"ok": True}}


def line(case: Case = CASE, aliases: dict[str, str] | None = None, **contenders: Any) -> dict[str, Any]:
    return {
        "case": case.to_json(),
        "regime": "cold",
        "rounds": 3,
        "sets": 5,
        "launches": 40,
        "copied_bytes": 2 * 4096 * 4096 * 4,
        "contenders": contenders,
        "plans": {p: {"status": "planned", "source_sha256": "f"} for p in ("ladder", "analytic")},
        "aliases": aliases or {"ladder": "ladder", "analytic": "analytic"},
    }


def write(path: Path, *found: dict[str, Any], **environment: Any) -> Path:
    with Writer(path, {**ENVIRONMENT, **environment}) as writer:
        writer.append(grid.SETTINGS, {"policies": ["ladder", "analytic"]})
        for one in found:
            writer.append(grid.LINE, one)
    return path


def test_the_kinds_of_record_are_the_grids() -> None:
    assert (grid_report.LINE, grid_report.SETTINGS) == (grid.LINE, grid.SETTINGS)


def test_the_best_peer_is_held_against_the_first_policy(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a",
        line(
            copy=timed(30.0, 30.0, 30.0),
            eager=timed(60.0, 60.0, 60.0),
            quack=timed(36.0, 37.0, 36.0),
            ladder=timed(33.0, 34.0, 32.0),
            analytic=timed(50.0, 50.0, 50.0),
        ),
    )
    (row,) = rows_of([path])
    best = row["best"]
    assert best["name"] == "quack"
    assert best["ratio"] == pytest.approx(36 / 33)
    assert (best["low"], best["high"]) == (pytest.approx(37 / 34), pytest.approx(36 / 32))
    assert row["ours"]["ladder"]["of_copy"] == pytest.approx(30 / 33)
    (other,) = rows_of([path], policy="analytic")
    assert other["best"]["ratio"] == pytest.approx(36 / 50)


@pytest.mark.parametrize(
    ("ours", "counted"),
    [
        ((9.0, 11.0, 10.5), 1.0),
        ((11.0, 9.5, 9.4), 1.0),
        ((10.1, 10.2, 10.4), 10 / 10.2),
        ((9.0, 9.1, 9.2), 10 / 9.1),
    ],
)
def test_a_range_that_includes_one_counts_as_one(
    tmp_path: Path, ours: tuple[float, ...], counted: float
) -> None:
    path = write(tmp_path / "a", line(eager=timed(10.0, 10.0, 10.0), ladder=timed(*ours)))
    assert rows_of([path])[0]["best"]["counted"] == pytest.approx(counted)


def test_pairs_leave_out_rounds_that_one_side_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "a", line(eager=timed(10.0, None, 30.0), ladder=timed(5.0, 1.0, 10.0)))
    best = rows_of([path])[0]["best"]
    assert (best["pairs"], best["low"], best["high"]) == (2, 2.0, 3.0)


def test_runs_are_merged_with_each_ratio_from_its_own_run(tmp_path: Path) -> None:
    first = write(tmp_path / "a", line(copy=timed(9.0), eager=timed(20.0), ladder=timed(10.0)))
    # The same kernel runs slower in the second run; a ratio across runs would be 1.2.
    second = write(tmp_path / "b", line(copy=timed(11.0), compile=timed(12.0), ladder=timed(15.0)))
    (row,) = rows_of([first, second])
    assert row["best"]["name"] == "compile"
    assert row["best"]["ratio"] == pytest.approx(12 / 15)
    assert (row["peers"]["copy"]["us"], row["ours"]["ladder"]["us"]) == (9.0, 10.0)
    with pytest.raises(BadRecords, match="differ in device"):
        rows_of([first, write(tmp_path / "c", line(eager=timed(1.0)), device="Another GPU")])


def test_a_policy_with_the_kernel_of_another_has_its_time(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a",
        line(eager=timed(20.0), ladder=timed(10.0), aliases={"ladder": "ladder", "analytic": "ladder"}),
    )
    assert rows_of([path])[0]["ours"]["analytic"]["us"] == 10.0


def test_a_failure_is_in_the_table_with_its_reason(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a",
        line(
            copy=timed(9.0),
            eager=timed(20.0),
            liger={"status": "failed", "reason": "RuntimeError: maximum block size"},
            ladder={"status": "failed", "reason": "wrong result: inf of what is allowed"},
        ),
    )
    rows = rows_of([path])
    text = markdown(rows)
    assert text.startswith("**table** on Made-up GPU, cold, median µs of one launch")
    assert "- liger: RuntimeError: maximum block size (float32 softmax 4096x4096)" in text
    assert "- ladder: wrong result: inf of what is allowed" in text
    assert "| float32 softmax 4096×4096 | 9.00 | 20.00 eager | − | − | − | − |" in text
    assert summary(rows) == {"lines": 1, "compared": 0}


def test_the_summary_counts_lines_of_the_table_only(tmp_path: Path) -> None:
    odd = Case(operator="softmax", shape=(4096, 4095))
    path = write(
        tmp_path / "a",
        line(eager=timed(20.0, 20.0, 20.0), ladder=timed(10.0, 10.0, 10.0)),
        line(Case(operator="rms_norm", shape=(4096, 4096)), eager=timed(9.9, 9.9), ladder=timed(10.0, 10.0)),
        line(
            Case(operator="layer_norm", shape=(4096, 4096)), eager=timed(9.0, 9.0), ladder=timed(10.0, 10.0)
        ),
        line(odd, eager=timed(1.0), ladder=timed(12.5)),
    )
    rows = rows_of([path])
    found = summary(rows)
    assert (found["lines"], found["compared"]) == (3, 3)
    assert (found["at_least_level"], found["at_least_0.98"]) == (1, 2)
    assert found["worst"] == pytest.approx(0.9)
    assert found["worst_line"] == "float32 layer_norm 4096x4096 against eager"
    assert found["geometric_mean"] == pytest.approx((2 * 0.99 * 0.9) ** (1 / 3))
    assert "Rate of ours beside the aligned neighbour: float32 softmax 4096x4095 0.80." in markdown(rows)


def test_kernels_with_local_memory_are_named(tmp_path: Path) -> None:
    one = line(eager=timed(2.0), ladder=timed(1.0), analytic=timed(1.0))
    for policy, spilled in (("ladder", 0), ("analytic", 48)):
        kernel = {"registers": 40, "local_bytes": spilled, "shared_bytes": 128, "max_threads": 1024}
        one["plans"][policy]["resources"] = {"kernels": {"softmax_kernel": kernel}}
    text = markdown(rows_of([write(tmp_path / "a", one)]))
    assert "Kernels with local memory: 1 of 2: analytic float32 softmax 4096x4096 (48 bytes a lane)." in text


def test_regimes_do_not_share_a_table(tmp_path: Path) -> None:
    cold = write(tmp_path / "a", line(eager=timed(1.0)))
    warm = write(tmp_path / "b", {**line(eager=timed(1.0)), "regime": "warm"})
    with pytest.raises(ReduceError, match="both cold and warm"):
        rows_of([cold, warm])


def test_a_line_without_a_measurement_is_a_row(tmp_path: Path) -> None:
    broken = {**line(), "reason": "MemoryError: 64 GiB"}
    del broken["copied_bytes"]
    rows = rows_of([write(tmp_path / "a", broken)])
    assert "- line: MemoryError: 64 GiB" in markdown(rows)


def test_the_command_writes_table_and_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a", line(copy=timed(9.0), eager=timed(20.0), ladder=timed(10.0)))
    out, rows = tmp_path / "t.md", tmp_path / "r.json"
    assert main([str(path), "--wide", "--out", str(out), "--rows", str(rows)]) == 0
    assert "| line | copy | eager | best peer | ladder | analytic | best ÷ ours [range] | of copy % |" in (
        out.read_text()
    )
    assert json.loads(rows.read_text()) == json.loads(json.dumps(as_json(rows_of([path]))))
    assert main([str(tmp_path / "none")]) == 2
    assert "no such file" in capsys.readouterr().err
