"""Clocks: what CUDA is asked for, by a Torch that only takes notes; TVM's timer on the CPU."""

from __future__ import annotations

import sys
import types
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import tvm

from tirx_reduce.bench.clock import CudaSession, Kernel, TvmSession
from tirx_reduce.bench.measure import PHASES, Options, measure


class Notes:
    """A Torch whose device time is 10 µs a launch, and which refuses what real captures refuse."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now_us = 0.0
        self.capturing: list[int] | None = None
        self.side_stream = False
        self.cuda = types.SimpleNamespace(
            CUDAGraph=lambda: Graph(self),
            Event=lambda enable_timing: Event(self),
            Stream=lambda: "side",
            stream=lambda s: Side(self),
            synchronize=self._synchronize,
            _sleep=lambda cycles: self.log.append("sleep"),
        )
        self.profiler = types.SimpleNamespace()

    def _synchronize(self) -> None:
        assert self.capturing is None, "no synchronisation inside a capture"
        self.log.append("synchronize")

    def launch(self, x: int) -> None:
        self.log.append(f"launch {x}")
        if self.capturing is not None:
            self.capturing.append(x)
        else:
            self.now_us += 10.0


class Side:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __enter__(self) -> None:
        self.notes.side_stream = True

    def __exit__(self, *_: object) -> None:
        self.notes.side_stream = False


class Graph:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.launches: list[int] = []

    def capture_begin(self) -> None:
        assert self.notes.side_stream, "captures need a stream of their own"
        assert any(line.startswith("launch") for line in self.notes.log), "modules load before captures"
        self.notes.capturing = self.launches

    def capture_end(self) -> None:
        self.notes.capturing = None

    def replay(self) -> None:
        self.notes.log.append(f"replay {len(self.launches)}")
        self.notes.now_us += 10.0 * len(self.launches)


class Event:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.at_us = 0.0

    def record(self) -> None:
        self.at_us = self.notes.now_us

    def synchronize(self) -> None:
        self.notes.log.append("event")

    def elapsed_time(self, end: Event) -> float:
        return (end.at_us - self.at_us) / 1e3


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    import tvm_ffi

    found = Notes()
    monkeypatch.setitem(sys.modules, "torch", found)
    monkeypatch.setattr(tvm_ffi, "use_torch_stream", lambda c=None: c if c is not None else nullcontext())
    return found


def session(notes: Notes, sets: int = 1) -> CudaSession:
    operands = tuple((i,) for i in range(sets))
    return CudaSession(Kernel(module=None, entry="k", device=None, call=notes.launch, sets=operands))


def test_batches_replay_graphs_and_count_their_launches(notes: Notes) -> None:
    seconds, launches = session(notes).gpu_batch(100)
    assert launches == 128
    assert seconds / launches == pytest.approx(10e-6)
    assert notes.log.count("replay 64") == 1 + 2


@pytest.mark.parametrize(("count", "launches"), [(1, 1), (7, 7), (9, 8), (700, 512), (5000, 5120)])
def test_the_largest_graph_that_fits_is_replayed(notes: Notes, count: int, launches: int) -> None:
    assert session(notes).gpu_batch(count)[1] == launches


def test_cold_batches_are_whole_rotations(notes: Notes) -> None:
    _, launches = session(notes, sets=5).gpu_batch(64)
    assert launches == 65
    captured = [line for line in notes.log if line.startswith("launch")][5:70]
    assert captured == [f"launch {i % 5}" for i in range(65)]


def test_single_launches_hide_behind_a_spin(notes: Notes) -> None:
    assert session(notes).gpu_single() == pytest.approx(10e-6)
    assert notes.log[-4:] == ["synchronize", "sleep", "launch 0", "event"]


def test_all_phases_of_a_measurement(notes: Notes) -> None:
    found = measure(session(notes), Options(samples=3, batch_ms=2.0, warmup_ms=5.0))
    assert set(found.phases) == set(PHASES)
    assert found.phases["gpu_batch"].median_us == pytest.approx(10.0)
    captures = {line for line in notes.log if line.startswith("replay")}
    assert len(captures) <= 4


def test_tvms_timer_on_the_cpu() -> None:
    from tirx_reduce.bench.workloads import get_workload

    func = get_workload("softmax").func((8, 64))
    module: Any = tvm.compile(func, "llvm").mod
    operands = tuple(tvm.runtime.tensor(np.ones((8, 64), "float32")) for _ in range(2))
    kernel = Kernel(
        module=module, entry="softmax", device=tvm.cpu(0), call=module["softmax"], sets=(operands,)
    )
    found = measure(TvmSession(kernel), Options(samples=3, batch_ms=0.5, warmup_ms=1.0))
    assert set(found.phases) == set(PHASES)
    assert all(s > 0 for p in found.phases.values() for s in p.samples_us)
    assert TvmSession(kernel, local=False).phases == ("gpu_batch", "gpu_single")
