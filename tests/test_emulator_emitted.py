"""The 24 report cases run on the CPU model on both back ends; any one barrier less is noticed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm

import tirx_reduce as tr
from tirx_reduce import emulator
from tirx_reduce.bench.cohorts import HELD_OUT_SHAPES, TRAINING_SHAPES
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.emulator.mutate import without_barriers

KINDS = ("metal", "cuda")
CASES = [
    (name, shape)
    for name in ("softmax", "rms_norm", "layer_norm")
    for shape in (*TRAINING_SHAPES, *HELD_OUT_SHAPES)
]
IDS = [f"{name}-{'x'.join(map(str, shape))}" for name, shape in CASES]
# Two groups show what a group does to another one; the mapping is that of all rows.
ROWS = 3


def target(kind: str) -> Any:
    return tvm.target.Target("metal" if kind == "metal" else {"kind": "cuda", "arch": "sm_90"})


@cache
def built(kind: str, name: str, shape: tuple[int, int], dtype: str = "float32") -> tuple[Any, tr.GroupPlan]:
    """The kernel of the whole launch's plan, for few rows."""
    workload = get_workload(name)
    plan = tr.plan(workload.func(shape, dtype), target(kind))
    func = tr.lower(workload.func((ROWS, shape[1]), dtype), replace(plan, subject=""))
    return tr.schedules.build(func, target(kind)), plan


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "shape"), CASES, ids=IDS)
def test_report_case_is_right_in_every_order(kind: str, name: str, shape: tuple[int, int]) -> None:
    executable, plan = built(kind, name, shape)
    workload = get_workload(name)
    small = (ROWS, shape[1])
    inputs, outputs = workload.inputs(small), workload.empty(small)
    done = emulator.emulate(executable, *inputs, *outputs)
    verdict = workload.verify(outputs, inputs)
    assert verdict.ok, verdict
    (counters,) = done.counters.values()
    assert counters.store_bytes["device"] == ROWS * shape[1] * 4
    assert (counters.barriers > 0) == (plan.width > 32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "shape"), CASES, ids=IDS)
def test_any_one_barrier_less_is_found(kind: str, name: str, shape: tuple[int, int]) -> None:
    executable, plan = built(kind, name, shape)
    workload = get_workload(name)
    small = (ROWS, shape[1])
    text = executable.mod.imports[0].inspect_source()
    mutants = without_barriers(text)
    assert mutants
    for mutant in mutants:
        names = [p.name for p in workload.func(small, "float32").params]
        arrays = dict(zip(names, (*workload.inputs(small), *workload.empty(small)), strict=True))
        with pytest.raises((emulator.DataRace, emulator.Uninitialized)):
            emulator.run_source(mutant.text, kind, arrays, ROWS, plan.width, orders=("random",))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numerics", ["fma", "fast"])
def test_numerics_stay_within_tolerance(kind: str, numerics: str) -> None:
    for name in ("softmax", "layer_norm"):
        executable, _ = built(kind, name, (37, 1537))
        workload = get_workload(name)
        inputs, outputs = workload.inputs((ROWS, 1537)), workload.empty((ROWS, 1537))
        emulator.emulate(executable, *inputs, *outputs, numerics=numerics, orders=("forward",))
        assert workload.verify(outputs, inputs).ok
        assert np.isfinite(outputs[0]).all()


def test_cluster_of_groups_is_right_and_needs_each_of_its_barriers() -> None:
    workload, shape, groups = get_workload("layer_norm"), (3, 4099), 4
    func = workload.func(shape, "float32")
    plan = tr.schedules.force(func, tr.Candidate(width=64, vector=4, splits=groups), target("cuda"))
    executable = tr.schedules.build(tr.lower(func, plan), target("cuda"))
    inputs, outputs = workload.inputs(shape), workload.empty(shape)
    done = emulator.emulate(executable, *inputs, *outputs)
    assert workload.verify(outputs, inputs).ok
    (counters,) = done.counters.values()
    assert counters.cluster_barriers == 3 * shape[0]
    names = [p.name for p in func.params]
    mutants = without_barriers(executable.mod.imports[0].inspect_source())
    assert len(mutants) >= 6
    for mutant in mutants:
        arrays = dict(zip(names, (*workload.inputs(shape), *workload.empty(shape)), strict=True))
        with pytest.raises((emulator.DataRace, emulator.Uninitialized, emulator.BarrierDivergence)):
            emulator.run_source(
                mutant.text, "cuda", arrays, shape[0] * groups, 64, cluster=groups, orders=("forward",)
            )
