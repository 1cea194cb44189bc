"""A policy of fixed rules, without a calibration: the mapping that `rungs` names, then what comes near it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tirx_reduce.values import RUNGS, Candidate, CostEstimate, DeviceLimits, Features, RowFacts

from .rung import Shape
from .rungs import streamed, vectors, wanted

FAR = 1000.0
"""Price of what the ladder does not name."""


class Ladder:
    """Widths by row length, packing and splitting by waves."""

    name = "ladder"

    def scope(
        self, facts: RowFacts, limits: DeviceLimits, rows: int | None = None, columns: int | None = None
    ) -> Iterator[Candidate]:
        """The mappings that the ladder would take, best first; the first legal one wins."""
        rows = facts.rows if facts.rows is not None else rows
        columns = facts.columns if facts.columns is not None else columns
        columns = max(1, columns or 1)
        storage = max((_bytes(d) for d in facts.storage), default=4)
        moved = dict(facts.payload_bytes).get("private")
        shape = Shape(
            rows=max(1, rows or 1),
            columns=columns,
            storage_bytes=storage,
            reductions=facts.reductions,
            streams=round(moved / columns / storage) if moved else 2,
        )
        yield from steps(shape, limits)

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        """The place of `candidate` on the ladder, from 1."""
        storage = features.storage_bytes or 4  # of a softmax over one column, which reads nothing
        moved = round(features.program_global_access_bytes / features.columns / storage)
        # Reloaded, a row counts again at every later walk; the rules look at what one walk over all would move.
        again = features.passes - 1 if candidate.reuse == "reload" else 0
        shape = Shape(
            rows=features.rows,
            columns=features.columns,
            storage_bytes=storage,
            reductions=features.reductions,
            streams=max(1, moved - again),
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
    for vector in vectors(shape, limits):
        for candidate in _rungs(shape, vector, limits):
            if candidate not in seen:
                seen.add(candidate)
                yield candidate


def _rungs(shape: Shape, vector: int, limits: DeviceLimits) -> Iterator[Candidate]:
    first = wanted(shape, vector, limits)
    width, packing, splits = first.width, first.packing, first.splits

    def at(width: int, packing: int, reuse: str, splits: int = 1) -> Candidate:
        # Rows that are reloaded are read once for two reductions, where they can ride; it means nothing elsewhere.
        merged = reuse == "reload" and shape.reductions > 1
        return Candidate(
            width=width, packing=packing, vector=vector, reuse=reuse, splits=splits, merged=merged
        )

    stream = streamed(shape, vector, limits)
    if stream is not None:
        yield stream
    yield first
    yield replace(first, merged=False, reuse="private")
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
