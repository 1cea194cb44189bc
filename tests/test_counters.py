"""Hardware counters: marks and kernels put together, a made-up profiler watching real launches, what counters say."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from tirx_reduce.bench import counters
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.counters_report import (
    DURATION,
    ISSUE,
    MEMORY,
    READ,
    STALL,
    WARPS,
    WRITTEN,
    markdown,
    reading,
    readings,
)
from tirx_reduce.bench.records import of_kind, read
from tirx_reduce.errors import ReduceError

CSV = """==PROF== Connected to process 1
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","at::cuda::spin_kernel(long)","","gpu__time_duration.sum","nsecond","1,000"
"1","1","first","","gpu__time_duration.sum","nsecond","2,500"
"1","1","first","","dram__bytes_read.sum","byte","n/a"
"2","1","second","","gpu__time_duration.sum","nsecond","9,500.5"
"3","1","at::cuda::spin_kernel(long)","","gpu__time_duration.sum","nsecond","1,000"
"10","1","ours","","gpu__time_duration.sum","nsecond","7"
"""
# Launches for real, then tells of two kernels for every profiled call: the mark, and a longer one.
PROFILER = """#!{python}
import json, subprocess, sys
if sys.argv[1] == "--query-metrics":
    print("dram__bytes_read  bytes\\ngpu__time_duration  time\\nsmsp__inst_executed  instructions")
    sys.exit(0)
command = sys.argv[sys.argv.index("{python}"):]
metrics = sys.argv[sys.argv.index("--metrics") + 1].split(",")
subprocess.run(command, check=True)
marks = [json.loads(l) for l in open(json.load(open(command[-1]))["marks"])]
with open(sys.argv[sys.argv.index("--log-file") + 1], "w") as out:
    print('"ID","Kernel Name","Metric Name","Metric Value"', file=out)
    for number, mark in enumerate(m for m in marks if m.get("profiled")):
        for i, name in enumerate(("spin_kernel", mark["name"])):
            for metric in metrics:
                print(f'"{{2 * number + i}}","{{name}}","{{metric}}","{{1000 * (i + 1)}}"', file=out)
