"""Groups of a cluster exchange by mail on the CPU model: results are right, planted defects found in every order."""

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
from tirx_reduce.emulator.mutate import without_barriers

RACE_ONLY = (emulator.DataRace,)
STARVED = (emulator.BarrierDivergence,)


def run_mail(text: str, orders: tuple[str, ...] = ORDERS, numerics: str = "plain") -> emulator.Emulation:
    a = rows()
    done = emulator.run_source(
        cuda(text), "cuda", a, ROWS * SPLITS, WIDTH, orders=orders, numerics=numerics, cluster=SPLITS
    )
    x = a["x_ptr"].astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(a["y_ptr"], expected, atol=4e-6)
    return done


@pytest.mark.parametrize("numerics", ["plain", "fma", "fast"])
def test_exchange_is_right_and_counted(numerics: str) -> None:
    c = run_mail(CLUSTER, numerics=numerics).counters["rows_kernel"]
    assert c.cluster_barriers == ROWS
    assert c.barriers == ROWS * SPLITS
    assert c.mailbox_waits == 2 * ROWS * SPLITS
    # A group stores two partial sums, sends one to each of four groups, and then two to each.
    assert c.store_bytes["threadgroup"] == ROWS * SPLITS * (2 + SPLITS + 2 * SPLITS) * 4
    assert c.store_bytes["device"] == ROWS * COLUMNS * 4


_OPEN1, _OPEN2 = "tirx_reduce_mailbox_open((&(box1[0])), 16);", "tirx_reduce_mailbox_open((&(box2[0])), 32);"
_ARRIVE, _WAIT = "tirx_reduce_cluster_arrive();  // begun", "tirx_reduce_cluster_wait();  // begun"
_SEND1 = "tirx_reduce_mailbox_send_float32((&(across1[part])), total, (&(box1[0])), TX);"
_SEND2 = "(&(across2[((part * 2) + (TX >> 5))])), q, (&(box2[0])), (TX % 32))"
_MAIL1 = "tirx_reduce_mailbox_wait((&(box1[0])));  // sum"
_MAIL2 = "tirx_reduce_mailbox_wait((&(box2[0])));  // squares"
_SLOTS1 = "  __shared__ alignas(64) float across1[4];\n"

RIGHT = {
    "one lane waits, then a barrier of the group": (
        (_MAIL1, "if (TX == 37) tirx_reduce_mailbox_wait((&(box1[0])));\n  __syncthreads();"),
    ),
    "one lane of each subgroup waits, then a barrier of the subgroup": (
        (_MAIL2, "if ((TX % 32) == 9) tirx_reduce_mailbox_wait((&(box2[0])));\n  __syncwarp();"),
    ),
    "one lane of each subgroup waits, then a barrier of the group": (
        (_MAIL2, "if ((TX % 32) == 9) tirx_reduce_mailbox_wait((&(box2[0])));\n  __syncthreads();"),
    ),
    "two waits on one mailbox": ((_MAIL1, _MAIL1 + "\n  tirx_reduce_mailbox_wait((&(box1[0])));"),),
    "each mailbox is opened by a lane of its own": (
        ("    " + _OPEN2, "  }\n  if (TX == 35) {\n    " + _OPEN2),
    ),
    "both mailboxes in one array": (
        ("uint64_t box1[1];", "uint64_t box1[2];"),
        ("  __shared__ alignas(64) uint64_t box2[1];\n", ""),
        (_OPEN2, _OPEN2.replace("box2[0]", "box1[1]")),
        (_SEND2, _SEND2.replace("box2[0]", "box1[1]")),
        (_MAIL2, _MAIL2.replace("box2[0]", "box1[1]")),
    ),
    "slots that this group alone used before, with barriers between, for what it sends to itself": (
        (_SLOTS1, _SLOTS1 + "  if (TX == part) across1[part] = total;\n  __syncthreads();\n"),
        ("if (TX < 4) {\n    tirx", "if (TX < 4 && TX != part) {\n    tirx"),
        (_OPEN1, _OPEN1.replace("16", "12")),
    ),
    "slots used anew by the lanes that have waited": (
        (_MAIL1, _MAIL1),
        ("  float d = x", "  __syncthreads();\n  if (TX < 4) across1[TX] = sum;\n  float d = x"),
    ),
}


