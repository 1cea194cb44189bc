"""The planner's demand is what the plain captured form really does, counted as it runs on the CPU model."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

import tirx_reduce as tr
from tirx_reduce import emulator, facts
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.cost import features
from tirx_reduce.device import limits_for
from tirx_reduce.schedules import planning
from tirx_reduce.values import Candidate, Features

KINDS = ("metal", "cuda")
ROWS = 3
# Vectors of the columns, loaded once a row in the last walk.
WEIGHTS = {"softmax": 0, "rms_norm": 1, "layer_norm": 2}


def run(kind: str, name: str, candidate: Candidate, columns: int) -> tuple[emulator.Counters, Features]:
    """What the plain form of a candidate does, and what the planner says that it asks for."""
    target: Any = tvm.target.Target("metal" if kind == "metal" else {"kind": "cuda", "arch": "sm_90"})
    workload, shape = get_workload(name), (ROWS, columns)
    func = workload.func(shape, "float32")
    limits = limits_for(target, None, None)
    reading = facts.read(func)
    executable = tr.schedules.build(planning._lowered(reading, candidate, limits, plain=True), target)
    inputs, outputs = workload.inputs(shape), workload.empty(shape)
    done = emulator.emulate(executable, *inputs, *outputs, orders=("forward",))
    assert workload.verify(outputs, inputs).ok
    (counters,) = done.counters.values()
    demand = features(candidate, planning.capture(reading, limits)[candidate.reuse], ROWS, columns, limits)
    return counters, demand


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("reuse", ["reload", "private"])
@pytest.mark.parametrize(("width", "vector", "columns"), [(64, 4, 1024), (96, 2, 768)])
def test_demand_is_exact_at_whole_rounds(
    kind: str, name: str, reuse: str, width: int, vector: int, columns: int
) -> None:
    counters, demand = run(kind, name, Candidate(width=width, vector=vector, reuse=reuse), columns)
    moved = counters.load_bytes["device"] + counters.store_bytes["device"]
    assert moved == ROWS * demand.program_global_access_bytes
    assert moved == ROWS * width * demand.worker_global_access_bytes
    # A collective of whole subgroups is five exchanges in each.
    assert counters.collectives == ROWS * demand.reductions * demand.subgroups_per_program * 5
    packets = ROWS * columns // vector
    assert counters.stores["device"] == packets
    if reuse == "reload":
        rounds = (counters.loads["device"] - WEIGHTS[name] * packets) // (ROWS * width) * vector
        assert rounds == demand.scalar_rounds


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize(("width", "vector", "columns"), [(64, 4, 1000), (32, 4, 257), (96, 2, 97)])
def test_the_difference_elsewhere_is_padding(
    kind: str, name: str, width: int, vector: int, columns: int
) -> None:
    counters, demand = run(kind, name, Candidate(width=width, vector=vector, reuse="reload"), columns)
    moved = counters.load_bytes["device"] + counters.store_bytes["device"]
    assert moved == ROWS * demand.program_global_access_bytes
    per_column = demand.program_global_access_bytes // columns
    padded = -(-columns // (width * vector)) * width * vector
    assert ROWS * width * demand.worker_global_access_bytes - moved == ROWS * (padded - columns) * per_column
