"""Counts on captured functions, and the bytes that a row asks for, against design's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import relax

from tests.functions import legalized
from tests.test_facts import CASES, Case
from tirx_reduce import facts
from tirx_reduce.errors import ReduceError
from tirx_reduce.schedules import planning
from tirx_reduce.values import DeviceLimits

nn = relax.op.nn


def _f16(*shape: int) -> Any:
    return shape, "float16"


REPORT: dict[str, tuple[Callable[[int], Any], int, int, int, int]] = {
    # Bytes a column, reload and private: matrices once a pass or once in all, vectors and outputs once.
    "softmax": (lambda n: legalized(lambda _, x: nn.softmax(x, -1), _f16(37, n)), 3, 2, 8, 4),
    "rms_norm": (
        lambda n: legalized(lambda _, x, w: nn.rms_norm(x, w, axes=[-1]), _f16(37, n), _f16(n)), 2, 1, 8, 6
    ),
    "layer_norm": (
        lambda n: legalized(
            lambda _, x, w, b: nn.layer_norm(x, w, b, axes=[-1]), _f16(37, n), _f16(n), _f16(n)
        ), 3, 2, 12, 8
    ),
}  # fmt: skip


@pytest.mark.parametrize("columns", [769, 6144])
@pytest.mark.parametrize("name", REPORT)
def test_report_operators(name: str, columns: int) -> None:
    make, passes, reductions, reload, private = REPORT[name]
    read = facts.read(make(columns))
    counts = planning.capture(read, DeviceLimits())
    for reuse, bytes_ in (("reload", reload), ("private", private)):
        counted = counts[reuse]
        assert (counted.passes, counted.reductions) == (passes, reductions)
        assert counted.column_bytes_per_row_column == bytes_
        assert counted.kept == (1 if reuse == "private" else 0)
        assert (counted.storage_bytes, counted.accumulation_bytes) == (2, 4)
        assert dict(read.facts.payload_bytes)[reuse] == bytes_ * columns


@pytest.mark.parametrize("case", [c for c in CASES if c.rows != 1], ids=lambda c: c.name)
def test_facts_and_counts_agree(case: Case) -> None:
    """What is foretold from the row program is what the emitter does."""
    read = facts.read(case.func())
    for reuse, counted in planning.capture(read, DeviceLimits()).items():
        assert (counted.passes, counted.reductions) == (read.facts.passes, read.facts.reductions)
        if reuse == "private":
            assert counted.kept == read.facts.kept
        foretold = dict(read.facts.payload_bytes)[reuse]
        if foretold is not None and case.columns is not None and case.columns > 1:
            assert counted.column_bytes_per_row_column * case.columns == foretold


@pytest.mark.parametrize("case", [c for c in CASES if c.rows == 1], ids=lambda c: c.name)
def test_a_single_row_has_no_vectors(case: Case) -> None:
    """What one group reads is counted in every pass that reads it: no other row shares it."""
    read = facts.read(case.func())
    counted = planning.capture(read, DeviceLimits())["reload"]
    assert case.columns is not None
    assert counted.column_bytes_per_row_column * case.columns == dict(read.facts.payload_bytes)["reload"]


def test_a_function_that_was_not_captured() -> None:
    func = legalized(lambda _, x: nn.softmax(x, -1), _f16(4, 8))
    with pytest.raises(ReduceError, match="without marked passes; needs one that was captured"):
        facts.count(func, "reload")
