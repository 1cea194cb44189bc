"""The measuring verbs end to end, on the CPU in place of a device: a trial of the plumbing, no evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.json_schema import check
from tests.test_cli import call
from tirx_reduce.bench import cli
from tirx_reduce.bench.schemas import SCHEMAS

STAND = ("--stand-in", "--target", "cuda")
QUICK = ("--samples", "2", "--batch-ms", "0.2", "--warmup-ms", "0.2")
COHORT = ("--operators", "softmax", "rms_norm", "--shapes")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the records of a small search and the calibration that was fitted on it."""
    folder = tmp_path_factory.mktemp("study")
    search = ["search", "--out", str(folder / "search.jsonl"), *STAND, *QUICK, *COHORT, "4x96", "8x160"]
    assert cli.main([*search, "--widths", "32", "64", "--no-winners", "--json"]) == 0
    out = str(folder / "calibration.json")
    assert cli.main(["fit", str(folder / "search.jsonl"), "--out", out, "--json"]) == 0
    return folder


def test_fit_prints_every_capacity(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "fit", str(made / "search.jsonl"))
    assert (status, err) == (0, "")
    assert "16 trials, 0 infeasible" in out
    assert (
        sum(line.split()[0] in "64 128 256 512 1024 2048".split() for line in out.splitlines() if line) == 6
    )
    assert out.count("selected") == 1
    status, out, _ = call(capsys, "fit", str(made / "search.jsonl"), "--json")
    assert check(json.loads(out), SCHEMAS["fit"]) == []


def test_a_finished_search_measures_nothing_again(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / "search.jsonl").read_bytes()
    argv = ["search", "--out", str(made / "search.jsonl"), *STAND, *QUICK, *COHORT, "4x96", "8x160"]
    status, out, _ = call(capsys, *argv, "--widths", "32", "64", "--no-winners", "--json")
    assert status == 0
    assert check(json.loads(out), SCHEMAS["search"]) == []
    assert json.loads(out)["measured"] == 16
    assert (made / "search.jsonl").read_bytes() == before


