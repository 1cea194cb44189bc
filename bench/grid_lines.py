"""The lines of the peers' grid: operators, shapes and dtypes in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Collection

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.dtypes import dtype_name
from tirx_reduce.bench.shapes import Shape, shape_text
from tirx_reduce.errors import ReduceError

TABLE, ODD, FUSED, OTHER = "table", "odd", "fused", "other"
GROUPS = (TABLE, ODD, FUSED)
"""What the grid has; `other` is what a caller names besides."""
DTYPES = ("float32", "bfloat16")
OPERATORS = ("softmax", "rms_norm", "layer_norm")
TABLE_SHAPES: tuple[Shape, ...] = (
    (4096, 4096),
    (2048, 16384),
    (1024, 32768),
    (16384, 1024),
    (32768, 256),
    (256, 131072),
    (8, 131072),
    (1, 131072),
    (768, 6144),
    (256, 3072),
    (64, 12288),
    (37, 1536),
)
"""Large ones first: where a run stops early, the lines that say most about bytes are there."""
ODD_SHAPES: tuple[Shape, ...] = ((4096, 4095), (37, 1537), (64, 12289), (1000, 50257))
NEIGHBOURS: dict[Shape, Shape] = {
    (4096, 4095): (4096, 4096),
    (37, 1537): (37, 1536),
    (64, 12289): (64, 12288),
    (1000, 50257): (1000, 50256),
}
"""The aligned shape beside an odd one; the last is none of the grid's."""
FUSED_CASES: tuple[tuple[str, Shape], ...] = (
    ("add_rms_norm", (4096, 4096)),
    ("add_rms_norm", (16384, 1024)),
    ("add_rms_norm", (2048, 8192)),
    ("add_rms_norm", (256, 3072)),
    ("masked_softmax", (4, 32, 512, 512)),
    ("masked_softmax", (8, 16, 256, 256)),
    ("masked_softmax", (1, 8, 1024, 4096)),
)


def lines(
    groups: Collection[str] = GROUPS,
    *,
    operators: Collection[str] = (),
    shapes: Collection[Shape] = (),
    dtypes: Collection[str] = (),
) -> tuple[Case, ...]:
    """The cases of some groups, in order.

    Parameters
    ----------
    groups
        Some of `table` (72 lines), `odd` (columns that no vector divides), `fused`.
    operators, shapes, dtypes
        What to keep; empty keeps all. Shapes and dtypes may be others than the grid's, with the grid's operators.

    Raises
    ------
    ReduceError
        A group or a dtype is unknown, or nothing is left.
    """
    unknown = [g for g in groups if g not in GROUPS]
    if unknown:
        raise ReduceError(f"group {unknown[0]!r} is not known; needs some of {', '.join(GROUPS)}")
    wanted = [dtype_name(d) for d in dtypes]
    every = (*DTYPES, *(d for d in wanted if d not in DTYPES))
    found: list[Case] = []
    if TABLE in groups:
        found += _product(TABLE_SHAPES, every)
    if ODD in groups:
        found += _product(ODD_SHAPES, every)
    if FUSED in groups:
        found += [Case(operator=o, shape=s, dtype=d) for o, s in FUSED_CASES for d in every if d != "float32"]
    new = [s for s in shapes if all(c.shape != s for c in found)]
    found += _product([s for s in new if len(s) == 2], every)
    if "add_rms_norm" in operators:
        found += [Case(operator="add_rms_norm", shape=s, dtype=d) for s in new if len(s) == 2 for d in every]
    found += [Case(operator="masked_softmax", shape=s, dtype=d) for s in new if len(s) > 2 for d in every]
    kept = tuple(
        c
        for c in found
        if (not operators or c.operator in operators)
        and (not shapes or c.shape in shapes)
        and (not wanted or c.dtype in wanted)
    )
    if not kept:
        raise ReduceError("no line of the grid is left; needs operators, shapes and dtypes that it has")
    return kept


def group_of(case: Case) -> str:
    """Which part of the grid a case belongs to; `table` needs the table's shape, operator and dtype."""
    if case.operator in OPERATORS and case.shape in TABLE_SHAPES and case.dtype in DTYPES:
        return TABLE
    if case.operator not in OPERATORS:
        return FUSED
    return ODD if case.shape in ODD_SHAPES and case.dtype in DTYPES else OTHER


def title(case: Case) -> str:
    """`float32 softmax 37x1536`."""
    return f"{case.dtype} {case.operator} {shape_text(case.shape)}"


def _product(shapes: Collection[Shape], dtypes: Collection[str]) -> list[Case]:
    return [Case(operator=o, shape=s, dtype=d) for s in shapes for d in dtypes for o in OPERATORS]
