"""Thread-block clusters and asynchronous copies: results are right, planted defects found in every order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import tvm

import tirx_reduce as tr
from tests.emulator_hopper import ASYNC, CLUSTER, COLUMNS, ROWS, SPLITS, WIDTH, changed, cuda, rows, turned
from tirx_reduce import emulator
from tirx_reduce.bench.workloads import get_workload

ORDERS = ("forward", "reverse", "random")


def run_cluster(text: str, orders: tuple[str, ...] = ORDERS, splits: int = SPLITS) -> emulator.Emulation:
    return emulator.run_source(
        cuda(text), "cuda", rows(), ROWS * SPLITS, WIDTH, orders=orders, cluster=splits
    )


def run_copies(text: str, orders: tuple[str, ...] = ORDERS) -> emulator.Emulation:
    return emulator.run_source(cuda(text), "cuda", turned(), 2, 64, orders=orders)


@pytest.mark.parametrize("numerics", ["plain", "fma", "fast"])
def test_cluster_is_right_and_counted(numerics: str) -> None:
    a = rows()
    done = emulator.run_source(
        cuda(CLUSTER), "cuda", a, ROWS * SPLITS, WIDTH, numerics=numerics, cluster=SPLITS
    )
    x = a["x_ptr"].astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(a["y_ptr"], expected, atol=4e-6)
    c = done.counters["rows_kernel"]
    assert c.cluster_barriers == 3 * ROWS
    assert c.barriers == 2 * ROWS * SPLITS
    # Two exchanges: in each, every group stores to all four; within a group, two subgroups to their slots.
    assert c.store_bytes["threadgroup"] == 2 * ROWS * SPLITS * (SPLITS + 2) * 4
    assert c.store_bytes["device"] == ROWS * COLUMNS * 4


def test_copies_are_right_and_counted() -> None:
    a = turned()
    done = emulator.run_source(cuda(ASYNC), "cuda", a, 2, 64)
    np.testing.assert_array_equal(a["y_ptr"], a["x_ptr"][:, ::-1])
    c = done.counters["turn_kernel"]
    assert (c.async_copies, c.async_bytes) == (2 * 128, 2 * 512 * 4)
    assert c.load_bytes["device"] == 2 * 512 * 4
    assert c.cluster_barriers == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One defect: what is changed, which fault must come, and what the line it names must hold."""

    name: str
    faults: tuple[type[emulator.EmulatorError], ...]
    edits: tuple[tuple[str, str], ...]
    line: str = ""
    buffer: str = ""


_RACE = (emulator.DataRace, emulator.Uninitialized)
_ARRIVE, _WAIT = "tirx_reduce_cluster_arrive();  // ", "tirx_reduce_cluster_wait();  // "
_PUT = "tirx_reduce_cluster_store_float32((&(across1[part])), total, TX);"
_PUT2 = _PUT.replace("across1", "across2").replace("total", "squares")

