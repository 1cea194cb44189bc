"""Groups of a cluster exchange by mail on the CPU model: results are right, planted defects found in every order."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator_hopper import (
    COLUMNS,
    MAIL,
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
    c = run_mail(MAIL, numerics=numerics).counters["rows_kernel"]
    assert c.cluster_barriers == ROWS
    assert c.barriers == ROWS * SPLITS
    assert c.mailbox_waits == 2 * ROWS * SPLITS
    # A group stores two partial sums, sends one to each of four groups, and then two to each.
    assert c.store_bytes["threadgroup"] == ROWS * SPLITS * (2 + SPLITS + 2 * SPLITS) * 4
    assert c.store_bytes["device"] == ROWS * COLUMNS * 4


_WAIT1, _WAIT2 = "tirx_reduce_mailbox_wait((&(box1[0])));  // sum", "tirx_reduce_mailbox_wait((&(box2[0])));"
