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
from tirx_reduce.emulator.mutate import with_looser_guards, without_barriers

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
    assert counters.cluster_barriers == shape[0]
    assert counters.mailbox_waits >= shape[0] * groups
    names = [p.name for p in func.params]
    mutants = without_barriers(executable.mod.imports[0].inspect_source())
    assert len(mutants) >= 6
    for mutant in mutants:
        arrays = dict(zip(names, (*workload.inputs(shape), *workload.empty(shape)), strict=True))
        with pytest.raises((emulator.DataRace, emulator.Uninitialized, emulator.BarrierDivergence)):
            emulator.run_source(
                mutant.text, "cuda", arrays, shape[0] * groups, 64, cluster=groups, orders=("forward",)
            )


@pytest.mark.parametrize("kind", KINDS)
def test_no_looser_guard_is_silently_wrong(kind: str) -> None:
    """A tail of 58 lanes in the third round, kept in registers: every change is found, or changes nothing."""
    workload, shape = get_workload("softmax"), (3, 1000)
    func = workload.func(shape, "float32")
    plan = tr.schedules.force(func, tr.Candidate(width=96, vector=4, reuse="private"), target(kind))
    text = tr.schedules.build(tr.lower(func, plan), target(kind)).mod.imports[0].inspect_source()
    names = [p.name for p in func.params]
    found = 0
    for mutant in with_looser_guards(text):
        inputs, outputs = workload.inputs(shape), workload.empty(shape)
        arrays = dict(zip(names, (*inputs, *outputs), strict=True))
        try:
            emulator.run_source(mutant.text, kind, arrays, shape[0], 96, orders=("forward",))
        except emulator.EmulatorError:
            found += 1
        else:
            assert workload.verify(outputs, inputs).ok, mutant
    assert found >= 2


def test_unscheduled_function_is_compiled_first() -> None:
    workload, shape = get_workload("rms_norm"), (3, 257)
    inputs, outputs = workload.inputs(shape), workload.empty(shape)
    done = tr.emulate(workload.func(shape, "float32"), *inputs, *outputs, target="metal", orders=("forward",))
    assert workload.verify(outputs, inputs).ok
    assert done.orders == ("forward",)
    limits = replace(tr.DeviceLimits(), max_threads=64)
    wide = tr.schedules.force(workload.func(shape, "float32"), tr.Candidate(width=96), target("metal"))
    executable = tr.schedules.build(tr.lower(workload.func(shape, "float32"), wide), target("metal"))
    with pytest.raises(emulator.LimitExceeded, match="96 threads in a group; 64 are allowed"):
        emulator.emulate(executable, *inputs, *outputs, limits=limits)


def test_cuda_by_name_is_the_same_device_for_a_plan_and_for_the_model() -> None:
    """Where no GPU answers it is sm_90; TVM's own default would be one without bfloat16."""
    workload = get_workload("layer_norm")
    func = workload.func((5, 129), "bfloat16")
    inputs, outputs = workload.inputs((5, 129), "bfloat16"), workload.empty((5, 129), "bfloat16")
    ran = tr.emulate(tr.lower(func, tr.plan(func, "cuda")), *inputs, *outputs, target="cuda")
    assert workload.verify(outputs, inputs).ok
    assert "tirx_reduce_begin" in ran.source
