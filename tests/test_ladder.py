"""The rules of `ladder`: what they name fits its row, is legal, and is what the sweeps found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tirx_reduce as tr
from tests.launch import HOPPER
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.candidates import private_scalars
from tirx_reduce.cost.ladder import steps
from tirx_reduce.cost.rung import Shape
from tirx_reduce.values import Candidate, DeviceLimits


def limits() -> DeviceLimits:
    return tr.plan(get_workload("softmax").func((8, 1024), "float32"), HOPPER).limits


LIMITS = limits()
STREAMS = [(1, 2), (1, 3), (1, 5), (2, 2), (2, 4)]
"""Reductions, and elements that a column moves."""


def fits(first: Candidate, shape: Shape) -> None:
    assert first.splits == 1 or first.splits * first.width * first.vector <= shape.columns
    assert first.threads <= LIMITS.max_threads
    if first.reuse == "private":
        assert private_scalars(first, 1, shape.columns) <= LIMITS.private_scalars


@given(
    st.integers(1, 100_000),
    st.integers(1, 200_000),
    st.sampled_from([2, 4]),
    st.sampled_from(STREAMS),
)
@example(100, 20000, 2, (2, 2))
@example(100, 10000, 2, (2, 4))
@example(31, 2817, 2, (2, 2))
@example(64, 151936, 2, (1, 3))
@example(425, 77352, 2, (2, 2))
def test_every_lane_of_a_split_row_has_a_packet(
    rows: int, columns: int, storage: int, streams: tuple[int, int]
) -> None:
    """And no more of them than it has registers for, or another mapping takes the place that no rule meant."""
    shape = Shape(
        rows=rows, columns=columns, storage_bytes=storage, reductions=streams[0], streams=streams[1]
    )
    fits(next(steps(shape, LIMITS)), shape)


@pytest.mark.parametrize("cluster", [1, 8, 16])
@pytest.mark.parametrize("streams", STREAMS)
def test_there_is_a_rule_for_every_row(streams: tuple[int, int], cluster: int) -> None:
    """Around every number in the rules, and for every short row."""
    limits = replace(LIMITS, max_cluster=cluster)
    bounds = [512, 1024, 2048, 3200, 4096, 5632, 6400, 8192, 16384, 20480, 32768, 40960, 65536, 98304, 131072]
    columns = {*range(1, 600), *(b + d for b in bounds for d in (-1, 0, 1, 3)), *range(600, 30000, 371)}
    for n in columns:
        for rows in (1, 4, 37, 66, 131, 132, 300, 600, 20000):
            for storage in (2, 4):
                shape = Shape(
                    rows=rows, columns=n, storage_bytes=storage, reductions=streams[0], streams=streams[1]
                )
                fits(next(steps(shape, limits)), shape)


@given(st.integers(16, 131), st.integers(52_000, 131_072), st.sampled_from([2, 4]))
def test_groups_of_few_long_rows_have_a_place_at_once(rows: int, columns: int, storage: int) -> None:
    """Up to eight small ones a multiprocessor, or no more groups a row than a portable cluster has.

    Longer rows of 16 bits keep more in registers than eight groups have place for beside one another.
    """
    shape = Shape(rows=rows, columns=columns, storage_bytes=storage, reductions=2, streams=2)
    first = next(steps(shape, LIMITS))
    crowded = 8 if storage == 4 or columns <= 65536 else 16
    assert rows * first.splits <= 8 * LIMITS.cores or first.splits == crowded
    assert first.width <= 640


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "mapping"),
    [
        ("softmax", (64, 65536), "bfloat16", (256, 8, "private", 8)),
        ("rms_norm", (64, 65536), "float32", (256, 4, "private", 16)),
        ("softmax", (32, 131072), "bfloat16", (256, 8, "private", 16)),
        ("layer_norm", (16, 151936), "bfloat16", (320, 8, "private", 16)),
        ("layer_norm", (12, 98304), "float32", (384, 4, "private", 16)),
        ("softmax", (4, 131072), "float32", (256, 4, "reload", 64)),
        ("softmax", (8, 131072), "float32", (128, 4, "reload", 64)),
        ("rms_norm", (16, 131072), "float32", (256, 4, "private", 16)),
        ("rms_norm", (333, 7168), "bfloat16", (224, 8, "private", 2)),
        ("softmax", (64, 131072), "bfloat16", (128, 8, "private", 16)),
        ("rms_norm", (90, 152064), "bfloat16", (192, 8, "shared", 16)),
        ("layer_norm", (48, 196608), "bfloat16", (384, 8, "shared", 16)),
        ("rms_norm", (64, 98304), "bfloat16", (256, 8, "shared", 8)),
        ("rms_norm", (1, 262144), "bfloat16", (256, 8, "reload", 64)),
        ("softmax", (1, 163840), "bfloat16", (640, 8, "private", 16)),
        ("layer_norm", (66, 7168), "bfloat16", (480, 8, "private", 1)),
        ("layer_norm", (200, 8192), "bfloat16", (256, 8, "private", 2)),
        ("layer_norm", (333, 8192), "bfloat16", (512, 8, "private", 1)),
        ("layer_norm", (500, 5120), "bfloat16", (320, 8, "private", 1)),
        ("layer_norm", (500, 8192), "bfloat16", (256, 8, "shared", 2)),
        ("layer_norm", (768, 6144), "bfloat16", (192, 8, "private", 1)),
        ("layer_norm", (600, 8192), "bfloat16", (352, 8, "shared", 1)),
        ("softmax", (66, 5120), "bfloat16", (320, 8, "private", 1)),
        ("softmax", (200, 5120), "bfloat16", (480, 8, "private", 1)),
        ("layer_norm", (200, 4608), "float32", (96, 4, "private", 4)),
        ("softmax", (1, 8192), "float32", (128, 4, "private", 8)),
        ("layer_norm", (31, 2816), "bfloat16", (64, 8, "private", 4)),
        ("softmax", (2048, 5120), "bfloat16", (320, 8, "shared", 1)),
        ("layer_norm", (1024, 32768), "float32", (256, 4, "private", 4)),
        ("rms_norm", (37, 1537), "bfloat16", (256, 2, "private", 1)),
        ("layer_norm", (64, 12289), "bfloat16", (512, 8, "private", 1)),
        ("add_rms_norm", (32, 3584), "bfloat16", (224, 8, "private", 2)),
        ("add_rms_norm", (16, 5120), "bfloat16", (160, 8, "private", 4)),
        ("add_rms_norm", (16, 8192), "bfloat16", (128, 8, "private", 8)),
        ("add_rms_norm", (128, 8192), "bfloat16", (512, 8, "private", 2)),
        ("add_rms_norm", (256, 8192), "bfloat16", (1024, 8, "private", 1)),
        # No width leaves no lane over: as before.
        ("add_rms_norm", (16, 2824), "bfloat16", (64, 8, "private", 4)),
    ],
)
def test_what_the_sweeps_found(
    op: str, shape: tuple[int, int], dtype: str, mapping: tuple[int, int, str, int]
) -> None:
    """Or came within 5 % of (docs/kernels.md)."""
    plan = tr.plan(get_workload(op).func(shape, dtype), HOPPER, policy="ladder")
    c = plan.candidate
    assert (c.width, c.vector, c.reuse, c.splits) == mapping


@pytest.mark.parametrize(
    ("op", "shape", "lanes", "packing"),
    [
        ("layer_norm", (300, 768), 96, 1),
        ("layer_norm", (1200, 768), 96, 2),
        ("layer_norm", (2048, 1024), 128, 2),
        ("layer_norm", (4096, 768), 32, 4),
        ("layer_norm", (16384, 1024), 32, 4),
        ("layer_norm", (700, 1536), 96, 1),
        ("layer_norm", (1200, 1536), 192, 1),
        ("layer_norm", (8192, 1536), 64, 2),
        ("layer_norm", (2048, 2560), 64, 2),
        ("softmax", (300, 1536), 96, 1),
        ("softmax", (1200, 2048), 128, 2),
        ("rms_norm", (1200, 768), 96, 2),
    ],
)
def test_a_group_takes_several_short_rows_once_every_core_has_enough(
    op: str, shape: tuple[int, int], lanes: int, packing: int
) -> None:
    c = tr.plan(get_workload(op).func(shape, "bfloat16"), HOPPER, policy="ladder").candidate
    assert (c.width, c.packing, c.reuse, c.rows) == (lanes, packing, "private", 1)


@pytest.mark.parametrize("target", [HOPPER, "metal"], ids=["cuda", "metal"])
@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm", "add_rms_norm", "masked_softmax"])
def test_a_reloaded_row_has_the_place_that_it_was_named_at(op: str, target: Any) -> None:
    """It is read at every walk, which makes no LayerNorm of a softmax."""
    shape = (1, 8, 131072) if op == "masked_softmax" else (8, 131072)
    plan = tr.plan(get_workload(op).func(shape, "float32"), target, policy="ladder")
    assert plan.candidate.reuse == "reload"
    assert plan.estimate.kernel_score == 1


@pytest.mark.parametrize(
    ("op", "shape", "dtype"),
    [
        ("rms_norm", (64, 151936), "bfloat16"),
        ("layer_norm", (100, 151936), "float32"),
        ("softmax", (425, 77352), "float32"),
        ("layer_norm", (425, 200064), "bfloat16"),
        ("rms_norm", (37, 2049), "float32"),
        ("softmax", (100, 20000), "bfloat16"),
    ],
)
def test_the_first_rung_is_the_plan(op: str, shape: tuple[int, int], dtype: str) -> None:
    plan = tr.plan(get_workload(op).func(shape, dtype), HOPPER, policy="ladder")
    assert plan.estimate.kernel_score == 1


@pytest.mark.parametrize("target", [HOPPER, "metal"], ids=["cuda", "metal"])
def test_rows_of_one_column_have_a_plan(target: Any) -> None:
    """A softmax of them reads nothing."""
    plan = tr.plan(get_workload("softmax").func((5, 1), "float32"), target, policy="ladder")
    assert plan.candidate.vector == 1


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "stays"),
    [
        ("layer_norm", (1024, 32768), "bfloat16", True),
        ("layer_norm", (1024, 32768), "float16", True),
        ("layer_norm", (768, 49152), "bfloat16", True),
        ("layer_norm", (4096, 40960), "bfloat16", True),
        ("layer_norm", (4096, 32768), "bfloat16", False),
        ("layer_norm", (400, 40960), "bfloat16", False),
        ("layer_norm", (1024, 24576), "bfloat16", False),
        ("layer_norm", (1024, 65536), "bfloat16", False),
        ("layer_norm", (1024, 32768), "float32", False),
        ("rms_norm", (1024, 32768), "bfloat16", False),
        ("softmax", (1024, 32768), "bfloat16", False),
    ],
)
def test_streams_of_long_rows_with_two_weights_take_groups_that_stay(
    op: str, shape: tuple[int, int], dtype: str, stays: bool
) -> None:
    plan = tr.plan(get_workload(op).func(shape, dtype), HOPPER, policy="ladder")
    c = plan.candidate
    assert (c.resident == LIMITS.cores // 2 * 2) is stays
    if stays:
        assert plan.estimate.kernel_score == 1
        assert (c.splits, c.reuse, c.width) == (2, "shared", shape[1] // 64)


def test_rows_that_cannot_stay_take_what_they_took_before() -> None:
    """A number of rows that nobody knows, a cluster that the device does not have."""
    func = get_workload("layer_norm").func((1024, 32768), "bfloat16", symbolic_rows=True)
    plan = tr.plan(func, HOPPER, policy="ladder")
    plans = [p for _, p in plan.variants] or [plan]
    assert all(p.candidate.resident == 0 for p in plans)
    assert any(p.candidate == Candidate(width=512, vector=8, reuse="shared", splits=2) for p in plans)
    older = {**HOPPER, "arch": "sm_80"}
    plan = tr.plan(get_workload("layer_norm").func((1024, 32768), "bfloat16"), older, policy="ladder")
    assert plan.candidate.resident == 0


@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm", "where_softmax"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(1, 65537), (2, 82480), (8, 131072), (31, 262144)])
def test_a_row_has_one_group_on_metal(op: str, dtype: str, shape: tuple[int, int]) -> None:
    """A second launch would ask for partial results besides the row."""
    plan = tr.plan(get_workload(op).func(shape, dtype), "metal", policy="ladder")
    assert (plan.candidate.splits, plan.candidate.reuse) == (1, "reload")
    assert plan.candidate.width > 900
    assert plan.estimate.kernel_score == 1


@pytest.mark.parametrize(("rows", "splits"), [(1, 32), (8, 8), (100, 1), (200, 1)])
def test_few_long_rows_take_launches_where_groups_form_no_cluster(rows: int, splits: int) -> None:
    older = {**HOPPER, "arch": "sm_80"}
    plan = tr.plan(get_workload("softmax").func((rows, 131072), "float32"), older, policy="ladder")
    assert (plan.candidate.splits, plan.candidate.reuse) == (splits, "reload")