def test_a_path_that_cannot_be_used_is_one_line(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = str(made / "search.jsonl")
    (made / "file").touch()
    for argv in (
        ("fit", records, "--out", str(made / "file" / "x.json")),
        ("study", "--out", str(made / "file" / "x"), *STAND),
    ):
        status, out, err = call(capsys, *argv)
        assert (status, out) == (2, "")
        assert err.startswith(f"tirx-reduce {argv[0]}: error: '{made / 'file'}")
        assert err.endswith("; needs a path that can be used so\n")
        assert err.count("\n") == 1
    assert call(capsys, "fit", records, "--out", str(made / "new" / "folder" / "x.json"))[0] == 0


def test_a_search_that_measured_nothing_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "search.jsonl"
    argv = ("search", "--out", str(out), *STAND, *QUICK, *COHORT, "4x96", "--widths", "33", "--no-winners")
    status, said, _ = call(capsys, *argv)
    assert status == 1
    assert said.splitlines()[-1].startswith("nothing to fit; the first reason: width: 33 lanes; needs ")


def test_the_next_command_has_what_it_needs(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, calibration = str(made / "next.jsonl"), str(made / "calibration.json")
    phase = ["replay", "collect", records, "--rounds", "1", "--no-torch", *COHORT, "5x64"]
    _, said, _ = call(capsys, *phase, "--calibration", calibration, *STAND, *QUICK)
    assert said.splitlines()[-1] == f"next: tirx-reduce replay freeze {records} --target cuda --stand-in"
    _, said, _ = call(capsys, "replay", "freeze", records, "--calibration", calibration, *STAND)
    ran = f"next: tirx-reduce replay run {records} --target cuda --calibration {calibration} --stand-in"
    assert said.splitlines()[-1] == ran


def test_replay_in_its_three_phases(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, calibration = str(made / "replay.jsonl"), str(made / "calibration.json")
    tail = ("--calibration", calibration, *STAND, *QUICK, "--json")
    collect = ("replay", "collect", records, "--rounds", "2", "--no-torch", *COHORT, "6x128")
    for phase in (collect, ("replay", "freeze", records), ("replay", "run", records)):
        status, out, err = call(capsys, *phase, *tail)
        assert (status, err) == (0, "")
        assert check(json.loads(out), SCHEMAS["replay"]) == []
    assert [c["case"]["operator"] for c in json.loads(out)["summary"]["cases"]] == ["softmax", "rms_norm"]
    status, out, _ = call(capsys, "plot", "gains", records, "--out", str(made / "gains.svg"))
    assert (status, out) == (0, f"{made / 'gains.svg'}: 2 points\n")
    status, out, _ = call(capsys, "audit", calibration, str(made / "search.jsonl"), records, "--json")
    assert check(json.loads(out), SCHEMAS["audit"]) == []
    assert json.loads(out)["failure"] is None
    assert status == 0


def test_a_label_before_the_freeze_is_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records, calibration = str(made / "early.jsonl"), str(made / "calibration.json")
    tail = ("--calibration", calibration, *STAND, *QUICK)
    call(capsys, "replay", "collect", records, "--rounds", "1", "--no-torch", *tail, *COHORT, "6x100")
    status, _, err = call(capsys, "replay", "run", records, *tail)
    assert status == 2
    assert "freeze" in err
    assert err.count("error:") == 1


def test_an_edited_record_fails_the_audit(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = made / "damaged.jsonl"
    text = (made / "search.jsonl").read_text(encoding="utf-8")
    damaged.write_text(text.replace('"rows":4', '"rows":5', 1), encoding="utf-8")
    status, out, _ = call(capsys, "audit", str(made / "calibration.json"), str(damaged))
    assert status == 1
    assert "FAIL damaged.jsonl, line " in out


def test_compare_and_its_table(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("compare", "analytic", "service", "--calibration", str(made / "calibration.json"))
    tail = ("--out", str(made / "compare.jsonl"), "--rounds", "2", *STAND, *QUICK, *COHORT, "8x64")
    status, out, _ = call(capsys, *argv, *tail)
    assert status == 0
    assert out.splitlines()[0].split()[:4] == ["case", "analytic", "µs", "service"]
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["softmax", "8x64"], ["rms_norm", "8x64"]]
    assert "no confidence bounds" in out


@pytest.mark.parametrize("kind", ["surface", "regret"])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots_are_the_same_for_the_same_records(
    made: Path, capsys: pytest.CaptureFixture[str], kind: str, suffix: str
) -> None:
    files = [made / f"{kind}-{i}.{suffix}" for i in (1, 2)]
    for file in files:
        argv = ("plot", kind, str(made / "search.jsonl"), "--calibration", str(made / "calibration.json"))
        status, out, err = call(capsys, *argv, "--out", str(file), "--json")
        assert (status, err) == (0, "")
        assert check(json.loads(out), SCHEMAS["plot"]) == []
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_size > 5000


def test_the_grid_as_table_and_picture(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = str(made / "grid.jsonl")
    lines = (
        "--operators",
        "softmax",
        "--shapes",
        "8x64",
        "--dtypes",
        "float32",
        "--rounds",
        "2",
        "--cold-mb",
        "1",
    )
    who = ("--peers", "copy,eager,ours", "--policies", "analytic")
    status, out, _ = call(capsys, "bench", "--grid", "peers", "--out", records, *STAND, *who, *lines)
    assert status == 0
    assert "| float32 softmax 8×64 |" in out
    status, again, _ = call(capsys, "report", records, "--json")
    assert check(json.loads(again), SCHEMAS["report"]) == []
    assert json.loads(again)["markdown"].strip() == out.strip()
    status, out, _ = call(capsys, "plot", "roofline", records, "--out", str(made / "roof.svg"))
    assert (status, out) == (0, f"{made / 'roof.svg'}: 1 points\n")


def test_a_study_as_tables(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "report", str(made), str(made / "search.jsonl"))
    assert status == 2
    assert "is a folder beside other records; needs one folder, or files" in err
    status, out, _ = call(capsys, "report", str(made), "--out", str(made / "study.md"))
    assert (status, out) == (0, f"written to {made / 'study.md'}\n")
    assert "| softmax 8x160 |" in (made / "study.md").read_text(encoding="utf-8")


def test_a_report_says_what_it_has_no_tables_of(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search, other = str(made / "search.jsonl"), made / "other.jsonl"
    other.write_text("{}\n", encoding="utf-8")
    for argv, said in (
        ((search,), f"{search!r} is a search"),
        ((str(other),), f"{str(other)!r} is none of these"),
        (("nosuch",), "file 'nosuch' is not there"),
    ):
        status, out, err = call(capsys, "report", *argv)
        assert (status, out) == (2, "")
        assert err == f"tirx-reduce report: error: {said}; needs a study's folder or the records of a grid\n"


def test_bench_prints_four_figures(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "bench", "softmax", "8x64", *STAND, *QUICK)
    assert status == 0
    for phase in ("gpu batch", "end to end batch", "gpu single", "end to end single"):
        assert phase in out
    assert out.splitlines()[-1] == "four separate figures: do not subtract one from another"
    status, out, _ = call(capsys, "bench", "softmax", "8x64", *STAND, *QUICK, "--json")
    assert check(json.loads(out), SCHEMAS["bench"]) == []


BAD = [
    (("fit", "gone.jsonl"), "file 'gone.jsonl' is not there; needs a record or calibration file"),
    (("audit", "gone.json", "x.jsonl"), "file 'gone.json' is not there; needs a record or calibration file"),
    (("search", "--out", "x.jsonl", *STAND, "--operators", "nope"), "unknown operator 'nope'"),
    (("search", "--out", "x.jsonl", *STAND, "--shapes", "0x3"), "shape '0x3' has the extent 0"),
    (("search", "--out", "x.jsonl", "--samples", "0"), "argument --samples: '0' is not read"),
    (("search", "--out", "x.jsonl", "--batch-ms", "nan"), "argument --batch-ms: 'nan' is not read"),
    (
        ("search", "--out", "x.jsonl", "--target", "metal", "--rpc", "nowhere"),
        "--rpc without --key; needs both --key and --device-name",
    ),
    (
        ("search", "--out", "x.jsonl", "--target", "metal", "--rpc", "localhost:1"),
        "--rpc without --key; needs both --key and --device-name",
    ),
    (("compare", "analytic", "--out", "x.jsonl", *STAND), "policies analytic; needs two or more that differ"),
    (("compare", "analytic", "nope", "--out", "x.jsonl", *STAND), "no policy 'nope'; known: "),
    (("plot", "gains", "gone.jsonl", "--out", "g.png"), "record file 'gone.jsonl' is not there; needs one"),
    (
        ("plot", "gains", "pyproject.toml", "--out", "g.gif"),
        "plot file 'g.gif' ends in '.gif'; needs .png or .svg",
    ),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=lambda v: v[0] if isinstance(v, tuple) else "")
def test_bad_input_is_one_line_and_writes_nothing(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    status, out, err = call(capsys, *argv)
    assert (status, out) == (2, "")
    assert err.startswith(f"tirx-reduce {argv[0]}: error: {message}")
    assert err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["pyproject.toml"]


def test_no_device_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tirx_reduce.bench import cli_stand

    monkeypatch.setattr(cli_stand, "device_of", lambda kind: None)
    status, _, err = call(capsys, "search", "--out", "x.jsonl")
    assert status == 2
    assert err == (
        "tirx-reduce search: error: no Metal or CUDA device answers here; "
        "needs one, or --rpc, or --stand-in for a trial\n"
    )
