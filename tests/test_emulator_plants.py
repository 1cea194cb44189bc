"""Every planted defect is found in every order of lanes, in both languages; the originals are silent."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator_texts import BLOCK, COLUMNS, GRID, PLANTS, ROWS, Plant, arrays, expected, render
from tirx_reduce import emulator

KINDS = ("metal", "cuda")
CASES = [(p, k) for p in PLANTS for k in p.kinds.split()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numerics", ["plain", "fma", "fast"])
def test_original_is_silent_and_right(kind: str, numerics: str) -> None:
    a = arrays()
    y, z = expected(a)
    done = emulator.run_source(render(kind), kind, a, GRID, BLOCK, numerics=numerics)
    np.testing.assert_allclose(np.asarray(a["y_ptr"]), y, atol=2e-6 * 8, rtol=2e-6)
    np.testing.assert_allclose(np.asarray(a["z_ptr"]), z, atol=1e-7)
    c = done.counters["rows_kernel"]
    # 63 packets of 16 bytes for each row and pass; every row has its weights loaded once.
    assert c.loads["device"] == 2 * ROWS * COLUMNS // 4
    assert c.load_bytes["device"] == 2 * ROWS * COLUMNS * 4
    assert c.store_bytes["device"] == ROWS * COLUMNS * 4 + ROWS * 4
    assert c.barriers == 3 * GRID[0]
    assert c.collectives == 10 * 4 * GRID[0]


@pytest.mark.parametrize(("plant", "kind"), CASES, ids=[f"{p.name}-{k}" for p, k in CASES])
def test_plant_is_found_in_every_order(plant: Plant, kind: str) -> None:
    text = render(kind, plant.edits, plant.after)
    faults = tuple(getattr(emulator, name) for name in plant.faults.split())
    limits = None
    if plant.max_accesses is not None:
        limits = emulator.Limits(max_accesses=plant.max_accesses)
    for order in ("forward", "reverse", "random"):
        a = arrays()
        before = {k: np.copy(v) for k, v in a.items()}
        with pytest.raises(faults) as caught:
            emulator.run_source(
                text, kind, a, GRID, plant.block, orders=(order,), outputs=plant.outputs, limits=limits
            )
        error = caught.value
        rows = text.split("\n")
        if not isinstance(error, (emulator.UnsupportedSource, emulator.NotWritten)):
            assert error.kernel == "rows_kernel" or isinstance(error, emulator.Uninitialized)
            assert 0 < error.line <= len(rows)
        if plant.line:
            assert plant.line in _plain(rows[error.line - 1])
        if plant.buffer:
            assert error.buffer == plant.buffer
            assert error.offset is not None
        for name, old in before.items():
            assert np.array_equal(old, np.asarray(a[name])), f"{name} was changed by a call that failed"


def _plain(text: str) -> str:
    for old in ("((int)threadIdx.x)", "((int)threadIdx.y)", "((int)blockIdx.x)"):
        text = text.replace(old, {"threadIdx.x": "TX", "threadIdx.y": "TY", "blockIdx.x": "BX"}[old[6:-1]])
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_process_survives_and_next_run_is_right(kind: str) -> None:
    for plant in PLANTS[:3]:
        with pytest.raises(emulator.EmulatorError):
            emulator.run_source(render(kind, plant.edits), kind, arrays(), GRID, BLOCK)
        a = arrays(1)
        emulator.run_source(render(kind), kind, a, GRID, BLOCK)
        np.testing.assert_allclose(np.asarray(a["y_ptr"]), expected(a)[0], atol=2e-5)
