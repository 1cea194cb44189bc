"""What the rule, the pass or the Relax pipeline schedules, lowered by TVM's own TIR pipeline."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn
from tvm.s_tir import dlight as dl

import tirx_reduce as tr
from tests.launch import HOPPER
from tirx_reduce.bench.workloads import get_workload

TARGETS: dict[str, Any] = {"metal": "metal", "cuda": HOPPER}
BOTH = pytest.mark.parametrize("kind", TARGETS)


def scheduled(func: Any, target: Any, way: str) -> tvm.IRModule:
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with target:
        if way == "pass":
            scheduling: Any = tr.ScheduleReductions(policy="ladder")
            return scheduling(mod)
        return dl.ApplyDefaultSchedule(tr.RowReduction(policy="ladder"))(mod)


@BOTH
@pytest.mark.parametrize("way", ["pass", "rule"])
@pytest.mark.parametrize(("op", "columns"), [("softmax", 1000), ("layer_norm", 96), ("rms_norm", 6144)])
def test_rows_that_the_host_counts(op: str, columns: int, way: str, kind: str) -> None:
    """TVM puts barriers of its own into a kernel, and refuses to under a condition of the host."""
    workload, target = get_workload(op), tvm.target.Target(TARGETS[kind])
    func = workload.func((4, columns), "float32", symbolic_rows=True)
    built = tvm.compile(scheduled(func, target, way), target)
    for rows in (1, 5):
        inputs, outputs = workload.inputs((rows, columns)), workload.empty((rows, columns))
        tr.emulate(built, *inputs, *outputs, target=target)
        assert workload.verify(outputs, inputs).ok


@pytest.mark.parametrize(
    ("op", "shape", "dtype"),
    [("layer_norm", (4, 32768), "float32"), ("softmax", (16, 32768), "float16")],
)
def test_groups_of_a_cluster_get_mail_in_places_of_their_own(
    op: str, shape: tuple[int, int], dtype: str
) -> None:
    """TVM gives arrays whose uses do not overlap one place; another group may write into a mailbox before its use."""
    workload, target = get_workload(op), tvm.target.Target(HOPPER)
    mod = scheduled(workload.func(shape, dtype), target, "rule")
    inputs, outputs = workload.inputs(shape, dtype), workload.empty(shape, dtype)
    done = tr.emulate(tvm.compile(mod, target), *inputs, *outputs, target=target)
    assert "tirx_reduce_mailbox_send" in done.source
    assert workload.verify(outputs, inputs).ok


@BOTH
def test_the_relax_pipeline_alone(kind: str) -> None:
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return nn.op.softmax(x, axis=-1)

    spec = {"forward": {"x": nn.spec.Tensor(["rows", 256], "float32")}}
    mod, _ = Model().export_tvm(spec=spec)
    target = tvm.target.Target(TARGETS[kind], host="llvm")
    built = tvm.compile(mod, target, relax_pipeline="tirx_reduce")
    assert isinstance(built, relax.VMExecutable)