@pytest.mark.parametrize("edits", RIGHT.values(), ids=RIGHT.keys())
def test_other_right_exchange(edits: tuple[tuple[str, str], ...]) -> None:
    run_mail(changed(CLUSTER, *edits))


PLANTS = (
    Plant(
        name="a mailbox that nobody opens",
        faults=RACE_ONLY,
        edits=((_OPEN1, ""),),
        line="(&(box1[0]))",
        buffer="box1",
    ),
    Plant(
        name="opening behind the arrival",
        faults=RACE_ONLY,
        edits=((_OPEN1, ""), (_ARRIVE, _ARRIVE + "\n  if (TX == 0) " + _OPEN1)),
        line="tirx_reduce_mailbox_send_float32((&(across1",
        buffer="box1",
    ),
    Plant(
        name="no cluster wait",
        faults=RACE_ONLY,
        edits=((_WAIT, ""),),
        line="tirx_reduce_mailbox_send_float32((&(across1",
        buffer="box1",
    ),
    Plant(
        name="no cluster barrier",
        faults=RACE_ONLY,
        edits=((_ARRIVE, ""), (_WAIT, "")),
        line="tirx_reduce_mailbox_send_float32((&(across1",
        buffer="box1",
    ),
    Plant(
        name="send before the cluster wait",
        faults=RACE_ONLY,
        edits=((_WAIT, ""), (_MAIL1, "tirx_reduce_cluster_wait();\n  " + _MAIL1)),
        line="tirx_reduce_mailbox_send_float32((&(across1",
        buffer="box1",
    ),
    Plant(
        name="a barrier of the group in place of the cluster wait",
        faults=RACE_ONLY,
        edits=((_WAIT, "__syncthreads();"),),
        line="tirx_reduce_mailbox_send_float32((&(across1",
        buffer="box1",
    ),
    Plant(name="no wait on the first mailbox", faults=RACE, edits=((_MAIL1, ""),), buffer="across1"),
    Plant(name="no wait on the second mailbox", faults=RACE, edits=((_MAIL2, ""),), buffer="across2"),
    Plant(
        name="a barrier of the group in place of a wait",
        faults=RACE,
        edits=((_MAIL1, "__syncthreads();"),),
        buffer="across1",
    ),
    Plant(
        name="one subgroup does not wait",
        faults=RACE,
        edits=((_MAIL1, "if (TX < 32) " + _MAIL1),),
        buffer="across1",
    ),
    Plant(
        name="one lane waits for its subgroup without a barrier",
        faults=RACE,
        edits=((_MAIL2, "if ((TX % 32) == 0) " + _MAIL2),),
        buffer="across2",
    ),
    Plant(
        name="a barrier of the subgroup where the lane that waits is in the other one",
        faults=RACE,
        edits=((_MAIL1, "if (TX == 0) " + _MAIL1 + "\n  __syncwarp();"),),
        buffer="across1",
    ),
    Plant(
        name="a wait on the wrong mailbox",
        faults=STARVED,
        edits=((_MAIL1, "tirx_reduce_mailbox_wait((&(box2[0])));"),),
        line="tirx_reduce_mailbox_wait",
        buffer="box2",
    ),
    Plant(
        name="a wait before the send",
        faults=STARVED,
        edits=((_MAIL1, ""), (_WAIT, _WAIT + "\n  " + _MAIL1)),
        line="tirx_reduce_mailbox_wait",
        buffer="box1",
    ),
    Plant(
        name="a wait before the mailbox is known to be open",
        faults=RACE_ONLY,
        edits=((_ARRIVE, _ARRIVE + "\n  tirx_reduce_mailbox_wait((&(box1[0])));"),),
        line="tirx_reduce_mailbox_wait",
        buffer="box1",
    ),
    Plant(
        name="more bytes expected than sent",
        faults=STARVED,
        edits=((_OPEN1, _OPEN1.replace("16", "20")),),
        line="tirx_reduce_mailbox_wait",
        buffer="box1",
    ),
    Plant(
        name="fewer bytes expected than sent",
        faults=(*STARVED, *RACE),
        edits=((_OPEN2, _OPEN2.replace("32", "28")),),
    ),
    Plant(
        name="no byte expected",
        faults=(*STARVED, emulator.Uninitialized),
        edits=((_OPEN1, _OPEN1.replace("16", "0")),),
    ),
    Plant(
        name="more bytes expected than a mailbox counts",
        faults=(emulator.LimitExceeded,),
        edits=((_OPEN1, _OPEN1.replace("16", "1048576")),),
        line="tirx_reduce_mailbox_open",
        buffer="box1",
    ),
    Plant(
        name="one group does not send",
        faults=STARVED,
        edits=(("if (TX < 4) {\n    tirx", "if (TX < 4 && part != 2) {\n    tirx"),),
        line="tirx_reduce_mailbox_wait",
        buffer="box1",
    ),
    Plant(
        name="one group leaves early",
        faults=STARVED,
        edits=((_WAIT, _WAIT + "\n  if (part == 3) return;"),),
        line="tirx_reduce_mailbox_wait",
        buffer="box1",
    ),
    Plant(
        name="one group leaves between the exchanges",
        faults=STARVED,
        edits=(("  float d = x", "  if (part == 3) return;\n  float d = x"),),
        line="tirx_reduce_mailbox_wait",
        buffer="box2",
    ),
    Plant(
        name="rank beyond the cluster",
        faults=(emulator.OutOfBounds,),
        edits=((_SEND1, _SEND1.replace("TX", "TX + 1")),),
        line="TX + 1",
    ),
    Plant(
        name="wrong rank",
        faults=(*RACE_ONLY, *STARVED),
        edits=((_SEND1, _SEND1.replace("TX", "(TX & 2)")),),
    ),
    Plant(
        name="wrong slot",
        faults=RACE_ONLY,
        edits=((_SEND1, _SEND1.replace("[part]", "[(part & 2)]")),),
        line="part & 2",
        buffer="across1",
    ),
    Plant(
        name="slot beyond the array",
        faults=(emulator.OutOfBounds,),
        edits=((_SEND1, _SEND1.replace("(&(across1[part]))", "(across1 + part + 1)")),),
        line="part + 1",
        buffer="across1",
    ),
    Plant(
        name="slot that is no shared memory",
        faults=(emulator.OutOfBounds,),
        edits=((_SEND1, _SEND1.replace("(&(across1[part]))", "(y_ptr + part)")),),
        line="y_ptr + part",
    ),
    Plant(
        name="slot that is not aligned",
        faults=(emulator.Misaligned,),
        edits=((_SEND1, _SEND1.replace("(&(across1[part]))", "((float*)(((short*)across1) + 1))")),),
        line="short*",
        buffer="across1",
    ),
    Plant(
        name="mailbox that is no shared memory",
        faults=(emulator.OutOfBounds,),
        edits=((_OPEN1, _OPEN1.replace("(&(box1[0]))", "((uint64_t*)y_ptr)")),),
        line="y_ptr",
    ),
    Plant(
        name="mailbox beyond its array",
        faults=(emulator.OutOfBounds,),
        edits=((_OPEN1, _OPEN1.replace("(&(box1[0]))", "(box1 + 1)")),),
        line="box1 + 1",
        buffer="box1",
    ),
    Plant(
        name="mailbox that is not aligned",
        faults=(emulator.Misaligned,),
        edits=((_OPEN1, _OPEN1.replace("(&(box1[0]))", "((uint64_t*)(((float*)box1) + 1))")),),
        line="float*",
        buffer="box1",
    ),
    Plant(
        name="every lane opens the mailboxes",
        faults=(emulator.WrittenTwice,),
        edits=(("if (TX == 0) {\n    tirx", "{\n    tirx"),),
        line="tirx_reduce_mailbox_open",
    ),
    Plant(
        name="a mailbox opened for a second exchange",
        faults=(emulator.WrittenTwice,),
        edits=((_MAIL1, _MAIL1 + "\n  if (TX == 0) " + _OPEN1),),
        line="tirx_reduce_mailbox_open",
        buffer="box1",
    ),
    Plant(
        name="one mailbox for both exchanges",
        faults=STARVED,
        edits=((_SEND2, _SEND2.replace("box2", "box1")),),
        buffer="box1",
    ),
    Plant(
        name="a mailbox read as a number",
        faults=RACE_ONLY,
        edits=(("  float d = x", "  if (box1[0] == 0) x = 0.0f;\n  float d = x"),),
        line="box1[0] == 0",
        buffer="box1",
    ),
    Plant(
        name="a mailbox written as a number",
        faults=RACE_ONLY,
        edits=((_ARRIVE, "if (TX == 0) box1[0] = 1;\n  " + _ARRIVE),),
        line="box1[0] = 1",
        buffer="box1",
    ),
    Plant(
        name="a mailbox written by another lane before it is opened",
        faults=RACE_ONLY,
        edits=(("  if (TX == 0) {\n    tirx", "  if (TX == 9) box1[0] = 0;\n  if (TX == 0) {\n    tirx"),),
        line="box1",
        buffer="box1",
    ),
    Plant(
        name="slots used again for the second exchange",
        faults=RACE_ONLY,
        edits=(
            (_SEND2, _SEND2.replace("across2[((part * 2) + (TX >> 5))]", "across1[part]")),
            ("if ((TX % 32) < 4) {", "if (TX < 4) {"),
            (_OPEN2, _OPEN2.replace("32", "16")),
        ),
        line="across1[part])), q",
        buffer="across1",
    ),
    Plant(
        name="slots that their group has written before the cluster barrier",
        faults=RACE_ONLY,
        edits=(
            (_SLOTS1, ""),
            (
                "  if (TX == 0) {\n    tirx",
                _SLOTS1 + "  if (TX < 4) across1[TX] = 0.0f;\n  if (TX == 0) {\n    tirx",
            ),
        ),
        line="tirx_reduce_mailbox_send_float32((&(across1",
        buffer="across1",
    ),
    Plant(
        name="a slot written by its group while it is sent to",
        faults=RACE_ONLY,
        edits=((_MAIL1, "if (TX == 0) across1[3] = 0.0f;\n  " + _MAIL1),),
        buffer="across1",
    ),
    Plant(
        name="a slot sent to twice by one lane",
        faults=RACE_ONLY,
        edits=((_SEND1, _SEND1 + "\n    " + _SEND1), (_OPEN1, _OPEN1.replace("16", "32"))),
        line="tirx_reduce_mailbox_send_float32((&(across1",
        buffer="across1",
    ),
    Plant(
        name="a slot sent to, where a mailbox lies",
        faults=RACE_ONLY,
        edits=((_SEND1, _SEND1.replace("(&(across1[part]))", "((float*)box2)")),),
        line="float*",
        buffer="box2",
    ),
    Plant(
        name="a group that may end before what is sent to it comes",
        faults=RACE_ONLY,
        edits=(
            (_OPEN1, _OPEN1 + "\n    tirx_reduce_mailbox_open((&(late[0])), 4);"),
            (
                "  __shared__ alignas(64) uint64_t box2",
                "  __shared__ uint64_t late[1];\n  __shared__ float last[1];\n"
                "  __shared__ alignas(64) uint64_t box2",
            ),
            (
                "  y_ptr[((BX",
                "  if (TX == part) {\n    tirx_reduce_mailbox_send_float32((&(last[0])), q, (&(late[0])),"
                " (part ^ 1));\n  }\n  y_ptr[((BX",
            ),
        ),
        line="(&(late[0]))",
        buffer="late",
    ),
)


