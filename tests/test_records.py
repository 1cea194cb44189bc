"""Record files: cut, edited, foreign, torn, contested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.study_cases import ENVIRONMENT, edit
from tirx_reduce.bench.records import (
    BadRecords,
    Writer,
    canonical,
    compress,
    digest,
    file_digest,
    finished,
    merge,
    of_kind,
    read,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "records.jsonl"
    with Writer(file, ENVIRONMENT) as writer:
        for i in range(4):
            writer.append("trial", {"number": i, "us": 1.5 + i})
        writer.finish(trials=4)
    return file


def test_what_is_written_is_read(path: Path) -> None:
    records = read(path)
    assert [r.kind for r in records] == ["environment", *["trial"] * 4, "end"]
    assert [t["number"] for t in of_kind(records, "trial")] == [0, 1, 2, 3]
    assert [r.line for r in records] == [1, 2, 3, 4, 5, 6]
    assert finished(records)


def test_compressed_files_read_alike_and_have_the_same_hash(path: Path) -> None:
    packed = compress(path)
    assert read(packed) == read(path)
    assert file_digest(packed) == file_digest(path)
    first = packed.read_bytes()
    assert compress(path).read_bytes() == first


def test_a_cut_file_is_reported_by_line_at_every_cut(path: Path) -> None:
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    for cut in (1, 40, ends[0] + 1, ends[2] - 1, len(content) - 1):
        path.write_bytes(content[:cut])
        line = 1 + sum(end <= cut for end in ends)
        with pytest.raises(BadRecords, match=rf"line {line}: cut short"):
            read(path)


@pytest.mark.parametrize("line", [1, 2, 4, 6])
def test_an_edited_line_is_named(path: Path, line: int) -> None:
    lines = path.read_text().splitlines()
    record = json.loads(lines[line - 1])
    record["data"]["extra"] = 1
    lines[line - 1] = canonical(record)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadRecords, match=rf"line {line}: edited"):
        read(path)


def test_removed_moved_and_doubled_lines_are_named(path: Path) -> None:
    lines = path.read_text().splitlines()
    for changed, line in (
        ([*lines[:2], *lines[3:]], 3),
        ([lines[0], lines[2], lines[1], *lines[3:]], 2),
        ([*lines[:2], lines[1], *lines[2:]], 3),
    ):
        path.write_text("\n".join(changed) + "\n")
        with pytest.raises(BadRecords, match=rf"line {line}: does not follow the line before"):
            read(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no record in it"),
        ("nonsense\n", "line 1: not JSON"),
        ("[]\n", "line 1: not a record"),
        ('{"a": 1}\n', "line 1: not a record"),
    ],
)
def test_files_that_are_no_records(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(text)
    with pytest.raises(BadRecords, match=message):
        read(file)


def test_another_format_and_another_first_line_are_refused(path: Path) -> None:
    edit(path, lambda records: records[1].update(format=2))
    with pytest.raises(BadRecords, match="line 2: format 2; this version reads 1"):
        read(path)


def test_a_file_that_begins_with_no_environment_is_refused(path: Path) -> None:
    edit(path, lambda records: records.pop(0))
    with pytest.raises(BadRecords, match="needs 'environment' first"):
        read(path)


def test_missing_files_and_broken_archives(tmp_path: Path) -> None:
    with pytest.raises(BadRecords, match="no such file"):
        read(tmp_path / "none.jsonl")
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(BadRecords, match="cannot be read"):
        read(broken)


@pytest.mark.parametrize("field", ["device", "driver", "tvm"])
def test_runs_of_different_machines_do_not_merge(path: Path, tmp_path: Path, field: str) -> None:
    other = tmp_path / "other.jsonl"
    with Writer(other, {**ENVIRONMENT, field: "another"}) as writer:
        writer.append("trial", {"number": 9})
    with pytest.raises(BadRecords, match=f"differ in {field}"):
        merge([path, other])
    with pytest.raises(BadRecords, match=f"differ in {field}"):
        Writer(other, ENVIRONMENT)


def test_runs_of_one_machine_merge(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    with Writer(other, {**ENVIRONMENT, "commit": "elsewhere"}) as writer:
        writer.append("trial", {"number": 9})
    assert len(of_kind(merge([path, other]), "trial")) == 5


def test_a_finished_file_takes_no_more(path: Path) -> None:
    before = path.read_bytes()
    with Writer(path, ENVIRONMENT) as writer, pytest.raises(BadRecords, match="is finished"):
        writer.append("trial", {"number": 5})
    assert path.read_bytes() == before


def test_resuming_drops_a_torn_line_and_says_so(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    torn = len(content[:-30]) - (content[:-30].rfind(b"\n") + 1)
    with Writer(path, ENVIRONMENT) as writer:
        assert len(writer.of_kind("trial")) == 4
        writer.append("trial", {"number": 4})
    records = read(path)
    assert of_kind(records, "environment")[1]["dropped_bytes"] == torn > 0
    assert [t["number"] for t in of_kind(records, "trial")] == [0, 1, 2, 3, 4]


def test_resuming_an_edited_file_is_refused(path: Path) -> None:
    path.write_text(path.read_text().replace('"number":2', '"number":7'))
    with pytest.raises(BadRecords, match="line 4: edited"):
        Writer(path, ENVIRONMENT)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    with Writer(path, ENVIRONMENT) as first:
        with pytest.raises(BadRecords, match="is being written by another process"):
            Writer(path, ENVIRONMENT)
        first.append("trial", {"number": 0})
    assert len(read(path)) == 2


WRITE = """
import sys, time
from pathlib import Path
from tests.study_cases import ENVIRONMENT
from tirx_reduce.bench.records import Writer
with Writer(Path(sys.argv[1]), ENVIRONMENT) as writer:
    print("ready", flush=True)
    for number in range(len(writer.of_kind("trial")), 100000):
        writer.append("trial", {"number": number, "padding": "x" * 3000})
"""


def test_killed_writers_leave_a_file_that_resumes(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.15)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    with Writer(path, ENVIRONMENT) as writer:
        writer.finish()
    numbers = [t["number"] for t in of_kind(read(path), "trial")]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(JSON)
def test_hashes_survive_json(value: Any) -> None:
    assert digest(json.loads(canonical(value))) == digest(value)


def test_nan_is_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "nan.jsonl"
    with Writer(path, ENVIRONMENT) as writer, pytest.raises(ValueError, match="not JSON compliant"):
        writer.append("trial", {"us": float("nan")})
    assert len(read(path)) == 1


def test_archives_are_not_appended_to(tmp_path: Path) -> None:
    with pytest.raises(BadRecords, match="needs a plain file"):
        Writer(tmp_path / "x.jsonl.gz", ENVIRONMENT)
