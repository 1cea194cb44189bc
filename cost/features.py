"""Demand of one candidate, from the counts of its reuse family: pure arithmetic, no TVM."""

from __future__ import annotations

from tirx_reduce.candidates import private_rounds
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import Candidate, DeviceLimits, FamilyCounts, Features


def features(
    candidate: Candidate,
    counts: FamilyCounts,
    rows: int,
    columns: int,
    limits: DeviceLimits,
    incumbent: tuple[Candidate, Features] | None = None,
) -> Features:
    """Conservative source-level demand of a candidate over a matrix of `rows` × `columns`.

    Parameters
    ----------
    candidate
        The mapping.
    counts
        What was counted on the captured function of the candidate's reuse family.
    rows, columns
        Programs of the launch, and elements of each.
    limits
        The device's; only its subgroup size plays a part.
    incumbent
        Handed on, for policies that guard it.

    Raises
    ------
    ReduceError
        The counts are those of another family, or a size is not positive.
    """
    if counts.reuse != candidate.reuse:
        raise ReduceError(f"counts of the {counts.reuse} family; needs those of {candidate.reuse}")
    if rows < 1 or columns < 1:
        raise ReduceError(f"demand of {rows} rows of {columns} columns; needs 1 or more of each")
    lane_elements = _up(columns, candidate.width * candidate.vector) * candidate.vector
    private = lane_elements if candidate.reuse == "private" else 0
    if candidate.reuse == "mixed":
        rounds = private_rounds(candidate, max(1, counts.kept), columns)
        private = min(lane_elements, rounds * candidate.vector)
    return Features(
        rows=rows,
        columns=columns,
        passes=counts.passes,
        scalar_rounds=counts.passes * lane_elements,
        reductions=counts.reductions,
        # A program narrower than a subgroup still occupies part of one.
        subgroups_per_program=max(1, candidate.width // limits.subgroup_size),
        programs=rows,
        threadgroups=candidate.groups(rows),
        program_global_access_bytes=columns * counts.column_bytes_per_row_column,
        worker_global_access_bytes=lane_elements * counts.column_bytes_per_row_column,
        worker_private_access_bytes=counts.kept * private * counts.accumulation_bytes * (1 + counts.passes),
        storage_bytes=counts.storage_bytes,
        accumulation_bytes=counts.accumulation_bytes,
        incumbent=incumbent,
    )


def _up(a: int, b: int) -> int:
    return -(-a // b)
