"""Clocks of the grid: many launches recorded once, then replayed and timed as a whole."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

Launch = Callable[[int], None]
SPIN_CYCLES = 200_000
"""About 0.1 ms of one multiprocessor, so that the host is ahead of the device when the timing starts."""


class Clock(Protocol):
    """Where launches run and how they are timed."""

    device: str
    """Torch's name of it."""

    def record(self, launch: Launch, count: int) -> Any:
        """`launch(0)` … `launch(count - 1)`, ready to be replayed."""
        ...

    def replay(self, recorded: Any) -> None:
        """Run all of them, and wait for the end."""
        ...

    def seconds(self, recorded: Any) -> float:
        """Device time of one replay that follows another."""
        ...

    def alive(self) -> bool:
        """Whether the device still answers: a kernel that faults takes the process's context with it."""
        ...

    def release(self) -> None:
        """Give unused memory back."""
        ...


class GraphClock:
    """One CUDA graph for each recording; CUDA events round a replay."""

    device = "cuda"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._stream: Any = torch.cuda.Stream()

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        import tvm_ffi

        use: Any = tvm_ffi.use_torch_stream
        with self._torch.no_grad(), use(self._torch.cuda.stream(self._stream)):
            yield

    def record(self, launch: Launch, count: int) -> Any:
        """Capture the launches, after a few plain ones: modules load then, which a capture forbids."""
        # The operands were drawn on another stream.
        self._torch.cuda.synchronize()
        with self._on_stream():
            for i in range(min(count, 3)):
                launch(i)
        self._torch.cuda.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        # Not `torch.cuda.graph`: entering that collects garbage, which takes longer than the samples.
        with self._on_stream():
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for i in range(count):
                    launch(i)
            except BaseException:
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph

    def replay(self, recorded: Any) -> None:
        """Replay once."""
        recorded.replay()
        self._torch.cuda.synchronize()

    def seconds(self, recorded: Any) -> float:
        """Events round a replay right behind another of the same graph.

        The first leaves the cache as this graph leaves it, dirty lines included: nobody pays for what the
        contender before has not yet written back.
        """
        start = self._torch.cuda.Event(enable_timing=True)
        end = self._torch.cuda.Event(enable_timing=True)
        self._torch.cuda._sleep(SPIN_CYCLES)
        recorded.replay()
        start.record()
        recorded.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def alive(self) -> bool:
        """A synchronisation tells."""
        try:
            self._torch.cuda.synchronize()
        except Exception:  # whatever it raises, the context is gone
            return False
        return True

    def release(self) -> None:
        """Blocks of dropped graphs go back to the driver."""
        self._torch.cuda.empty_cache()


class HostClock:
    """The stand-in: launches run on the CPU, and a given clock, the host's by default, times them."""

    device = "cpu"

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now

    def record(self, launch: Launch, count: int) -> Any:
        """Run them once, as a capture's warm-up does."""

        def run() -> None:
            import torch

            with torch.no_grad():
                for i in range(count):
                    launch(i)

        run()
        return run

    def replay(self, recorded: Any) -> None:
        """Run all launches."""
        recorded()

    def seconds(self, recorded: Any) -> float:
        """Host time of a run."""
        start = self._now()
        recorded()
        return self._now() - start

    def alive(self) -> bool:
        """The CPU always is."""
        return True

    def release(self) -> None:
        """Nothing is held."""
