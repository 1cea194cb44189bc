"""A grid line with contenders and a clock that do as they are told, and what the CUDA clock asks of CUDA."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tirx_reduce.bench.build import Built, Case
from tirx_reduce.bench.grid_clock import GraphClock, HostClock
from tirx_reduce.bench.grid_lines import DTYPES, lines
from tirx_reduce.bench.grid_measure import (
    Contender,
    DeviceLost,
    Method,
    Rotation,
    measure_line,
    the_build,
    the_copy,
)
from tirx_reduce.bench.grid_operands import (
    check,
    copied_bytes,
    draw_inputs,
    empty_outputs,
    references,
    rotation,
    spoil,
)
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError

CASE = Case(operator="softmax", shape=(8, 32))
FAST = Method(rounds=4, cold_bytes=3000.0)


class ToldClock(HostClock):
    """Time goes on only when a launch says so."""

    def __init__(self) -> None:
        super().__init__(lambda: self.seconds_gone)
        self.seconds_gone = 0.0
        self.lost = False

    def alive(self) -> bool:
        return not self.lost


def softmax_like(
    clock: ToldClock, name: str, us: float, log: list[str], *, into_given: bool = False, wrong: bool = False
) -> Contender:
    def open_(operands: Rotation) -> Callable[[int], tuple[Any, ...]]:
        def launch(i: int) -> tuple[Any, ...]:
            clock.seconds_gone += us * 1e-6
            if i == 0:
                log.append(name)
            result = torch.softmax(operands.inputs[i % len(operands.inputs)].tensors[0], -1)
            result = result * 1.01 if wrong else result
            if not into_given:
                return (result,)
            out = operands.outputs[i % len(operands.outputs)].tensors
            out[0].copy_(result)
            return out

        return launch

    return Contender(name=name, open=open_)


def test_a_line_times_every_contender_in_every_round_by_launch() -> None:
    clock, log = ToldClock(), list[str]()
    line = measure_line(
        CASE,
        [softmax_like(clock, "peer", 3.0, log), softmax_like(clock, "ladder", 2.0, log, into_given=True)],
        clock,
        FAST,
    )
    found = line["contenders"]
    assert found["peer"]["samples_us"] == pytest.approx([3.0] * 4)
    assert found["ladder"]["samples_us"] == pytest.approx([2.0] * 4)
    assert line["launches"] >= 40
    assert line["launches"] % line["sets"] == 0
    # Recording and checking replay each once; the rounds that follow change who is first.
    assert log[4:] == ["peer", "ladder", "ladder", "peer", "peer", "ladder", "ladder", "peer"]


def test_the_position_of_a_line_changes_who_is_first() -> None:
    clock, log = ToldClock(), list[str]()
    pair = [softmax_like(clock, "peer", 3.0, log), softmax_like(clock, "ladder", 2.0, log)]
    measure_line(CASE, pair, clock, FAST, position=1)
    assert log[4:6] == ["ladder", "peer"]


def test_cold_outputs_are_all_alive_and_distinct() -> None:
    clock = ToldClock()
    kept: list[int] = []

    def open_(operands: Rotation) -> Callable[[int], tuple[Any, ...]]:
        assert len(operands.outputs) == operands.launches
        assert len({o.matrices.data_ptr() for o in operands.outputs}) == operands.launches

        def launch(i: int) -> tuple[Any, ...]:
            clock.seconds_gone += 1e-6
            result = torch.softmax(operands.inputs[i % len(operands.inputs)].tensors[0], -1)
            kept.append(result.data_ptr())
            return (result,)

        return launch

    line = measure_line(CASE, [Contender(name="peer", open=open_)], clock, FAST)
    last_replay = kept[-line["launches"] :]
    assert len(set(last_replay)) == line["launches"]


def test_warm_runs_use_one_set() -> None:
    clock = ToldClock()
    line = measure_line(
        CASE,
        [softmax_like(clock, "ladder", 2.0, [], into_given=True)],
        clock,
        Method(rounds=3, regime="warm"),
    )
    assert (line["sets"], line["launches"], line["regime"]) == (1, 40, "warm")


def test_a_wrong_result_is_not_timed() -> None:
    clock = ToldClock()
    line = measure_line(CASE, [softmax_like(clock, "peer", 3.0, [], wrong=True)], clock, FAST)
    found = line["contenders"]["peer"]
    assert found["status"] == "failed"
    assert found["reason"].startswith("wrong result")
    assert "samples_us" not in found


def test_launches_that_a_recording_misses_are_seen() -> None:
    clock = ToldClock()
    calls = [0]

    def open_(operands: Rotation) -> Callable[[int], tuple[Any, ...]]:
        def launch(i: int) -> tuple[Any, ...]:
            calls[0] += 1
            out = operands.outputs[i % len(operands.outputs)].tensors
            if calls[0] <= operands.launches:  # as a kernel on another stream than the captured one
                out[0].copy_(torch.softmax(operands.inputs[i % len(operands.inputs)].tensors[0], -1))
            return out

        return launch

    line = measure_line(CASE, [Contender(name="ladder", open=open_)], clock, FAST)
    assert line["contenders"]["ladder"]["reason"] == "wrong result: inf of what is allowed"


def test_what_a_contender_raises_is_kept_and_the_others_go_on() -> None:
    clock = ToldClock()

    def absent(operands: Rotation) -> Callable[[int], tuple[Any, ...]]:
        raise ModuleNotFoundError("No module named 'quack'")

    def refuses(operands: Rotation) -> Callable[[int], tuple[Any, ...]]:
        raise ReduceError("liger has no masked_softmax")

    line = measure_line(
        CASE,
        [
            Contender(name="quack", open=absent),
            Contender(name="liger", open=refuses),
            the_build("ladder", lambda: Built(key="k", error="nvrtc said no"), lambda built: None, 1.0),
            softmax_like(clock, "eager", 3.0, []),
        ],
        clock,
        FAST,
    )
    found = line["contenders"]
    assert (found["quack"]["status"], found["liger"]["status"]) == ("absent", "refused")
    assert found["ladder"] == {"status": "failed", "reason": "ReduceError: build: nvrtc said no"}
    assert found["eager"]["status"] == "measured"


def test_a_lost_device_ends_the_line_and_names_who_ran() -> None:
    clock = ToldClock()
    begun: list[str] = []

    def faults(operands: Rotation) -> Callable[[int], tuple[Any, ...]]:
        clock.lost = True
        raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(DeviceLost, match=r"ladder: RuntimeError: an illegal memory access"):
        measure_line(CASE, [Contender(name="ladder", open=faults)], clock, FAST, before=begun.append)
    assert begun == ["ladder"]


def test_times_that_the_bandwidth_does_not_allow_are_thrown_out() -> None:
    clock = ToldClock()
    method = Method(rounds=3, cold_bytes=3000.0, gigabytes_per_second=1.0)  # 2048 bytes take 2.048 us
    line = measure_line(
        CASE,
        [softmax_like(clock, "fast", 2.0, []), softmax_like(clock, "slow", 2.1, [])],
        clock,
        method,
    )
    assert line["contenders"]["fast"]["status"] == "failed"
    assert "bandwidth" in line["contenders"]["fast"]["reason"]
    assert line["contenders"]["slow"]["samples_us"] == pytest.approx([2.1] * 3)


def test_the_copy_is_checked_as_well() -> None:
    line = measure_line(CASE, [the_copy(CASE)], HostClock(), FAST)
    assert line["contenders"]["copy"]["status"] == "measured"
    assert line["copied_bytes"] == 2 * 8 * 32 * 4


@pytest.mark.parametrize("case", lines(groups=("table",))[::7], ids=lambda c: c.label)
def test_a_cold_rotation_is_larger_than_any_cache_or_has_64_sets(case: Case) -> None:
    sets, launches = rotation(case)
    workload = get_workload(case.operator)
    outputs = copied_bytes(case) // 2
    inputs = workload.bytes_moved(case.shape, case.dtype) - outputs
    assert sets == 64 or sets * inputs >= 300e6
    assert launches >= 40
    assert launches % sets == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("operator", "shape"),
    [
        ("softmax", (5, 33)),
        ("rms_norm", (5, 33)),
        ("layer_norm", (5, 33)),
        ("add_rms_norm", (5, 33)),
        ("masked_softmax", (2, 3, 5, 33)),
    ],
)
def test_the_reference_on_the_device_is_the_workloads_own(
    operator: str, shape: tuple[int, ...], dtype: str
) -> None:
    case = Case(operator=operator, shape=shape, dtype=dtype)
    tensors = draw_inputs(case, "cpu", seed=3).tensors
    # Through float32, which holds every bfloat16: NumPy has no such dtype of its own.
    arrays = tuple(t.to(torch.float32).numpy() for t in tensors)
    ours = references(case, tensors)
    theirs = get_workload(operator).expected(arrays)
    assert len(ours[0]) == len(theirs)
    for a, b in zip(ours[0], theirs, strict=True):
        assert torch.allclose(a, torch.from_numpy(b), rtol=1e-9, atol=1e-12)


def test_a_rounded_sum_is_right_as_well() -> None:
    case = Case(operator="add_rms_norm", shape=(4, 64), dtype="bfloat16")
    x, residual, weight = draw_inputs(case, "cpu", seed=0).tensors
    total = x + residual
    outputs = (total, torch.nn.functional.rms_norm(total, (64,), weight, 1e-5))
    assert check(case, outputs, references(case, (x, residual, weight)), 1.0)["ok"]


def test_a_missing_row_is_seen() -> None:
    inputs = draw_inputs(CASE, "cpu", seed=0).tensors
    wanted = references(CASE, inputs)
    outputs = empty_outputs(CASE, "cpu").tensors
    outputs[0].copy_(wanted[0][0])
    assert check(CASE, outputs, wanted, 1.0)["ok"]
    spoil([outputs[0][3]])
    assert check(CASE, outputs, wanted, 1.0) == {
        "ok": False,
        "share": "inf",
        "allowed": check(CASE, outputs, wanted, 1.0)["allowed"],
    }


class FakeCuda:
    """Writes down what a clock asks of CUDA."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import tvm_ffi

        fake = self

        class Graph:
            def capture_begin(self, **options: Any) -> None:
                fake.log.append(f"begin {options['capture_error_mode']}")

            def capture_end(self) -> None:
                fake.log.append("end")

            def replay(self) -> None:
                fake.log.append("replay")

        class Event:
            def __init__(self, **options: Any) -> None:
                assert options == {"enable_timing": True}

            def record(self) -> None:
                fake.log.append("event")

            def synchronize(self) -> None:
                fake.log.append("wait")

            def elapsed_time(self, other: Any) -> float:
                return 5.0

        @contextmanager
        def on_stream(stream: Any) -> Any:
            fake.log.append("enter")
            yield
            fake.log.append("leave")

        monkeypatch.setattr(torch.cuda, "Stream", lambda: "stream")
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: fake.log.append("synchronize"))
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: fake.log.append("spin"))
        monkeypatch.setattr(tvm_ffi, "use_torch_stream", on_stream)


def test_the_cuda_clock_captures_after_plain_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    GraphClock().record(lambda i: cuda.log.append(str(i)), 4)
    assert cuda.log == [
        *("synchronize", "enter", "0", "1", "2", "leave", "synchronize"),
        *("enter", "begin thread_local", "0", "1", "2", "3", "end", "leave"),
    ]


def test_the_cuda_clock_ends_a_capture_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)

    def launch(i: int) -> None:
        if "begin thread_local" in cuda.log:
            raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        GraphClock().record(launch, 4)
    assert cuda.log[-1] == "end"


def test_the_cuda_clock_times_the_second_of_two_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    clock = GraphClock()
    graph = clock.record(lambda i: None, 1)
    cuda.log.clear()
    assert clock.seconds(graph) == pytest.approx(5e-3)
    assert cuda.log == ["spin", "replay", "event", "replay", "event", "wait"]
