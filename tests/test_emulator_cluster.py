"""Thread-block clusters on the CPU model: results are right, planted defects found in every order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator_hopper import (
    CLUSTER,
    COLUMNS,
    ORDERS,
    RACE,
    ROWS,
    SPLITS,
    WIDTH,
    Plant,
    changed,
    check_plant,
    cuda,
    rows,
)
from tirx_reduce import emulator


def run_cluster(text: str, orders: tuple[str, ...] = ORDERS, splits: int = SPLITS) -> emulator.Emulation:
    return emulator.run_source(
        cuda(text), "cuda", rows(), ROWS * SPLITS, WIDTH, orders=orders, cluster=splits
    )


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
        faults=RACE,
        edits=((_WAIT + "sum", ""),),
        buffer="across1",
    ),
    Plant(
        name="no wait, and a barrier of the group in its place",
        faults=RACE,
        edits=((_WAIT + "sum", "__syncthreads();"), ("float d = x", _WAIT + "\n  float d = x")),
        buffer="across1",
    ),
    Plant(
        name="no wait at the end",
        faults=RACE,
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
        faults=RACE,
        edits=((_ARRIVE + "sum", ""), (_WAIT + "sum", "__syncthreads();")),
        buffer="across1",
    ),
    Plant(
        name="arrival before the store",
        faults=RACE,
        edits=((_ARRIVE + "sum", ""), (_WAIT + "begun\n", _WAIT + "begun\n  " + _ARRIVE + "sum\n")),
        buffer="across1",
    ),
    Plant(
        name="a store of the group behind its arrival",
        faults=RACE,
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
        faults=(*RACE, emulator.BarrierDivergence),
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


@pytest.mark.parametrize("splits", [0, 5, 32])
def test_cluster_that_the_grid_does_not_hold(splits: int) -> None:
    with pytest.raises(emulator.LimitExceeded, match="cluster"):
        run_cluster(CLUSTER, splits=splits)


def test_rank_from_the_register() -> None:
    text = changed(CLUSTER, ("(BX & 3)", "((int)tvm_builtin_cluster_ctaid_x())"))
    run_cluster(text)


@pytest.mark.parametrize("order", ORDERS)
def test_dependent_launch_touches_nothing_before_it_begins(order: str) -> None:
    late = changed(
        CLUSTER,
        ("  tirx_reduce_begin();\n", ""),
        ("  float s = x;\n", "  tirx_reduce_begin();\n  float s = x;\n"),
    )
    for text in (late, changed(CLUSTER, ("  tirx_reduce_begin();\n", ""))):
        run = (cuda(text), "cuda", rows(), ROWS * SPLITS, WIDTH)
        emulator.run_source(*run, orders=(order,), cluster=SPLITS)
        with pytest.raises(emulator.DataRace, match="tirx_reduce_begin") as caught:
            emulator.run_source(*run, orders=(order,), cluster=SPLITS, dependent=True)
        assert caught.value.buffer == "x_ptr"
    emulator.run_source(
        cuda(CLUSTER), "cuda", rows(), ROWS * SPLITS, WIDTH, orders=(order,), cluster=SPLITS, dependent=True
    )
