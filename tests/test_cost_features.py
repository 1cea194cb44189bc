"""Demand against design.md's table, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost_cases import LIMITS, OPERATORS, counts
from tirx_reduce.cost import features
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import Candidate, DeviceLimits


def test_table_of_design_for_softmax_37x1537() -> None:
    # ceil(1537 / (192·4)) = 3 packets of 4, three passes; 4 bytes × (3 loads + 1 store) a column.
    f = features(Candidate(width=192, vector=4), counts("softmax", "reload"), 37, 1537, LIMITS)
    assert (f.scalar_rounds, f.reductions, f.subgroups_per_program) == (36, 2, 6)
    assert (f.threadgroups, f.programs, f.passes) == (37, 37, 3)
    assert f.program_global_access_bytes == 1537 * 16
    assert f.worker_global_access_bytes == 12 * 16
    assert f.worker_private_access_bytes == 0
    assert (f.rows, f.columns, f.storage_bytes, f.accumulation_bytes) == (37, 1537, 4, 4)


def test_private_reads_the_row_once_and_pays_for_what_it_keeps() -> None:
    f = features(
        Candidate(width=416, vector=4, reuse="private"), counts("softmax", "private"), 37, 1537, LIMITS
    )
    assert f.program_global_access_bytes == 1537 * 8
    assert f.worker_private_access_bytes == 4 * 4 * (1 + 3)


@pytest.mark.parametrize(("operator", "reload_bytes", "private_bytes"), [
    ("softmax", 16, 8),
    ("rms_norm", 16, 12),
    ("layer_norm", 24, 16),
])  # fmt: skip
def test_column_bytes_of_the_three_operators(operator: str, reload_bytes: int, private_bytes: int) -> None:
    for reuse, size in (("reload", reload_bytes), ("private", private_bytes)):
        f = features(Candidate(width=64, vector=4, reuse=reuse), counts(operator, reuse), 8, 1024, LIMITS)
        assert f.program_global_access_bytes == 1024 * size


def test_packed_tail_counts_toward_the_launch_and_not_toward_programs() -> None:
    f = features(Candidate(width=64, packing=4, vector=4), counts("softmax", "reload"), 37, 1537, LIMITS)
    assert (f.threadgroups, f.programs) == (10, 37)


def test_splits_multiply_groups() -> None:
    f = features(Candidate(width=64, splits=4), counts("softmax", "reload"), 2, 65536, LIMITS)
    assert f.threadgroups == 8


def test_subgroups_follow_the_device() -> None:
    wide = DeviceLimits(subgroup_size=64)
    f = features(Candidate(width=256), counts("softmax", "reload"), 1, 256, wide)
    assert f.subgroups_per_program == 4


def test_counts_of_another_family_are_refused() -> None:
    with pytest.raises(ReduceError, match="counts of the reload family; needs those of private"):
        features(Candidate(width=64, reuse="private"), counts("softmax", "reload"), 1, 64, LIMITS)


@pytest.mark.parametrize(("rows", "columns"), [(0, 8), (8, 0)])
def test_empty_matrices_are_refused(rows: int, columns: int) -> None:
    with pytest.raises(ReduceError, match="needs 1 or more of each"):
        features(Candidate(width=64), counts("softmax", "reload"), rows, columns, LIMITS)


@given(
    operator=st.sampled_from(sorted(OPERATORS)),
    reuse=st.sampled_from(["reload", "private"]),
    width=st.integers(1, 32).map(lambda k: 32 * k),
    vector=st.sampled_from([1, 2, 4]),
    rows=st.integers(1, 4096),
    columns=st.integers(1, 70000),
)
def test_lanes_together_ask_for_the_row_and_less_than_a_step_more(
    operator: str, reuse: str, width: int, vector: int, rows: int, columns: int
) -> None:
    c = Candidate(width=width, vector=vector, reuse=reuse)
    f = features(c, counts(operator, reuse), rows, columns, LIMITS)
    column = counts(operator, reuse).column_bytes_per_row_column
    excess = f.worker_global_access_bytes * width - f.program_global_access_bytes
    assert 0 <= excess < width * vector * column
    assert f.scalar_rounds * width >= f.passes * columns
