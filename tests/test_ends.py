"""Rows that do not start aligned: whole packets, and the elements at their ends, against float64 and in numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.covering import Row, label, pairwise
from tests.launch import TARGETS, Kernel
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.candidates import refusal
from tirx_reduce.device import limits_for
from tirx_reduce.ends import fewest_packets, most_before, most_left
from tirx_reduce.facts import read
from tirx_reduce.schedules import as_target
from tirx_reduce.values import Candidate

OPS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "add_rms_norm", "argmax", "masked_softmax")
COLUMNS = (2, 3, 5, 7, 9, 15, 17, 31, 33, 63, 127, 129, 255, 257, 1023, 1025, 1537, 4095, 4097)
MAPPINGS = {
    "subgroup": {"width": 32},
    "packed": {"width": 4, "packing": 16},
    "few lanes": {"width": 1, "packing": 32},
    "wide": {"width": 128},
    "rows": {"width": 64, "rows": 2},
    "merged": {"width": 64, "merged": True},
    "split": {"width": 32, "splits": 2},
    "split merged": {"width": 64, "splits": 4, "merged": True},
}
FACTORS: dict[str, Any] = {
    "op": OPS,
    "columns": COLUMNS,
    "dtype": ("float32", "float16", "bfloat16"),
    "vector": (2, 4, 8),
    "reuse": ("reload", "private", "shared"),
    "mapping": tuple(MAPPINGS),
    "target": TARGETS,
}
ROWS = 7


def candidate(row: Row) -> Candidate:
    return Candidate(vector=row["vector"], reuse=row["reuse"], **MAPPINGS[row["mapping"]])


def shape(row: Row) -> tuple[int, ...]:
    columns = row["columns"]
    return (2, 1, 3, columns) if row["op"] == "masked_softmax" else (ROWS, columns)


@cache
def facts(op: str, shape: tuple[int, ...], dtype: str) -> Any:
    return read(get_workload(op).func(shape, dtype)).facts


def legal(row: Row) -> bool:
    # The CPU model walks long rows of few lanes element by element.
    if row["columns"] > 600 and row["mapping"] in ("few lanes", "packed"):
        return False
    limits = limits_for(as_target(row["target"]))
    return refusal(candidate(row), facts(row["op"], shape(row), row["dtype"]), limits) is None


def right(row: Row, orders: tuple[str, ...] = ("reverse",)) -> None:
    workload = get_workload(row["op"])
    kernel = Kernel(workload.func(shape(row), row["dtype"]), row["target"], candidate(row))
    inputs = workload.inputs(shape(row), row["dtype"])
    verdict = workload.verify(tuple(kernel.run(*inputs, orders=orders)), inputs)
    assert verdict.ok, verdict


@pytest.mark.parametrize("row", pairwise(FACTORS, legal), ids=label)
def test_every_pair_of_column_count_and_mapping(row: Row) -> None:
    right(row)


@given(st.integers(1, 300), st.sampled_from([2, 4, 8]), st.integers(1, 40))
def test_the_numbers_are_those_of_real_rows(columns: int, vector: int, rows: int) -> None:
    before = [-row * columns % vector for row in range(max(rows, vector))]
    packets = [max(0, columns - b) // vector for b in before]
    most = most_before(columns, vector)
    assert max(before) == (most if columns % vector else 0)
    if columns % vector:
        assert min(packets) == fewest_packets(columns, vector, most)
        assert max(columns - p * vector for p in packets) == most_left(columns, vector, most)
    assert most_left(columns, vector, most) <= min(
        columns, most_left(None, vector, most_before(None, vector))
    )