CLUSTERS = (
    Plant(
        name="store before the cluster has begun",
        faults=(emulator.DataRace,),
        edits=((_ARRIVE + "begun", ""), (_WAIT + "begun", "")),
        line="across1[part]",
        buffer="across1",
    ),
    Plant(
        name="store before the wait for the begin",
        faults=(emulator.DataRace,),
        edits=((_WAIT + "begun", ""), (_PUT + "\n  }\n", _PUT + "\n  }\n  " + _WAIT + "begun\n")),
        line="across1[part]",
        buffer="across1",
    ),
    Plant(
        name="no wait between the store and the fold",
        faults=_RACE,
        edits=((_WAIT + "sum", ""),),
        buffer="across1",
    ),
    Plant(
        name="no wait, and a barrier of the group in its place",
        faults=_RACE,
        edits=((_WAIT + "sum", "__syncthreads();"), ("float d = x", _WAIT + "\n  float d = x")),
        buffer="across1",
    ),
    Plant(
        name="no wait at the end",
        faults=_RACE,
        edits=((_WAIT + "squares", "__syncthreads();"),),
        buffer="across2",
    ),
    Plant(
        name="no arrival",
        faults=(emulator.BarrierDivergence,),
        edits=((_ARRIVE + "sum", ""),),
        line="cluster_wait",
    ),
    Plant(
        name="no arrival and no wait between collectives",
        faults=_RACE,
        edits=((_ARRIVE + "sum", ""), (_WAIT + "sum", "__syncthreads();")),
        buffer="across1",
    ),
    Plant(
        name="arrival before the store",
        faults=_RACE,
        edits=((_ARRIVE + "sum", ""), (_WAIT + "begun\n", _WAIT + "begun\n  " + _ARRIVE + "sum\n")),
        buffer="across1",
    ),
    Plant(
        name="a store of the group behind its arrival",
        faults=_RACE,
        edits=(
            ("__syncthreads();  // second inner", ""),
            (
                "  __shared__ alignas(64) float slots2[2];\n",
                "  __shared__ alignas(64) float slots2[2];\n  " + _ARRIVE + "\n",
            ),
            ("  float squares = slots2", "  " + _WAIT + "\n  float squares = slots2"),
        ),
        buffer="slots2",
    ),
    Plant(
        name="slots used again with no barrier between",
        faults=(emulator.DataRace,),
        edits=(
            (_PUT2, _PUT2.replace("across2", "across1")),
            ("(across2[0] + across2[1]) + (across2[2] + across2[3])", "across1[0]"),
        ),
        line="across1[part]), squares".replace(")", "))"),
        buffer="across1",
    ),
    Plant(
        name="rank beyond the cluster",
        faults=(emulator.OutOfBounds,),
        edits=((_PUT, _PUT.replace("TX", "TX + 1")),),
        line="TX + 1",
    ),
    Plant(
        name="wrong rank",
        faults=(emulator.DataRace, emulator.Uninitialized),
        edits=((_PUT, _PUT.replace("TX", "(TX & 2)")),),
        buffer="across1",
    ),
    Plant(
        name="wrong slot",
        faults=(emulator.DataRace,),
        edits=((_PUT, _PUT.replace("[part]", "[(part & 2)]")),),
        line="part & 2",
        buffer="across1",
    ),
    Plant(
        name="slot beyond the array",
        faults=(emulator.OutOfBounds,),
        edits=((_PUT, _PUT.replace("(&(across1[part]))", "(across1 + part + 1)")),),
        line="part + 1",
        buffer="across1",
    ),
    Plant(
        name="slot that is no shared memory",
        faults=(emulator.OutOfBounds,),
        edits=((_PUT, _PUT.replace("(&(across1[part]))", "(y_ptr + part)")),),
        line="y_ptr + part",
    ),
    Plant(
        name="one lane too few arrives",
        faults=(emulator.BarrierDivergence,),
        edits=((_ARRIVE + "squares", "if (TX != 5) tirx_reduce_cluster_arrive();"),),
        line="cluster_wait",
    ),
    Plant(
        name="a subgroup does not wait",
        faults=(*_RACE, emulator.BarrierDivergence),
        edits=((_WAIT + "squares", "if (TX < 32) tirx_reduce_cluster_wait();"),),
    ),
    Plant(
        name="one group leaves early",
        faults=(emulator.BarrierDivergence,),
        edits=(("  float d = x", "  if (part == 3) return;\n  float d = x"),),
        line="cluster_wait",
    ),
    Plant(
        name="two arrivals",
        faults=(emulator.BarrierDivergence,),
        edits=((_ARRIVE + "sum", "tirx_reduce_cluster_arrive();\n  tirx_reduce_cluster_arrive();"),),
        line="cluster_arrive",
    ),
    Plant(
        name="lanes of a subgroup arrive at different places",
        faults=(emulator.BarrierDivergence,),
        edits=(
            (
                _ARRIVE + "sum",
                "if (TX < 4) tirx_reduce_cluster_arrive();\n  else tirx_reduce_cluster_arrive();",
            ),
        ),
        line="cluster_arrive",
    ),
    Plant(
        name="store into a group that may have ended",
        faults=(emulator.DataRace,),
        edits=(
            (
                "  y_ptr[((BX",
                f"  if (TX < 4) {{ {_PUT} }}\n  y_ptr[((BX",
            ),
        ),
    ),
)


@pytest.mark.parametrize("plant", CLUSTERS, ids=[p.name for p in CLUSTERS])
def test_plant_in_a_cluster_is_found(plant: Plant) -> None:
    check_plant(plant, CLUSTER, "rows_kernel", run_cluster)


_FIRST = "(&(held[(TX * 4)]))"
_SOURCE = "(&(x_ptr[(base + (TX * 4))]))"
_ENDS = "  tirx_reduce_async_wait();\n"
_SYNC = "  __syncthreads();\n"

