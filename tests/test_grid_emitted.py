"""What `ladder` emits for the lines of the peers' grid passes the CPU model on both targets, few rows of each.

The mapping is that of the whole launch; the rows are those of one group and one left over. Groups that stay do not come
to a second row here; `test_resident.py` has shorter rows and several turns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tvm

import tirx_reduce as tr
from tirx_reduce import emulator
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.grid_lines import lines
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.values import Candidate, GroupPlan

TARGETS: dict[str, Any] = {"metal": "metal", "cuda": {"kind": "cuda", "arch": "sm_90"}}
BOTH = pytest.mark.parametrize("kind", TARGETS)
# Packed rows, odd columns, a row over a cluster or over launches, one kept in shared memory, two outputs, a mask.
FEW = (
    Case(operator="softmax", shape=(37, 1537)),
    Case(operator="layer_norm", shape=(37, 1537), dtype="bfloat16"),
    Case(operator="rms_norm", shape=(32768, 256), dtype="bfloat16"),
    Case(operator="layer_norm", shape=(64, 12289)),
    Case(operator="softmax", shape=(8, 131072)),
    Case(operator="rms_norm", shape=(256, 131072), dtype="bfloat16"),
    Case(operator="add_rms_norm", shape=(256, 3072), dtype="bfloat16"),
    Case(operator="masked_softmax", shape=(8, 16, 256, 256), dtype="bfloat16"),
)


def run(case: Case, kind: str, **how: Any) -> None:
    target = tvm.target.Target(TARGETS[kind])
    func = get_workload(case.operator).func(case.shape, case.dtype)
    emulate(case, tr.plan(func, target, policy="ladder"), target, **how)


def emulate(case: Case, plan: GroupPlan, target: Any, **how: Any) -> None:
    workload = get_workload(case.operator)
    rows = min(case.rows, plan.candidate.packing * plan.candidate.rows + 1)
    small = (*(1 for _ in case.shape[:-2]), rows, case.shape[-1])
    func = tr.lower(workload.func(small, case.dtype), replace(plan, subject=""))
    inputs, outputs = workload.inputs(small, case.dtype), workload.empty(small, case.dtype)
    done = emulator.emulate(tr.schedules.build(func, target), *inputs, *outputs, limits=plan.limits, **how)
    verdict = workload.verify(outputs, inputs)
    assert verdict.ok, (plan.candidate, verdict)
    # Each element of the results is stored once, and nothing else but what launches hand over.
    stored = sum(c.store_bytes["device"] for c in done.counters.values())
    least = sum(a.nbytes for a in outputs)
    assert stored == least if len(done.kernels) == 1 else stored > least


@pytest.mark.parametrize("operator", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_over_launches_is_right_on_metal(operator: str, dtype: str) -> None:
    """A mapping that is legal there, and that no policy takes."""
    case, target = Case(operator=operator, shape=(8, 131072), dtype=dtype), tvm.target.Target("metal")
    candidate = Candidate(width=512, vector=4, reuse="reload", splits=4, merged=operator != "rms_norm")
    func = get_workload(operator).func(case.shape, dtype)
    emulate(case, tr.schedules.force(func, candidate, target), target, orders=("random",))


def name_of(case: Case) -> str:
    return case.label.replace(" ", "-")


@BOTH
@pytest.mark.parametrize("case", FEW, ids=name_of)
def test_a_line_of_the_grid_is_right(case: Case, kind: str) -> None:
    run(case, kind, orders=("random",))


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("case", lines(), ids=name_of)
def test_every_line_of_the_grid_is_right_in_every_order(case: Case, kind: str) -> None:
    run(case, kind)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("case", lines(), ids=name_of)
def test_every_line_of_the_grid_is_right_under_fast_math(case: Case, kind: str) -> None:
    run(case, kind, orders=("forward",), numerics="fast")


@BOTH
def test_the_few_are_lines_of_the_grid_and_hold_each_kind_of_mapping(kind: str) -> None:
    assert set(FEW) <= set(lines())
    target = tvm.target.Target(TARGETS[kind])
    found = [
        tr.plan(get_workload(c.operator).func(c.shape, c.dtype), target, policy="ladder").candidate
        for c in FEW
    ]
    assert {c.packing > 1 for c in found} == {True, False}
    assert {c.splits > 1 for c in found} == ({True, False} if kind == "cuda" else {False})
    assert {c.vector for c in found} == ({1, 2, 4, 8} if kind == "cuda" else {1, 4})
