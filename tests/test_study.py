"""The whole study for real, on the CPU as a stand-in: killed on the way, resumed, audited."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tirx_reduce
from tirx_reduce.bench.records import finished, of_kind, read

STUDY = [
    sys.executable, "-m", "tirx_reduce.bench.study", "--stand-in", "--quick", "--workers", "0",
    "--operators", "softmax", "--training", "5x769", "4x1024", "--held-out", "4x1537",
    "--widths", "64", "128", "--rounds", "2", "--commit", "c" * 40,
]  # fmt: skip


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """An environment with a copy of the package: a study refuses to go on with one that was edited."""
    shutil.copytree(Path(str(tirx_reduce.__file__)).parent, tmp_path / "copy" / "tirx_reduce")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "copy")}


def kill_after(out: Path, file: str, records: int, place: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*STUDY, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env=place,
        cwd=out.parent,
    )
    deadline = time.monotonic() + 300
    while lines(out / file) < records and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_study_that_is_killed_twice_ends_as_one_that_was_not(tmp_path: Path, place: dict[str, str]) -> None:
    out = tmp_path / "records"
    kill_after(out, "search.jsonl", 8, place)
    kill_after(out, "replay.jsonl", 20, place)
    whole = subprocess.run(
        [*STUDY, "--out", str(out)], capture_output=True, text=True, check=False, env=place, cwd=tmp_path
    )
    assert whole.returncode == 0, whole.stderr
    assert "search: finished before" in whole.stdout
    assert "PASS" in whole.stdout
    found = read(out / "search.jsonl")
    keys = [
        (t["case"]["shape"][1], t["candidate"]["width"], t["candidate"]["reuse"])
        for t in of_kind(found, "trial")
    ]
    assert len(keys) == len(set(keys)) == 8
    replayed = read(out / "replay.jsonl")
    assert finished(replayed)
    pairs = [(m["round"], m["variant"]) for m in of_kind(replayed, "measurement")]
    assert len(pairs) == len(set(pairs)) == 4
    assert len(of_kind(replayed, "environment")) >= 3
    assert {e["commit"] for e in of_kind(replayed, "environment")} == {"c" * 40}
    assert (out / "calibration.json").exists()
    assert (out / "search.jsonl.gz").exists()