COPIES = (
    Plant(
        name="no wait",
        faults=(emulator.DataRace,),
        edits=((_ENDS, ""),),
        line="held[(511",
        buffer="held",
    ),
    Plant(
        name="read before the wait",
        faults=(emulator.DataRace,),
        edits=(
            (
                _ENDS,
                "  float early = held[(TX * 4)];\n" + _ENDS + "  if (early > 9.0f) return;\n",
            ),
        ),
        line="float early",
        buffer="held",
    ),
    Plant(
        name="overwritten before the wait",
        faults=(emulator.DataRace,),
        edits=((_ENDS, "  held[(TX * 4)] = 0.0f;\n" + _ENDS),),
        line="= 0.0f",
        buffer="held",
    ),
    Plant(
        name="no barrier behind the wait",
        faults=_RACE,
        edits=((_SYNC, ""),),
        line="held[(511",
        buffer="held",
    ),
    Plant(
        name="barrier before the wait",
        faults=_RACE,
        edits=((_ENDS + _SYNC, _SYNC + _ENDS),),
        line="held[(511",
        buffer="held",
    ),
    Plant(
        name="misaligned source",
        faults=(emulator.Misaligned,),
        edits=((_SOURCE, _SOURCE.replace("* 4))])", "* 4) + 1)])")),),
        line="* 4) + 1",
        buffer="x_ptr",
    ),
    Plant(
        name="misaligned destination",
        faults=(emulator.Misaligned,),
        edits=((_FIRST, _FIRST.replace("* 4)])", "* 4) + 2])")),),
        line="* 4) + 2",
        buffer="held",
    ),
    Plant(
        name="source past the end",
        faults=(emulator.OutOfBounds,),
        edits=((_SOURCE, _SOURCE.replace("* 4))])", "* 4) + 512)])")),),
        line="+ 512",
        buffer="x_ptr",
    ),
    Plant(
        name="destination past the end",
        faults=(emulator.OutOfBounds,),
        edits=((_FIRST, "(held + ((TX * 4) + 512))"),),
        line="+ 512",
        buffer="held",
    ),
    Plant(
        name="destination in device memory",
        faults=(emulator.OutOfBounds,),
        edits=((_FIRST, "(y_ptr + (TX * 4))"),),
        line="y_ptr +",
    ),
    Plant(
        name="source in shared memory",
        faults=(emulator.OutOfBounds,),
        edits=((_SOURCE, "(held + (TX * 4))"),),
        line="held + ",
    ),
    Plant(
        name="two copies to one place",
        faults=(emulator.DataRace,),
        edits=((_FIRST, "(&(held[((TX * 4) & 127)]))"),),
        line="& 127",
        buffer="held",
    ),
    Plant(
        name="source written before the wait",
        faults=(emulator.DataRace,),
        edits=((_ENDS, "  x_ptr[(base + (TX * 4))] = 3.0f;\n" + _ENDS),),
        line="tirx_reduce_async_wait",
        buffer="x_ptr",
    ),
    Plant(
        name="a copy that nobody waits for",
        faults=(emulator.DataRace,),
        edits=(
            (
                "  }\n}",
                "  }\n  __syncthreads();\n  tirx_reduce_async_copy_16((&(held[(TX * 4)])), x_ptr);\n}",
            ),
        ),
        line=")])), x_ptr)",
    ),
    Plant(
        name="copy over what others still read",
        faults=(emulator.DataRace,),
        edits=(
            (
                "  }\n}",
                "  }\n  tirx_reduce_async_copy_16((&(held[(TX * 4)])), x_ptr);\n" + _ENDS + "}",
            ),
        ),
        buffer="held",
    ),
    Plant(
        name="a place that no copy fills",
        faults=(emulator.Uninitialized,),
        edits=(
            (
                "tirx_reduce_async_copy_16(" + _FIRST,
                "if (TX != 9) tirx_reduce_async_copy_16(" + _FIRST,
            ),
        ),
        line="held[(511",
        buffer="held",
    ),
)


@pytest.mark.parametrize("plant", COPIES, ids=[p.name for p in COPIES])
def test_plant_in_copies_is_found(plant: Plant) -> None:
    check_plant(plant, ASYNC, "turn_kernel", run_copies)


def check_plant(plant: Plant, text: str, kernel: str, run: object) -> None:
    bad = changed(text, *plant.edits)
    assert callable(run)
    for order in ORDERS:
        with pytest.raises(plant.faults) as caught:
            run(bad, (order,))
        error = caught.value
        assert error.kernel == kernel
        assert error.order == order
        if plant.line:
            assert plant.line in bad.split("\n")[error.line - 1]
        if plant.buffer:
            assert error.buffer == plant.buffer
            assert error.offset is not None


def test_next_run_is_right_after_a_fault_among_copies() -> None:
    with pytest.raises(emulator.DataRace):
        run_copies(changed(ASYNC, (_ENDS, "")))
    a: dict[str, npt.NDArray[np.float32]] = turned(1)
    emulator.run_source(cuda(ASYNC), "cuda", a, 2, 64)
    np.testing.assert_array_equal(a["y_ptr"], a["x_ptr"][:, ::-1])


