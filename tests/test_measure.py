"""Measuring with a clock that does as it is told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, repeat

import pytest

from tirx_reduce.bench.clock import bandwidth_floor_us, rotations
from tirx_reduce.bench.measure import PHASES, NoValidTiming, Options, fault, measure
from tirx_reduce.errors import ReduceError


class FakeSession:
    """Each launch takes as long as its script says, then as long as `us`."""

    phases: tuple[str, ...] = (*PHASES, "instrumented")

    def __init__(self, us: float = 10.0, script: tuple[float, ...] = (), after: int = 0) -> None:
        self.us = us
        self.calls: list[tuple[str, int]] = []
        self._script: Iterator[float] = chain(repeat(us, after), script, repeat(us))

    def _next(self, phase: str, count: int) -> float:
        self.calls.append((phase, count))
        return next(self._script) * 1e-6 * count

    def gpu_batch(self, count: int) -> tuple[float, int]:
        return self._next("gpu_batch", count), count

    def end_to_end_batch(self, count: int) -> tuple[float, int]:
        return self._next("end_to_end_batch", count), count

    def gpu_single(self) -> float:
        return self._next("gpu_single", 1)

    def end_to_end_single(self) -> float:
        return self._next("end_to_end_single", 1)

    def instrumented(self, count: int) -> tuple[float, int]:
        return self._next("instrumented", count), count


OPTIONS = Options(samples=5, batch_ms=1.0, warmup_ms=4.0)


def warm_ups(session: FakeSession) -> int:
    measure(session, OPTIONS)
    return len([c for c in session.calls if c[0] == "gpu_batch"]) - OPTIONS.samples


def test_four_phases_apart_with_batches_of_the_asked_length() -> None:
    session = FakeSession(us=10.0)
    found = measure(session, OPTIONS)
    assert set(found.phases) == set(PHASES)
    assert found.phases["gpu_batch"].count == 100
    assert found.phases["end_to_end_batch"].count == 100
    assert found.phases["gpu_single"].count == 1
    assert all(len(p.samples_us) == 5 and not p.rejected for p in found.phases.values())
    assert found.phases["gpu_batch"].median_us == pytest.approx(10.0)


def test_warm_up_lasts_as_long_as_asked_and_is_kept() -> None:
    session = FakeSession(us=10.0)
    found = measure(session, OPTIONS)
    batches = [count for phase, count in session.calls if phase == "gpu_batch"][: len(found.warmup_us)]
    assert sum(batches) * 10e-3 >= 4.0
    assert max(batches) <= 100
    assert batches[:4] == [1, 2, 4, 8]


def test_a_slow_kernel_is_not_batched() -> None:
    found = measure(FakeSession(us=50_000.0), OPTIONS)
    assert found.phases["gpu_batch"].count == 1


@pytest.mark.parametrize(
    ("bad", "reason"),
    [(0.0, "not positive"), (-3.0, "not positive"), (math.nan, "not finite"), (math.inf, "not finite"),
     (0.5, "below 2 us")],
)  # fmt: skip
def test_impossible_samples_are_thrown_out_and_said_so(bad: float, reason: str) -> None:
    session = FakeSession(us=10.0, script=(bad, bad), after=warm_ups(FakeSession()))
    found = measure(session, OPTIONS, floor_us=2.0).phases["gpu_batch"]
    assert len(found.samples_us) == 3
    assert len(found.rejected) == 2
    assert all(reason in why for _, why in found.rejected)
    assert found.median_us == pytest.approx(10.0)


def test_nothing_valid_is_a_clean_error() -> None:
    session = FakeSession(us=10.0, script=(math.nan,) * 5, after=warm_ups(FakeSession()))
    with pytest.raises(NoValidTiming, match=r"gpu_batch: all 5 samples were thrown out \(not finite\)"):
        measure(session, OPTIONS)


def test_a_clock_that_stands_still_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(NoValidTiming, match="needs a clock that runs"):
        measure(FakeSession(us=0.0), OPTIONS)
    with pytest.raises(NoValidTiming, match="needs a clock that runs"):
        measure(FakeSession(us=math.nan), OPTIONS)


def test_a_faster_phase_is_never_subtracted() -> None:
    class Odd(FakeSession):
        def end_to_end_batch(self, count: int) -> tuple[float, int]:
            return 1e-6 * count, count

    found = measure(Odd(us=10.0), OPTIONS)
    assert found.phases["end_to_end_batch"].median_us == pytest.approx(1.0)
    assert found.phases["gpu_batch"].median_us == pytest.approx(10.0)


def test_diagnostic_timing_is_taken_only_where_asked_for() -> None:
    assert "instrumented" not in measure(FakeSession(), OPTIONS).phases
    asked = Options(samples=5, batch_ms=1.0, warmup_ms=4.0, diagnostic=True)
    assert "instrumented" in measure(FakeSession(), asked).phases


def test_phases_that_the_clock_lacks_are_left_out() -> None:
    session = FakeSession()
    session.phases = ("gpu_batch",)
    assert set(measure(session, OPTIONS).phases) == {"gpu_batch"}
    only_host = Options(phases=("end_to_end_single",))
    with pytest.raises(ReduceError, match="none of end_to_end_single can be measured here"):
        measure(session, only_host)


@pytest.mark.parametrize(
    ("field", "value"),
    [("samples", 0), ("batch_ms", 0.0), ("batch_ms", math.nan), ("warmup_ms", -1.0), ("phases", ("gpu",)),
     ("phases", ())],
)  # fmt: skip
def test_impossible_options_are_refused(field: str, value: object) -> None:
    with pytest.raises(ReduceError, match=r"phases|samples|_ms"):
        Options(**{field: value})  # type: ignore[arg-type]


def test_faults() -> None:
    assert fault(3.0, 2.0) is None
    assert fault(2.0, 2.0) is None
    assert fault(1.9, 2.0) == "below 2 us, which the bandwidth of the device allows"


def test_cold_runs_rotate_over_twice_the_cache() -> None:
    assert rotations(10, 0) == 1
    assert rotations(32 << 20, 60 << 20) == 5
    assert (rotations(32 << 20, 60 << 20) - 1) * (32 << 20) >= 2 * (60 << 20)
    assert rotations(1000, 60 << 20) == 64


def test_bandwidth_floor() -> None:
    assert bandwidth_floor_us(4_800_000, 4800.0) == pytest.approx(1.0)
    assert bandwidth_floor_us(4_800_000, 0.0) == 0.0
