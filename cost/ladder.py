"""Fixed rules: a width by row length, packing for short rows, splitting for few long ones. No calibration.

The rungs are those of a sweep over 870 kernels on one H200 (cold, float32 and bfloat16; `docs/kernels.md`): what a
lane holds grows with the row, from 8 elements to 64. On Metal they are the same by analogy, and unmeasured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tirx_reduce.values import Candidate, CostEstimate, DeviceLimits, Features, RowFacts

RUNGS = "rungs"
"""Unit of its prices: how far down the ladder a candidate stands."""
ASSUMED_CORES = 32
"""Where a device does not tell."""
FAR = 1000.0
"""Price of what the ladder does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the ladder looks at."""

    rows: int
    columns: int
    storage_bytes: int
    """Of the widest matrix element."""
    reductions: int


class Ladder:
    """Widths by row length, packing and splitting by waves."""

    name = "ladder"

    def scope(
        self, facts: RowFacts, limits: DeviceLimits, rows: int | None = None, columns: int | None = None
    ) -> Iterator[Candidate]:
        """The mappings that the ladder would take, best first; the first legal one wins."""
        rows = facts.rows if facts.rows is not None else rows
        columns = facts.columns if facts.columns is not None else columns
        shape = Shape(
            rows=max(1, rows or 1),
            columns=max(1, columns or 1),
            storage_bytes=max((_bytes(d) for d in facts.storage), default=4),
            reductions=facts.reductions,
        )
        yield from steps(shape, limits)

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        """The place of `candidate` on the ladder, from 1."""
        shape = Shape(
            rows=features.rows,
            columns=features.columns,
            storage_bytes=features.storage_bytes,
            reductions=features.reductions,
        )
        rungs = _places(shape, limits)
        # Facts and features may differ in the widest element; then the nearest shape counts.
        place = float(rungs.get(candidate, 0)) or FAR + _distance(candidate, next(iter(rungs)))
        return CostEstimate(local=place, launch=1.0, kernel_score=place, unit=RUNGS)


@lru_cache(maxsize=64)
def _places(shape: Shape, limits: DeviceLimits) -> dict[Candidate, int]:
    """The place of every mapping, from 1; a plan asks for the same ladder at each of its candidates."""
    return {candidate: place for place, candidate in enumerate(steps(shape, limits), start=1)}


def _distance(candidate: Candidate, wanted: Candidate) -> float:
    lanes = abs(math.log2(candidate.width * candidate.splits) - math.log2(wanted.width * wanted.splits))
    return lanes + (candidate.reuse != wanted.reuse) + abs(candidate.vector - wanted.vector)


def _bytes(dtype: str) -> int:
    return 4 if dtype in ("float32", "int32", "uint32") else 8 if dtype.endswith("64") else 2


def steps(shape: Shape, limits: DeviceLimits) -> Iterator[Candidate]:
    """Mappings in the order in which the ladder would take them, illegal ones included, each once."""
    seen: set[Candidate] = set()
    widest = 16 // shape.storage_bytes if limits.kind == "cuda" else 4
    vectors = [v for v in (8, 4, 2, 1) if v <= min(widest, shape.columns)]
    # A row that does not start aligned costs more in partial packets than narrow accesses do.
    vectors.sort(key=lambda v: shape.columns % v != 0)
    for vector in vectors:
        for candidate in _rungs(shape, vector, limits):
            if candidate not in seen:
                seen.add(candidate)
                yield candidate


def _rungs(shape: Shape, vector: int, limits: DeviceLimits) -> Iterator[Candidate]:
    width, splits, reuse, merged = _wanted(shape, vector, limits)
    packing = _packing(shape, width, limits) if splits == 1 else 1

    def at(width: int, packing: int, reuse: str, splits: int = 1, merged: bool = False) -> Candidate:
        return Candidate(
            width=width, packing=packing, vector=vector, reuse=reuse, splits=splits, merged=merged
        )

    yield at(width, packing, reuse, splits, merged)
    for w in (width, *(w for w in (256, 384, 512, 768, 1024) if w > width)):
        if w <= limits.max_threads:
            yield at(w, packing if w == width else 1, "private")
    if limits.max_cluster > 1:
        for s in (2, 4, 8, 16):
            for w in (256, 512):
                yield at(w, 1, "private", s)
    yield at(min(512, limits.max_threads), 1, "shared")
    yield at(min(max(width, limits.subgroup_size), limits.max_threads), packing, "reload", splits)
    yield at(min(max(width, limits.subgroup_size), limits.max_threads), packing, "reload")
    yield at(limits.subgroup_size, 1, "reload")
    for w in (limits.subgroup_size, limits.subgroup_size // 2, 8, 4, 2, 1):
        if w and limits.max_threads >= w:
            yield at(w, max(1, limits.subgroup_size // w), "reload")
            yield at(w, 1, "reload")


def _wanted(shape: Shape, vector: int, limits: DeviceLimits) -> tuple[int, int, str, bool]:
    """Width, groups, reuse and whether two reductions meet at once: the rungs themselves."""
    n, few = shape.columns, shape.rows < (limits.cores or ASSUMED_CORES)
    narrow, two, clusters = shape.storage_bytes < 4, shape.reductions > 1, limits.max_cluster > 1
    if n > 65536 and few:
        return _few_long(shape, limits)
    if n > 65536:
        if not clusters:
            return 1024, 1, "reload", False
        return (256, 8, "private", False) if two else (256 if narrow else 512, 8, "shared", False)
    if n > 40960 and clusters:
        # A group of 1024 lanes would spill.
        return (256, 4, "private", False) if vector == 1 else (512, 2, "private", False)
    if n > 20480:
        if narrow and clusters and two:
            return 256, 2, "private", False
        return (512 if narrow else 1024 if two else 768), 1, "private", two and not narrow
    if few and n > 8192 and clusters and (not narrow or vector == 1):
        return (768, 1, "private", True) if two and vector > 1 else (768, 2, "private", False)
    # Elements of one lane: few where the launch is latency, more where it is a stream of rows.
    thin = shape.rows < 2 * (limits.cores or ASSUMED_CORES) and not few
    merged = two and not few and n > 2048 and not narrow
    lane = _narrow_lane(n, few, thin) if narrow and vector > 1 else _lane(n, few, thin, narrow, merged)
    return _whole(n / lane, vector, n, limits), 1, "private", merged


def _narrow_lane(columns: int, few: bool, thin: bool) -> int:
    """Elements of a lane, 16-bit rows in accesses of 16 bytes."""
    if columns <= 4096:
        return 8 if few and columns <= 2048 else 12 if thin else 16
    if columns <= 8192:
        return 24
    return 12 if few else 64


def _lane(columns: int, few: bool, thin: bool, narrow: bool, merged: bool) -> int:
    """Elements of a lane, everything else."""
    if columns <= 4096:
        if thin:
            return 4 if merged else 6
        return 11 if narrow and columns > 2048 else 8
    if columns <= 8192:
        return 16 if merged else 12
    if few:
        return 12
    return 32 if merged else 43


def _few_long(shape: Shape, limits: DeviceLimits) -> tuple[int, int, str, bool]:
    """Fewer rows than cores: each row over many groups, all of the device if need be."""
    if limits.max_cluster > 1:
        wide = 512 if shape.reductions == 1 else 1024
        if shape.rows == 1:
            wide = 256 if shape.storage_bytes >= 4 else 512
        return wide, min(16, limits.max_cluster), "private", False
    groups = max(1, (limits.cores or ASSUMED_CORES) // shape.rows)
    return 512, min(32, 1 << (groups.bit_length() - 1)), "reload", False


def _whole(lanes: float, vector: int, columns: int, limits: DeviceLimits) -> int:
    """The next width that the device has: a power of two below a subgroup, else subgroups in steps of two."""
    subgroup = limits.subgroup_size
    most = min(limits.max_threads, 1024)
    if columns <= 512:
        held = 2 * vector if columns % 2 == 0 or vector > 1 else 8
        return min(subgroup, max(1, 1 << max(0, math.ceil(math.log2(max(1.0, columns / held))))))
    step = subgroup if lanes <= 2 * subgroup else 2 * subgroup
    return max(subgroup, min(most, math.ceil(lanes / step) * step))


def _packing(shape: Shape, width: int, limits: DeviceLimits) -> int:
    """Programs of a group: enough threads to fill one, none where every row can have a core to itself."""
    threads = 128 if shape.columns > 512 or (shape.storage_bytes >= 4 and shape.reductions == 1) else 256
    packing = max(1, min(threads, limits.max_threads) // width)
    packing = 1 << (packing.bit_length() - 1)
    cores = limits.cores or ASSUMED_CORES
    while packing > 1 and shape.rows < packing * cores and width * packing // 2 >= limits.subgroup_size:
        packing //= 2
    return packing
