"""The peers' grid as a whole: its lines, plans, resumption, and a real run on the CPU in place of a GPU."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.json_schema import check as conforms
from tests.study_cases import MadeUpStand
from tirx_reduce.bench import grid, grid_warm
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.cli import main as command
from tirx_reduce.bench.grid_clock import HostClock
from tirx_reduce.bench.grid_lines import DTYPES, group_of, lines
from tirx_reduce.bench.grid_measure import Contender, DeviceLost, Method, the_copy
from tirx_reduce.bench.grid_plans import Planned, aliases, plan_case
from tirx_reduce.bench.grid_trail import Trail
from tirx_reduce.bench.records import Writer, of_kind, read
from tirx_reduce.bench.schemas import SCHEMAS
from tirx_reduce.errors import ReduceError

CASES = (Case(operator="softmax", shape=(4, 32)), Case(operator="softmax", shape=(5, 32)))


def test_the_table_has_72_lines_and_the_rest_stands_behind_it() -> None:
    found = lines()
    assert Counter(map(group_of, found)) == {"table": 72, "odd": 24, "fused": 7}
    assert len(set(found)) == len(found)
    assert [group_of(c) for c in found[:72]] == ["table"] * 72
    assert {c.dtype for c in found if group_of(c) == "fused"} == {"bfloat16"}


def test_lines_are_chosen_by_operator_shape_and_dtype() -> None:
    assert lines(operators=["softmax"], shapes=[(37, 1536)], dtypes=["float32"]) == (
        Case(operator="softmax", shape=(37, 1536)),
    )
    other = lines(("table",), shapes=[(3, 5)])
    assert {(c.operator, c.dtype) for c in other} == {
        (o, d) for o in ("softmax", "rms_norm", "layer_norm") for d in DTYPES
    }
    halves = lines(("table", "fused"), dtypes=["half"])
    assert Counter((c.operator, c.dtype) for c in halves) == {
        **{(o, "float16"): 12 for o in ("softmax", "rms_norm", "layer_norm")},
        ("add_rms_norm", "float16"): 4,
        ("masked_softmax", "float16"): 3,
    }
    assert "table" not in {group_of(c) for c in halves}
    with pytest.raises(ReduceError, match="unknown dtype 'float3'"):
        lines(dtypes=["float3"])
    with pytest.raises(ReduceError, match="no line of the grid is left"):
        lines(operators=["argmax"])
    with pytest.raises(ReduceError, match="group 'even' is not known"):
        lines(("even",))


def test_a_policy_that_declines_is_kept_with_its_reason() -> None:
    target = MadeUpStand(Path()).target
    found = plan_case(CASES[0], ("analytic", "service", "nobody"), target, calibration=None)
    assert found["analytic"].to_json()["status"] == "planned"
    assert "calibration" in found["service"].reason
    assert "nobody" in found["nobody"].reason
    assert aliases(found) == {"analytic": "analytic"}


def test_policies_with_the_same_mapping_are_measured_once() -> None:
    target = MadeUpStand(Path()).target
    plan = plan_case(CASES[0], ("analytic",), target, calibration=None)["analytic"].plan
    planned = {p: Planned(case=CASES[0], policy=p, plan=plan) for p in ("ladder", "analytic")}
    assert aliases(planned) == {"ladder": "ladder", "analytic": "ladder"}
    assert planned["ladder"].key == planned["analytic"].key
    assert planned["ladder"].key != Planned(case=CASES[1], policy="ladder", plan=plan).key


def test_the_trail_bars_what_ended_the_process_twice(tmp_path: Path) -> None:
    path = tmp_path / "trail"
    for _ in range(2):
        trail = Trail(path)
        trail.begin("a line", "fine")
        trail.end()
        assert not trail.barred("a line", "ladder")
        trail.begin("a line", "ladder")  # and the process ends here
    trail = Trail(path)
    assert trail.barred("a line", "ladder")
    assert not trail.barred("a line", "fine")
    assert not trail.barred("another line", "ladder")
    trail.keep("another line", "ladder")
    assert Trail(path).barred("another line", "ladder")


def request(**changes: Any) -> grid.Request:
    fields: dict[str, Any] = {
        "cases": CASES,
        "peers": ("copy", "eager"),
        "policies": (),
        "method": Method(rounds=3, cold_bytes=1000.0),
    }
    return grid.Request(**{**fields, **changes})


def open_run(tmp_path: Path) -> tuple[Any, Writer]:
    stand = MadeUpStand(tmp_path)
    return stand, Writer(tmp_path / "grid.jsonl", stand.environment())


def test_a_run_that_is_over_budget_goes_on_where_it_stopped(tmp_path: Path) -> None:
    stand, writer = open_run(tmp_path)
    with writer:
        assert grid.measure_grid(request(budget_s=1.0), stand, HostClock(), writer, began=-1e9) == 2
        assert not writer.of_kind(grid.LINE)
        assert grid.measure_grid(request(cases=CASES[:1]), stand, HostClock(), writer) == 0
    stand, writer = open_run(tmp_path)
    told: list[str] = []
    with writer:
        assert grid.measure_grid(request(), stand, HostClock(), writer, say=told.append) == 0
    records = read(tmp_path / "grid.jsonl")
    assert [r["case"] for r in of_kind(records, grid.LINE)] == [c.to_json() for c in CASES]
    assert told[-1].startswith("1/1 float32 softmax 5x32: copy ")


def test_a_file_goes_on_with_the_same_settings_only(tmp_path: Path) -> None:
    stand, writer = open_run(tmp_path)
    with writer:
        grid.measure_grid(request(), stand, HostClock(), writer)
        other = request(method=Method(rounds=5, cold_bytes=1000.0))
        with pytest.raises(ReduceError, match="measured with rounds 3, not 5; needs a new file"):
            grid.measure_grid(other, stand, HostClock(), writer)


def test_what_takes_the_device_along_is_left_out_of_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(HostClock):
        lost = False

        def alive(self) -> bool:
            return not self.lost

    clock = Clock()

    def faults(operands: Any) -> Any:
        clock.lost = True
        raise RuntimeError("misaligned address")

    def contenders(asked: Any, case: Case, *rest: Any) -> list[Contender]:
        return [the_copy(case), Contender(name="ladder", open=faults)]

    monkeypatch.setattr(grid, "_contenders", contenders)
    stand, writer = open_run(tmp_path)
    with writer, pytest.raises(DeviceLost, match="ladder: RuntimeError: misaligned address"):
        grid.measure_grid(request(cases=CASES[:1]), stand, clock, writer)
    stand, writer = open_run(tmp_path)
    with writer:
        assert grid.measure_grid(request(cases=CASES[:1]), stand, HostClock(), writer) == 0
        found = writer.of_kind(grid.LINE)[0]["contenders"]
    assert found["copy"]["status"] == "measured"
    assert found["ladder"]["status"] == "failed"
    assert "took the device along" in found["ladder"]["reason"]


def test_a_line_that_cannot_be_measured_at_all_is_a_record_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*args: Any, **options: Any) -> Any:
        raise MemoryError("64 GiB")

    monkeypatch.setattr(grid, "measure_line", no_memory)
    stand, writer = open_run(tmp_path)
    with writer:
        assert grid.measure_grid(request(), stand, HostClock(), writer) == 0
        assert [r["reason"] for r in writer.of_kind(grid.LINE)] == ["MemoryError: 64 GiB"] * 2


def test_16_bit_dlight_is_left_out(tmp_path: Path) -> None:
    asked = request(peers=("copy", "dlight", "ours"))
    for dtype, wanted in (("float32", ["copy", "dlight"]), ("bfloat16", ["copy"])):
        case = Case(operator="softmax", shape=(4, 32), dtype=dtype)
        found = grid._contenders(asked, case, {}, {}, MadeUpStand(tmp_path), "{}")  # type: ignore[arg-type]
        assert [c.name for c in found] == wanted


def test_peers_that_fail_beforehand_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def call(case: Case, name: str, place: Any) -> None:
        called.append(name)
        raise RuntimeError("no such library")

    monkeypatch.setattr(grid_warm, "_call", call)
    grid_warm._work(
        [(CASES[0], "liger"), (CASES[1], "quack")], grid_warm.Place(device="cpu", target="{}", folder="")
    )
    assert called == ["liger", "quack"]


def test_the_verb_runs_a_line_for_real_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid.jsonl"
    asked = ["bench", "--grid", "peers", "--target", "cuda", "--stand-in", "--out", str(out)]
    asked += ["--shapes", "8x40", "--operators", "rms_norm", "--dtypes", "bfloat16", "--cold-mb", "0.002"]
    asked += ["--peers", "copy,eager,ours", "--policies", "analytic,service", "--rounds", "3"]
    assert command([*asked, "--commit", "a" * 40]) == 0
    shown = capsys.readouterr()
    assert "| bfloat16 rms_norm 8×40 |" in shown.out
    assert "- service: no calibration" in shown.out
    records = read(out)
    (line,) = of_kind(records, grid.LINE)
    found = line["contenders"]
    assert {n: c["status"] for n, c in found.items()} == dict.fromkeys(
        ("copy", "eager", "analytic"), "measured"
    )
    assert all(len(c["samples_us"]) == 3 for c in found.values())
    assert line["plans"]["analytic"]["source_sha256"] == of_kind(records, "source")[0]["sha256"]
    # The same command again finds nothing left, and prints the same table.
    assert command([*asked, "--commit", "a" * 40, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert conforms(again, SCHEMAS["bench-peers"]) == []
    assert again["rows"][0]["ours"]["analytic"]["status"] == "measured"


def test_peers_that_take_too_long_beforehand_are_stopped() -> None:
    place = grid_warm.Place(device="cpu", target="{}", folder="")
    assert grid_warm.warm_up(CASES, ("copy", "ours"), place, workers=2, limit_s=0.0) == 0
    assert grid_warm.warm_up(CASES, ("eager",), place, workers=1, limit_s=0.0) == 1


def test_a_lost_device_has_an_exit_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*args: Any, **options: Any) -> int:
        raise DeviceLost("ladder: misaligned address")

    monkeypatch.setattr(grid, "measure_grid", lost)
    out = str(tmp_path / "grid.jsonl")
    assert grid.main(["--stand-in", "--out", out, "--commit", "a" * 40]) == grid.LOST
    assert "ladder: misaligned address; the same command goes on without it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs --out FILE"),
        (["--out", "x", "--peers", "cudnn"], "peers cudnn; known: copy, eager"),
        (["--out", "x", "--policies", ""], "measured with no policy"),
        (["--out", "x", "--shapes", "3by5"], "shape '3by5' is not read"),
        (["--out", "x", "--rounds", "0"], "rounds and the megabytes"),
    ],
)
def test_wrong_arguments_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["bench", "--grid", "peers", "--target", "cuda", "--stand-in", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
