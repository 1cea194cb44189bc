"""Timings of one kernel in four separate phases, which are never subtracted from each other.

A `Session` (see `clock`) goes in; raw samples, warm-ups and what was thrown out come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from tirx_reduce.bench.statistics import median
from tirx_reduce.errors import ReduceError

PHASES = ("gpu_batch", "end_to_end_batch", "gpu_single", "end_to_end_single")
"""Device time of a batch, host time of a batch, and the same of single launches, each by launch."""
DIAGNOSTIC = "instrumented"
"""Per-kernel timing by a profiler; never decides anything."""
MAX_BATCH = 200_000
"""Launches of one sample."""


class NoValidTiming(ReduceError):
    """Every sample of a phase was thrown out."""


class Session(Protocol):
    """One kernel, ready to be launched and timed. Times are seconds for all launches together."""

    phases: tuple[str, ...]
    """What this clock can measure."""

    def gpu_batch(self, count: int) -> tuple[float, int]:
        """Device time of a batch of about `count` launches, and how many there were."""
        ...

    def end_to_end_batch(self, count: int) -> tuple[float, int]:
        """Host time from the first launch of a batch to the end of its last."""
        ...

    def gpu_single(self) -> float:
        """Device time of one launch."""
        ...

    def end_to_end_single(self) -> float:
        """Host time of one launch and its end."""
        ...

    def instrumented(self, count: int) -> tuple[float, int]:
        """Sum of kernel times by the profiler, and how many launches that was."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How long and how often to measure."""

    samples: int = 5
    batch_ms: float = 10.0
    """Aimed length of one sample of a batch phase."""
    warmup_ms: float = 100.0
    """Least length of the warm-up before the first sample."""
    phases: tuple[str, ...] = PHASES
    diagnostic: bool = False
    """Instrumented timing too."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ReduceError(f"samples is {self.samples}; needs 1 or more")
        for name in ("batch_ms", "warmup_ms"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (name == "batch_ms" and value == 0):
                raise ReduceError(f"{name} is {value!r}; needs a finite number above 0")
        unknown = [p for p in self.phases if p not in PHASES]
        if unknown or not self.phases:
            raise ReduceError(f"phases {unknown or 'are none'}; known: {', '.join(PHASES)}")


SEARCH = Options(samples=5, batch_ms=10.0, warmup_ms=100.0)
COLLECT = Options(samples=5, batch_ms=10.0, warmup_ms=100.0)
REPLAY = Options(samples=9, batch_ms=30.0, warmup_ms=200.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Samples of one phase, by launch, in µs."""

    count: int
    """Launches of one sample."""
    samples_us: tuple[float, ...]
    """Valid ones, in order."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Thrown out: the value as text (it may be NaN), and why."""

    @property
    def median_us(self) -> float:
        """Median of the valid samples."""
        return median(self.samples_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All phases of one measurement."""

    phases: Mapping[str, Phase]
    warmup_us: tuple[float, ...]
    """By launch, of each warm-up batch, in order."""
    floor_us: float
    """Least time that the device's bandwidth allows."""

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "phases": {name: asdict(phase) for name, phase in self.phases.items()},
            "warmup_us": list(self.warmup_us),
            "floor_us": self.floor_us,
        }


def measure(session: Session, options: Options, *, floor_us: float = 0.0) -> Timing:
    """Warm up, then take every phase that the session has.

    Parameters
    ----------
    session
        The kernel and its clock.
    options
        Samples, lengths, phases.
    floor_us
        Samples below it are thrown out: no device moves the bytes that fast.

    Raises
    ------
    NoValidTiming
        No sample of some phase is left.
    """
    wanted = tuple(p for p in options.phases if p in session.phases)
    if not wanted:
        raise ReduceError(f"none of {', '.join(options.phases)} can be measured here")
    warm, launch_s = _warm_up(session, options)
    count = _batch(options.batch_ms / 1e3, launch_s)
    found: dict[str, Phase] = {}
    for name in wanted:
        found[name] = _phase(name, _sampler(session, name, count), options.samples, floor_us)
    if options.diagnostic and DIAGNOSTIC in session.phases:
        found[DIAGNOSTIC] = _phase(DIAGNOSTIC, lambda: session.instrumented(min(count, 64)), 3, 0.0)
    return Timing(phases=found, warmup_us=tuple(s * 1e6 for s in warm), floor_us=floor_us)


def _warm_up(session: Session, options: Options) -> tuple[list[float], float]:
    """Batches of doubling length until the warm-up is over; the last one tells how long a launch takes."""
    run = session.gpu_batch if "gpu_batch" in session.phases else session.end_to_end_batch
    # Doubling up to the batch takes fewer than 32 of them; a clock that needs many more stands still.
    most = 64 + 4 * math.ceil(options.warmup_ms / options.batch_ms)
    spent, count, each = 0.0, 1, []
    while True:
        seconds, launches = run(count)
        per_launch = seconds / launches
        each.append(per_launch)
        usable = math.isfinite(seconds) and seconds > 0
        spent += seconds if usable else 0.0
        if spent >= options.warmup_ms / 1e3 and usable:
            return each, per_launch
        if len(each) >= most:
            raise NoValidTiming(
                f"warm-up: {len(each)} batches took {spent * 1e3:.3g} ms by this clock; "
                "needs a clock that runs"
            )
        # No longer than a sample is to be, or a slow kernel would warm up for minutes.
        room = _batch(options.batch_ms / 1e3, per_launch) if usable else MAX_BATCH
        count = max(1, min(count * 2, room))


def _batch(seconds: float, launch_s: float) -> int:
    return max(1, min(MAX_BATCH, round(min(seconds / launch_s, MAX_BATCH))))


def _sampler(session: Session, name: str, count: int) -> Callable[[], tuple[float, int]]:
    if name == "gpu_batch":
        return lambda: session.gpu_batch(count)
    if name == "end_to_end_batch":
        return lambda: session.end_to_end_batch(count)
    if name == "gpu_single":
        return lambda: (session.gpu_single(), 1)
    return lambda: (session.end_to_end_single(), 1)


def _phase(name: str, sample: Callable[[], tuple[float, int]], samples: int, floor_us: float) -> Phase:
    valid: list[float] = []
    rejected: list[tuple[str, str]] = []
    launches = 1
    for _ in range(samples):
        seconds, launches = sample()
        us = seconds * 1e6 / launches
        reason = fault(us, floor_us)
        if reason is None:
            valid.append(us)
        else:
            rejected.append((repr(us), reason))
    if not valid:
        reasons = "; ".join(dict.fromkeys(reason for _, reason in rejected))
        raise NoValidTiming(f"{name}: all {samples} samples were thrown out ({reasons})")
    return Phase(count=launches, samples_us=tuple(valid), rejected=tuple(rejected))


def fault(us: float, floor_us: float) -> str | None:
    """Why a time cannot be true, or None."""
    if not math.isfinite(us):
        return "not finite"
    if us <= 0:
        return "not positive"
    if us < floor_us:
        return f"below {floor_us:.4g} us, which the bandwidth of the device allows"
    return None


def rejected_samples(timing: Timing) -> int:
    """How many samples of all phases were thrown out."""
    return sum(len(phase.rejected) for phase in timing.phases.values())


def only(options: Options, *phases: str) -> Options:
    """The same options for fewer phases."""
    return replace(options, phases=phases)