@pytest.mark.parametrize("plant", PLANTS, ids=[p.name for p in PLANTS])
def test_plant_in_an_exchange_is_found(plant: Plant) -> None:
    check_plant(plant, CLUSTER, "rows_kernel", run_mail)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ((_OPEN1, _OPEN1.replace("16", "20")), "a wait on a mailbox never ends: 16 of 20 bytes have come"),
        (
            ("if (TX < 4) {\n", "if (TX < 4 && part) {\n"),
            "a wait on a mailbox never ends: 12 of 16 bytes have come",
        ),
        ((_OPEN1, _OPEN1.replace("16", "2")), "a mailbox gets more than it expects: 4 of 2 bytes"),
        ((_WAIT, ""), r"its mailbox; no cluster .* \(the other is lane 0 of group \d of the cluster\)"),
        ((_SEND1, _SEND1.replace("TX);", "part ^ 9);")), "a group that the cluster does not have"),
        (
            (_MAIL1, "if (TX == part) across1[part] = 0.0f;\n  " + _MAIL1),
            "may still be under way; this lane knows of no wait",
        ),
    ],
)
def test_words(edit: tuple[str, str], message: str) -> None:
    for order in ORDERS:
        with pytest.raises(emulator.EmulatorError, match=message):
            run_mail(changed(CLUSTER, edit), orders=(order,))


