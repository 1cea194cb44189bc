"""What the rules of `ladder` look at, and what they name."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tirx_reduce.ends import SECTOR, rows_apart

ASSUMED_CORES = 32
"""Where a device does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the ladder looks at."""

    rows: int
    columns: int
    storage_bytes: int
    """Of the widest matrix element."""
    reductions: int
    streams: int = 2
    """Elements that a column moves, weights and outputs among them."""

    @property
    def weighted(self) -> bool:
        """Two reductions, and then more to read than the row itself: a LayerNorm, no softmax."""
        return self.reductions > 1 and self.streams > 2

    @property
    def fused(self) -> bool:
        """More matrices than one in and one out."""
        return self.reductions == 1 and self.streams > 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """How many lanes a row takes, in how many groups."""

    lanes: float
    splits: int = 1
    reuse: str = "private"
    merged: bool = False
    packing: int = 0
    """Rows of a group; 0 leaves it to the threads and rows that there are."""
    idle: float = 3.0
    """What a lane that has nothing to take weighs against a width that is as much too large, in logarithms."""


def parts(share: float, most: int) -> int:
    """The power of two from `share` on, within 1 and `most`."""
    return min(most, 1 << max(0, math.ceil(math.log2(share))))


def alike(clusters: int, columns: int, vector: int) -> int:
    """The most clusters, no more than these, that take rows in turn so that the rows of each start alike."""
    apart = rows_apart(columns, SECTOR * vector)
    return clusters // apart * apart
