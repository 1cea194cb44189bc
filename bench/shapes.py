"""Shapes as people write them: `768x6144` to (768, 6144) and back."""

from __future__ import annotations

import re

from tirx_reduce.errors import ReduceError

Shape = tuple[int, ...]


def parse_shape(text: str) -> Shape:
    """Read `ROWSxCOLUMNS` (any number of leading axes; `×` also separates).

    Raises
    ------
    ReduceError
        Where `text` is no shape, or an extent is not positive or does not fit a TVM index.
    """
    if not re.fullmatch(r"\d+([x×]\d+)*", text):
        raise ReduceError(
            f"shape {text!r} is not read; needs positive extents joined by 'x', such as 768x6144"
        )
    shape = tuple(int(part) for part in re.split("[x×]", text))
    if min(shape) < 1:
        raise ReduceError(f"shape {text!r} has the extent {min(shape)}; every extent must be 1 or more")
    if max(shape) >= 2**31:
        raise ReduceError(f"shape {text!r} has the extent {max(shape)}; every extent must be below 2^31")
    return shape


def shape_text(shape: Shape) -> str:
    """`768x6144` of (768, 6144)."""
    return "x".join(str(extent) for extent in shape)


def row_count(shape: Shape) -> int:
    """Rows of a shape: the product of all extents but the last."""
    rows = 1
    for extent in shape[:-1]:
        rows *= extent
    return rows


def limit_rows(shape: Shape, rows: int) -> Shape:
    """The largest shape of at most `rows` rows with the same rank and columns, cut from the outside in.

    Examples
    --------
    >>> limit_rows((768, 6144), 8)
    (8, 6144)
    >>> limit_rows((4, 32, 128, 64), 16)
    (1, 1, 16, 64)
    """
    leading = list(shape[:-1])
    for axis in range(len(leading)):
        inner = row_count((*leading[axis + 1 :], 1))
        if inner * leading[axis] <= rows:
            break
        leading[axis] = max(1, min(leading[axis], rows // inner))
    return (*leading, shape[-1])
