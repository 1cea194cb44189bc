"""Rows that start anywhere: their columns are no multiple of an access of 16 bytes (devices with clusters).

Such a row has loose elements at both ends, and weights that lie across two of its packets: they are loaded twice and
moved in registers, behind the exchange. So fewer and longer groups pay than for aligned rows, and threadgroup memory,
which leaves registers to the weights.
"""

from __future__ import annotations

import math

from tirx_reduce.values import Candidate, DeviceLimits

from .rung import ASSUMED_CORES, Rung, Shape, alike, parts


def elements(shape: Shape, even: int, widest: int, limits: DeviceLimits) -> int:
    """Elements of an access: few rows take as many as they can, float32 with weights fewer."""
    n, few = shape.columns, shape.rows < (limits.cores or ASSUMED_CORES)
    if n <= 2048:
        pairs = shape.storage_bytes < 4 and shape.reductions == 1 and few and n > 1024
        return max(even, 2) if pairs else even
    if shape.storage_bytes < 4:
        return widest
    if shape.reductions == 1:
        return widest if few or n > 5632 else widest // 2
    half = few or (shape.weighted and not 4096 < n <= 13312)
    return widest // 2 if half else widest


def few(shape: Shape, most: int) -> Rung:
    """Fewer rows than cores: 16 bits do a little better in one group."""
    n = shape.columns
    if shape.storage_bytes < 4:
        return Rung(lanes=n / (8 if n <= 8192 else 24 if shape.weighted else 16))
    lane = 16 if shape.reductions == 1 else 6 if shape.weighted else 8
    return Rung(lanes=n / lane, splits=parts(n / 6400, most))


def stream(shape: Shape, most: int, cores: int) -> Rung:
    """A row or more for every core, of no more than 65536 columns."""
    n = shape.columns
    if 4096 < n <= 36864 and shape.rows < 3 * cores:
        some = _some if shape.storage_bytes >= 4 else _some_sixteen_bits
        rung = some(shape, most, shape.rows < 2 * cores)
        if rung is not None:
            return rung
    if shape.storage_bytes < 4:
        return _sixteen_bits(shape, most, shape.rows < 3 * cores)
    if n <= (4096 if shape.weighted else 5632):
        return Rung(lanes=n / 8)
    if shape.reductions == 1:
        if n <= 28672:
            return Rung(lanes=n / 16, splits=1 if n <= 13312 else min(4 if n <= 18432 else 8, most))
        return Rung(lanes=n / 28, splits=min(8, most))
    if shape.weighted and n <= 13312:
        return Rung(lanes=n / (16 if n <= 9216 else 24))
    if shape.weighted and n <= 24576:
        return Rung(lanes=n / 26, splits=min(4, most))
    if n <= 18432:
        return Rung(lanes=n / 16, splits=min(2 if n <= 8704 else 4, most))
    return Rung(lanes=max(1024, n / 32), splits=min(8, most))


def _some(shape: Shape, most: int, thin: bool) -> Rung | None:
    """One or two rows a core, of float32; `thin`: one, and some over. None where they fall into place with others.

    All of the last round over packets stands under a condition, for some row has one packet less. Where rows are few
    that round had better not be a full one: widths are those nearest to the lanes, whatever is idle in it.
    """
    n = shape.columns
    if n <= 8704:
        return Rung(lanes=n / 12, splits=min(4 if thin else 2 if shape.weighted else 1, most), idle=0)
    if n > 16384:
        return None
    if shape.weighted:
        return Rung(lanes=n / 19, splits=min(4, most), reuse="shared", idle=0)
    if shape.reductions == 1:
        return Rung(lanes=n / 11, splits=min(4, most), idle=0)
    return Rung(lanes=n / 11.3, splits=min(2, most), idle=0) if thin else None


def _some_sixteen_bits(shape: Shape, most: int, thin: bool) -> Rung | None:
    n = shape.columns
    if n <= 8704:
        return Rung(lanes=n / 18, splits=min(2, most), idle=0)
    if n <= 16384:
        return Rung(lanes=n / 19, splits=min(2, most), idle=0) if thin else None
    if shape.weighted:
        reuse = "shared" if n > 24576 or not thin else "private"
        return Rung(lanes=n / 31, splits=min(4, most), reuse=reuse, idle=0)
    if shape.reductions > 1 and (n > 24576 or not thin):
        return None
    if thin:
        return Rung(lanes=n / 19.5, splits=min(4, most), idle=0)
    return Rung(lanes=n / 34, splits=min(2, most), reuse="shared", idle=0)


def _sixteen_bits(shape: Shape, most: int, some: bool) -> Rung:
    n, eight = shape.columns, min(8, most)
    if shape.weighted:
        if 8704 < n <= 17408 and not some:
            return Rung(lanes=n / 35, reuse="shared", idle=0)
        if n <= 17408:
            return Rung(lanes=n / (32 if n <= 4096 else 37))
        if n > 53248 or (some and n > 36864):
            return Rung(lanes=n / (32 if n > 53248 else 39), splits=eight, reuse="shared")
        return Rung(lanes=n / (31 if n <= 24576 else 44), splits=min(4, most), reuse="shared")
    if shape.reductions > 1:
        return Rung(lanes=n / 16) if n <= 4096 else Rung(lanes=n / 36, splits=parts(n / 8192, eight))
    if n <= 20480:
        return Rung(lanes=n / (32 if n <= 4096 else 39))
    if shape.fused:
        return Rung(lanes=n / 32, splits=eight)
    if n <= 36864:
        return Rung(lanes=n / 31, splits=min(4, most), reuse="shared")
    return Rung(lanes=n / 39, splits=eight, reuse="shared")


def resident(shape: Shape, vector: int, limits: DeviceLimits) -> Candidate | None:
    """Groups that stay, for a stream of 16-bit rows of a LayerNorm with weight and bias, or alike; None for others.

    What is moved in registers is moved once for all rows of a group, if they start alike: so groups are a multiple of
    the rows after which one starts like the first. A row is one group where three fit a core's memory, else two.
    """
    n, cores = shape.columns, limits.cores or ASSUMED_CORES
    if not 10240 < n <= 65536 or shape.rows < 5 * cores or (n <= 16640 and shape.rows > 16 * cores):
        return None
    splits = 1 if n <= 26624 else 2
    a_core = 2 if n <= 16640 or 26624 < n <= 36864 else 1
    groups = alike(a_core * cores // splits, n, vector) * splits
    if not groups:
        return None
    width = math.ceil(n // vector / 4 / splits / limits.subgroup_size) * limits.subgroup_size
    return Candidate(width=width, vector=vector, reuse="shared", splits=splits, resident=groups)
