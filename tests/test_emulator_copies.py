"""Asynchronous copies and streaming accesses on the CPU model: planted defects are found in every order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator_hopper import ASYNC, ORDERS, QUEUE, RACE, Plant, changed, check_plant, cuda, turned
from tirx_reduce import emulator


def run_copies(text: str, orders: tuple[str, ...] = ORDERS) -> emulator.Emulation:
    return emulator.run_source(cuda(text), "cuda", turned(), 2, 64, orders=orders)


def test_copies_are_right_and_counted() -> None:
    a = turned()
    done = emulator.run_source(cuda(ASYNC), "cuda", a, 2, 64)
    np.testing.assert_array_equal(a["y_ptr"], a["x_ptr"][:, ::-1])
    c = done.counters["turn_kernel"]
    assert (c.async_copies, c.async_bytes) == (2 * 128, 2 * 512 * 4)
    assert c.load_bytes["device"] == 2 * 512 * 4
    assert c.cluster_barriers == 0


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
        faults=RACE,
        edits=((_SYNC, ""),),
        line="held[(511",
        buffer="held",
    ),
    Plant(
        name="barrier before the wait",
        faults=RACE,
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


def test_next_run_is_right_after_a_fault_among_copies() -> None:
    with pytest.raises(emulator.DataRace):
        run_copies(changed(ASYNC, (_ENDS, "")))
    a = turned(1)
    emulator.run_source(cuda(ASYNC), "cuda", a, 2, 64)
    np.testing.assert_array_equal(a["y_ptr"], a["x_ptr"][:, ::-1])


def test_copies_end_in_the_order_of_their_groups() -> None:
    a = turned()
    emulator.run_source(cuda(QUEUE), "cuda", a, 2, 64)
    np.testing.assert_array_equal(a["y_ptr"], a["x_ptr"])


_QUEUE_WAIT = "  tirx_reduce_async_wait_but_2();\n"
_QUEUE_COMMIT = "  tirx_reduce_async_commit();\n"
GROUPS = (
    Plant(
        name="read before its group",
        faults=(emulator.DataRace,),
        edits=(("(held + (TX * 4));", "(held + ((TX * 4) + 256));  // early"),),
        line="// early",
        buffer="held",
    ),
    Plant(
        name="a group fewer committed",
        faults=(emulator.DataRace,),
        edits=((_QUEUE_COMMIT + _QUEUE_COMMIT + _QUEUE_WAIT, _QUEUE_COMMIT + _QUEUE_WAIT),),
        line="(held + (TX * 4));",
        buffer="held",
    ),
    Plant(
        name="no second wait",
        faults=(emulator.DataRace,),
        edits=(
            (
                _QUEUE_COMMIT + _QUEUE_WAIT + "  *(float4*)(y_ptr + ((base",
                _QUEUE_COMMIT + "  *(float4*)(y_ptr + ((base",
            ),
        ),
        line="(held + ((TX * 4) + 256));",
        buffer="held",
    ),
    Plant(
        name="what is not committed",
        faults=(emulator.DataRace,),
        edits=(
            (
                "  tirx_reduce_async_commit();\n  tirx_reduce_async_wait_but_2();\n  *(float4*)(y_ptr + ((base",
                "  tirx_reduce_async_copy_16((&(held[((TX * 4) + 512)])), x_ptr);\n"
                + _QUEUE_COMMIT
                + _QUEUE_WAIT
                + "  *(float4*)(y_ptr + ((base",
            ),
        ),
        line="+ 512)])), x_ptr",
    ),
)


@pytest.mark.parametrize("plant", GROUPS, ids=[p.name for p in GROUPS])
def test_plant_in_groups_of_copies_is_found(plant: Plant) -> None:
    check_plant(plant, QUEUE, "turn_kernel", run_copies)


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
