"""Row-count dispatch: which mapping a symbolic module takes, a real run on the CPU, tables of each kind of run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.json_schema import check
from tests.study_cases import MadeUpStand
from tirx_reduce.bench import grid_dispatch
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.cli import main as command
from tirx_reduce.bench.grid_tables import tables
from tirx_reduce.bench.records import Writer, of_kind, read
from tirx_reduce.bench.schemas import SCHEMAS
from tirx_reduce.errors import ReduceError


def line(case: Case, static: list[float | None], symbolic: list[float | None]) -> dict[str, Any]:
    candidate = {"width": 32, "packing": 1, "vector": 4, "reuse": "private", "splits": 1, "merged": False}
    found = {
        n: {"status": "measured", "samples_us": s} for n, s in (("static", static), ("symbolic", symbolic))
    }
    plans = {
        "static": {"candidate": candidate},
        "symbolic": {"candidate": {**candidate, "width": 64}, "interval": [1, None], "variants": 1},
    }
    return {"case": case.to_json(), "regime": "cold", "contenders": found, "plans": plans}


def write(path: Path, *lines: dict[str, Any]) -> Path:
    with Writer(path, MadeUpStand(path.parent).environment()) as writer:
        writer.append(grid_dispatch.SETTINGS, {"regime": "cold"})
        for one in lines:
            writer.append(grid_dispatch.LINE, one)
    return path


def test_the_interval_of_the_rows_says_which_mapping_is_taken(tmp_path: Path) -> None:
    stand: Any = MadeUpStand(tmp_path)
    pair = grid_dispatch.plan_pair(Case(operator="softmax", shape=(1, 4096)), "ladder", stand)
    assert len(pair.symbolic.variants) > 1
    for (low, high), plan in pair.symbolic.variants:
        assert pair.taken(low) == (plan.candidate, (low, high))
        if high is not None:
            assert pair.taken(high) == (plan.candidate, (low, high))
            assert pair.taken(high + 1)[1] != (low, high)
    assert not pair.static.variants


def test_a_ratio_is_paired_by_rounds_and_one_that_includes_1_is_within(tmp_path: Path) -> None:
    far, near = Case(operator="softmax", shape=(8, 64)), Case(operator="softmax", shape=(9, 64))
    path = write(
        tmp_path / "dispatch.jsonl",
        line(far, [1.0, 2.0, None, 4.0], [1.1, 2.2, 3.0, 4.4]),
        line(near, [1.0, 1.0, 1.0, 1.0], [0.99, 1.2, 1.2, 1.2]),
    )
    first, second = grid_dispatch.rows_of([path])
    assert first["ratio"] == pytest.approx(1.1)
    assert not first["within"]
    assert second["ratio"] == pytest.approx(1.2)
    assert second["within"]
    text = grid_dispatch.markdown([first, second])
    assert "| float32 softmax 8×64 | − | 2.00 | 2.60 | 1.100 [1.100–1.100] | no | W=64 P=1" in text
    assert "Within 3 % of the static plan on 1 of 2 lines; worst 1.200 (float32 softmax 9×64)." in text


def test_the_verb_measures_one_module_of_symbolic_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "dispatch.jsonl"
    asked = ["bench", "--grid", "dispatch", "--target", "cuda", "--stand-in", "--out", str(out)]
    asked += ["--operators", "layer_norm", "--shapes", "1x64", "5x64", "--rounds", "3", "--cold-mb", "0.002"]
    asked += ["--commit", "a" * 40]
    assert command(asked) == 0
    shown = capsys.readouterr()
    assert "2 lines planned, 3 modules built" in shown.err
    assert "| float32 layer_norm 5×64 |" in shown.out
    lines = of_kind(read(out), grid_dispatch.LINE)
    assert [{n: c["status"] for n, c in one["contenders"].items()} for one in lines] == [
        dict.fromkeys(("copy", "static", "symbolic"), "measured")
    ] * 2
    # One library serves both row counts.
    assert len({one["plans"]["symbolic"]["library_sha256"] for one in lines}) == 1
    assert len({one["plans"]["static"]["library_sha256"] for one in lines}) == 2
    assert command([*asked, "--json"]) == 0
    out_json = json.loads(capsys.readouterr().out)
    assert check(out_json, SCHEMAS["bench-dispatch"]) == []
    assert len(out_json["rows"]) == 2


def test_warm_cold_and_dispatch_stand_in_tables_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [write(tmp_path / "dispatch.jsonl", line(Case(operator="softmax", shape=(8, 64)), [1.0], [1.0]))]
    for regime in ("warm", "cold"):
        files.append(tmp_path / f"{regime}.jsonl")
        asked = ["bench", "--grid", "peers", "--target", "cuda", "--stand-in", "--out", str(files[-1])]
        asked += [
            "--shapes",
            "8x40",
            "--operators",
            "softmax",
            "--dtypes",
            "float32",
            "--peers",
            "copy,eager",
        ]
        asked += ["--rounds", "3", "--cold-mb", "0.01", "--regime", regime, "--commit", "a" * 40]
        assert command(asked) == 0
    (warm,), (cold,) = (of_kind(read(f), "grid line") for f in files[1:])
    assert (warm["regime"], warm["sets"]) == ("warm", 1)
    assert cold["regime"] == "cold"
    assert cold["sets"] > 1
    capsys.readouterr()
    assert command(["report", *map(str, files)]) == 0
    heads = [text for text in capsys.readouterr().out.splitlines() if text.startswith("**")]
    assert heads == [
        "**dispatch** on Made-up GPU, cold, median µs of one launch",
        "**other** on llvm on x86_64, warm, median µs of one launch",
        "**other** on llvm on x86_64, cold, median µs of one launch",
    ]


def test_records_without_such_a_line_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReduceError, match="no line of row-count dispatch"):
        tables([write(tmp_path / "dispatch.jsonl")])
