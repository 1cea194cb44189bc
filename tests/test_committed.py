"""The records in the repository: the audit passes on them, their chains hold, the packaged profile is theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tirx_reduce as tr
from tirx_reduce.bench import audit
from tirx_reduce.bench.records import file_digest, read
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.cost import calibration
from tirx_reduce.errors import BadCalibration

ROOT = Path(__file__).resolve().parent.parent
STUDIES = sorted(p.parent for p in (ROOT / "docs" / "studies").glob("*/search.jsonl.gz"))
RECORDS = sorted((ROOT / "docs" / "studies").glob("*/*.jsonl.*z"))


def test_there_is_a_study() -> None:
    assert [s.name for s in STUDIES] == ["h200-2026-11"]


@pytest.mark.parametrize("study", STUDIES, ids=lambda p: p.name)
def test_the_audit_passes(study: Path) -> None:
    names = [ROOT / "calibration.json", study / "search.jsonl.gz", study / "replay.jsonl.gz"]
    done = subprocess.run(
        [sys.executable, str(Path(audit.__file__)), *map(str, names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("PASS")


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.name)
def test_no_line_was_changed(path: Path) -> None:
    # Reading checks each line's hash and the chain of them.
    assert len(read(path)) > 1


def test_every_packaged_profile_has_its_records() -> None:
    packaged = calibration.load(None)
    assert isinstance(packaged, tuple)
    assert packaged
    known = {file_digest(study / "search.jsonl.gz") for study in STUDIES}
    assert {p.records_sha256 for p in packaged} <= known


def test_the_profile_plans_on_its_device_and_on_no_other() -> None:
    func = get_workload("softmax").func((768, 6144), "float32")
    plan = tr.plan(func, "cuda", policy="service", device="NVIDIA H200")
    assert plan.estimate.unit == "us"
    for device in (None, "NVIDIA H100"):
        with pytest.raises(BadCalibration, match="make one with: tirx-reduce search"):
            tr.plan(func, "cuda", policy="service", device=device)


def test_they_stay_small() -> None:
    files = [p for p in (ROOT / "docs" / "studies").rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 2_000_000