def test_exchange_needs_each_of_its_barriers() -> None:
    mutants = without_barriers(CLUSTER)
    # Two openings, the cluster barrier three ways, a barrier of the group, two waits.
    assert len(mutants) == 8
    for mutant in mutants:
        for order in ORDERS:
            with pytest.raises((*RACE, *STARVED)):
                run_mail(mutant.text, orders=(order,))


KINDS = {
    "float32": ("float", np.float32),
    "int32": ("int", np.int32),
    "uint32": ("unsigned int", np.uint32),
    "int64": ("int64_t", np.int64),
    "uint64": ("uint64_t", np.uint64),
}

# Each group sends its lanes' values round, to the group behind it; a cluster of one sends to itself.
ROUND = """
#include <cstdint>
extern "C" __global__ void round_kernel(TYPE* __restrict__ x_ptr, TYPE* __restrict__ y_ptr) {
  __shared__ uint64_t box[1];
  __shared__ alignas(64) TYPE slots[32];
  if (TX == 5) {
    tirx_reduce_mailbox_open((&(box[0])), (int)(32 * sizeof(TYPE)));
  }
  tirx_reduce_cluster_arrive();
  tirx_reduce_cluster_wait();
  tirx_reduce_mailbox_send_NAME((&(slots[TX])), x_ptr[((BX * 32) + TX)], (&(box[0])), ((BX + 1) % GROUPS));
  tirx_reduce_mailbox_wait((&(box[0])));
  y_ptr[((BX * 32) + TX)] = slots[TX];
}
"""


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("groups", [1, 2, 16])
def test_values_of_every_kind_come_whole(name: str, groups: int) -> None:
    type_name, dtype = KINDS[name]
    text = ROUND.replace("TYPE", type_name).replace("NAME", name).replace("GROUPS", str(groups))
    x = np.random.default_rng(3).integers(0, 2**31 - 1, (groups, 32)).astype(dtype)
    if dtype in (np.int64, np.uint64):
        x *= 2**31 + 5
    y = np.zeros_like(x)
    emulator.run_source(cuda(text), "cuda", {"x_ptr": x, "y_ptr": y}, groups, 32, cluster=groups)
    np.testing.assert_array_equal(y, np.roll(x, 1, axis=0))


