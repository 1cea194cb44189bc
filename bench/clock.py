"""Clocks: how launches are timed on CUDA (graphs and events), through TVM's own timer, and on the host.

A kernel goes in, a `measure.Session` comes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tirx_reduce.bench.measure import DIAGNOSTIC, PHASES

GRAPH_LAUNCHES = (1, 8, 64, 512)
"""Launches of a CUDA graph; longer batches replay the largest that fits, so that capturing stays cheap."""
SPIN_CYCLES = 200_000
"""About 0.1 ms of one multiprocessor: the host runs ahead, and a single launch is timed without its gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A loaded function with its operands: one set of them when warm, several when cold."""

    module: Any
    """TVM module; None for a Torch operation."""
    entry: str
    device: Any
    call: Callable[..., Any]
    sets: tuple[tuple[Any, ...], ...]

    def launch(self, index: int) -> None:
        """Launch once, on the operands whose turn it is."""
        self.call(*self.sets[index % len(self.sets)])


class CudaSession:
    """CUDA events round graph replays; end to end without a graph, on Torch's stream."""

    phases: tuple[str, ...] = (*PHASES, DIAGNOSTIC)

    def __init__(self, kernel: Kernel) -> None:
        import torch

        self._torch: Any = torch
        self._kernel = kernel
        self._graphs: dict[int, Any] = {}
        with self._stream():
            # Before any capture: modules load at their first launch, which a capture does not allow.
            for i in range(len(kernel.sets)):
                kernel.launch(i)
        torch.cuda.synchronize()

    def _stream(self, context: Any = None) -> AbstractContextManager[Any]:
        import tvm_ffi

        use: Any = tvm_ffi.use_torch_stream
        stream: AbstractContextManager[Any] = use(context)
        return stream

    def _graph(self, launches: int) -> Any:
        if launches not in self._graphs:
            graph = self._torch.cuda.CUDAGraph()
            # Not `torch.cuda.graph`: entering that collects garbage, which takes longer than the samples.
            self._torch.cuda.synchronize()
            with self._stream(self._torch.cuda.stream(self._torch.cuda.Stream())):
                graph.capture_begin()
                for i in range(launches):
                    self._kernel.launch(i)
                graph.capture_end()
            self._graphs[launches] = graph
            graph.replay()
            self._torch.cuda.synchronize()
        return self._graphs[launches]

    def _events(self, run: Callable[[], None]) -> float:
        start = self._torch.cuda.Event(enable_timing=True)
        end = self._torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def gpu_batch(self, count: int) -> tuple[float, int]:
        """Device time of graph replays, gaps between the launches included."""
        sets = len(self._kernel.sets)
        # Whole rotations, so that every replay starts where the last one ended.
        launches = -(-max(n for n in GRAPH_LAUNCHES if n <= count) // sets) * sets
        graph = self._graph(launches)
        replays = max(1, round(count / launches))

        def run() -> None:
            for _ in range(replays):
                graph.replay()

        return self._events(run), launches * replays

    def end_to_end_batch(self, count: int) -> tuple[float, int]:
        """Host time of plain launches and one synchronisation."""
        with self._stream():
            self._torch.cuda.synchronize()
            start = time.perf_counter()
            for i in range(count):
                self._kernel.launch(i)
            self._torch.cuda.synchronize()
            return time.perf_counter() - start, count

    def gpu_single(self) -> float:
        """Events round one launch behind a spin."""
        with self._stream():
            self._torch.cuda.synchronize()
            self._torch.cuda._sleep(SPIN_CYCLES)
            return self._events(lambda: self._kernel.launch(0))

    def end_to_end_single(self) -> float:
        """Host time of one launch and its synchronisation."""
        with self._stream():
            self._torch.cuda.synchronize()
            start = time.perf_counter()
            self._kernel.launch(0)
            self._torch.cuda.synchronize()
            return time.perf_counter() - start

    def instrumented(self, count: int) -> tuple[float, int]:
        """Kernel times of Torch's profiler, gaps left out."""
        from torch.profiler import ProfilerActivity, profile

        with self._stream(), profile(activities=[ProfilerActivity.CUDA]) as trace:
            for i in range(count):
                self._kernel.launch(i)
            self._torch.cuda.synchronize()
        kernels = [e for e in trace.events() if str(e.device_type).endswith("CUDA")]
        return sum(float(e.device_time) for e in kernels) / 1e6, count


@dataclass(slots=True)
class TvmSession:
    """TVM's own timer of the device: Metal, a device behind RPC, or the CPU.

    Its Metal timer includes submission, so batches have to be large. Host times are taken only where the
    device is this machine's.
    """

    kernel: Kernel
    local: bool = True
    phases: tuple[str, ...] = field(init=False)
    counters: list[str] = field(default_factory=list)
    """What TVM's Metal runtime counted in each batch: dispatches, flushes, synchronisations."""

    def __post_init__(self) -> None:
        self.phases = PHASES if self.local else ("gpu_batch", "gpu_single")

    def _timed(self, count: int) -> float:
        kernel = self.kernel
        timer = kernel.module.time_evaluator(kernel.entry, kernel.device, number=count, repeat=1)
        return float(timer(*kernel.sets[0]).results[0])

    def gpu_batch(self, count: int) -> tuple[float, int]:
        """Device time of `count` launches in one batch."""
        reset, read = _metal_counters() if self.local else (None, None)
        if len(self.kernel.sets) > 1:
            return self.end_to_end_batch(count)
        if reset is not None:
            reset()
        seconds = self._timed(count) * count
        if read is not None:
            self.counters.append(str(read()))
        return seconds, count

    def end_to_end_batch(self, count: int) -> tuple[float, int]:
        """Host time of plain launches and one synchronisation."""
        self.kernel.device.sync()
        start = time.perf_counter()
        for i in range(count):
            self.kernel.launch(i)
        self.kernel.device.sync()
        return time.perf_counter() - start, count

    def gpu_single(self) -> float:
        """Device time of one launch, submission included."""
        return self._timed(1)

    def end_to_end_single(self) -> float:
        """Host time of one launch and its synchronisation."""
        return self.end_to_end_batch(1)[0]

    def instrumented(self, count: int) -> tuple[float, int]:
        """Not offered by this timer."""
        raise NotImplementedError("TVM's timer has no instrumented mode")


@dataclass(slots=True)
class HostSession:
    """The host's clock round synchronised launches, for Torch on devices without CUDA events."""

    kernel: Kernel
    synchronize: Callable[[], None]
    phases: tuple[str, ...] = ("gpu_batch", "end_to_end_batch", "gpu_single", "end_to_end_single")

    def end_to_end_batch(self, count: int) -> tuple[float, int]:
        """Host time of a batch."""
        self.synchronize()
        start = time.perf_counter()
        for i in range(count):
            self.kernel.launch(i)
        self.synchronize()
        return time.perf_counter() - start, count

    def end_to_end_single(self) -> float:
        """Host time of one launch."""
        return self.end_to_end_batch(1)[0]

    def gpu_batch(self, count: int) -> tuple[float, int]:
        """Host time: this device offers no timer of its own."""
        return self.end_to_end_batch(count)

    def gpu_single(self) -> float:
        """Host time: this device offers no timer of its own."""
        return self.end_to_end_single()

    def instrumented(self, count: int) -> tuple[float, int]:
        """Not offered."""
        raise NotImplementedError("the host's clock has no instrumented mode")


class MpsSession(HostSession):
    """Torch on Metal: events round a batch, as Torch offers them."""

    def gpu_batch(self, count: int) -> tuple[float, int]:
        """Device time between two MPS events."""
        import torch

        start, end = (torch.mps.event.Event(enable_timing=True) for _ in range(2))
        self.synchronize()
        start.record()
        for i in range(count):
            self.kernel.launch(i)
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) / 1e3, count

    def gpu_single(self) -> float:
        """Device time of one launch."""
        return self.gpu_batch(1)[0]


def _metal_counters() -> tuple[Any, Any]:
    import tvm_ffi

    reset = tvm_ffi.get_global_func("metal.ResetProfileCounters", allow_missing=True)
    read = tvm_ffi.get_global_func("metal.GetProfileCounters", allow_missing=True)
    return reset, read


def rotations(set_bytes: int, cache_bytes: int, *, at_most: int = 64) -> int:
    """Sets of operands for a cold run: twice the last-level cache lies between two uses of one."""
    if cache_bytes <= 0:
        return 1
    return max(2, min(at_most, -(-2 * cache_bytes // max(1, set_bytes)) + 1))


def bandwidth_floor_us(bytes_moved: int, gigabytes_per_second: float) -> float:
    """Least time for `bytes_moved`, or 0 where the bandwidth is not known."""
    return bytes_moved / (gigabytes_per_second * 1e3) if gigabytes_per_second > 0 else 0.0
