"""Thread-block clusters on the CPU model: results are right, planted defects found in every order."""

from __future__ import annotations

import pytest

from tests.emulator_hopper import (
    CLUSTER,
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


_ARRIVE, _WAIT = "tirx_reduce_cluster_arrive();  // begun", "tirx_reduce_cluster_wait();  // begun"

CLUSTERS = (
    Plant(
        name="no arrival",
        faults=(emulator.BarrierDivergence,),
        edits=((_ARRIVE, ""),),
        line="cluster_wait",
    ),
    Plant(
        name="one lane too few arrives",
        faults=(emulator.BarrierDivergence,),
        edits=((_ARRIVE, "if (TX != 5) " + _ARRIVE),),
        line="cluster_wait",
    ),
    Plant(
        name="one lane too few waits",
        faults=(emulator.BarrierDivergence,),
        edits=((_WAIT, "if (TX != 45) " + _WAIT),),
    ),
    Plant(
        name="a subgroup does not wait",
        faults=(emulator.DataRace,),
        edits=((_WAIT, "if (TX < 32) " + _WAIT),),
        line="across2",
        buffer="box2",
    ),
    Plant(
        name="two arrivals",
        faults=(emulator.BarrierDivergence,),
        edits=((_ARRIVE, _ARRIVE + "\n  tirx_reduce_cluster_arrive();"),),
        line="cluster_arrive",
    ),
    Plant(
        name="lanes of a subgroup arrive at different places",
        faults=(emulator.BarrierDivergence,),
        edits=((_ARRIVE, "if (TX < 4) tirx_reduce_cluster_arrive();\n  else tirx_reduce_cluster_arrive();"),),
        line="cluster_arrive",
    ),
    Plant(
        name="lanes of a subgroup wait at different places",
        faults=(emulator.BarrierDivergence,),
        edits=((_WAIT, "if (TX < 4) tirx_reduce_cluster_wait();\n  else tirx_reduce_cluster_wait();"),),
        line="cluster_wait",
    ),
    Plant(
        name="one group leaves before it arrives",
        faults=(emulator.BarrierDivergence,),
        edits=((_ARRIVE, "if (BX & 1) return;\n  " + _ARRIVE),),
        line="cluster_wait",
    ),
    Plant(
        name="a barrier of the group between lanes of which some wait for the cluster",
        faults=(emulator.BarrierDivergence,),
        edits=(
            (_ARRIVE, "if (TX < 32) __syncthreads();\n  " + _ARRIVE),
            ("__syncthreads();  // inner", ""),
            (_WAIT, ""),
            ("  float total = slots1", f"  if (TX >= 32) {_WAIT}\n  float total = slots1"),
        ),
    ),
    Plant(
        name="shared memory of the group, ordered by the cluster barrier alone",
        faults=RACE,
        edits=(
            ("__syncthreads();  // inner", ""),
            (_ARRIVE, ""),
            (f"  {_WAIT}\n", ""),
            ("  float total = slots1", f"  {_ARRIVE}\n  {_WAIT}\n  float total = slots1"),
        ),
        buffer="slots1",
    ),
    Plant(
        name="device memory of another group, ordered by the cluster barrier alone",
        faults=(emulator.DataRace,),
        edits=(
            (_ARRIVE, "y_ptr[((BX * 64) + TX)] = 1.0f;\n  " + _ARRIVE),
            ("  float d = x", "  float other = y_ptr[(((BX ^ 1) * 64) + TX)];\n  float d = x * other"),
        ),
        buffer="y_ptr",
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