_PEEKED = ROUND.replace(
    'extern "C"',
    """#define UNSEEN __attribute__((no_sanitize("thread")))
__device__ UNSEEN float peek(float* slot) { return *slot; }
__device__ UNSEEN void poke(float* slot) { *slot = -1.0f; }
extern "C\"""",
    1,
)


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_sent_comes_late(order: str) -> None:
    """All lanes have sent, and nobody has waited: the model may show the slot before and after."""
    text = _PEEKED.replace("TYPE", "float").replace("NAME", "float32").replace("GROUPS", "2")
    text = changed(
        text,
        ("  tirx_reduce_cluster_arrive();", "  poke((&(slots[TX])));\n  tirx_reduce_cluster_arrive();"),
        (
            "  tirx_reduce_mailbox_wait((&(box[0])));\n",
            "  tirx_reduce_cluster_arrive();\n  tirx_reduce_cluster_wait();\n  float now = peek((&(slots[TX])));\n"
            "  tirx_reduce_cluster_arrive();\n  tirx_reduce_cluster_wait();\n"
            "  tirx_reduce_mailbox_wait((&(box[0])));\n",
        ),
        ("= slots[TX]", "= now"),
    )
    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    y = np.zeros_like(x)
    emulator.run_source(cuda(text), "cuda", {"x_ptr": x, "y_ptr": y}, 2, 32, cluster=2, orders=(order,))
    late = y == -1
    assert late.all() if order != "forward" else not late.any()
