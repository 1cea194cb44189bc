"""The rules of `ladder` for rows that start anywhere: what the sweeps found, legal, and right on the CPU model."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tirx_reduce as tr
from tests.launch import HOPPER, verified
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.cost import rungs, unaligned
from tirx_reduce.cost.rung import Shape
from tirx_reduce.values import Candidate, DeviceLimits

SWEEPS = Path(__file__).parents[1] / "docs" / "studies" / "h200-2026-11" / "sweeps_odd.json.gz"
LINES = json.loads(gzip.decompress(SWEEPS.read_bytes()))["lines"]


def planned(
    operator: str, shape: tuple[int, ...], dtype: str, limits: DeviceLimits | None = None
) -> Candidate:
    func = get_workload(operator).func(shape, dtype)
    return tr.plan(func, HOPPER, policy="ladder", limits=limits).candidate


LIMITS = tr.plan(get_workload("softmax").func((8, 1024), "float32"), HOPPER).limits


def name_of(c: Candidate) -> str:
    """As the record of the sweeps spells a mapping."""
    stays = f" G{c.resident}" if c.resident else ""
    return f"W{c.width} P{c.packing} V{c.vector} {c.reuse} S{c.splits}{stays}"


@pytest.mark.parametrize("sweep", sorted({line["sweep"] for line in LINES}))
def test_what_the_ladder_plans_is_what_the_record_of_the_sweeps_says(sweep: int) -> None:
    for line in LINES:
        if line["sweep"] == sweep:
            shape = tuple(int(e) for e in line["shape"].split("x"))
            assert name_of(planned(line["operator"], shape, line["dtype"])) == line["ladder_now"], line[
                "shape"
            ]


@given(
    rows=st.integers(1, 20_000),
    columns=st.integers(2049, 65_536),
    cores=st.sampled_from([0, 1, 8, 40, 114, 132]),
)
def test_rows_of_a_group_that_stays_start_alike(rows: int, columns: int, cores: int) -> None:
    shape = Shape(rows=rows, columns=columns, storage_bytes=2, reductions=2, streams=4)
    limits = replace(LIMITS, cores=cores)
    stays = rungs.streamed(shape, 8, limits)
    if stays is None:
        return
    assert stays.resident > 0
    assert stays.reuse == "shared"
    assert stays.resident % stays.splits == 0
    unit = 16 if columns % 16 else 8
    assert stays.resident // stays.splits * columns % unit == 0
    # No group is without a row, and none of its lanes without a packet.
    assert stays.resident // stays.splits <= rows
    assert stays.width * stays.splits * stays.vector <= columns
    if cores:
        assert stays.resident <= 2 * cores


@pytest.mark.parametrize(
    ("shape", "stays"),
    [
        ((1000, 10240), 0),
        ((1000, 10241), 256),
        ((4096, 12289), 0),
        ((4096, 20001), 128),
        ((600, 20001), 0),
        ((1000, 32769), 256),
        ((1000, 50257), 128),
        ((1000, 50258), 128),
        ((1000, 65535), 128),
        ((1000, 65537), 0),
    ],
)
def test_a_stream_of_layer_norms_stays_where_it_was_measured(shape: tuple[int, int], stays: int) -> None:
    assert planned("layer_norm", shape, "bfloat16").resident == stays
    assert planned("layer_norm", shape, "float32").resident == 0
    assert planned("rms_norm", shape, "bfloat16").resident == 0


def test_rows_that_start_half_a_sector_in_stay_from_36865_columns_on() -> None:
    assert planned("layer_norm", (1000, 32776), "bfloat16").resident == 0
    assert planned("layer_norm", (1000, 50248), "bfloat16").resident == 132


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("columns", [2049, 4095, 4097, 5633, 8193, 13313, 50257])
def test_accesses_are_wide_where_rows_are_long(columns: int, few: bool) -> None:
    rows = LIMITS.cores // 2 if few else 10 * LIMITS.cores
    for reductions, streams in ((1, 3), (2, 2), (2, 4)):
        shape = Shape(rows=rows, columns=columns, storage_bytes=4, reductions=reductions, streams=streams)
        assert unaligned.elements(shape, 1, 4, LIMITS) in (2, 4)
        narrow = replace(shape, storage_bytes=2)
        assert unaligned.elements(narrow, 1, 8, LIMITS) == 8


CASES = [
    # Operator, dtype, rows, columns, and cores: few enough that some rows are a stream.
    ("layer_norm", "bfloat16", 41, 10243, 8),
    ("layer_norm", "float16", 40, 20002, 8),
    ("layer_norm", "bfloat16", 21, 28006, 4),
    ("layer_norm", "bfloat16", 21, 50258, 4),
    ("layer_norm", "bfloat16", 20, 50248, 4),
    ("layer_norm", "bfloat16", 6, 20001, 4),
    ("layer_norm", "bfloat16", 14, 12289, 4),
    ("layer_norm", "float32", 6, 12289, 4),
    ("layer_norm", "float32", 14, 20001, 4),
    ("rms_norm", "bfloat16", 14, 9001, 4),
    ("rms_norm", "float16", 9, 24577, 4),
    ("rms_norm", "bfloat16", 14, 40001, 4),
    ("rms_norm", "float32", 5, 6001, 4),
    ("rms_norm", "float32", 14, 16385, 4),
    ("softmax", "bfloat16", 9, 8195, 4),
    ("softmax", "bfloat16", 5, 20001, 4),
    ("softmax", "float32", 14, 8193, 4),
]


def of_case(operator: str, dtype: str, rows: int, columns: int, cores: int) -> Candidate:
    return planned(operator, (rows, columns), dtype, replace(LIMITS, cores=cores))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case[:4])))
def test_a_planned_kernel_is_right(case: tuple[str, str, int, int, int]) -> None:
    operator, dtype, rows, columns, _ = case
    verified({"op": operator, "dtype": dtype, "target": HOPPER}, (rows, columns), of_case(*case), ("random",))


def test_those_kernels_hold_each_way_of_taking_such_rows() -> None:
    """Groups that stay, one a row and two; a row in one group and in several, in registers and in shared memory."""
    found = [of_case(*case) for case in CASES]
    assert {c.splits for c in found if c.resident} == {1, 2}
    ways = {(c.splits > 1, c.reuse) for c in found if not c.resident}
    assert ways == {(split, reuse) for split in (True, False) for reuse in ("private", "shared")}
