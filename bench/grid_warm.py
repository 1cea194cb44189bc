"""Calls of peers in other processes beforehand: what they compile then lies in their caches on disk."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.peers import DLIGHT, PEERS
from tirx_reduce.bench.stock import DLIGHT_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where peers are called and dlight builds."""

    device: str
    """Torch's name."""
    target: str
    """JSON of the TVM target."""
    folder: str
    stand_in: bool = False


def warm_up(
    cases: Sequence[Case], names: Sequence[str], place: Place, *, workers: int, limit_s: float
) -> int:
    """Call every peer once at every case, in parallel; how many processes were stopped at the limit.

    What fails here fails again where it is measured, and is recorded there.
    """
    tasks = [
        (case, name)
        for case in cases
        for name in names
        if name in PEERS or (name == DLIGHT and case.dtype in DLIGHT_DTYPES)
    ]
    count = min(workers, len(tasks))
    if count == 0:
        return 0
    context = multiprocessing.get_context("spawn")
    # One slice a process: a peer that crashes or hangs takes only its own slice along.
    processes = [
        context.Process(target=_work, args=(tasks[i::count], place), daemon=True) for i in range(count)
    ]
    for process in processes:
        process.start()
    end = time.monotonic() + limit_s
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    late = [p for p in processes if p.is_alive()]
    for process in late:
        process.terminate()
        process.join()
    return len(late)


def _work(tasks: Sequence[tuple[Case, str]], place: Place) -> None:
    for case, name in tasks:
        try:
            _call(case, name, place)
        except Exception:
            continue


def _call(case: Case, name: str, place: Place) -> None:
    if name == DLIGHT:
        from tirx_reduce.bench.stock import build_stock

        build_stock(case, place.target, Path(place.folder), stand_in=place.stand_in)
        return
    import torch

    from tirx_reduce.bench.grid_operands import draw_inputs

    for peer in PEERS[name]:
        ready = peer.make(case)
        with torch.no_grad():
            ready.call(ready.adapt(draw_inputs(case, place.device, seed=0).tensors))
    if place.device == "cuda":
        torch.cuda.synchronize()