"""


def test_the_profilers_text_is_read_in_the_order_of_launches() -> None:
    kernels = counters.read_csv(CSV)
    assert [k["kernel"] for k in kernels] == [
        "at::cuda::spin_kernel(long)", "first", "second", "at::cuda::spin_kernel(long)", "ours",
    ]  # fmt: skip
    assert kernels[2]["metrics"] == {DURATION: 9500.5}
    assert kernels[1]["metrics"] == {DURATION: 2500.0}
    assert counters.read_csv("==ERROR== no permission\n") == []


def test_each_call_gets_the_kernels_behind_its_mark_longest_first() -> None:
    marks = [
        {"line": 0, "name": "eager"}, {"line": 0, "name": "ladder"}, {"line": 1, "name": "ladder"},
        {"line": 0, "name": "eager", "verified": {"ok": True}}, {"line": 0, "name": "eager", "profiled": True},
        {"line": 0, "name": "ladder", "profiled": True}, {"line": 1, "name": "ladder", "reason": "a fault"},
    ]  # fmt: skip
    found = counters.group(marks, counters.read_csv(CSV))
    assert [k["kernel"] for k in found[0, "eager"]["calls"][0]] == ["second", "first"]
    assert [k["kernel"] for k in found[0, "ladder"]["calls"][0]] == ["ours"]
    assert found[1, "ladder"]["reason"] == "a fault"
    assert found[1, "ladder"]["status"] == "failed"


def test_a_contender_that_was_never_reached_is_named() -> None:
    found = counters.group([{"line": 0, "name": "quack"}], [])
    assert found[0, "quack"]["reason"] == "no kernel of it was profiled"


def test_launches_are_real_and_records_hold_what_was_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = tmp_path / "ncu"
    profiler.write_text(PROFILER.format(python=sys.executable))
    profiler.chmod(profiler.stat().st_mode | stat.S_IXUSR)
    out = tmp_path / "counters.jsonl"
    asked = ["--lines", "softmax:4x64", "rms_norm:3x32:bf16", "--peers", "eager,quack,ours", "--calls", "2"]
    asked += ["--stand-in", "--ncu", str(profiler), "--out", str(out), "--commit", "a" * 40]
    assert counters.main(asked) == 0
    shown = capsys.readouterr()
    assert "the profiler does not know dram__bytes_write.sum" in shown.err
    assert "| float32 softmax 4×64 | ladder | 2.0 |" in shown.out
    assert "- quack: ModuleNotFoundError" in shown.out
    found = of_kind(read(out), counters.COUNTERS)
    counted = [f for f in found if f["status"] == "counted"]
    assert [(f["case"]["operator"], f["name"]) for f in counted] == [
        ("softmax", "eager"), ("softmax", "ladder"), ("rms_norm", "eager"), ("rms_norm", "ladder"),
    ]  # fmt: skip
    for one in counted:
        assert [[k["kernel"] for k in call] for call in one["calls"]] == [[one["name"]]] * 2
        assert one["verified"]["ok"]
    assert counted[1]["plan"]["candidate"]["width"] >= 1
    assert Path(f"{out}.csv").read_text().startswith('"ID"')


def test_without_a_profiler_nothing_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--lines", "softmax:4x64", "--peers", "ours", "--stand-in", "--out", str(tmp_path / "x")]
    assert counters.main([*asked, "--commit", "a" * 40]) == 1
    assert counters.main([*asked, "--ncu", str(tmp_path / "absent")]) == 2
    assert "absent found; needs Nsight Compute, or its place by --ncu PATH" in capsys.readouterr().err


def test_a_profiler_that_fails_says_why(tmp_path: Path) -> None:
    profiler = tmp_path / "ncu"
    profiler.write_text(f"#!{sys.executable}\nimport sys\nprint('ERR_NVGPUCTRPERM')\nsys.exit(1)\n")
    profiler.chmod(profiler.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(ReduceError, match="nothing was launched: ERR_NVGPUCTRPERM"):
        counters.launch({"lines": []}, tmp_path, str(profiler), limit_s=60.0, warm=False)


@pytest.mark.parametrize("text", ["softmax", "softmax:", ":4x4"])
def test_a_line_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ReduceError, match="needs operator:shape:dtype"):
        counters.read_line(text)


def test_a_line_without_a_dtype_is_float32() -> None:
    assert counters.read_line("softmax:4x64") == Case(operator="softmax", shape=(4, 64))


PEER = {DURATION: 1.0, READ: 50.0, WRITTEN: 50.0, WARPS: 50.0}
OURS: dict[str, float] = {**PEER, MEMORY: 50.0, ISSUE: 20.0, f"{STALL}barrier_per_issue_active.ratio": 3.0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({READ: 80.0}, "bytes: 1.30 × the least"),
        ({MEMORY: 93.0}, "none: memory at 93 % of its peak"),
        ({ISSUE: 70.0}, "instructions: 70 % of issue slots busy"),
        (
            {WARPS: 25.0, "launch__occupancy_limit_registers": 2.0, "launch__occupancy_limit_warps": 4.0},
            "occupancy: 25 % of warps, 50 % of the peer's; bound by registers",
        ),
        ({}, "barrier: barrier 3.0 warps an issue"),
        (
            {f"{STALL}long_scoreboard_per_issue_active.ratio": 9.0},
            "latency: long_scoreboard 9.0 warps an issue",
        ),
        ({f"{STALL}wait_per_issue_active.ratio": 9.0}, "barrier: barrier 3.0 warps an issue"),
    ],
)
def test_what_counters_say(changes: dict[str, Any], said: str) -> None:
    assert reading({**OURS, **changes}, PEER, 100.0) == said


def test_ours_is_read_against_the_fastest_other_of_its_line() -> None:
    case = Case(operator="softmax", shape=(4, 8))

    def row(name: str, us: float, warps: float, of: Case = case) -> dict[str, Any]:
        metrics = {DURATION: us, WARPS: warps, READ: 0.0, WRITTEN: 0.0}
        return {"case": of.to_json(), "name": name, "metrics": metrics, "kernels": 1, "reason": ""}

    other = Case(operator="softmax", shape=(4, 16))
    rows = [
        row("quack", 2.0, 90.0),
        row("eager", 3.0, 99.0),
        row("ladder", 2.5, 50.0),
        row("ladder", 1.0, 9.0, other),
    ]
    assert readings(rows) == {("float32", "softmax", (4, 8)): "occupancy: 50 % of warps, 90 % of the peer's"}
    assert "| 50.0 |" in markdown(rows)


def test_what_was_asked_of_the_profiler_is_json(tmp_path: Path) -> None:
    assert json.loads(json.dumps(counters.METRICS)) == list(dict.fromkeys(counters.METRICS))
