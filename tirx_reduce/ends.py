"""How a row of dense rows falls into packets of V aligned elements, in numbers: the most and the fewest of each.

Rows lie one behind the other, so a row may start anywhere between two multiples of V.
"""

from __future__ import annotations

from math import gcd

from .values import Candidate

SECTOR = 2
"""Packets of 16 bytes in the 32 that the second cache moves at once."""


def start_unit(candidate: Candidate) -> int:
    """Elements at a multiple of which the first packet of a row stands: V, or 2V where rows stay in resident groups.

    Asynchronous copies of 16 bytes that begin in the middle of a sector of 32 took 11 % longer on an H200 (1000 rows of
    50248 bfloat16 columns beside 50256); loads into registers did not.
    """
    stays = candidate.resident and candidate.reuse == "shared"
    return candidate.vector * (SECTOR if stays else 1)


def rows_apart(columns: int, unit: int) -> int:
    """Rows after which one starts as the first does, beside multiples of `unit`.

    >>> rows_apart(50257, 16), rows_apart(50248, 16), rows_apart(50256, 16)
    (16, 2, 1)
    """
    return unit // gcd(columns, unit)


def most_before(columns: int | None, unit: int) -> int:
    """Columns before the first packet, in the row that has the most; None for symbolic columns."""
    return unit - (1 if columns is None else gcd(columns, unit))


def fewest_packets(columns: int, vector: int, before: int) -> int:
    """Whole packets in the row that has the fewest, where up to `before` columns stand before the first.

    >>> fewest_packets(4095, 8, most_before(4095, 8)), fewest_packets(4097, 8, most_before(4097, 8))
    (511, 511)
    """
    return max(0, columns - before) // vector


def most_left(columns: int | None, vector: int, before: int) -> int:
    """Elements that stand in no packet, at both ends of the row that has the most.

    >>> most_left(4095, 8, most_before(4095, 8)), most_left(4097, 8, most_before(4097, 8))
    (7, 9)
    """
    if columns is None:
        return vector - 1 + before
    return columns - fewest_packets(columns, vector, before) * vector