@pytest.mark.parametrize("splits", [0, 5, 32])
def test_cluster_that_the_grid_does_not_hold(splits: int) -> None:
    with pytest.raises(emulator.LimitExceeded, match="cluster"):
        run_cluster(CLUSTER, splits=splits)


def test_rank_from_the_register() -> None:
    text = changed(CLUSTER, ("(BX & 3)", "((int)tvm_builtin_cluster_ctaid_x())"))
    run_cluster(text)


STREAMING = """
#include <cstdint>
__device__ __forceinline__ void tirx_reduce_load_streaming(const void* there, void* here) {
  *(uint4*)here = __ldcs((const uint4*)there);
}
__device__ __forceinline__ void tirx_reduce_store_streaming(void* there, const void* here) {
  __stcs((uint4*)there, *(const uint4*)here);
}
extern "C" __global__ void __launch_bounds__(64) copy_kernel(float* __restrict__ x_ptr,
    float* __restrict__ y_ptr) {
  alignas(64) float kept[4];
  tirx_reduce_load_streaming((&(x_ptr[((BX * 256) + (TX * 4))])), (&(kept[0])));
  tirx_reduce_store_streaming((&(y_ptr[((BX * 256) + (TX * 4))])), (&(kept[0])));
}
"""


def test_streaming_accesses_are_of_16_bytes() -> None:
    a = turned()
    done = emulator.run_source(cuda(STREAMING), "cuda", a, 4, 64)
    np.testing.assert_array_equal(a["y_ptr"], a["x_ptr"])
    c = done.counters["copy_kernel"]
    assert (c.loads["device"], c.load_bytes["device"]) == (256, 4096)
    assert (c.stores["device"], c.store_bytes["device"]) == (256, 4096)


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (("x_ptr[((BX * 256) + (TX * 4))]", "x_ptr[((BX * 256) + (TX * 4)) + 2]"), emulator.Misaligned),
        (("x_ptr[((BX * 256) + (TX * 4))]", "x_ptr[((BX * 256) + (TX * 4)) + 4]"), emulator.OutOfBounds),
        (("y_ptr[((BX * 256) + (TX * 4))]", "y_ptr[((BX * 256) + (TX * 4)) + 4]"), emulator.OutOfBounds),
        (("y_ptr[((BX * 256) + (TX * 4))]", "y_ptr[(TX * 4)]"), emulator.WrittenTwice),
        (("  tirx_reduce_store", "  if (TX != 7) tirx_reduce_store"), emulator.NotWritten),
        (("  tirx_reduce_load", "  if (TX != 7) tirx_reduce_load"), emulator.Uninitialized),
    ],
)
@pytest.mark.parametrize("order", ORDERS)
def test_plant_in_streaming_accesses_is_found(
    edit: tuple[str, str], fault: type[emulator.EmulatorError], order: str
) -> None:
    head, body = STREAMING.split("copy_kernel", 1)
    with pytest.raises(fault):
        emulator.run_source(
            cuda(head + "copy_kernel" + changed(body, edit)), "cuda", turned(), 4, 64, orders=(order,)
        )


EMITTED = [
    ("softmax", 8192, tr.Candidate(width=64, vector=4, reuse="private", splits=4)),
    ("softmax", 1537, tr.Candidate(width=32, vector=1, reuse="shared", splits=8)),
    ("layer_norm", 8192, tr.Candidate(width=64, vector=4, reuse="private", splits=4)),
    ("layer_norm", 4099, tr.Candidate(width=96, vector=4, reuse="reload", splits=2)),
    ("rms_norm", 4096, tr.Candidate(width=32, vector=4, reuse="private", splits=16)),
    ("argmax", 4099, tr.Candidate(width=96, vector=4, reuse="reload", splits=2)),
]


@pytest.mark.parametrize(
    ("name", "columns", "candidate"), EMITTED, ids=[f"{n}-{c}-{d.reuse}" for n, c, d in EMITTED]
)
def test_emitted_cluster_is_right_in_every_order(name: str, columns: int, candidate: tr.Candidate) -> None:
    workload, shape = get_workload(name), (2, columns)
    func = workload.func(shape, "float32")
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    executable = tr.schedules.build(tr.lower(func, tr.schedules.force(func, candidate, target)), target)
    inputs, outputs = workload.inputs(shape), workload.empty(shape)
    done = emulator.emulate(executable, *inputs, *outputs)
    verdict = workload.verify(outputs, inputs)
    assert verdict.ok, verdict
    (counters,) = done.counters.values()
    assert counters.cluster_barriers >= 2 * shape[0]
