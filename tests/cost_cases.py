"""The report's operators as counts and facts, by hand: what the cost tests share."""

from __future__ import annotations

from tirx_reduce.program import (
    Access,
    ColIndex,
    Const,
    Load,
    Op,
    Output,
    Reduction,
    RowIndex,
    RowProgram,
    RowValue,
    Tensor,
)
from tirx_reduce.values import Candidate, DeviceLimits, FamilyCounts, RowFacts

LIMITS = DeviceLimits()
# Walks, collectives and column vectors of the report's operators (design.md, 'Cost').
OPERATORS = {"softmax": (3, 2, 0), "rms_norm": (2, 1, 1), "layer_norm": (3, 2, 2)}
COEFFICIENTS = {"D": 2.0, "R": 0.02, "K": 0.05, "P": 1e-4, "G": 1e-6, "W": 1e-4, "capacity": 512.0}


def counts(operator: str, reuse: str, size: int = 4) -> FamilyCounts:
    passes, reductions, vectors = OPERATORS[operator]
    loads = passes if reuse == "reload" else 1
    return FamilyCounts(
        reuse=reuse,
        passes=passes,
        reductions=reductions,
        column_bytes_per_row_column=size * (loads + vectors + 1),
        kept=0 if reuse == "reload" else 1,
        storage_bytes=size,
        accumulation_bytes=4,
    )


def families(operator: str) -> dict[str, FamilyCounts]:
    return {reuse: counts(operator, reuse) for reuse in ("reload", "private")}


def grid(columns: int, limits: DeviceLimits = LIMITS) -> list[tuple[Candidate, str | None]]:
    found: list[tuple[Candidate, str | None]] = []
    for width in range(32, 1025, 32):
        found.append((Candidate(width=width, vector=4), None))
        scalars = -(-columns // (width * 4)) * 4
        reason = f"private: {scalars} scalars a lane; limit 64" if scalars > limits.private_scalars else None
        found.append((Candidate(width=width, vector=4, reuse="private"), reason))
    return found


def facts(
    rows: int | None = 37,
    columns: int | None = 1537,
    dtype: str = "float32",
    *,
    dense: bool = True,
    align: int = 1,
    kept: int = 1,
    arguments: int = 2,
) -> RowFacts:
    """A row-wise `x - max(x)`."""
    n = columns if columns is not None else 4096
    row = Op("mul", (RowIndex(0), Const(n, "int64")), "int64")
    index = Access(row, 1, dense=dense, align=align)
    x = Load(0, index, dtype)
    wide = Op("cast", (x,), "float32")
    maximum = Reduction(combiner="max", elements=(wide,), dtypes=("float32",))
    value = Op("sub", (wide, RowValue(0, 0, "float32")), "float32")
    extents = (Const(rows or 1, "int64"), Const(n, "int64"))
    program = RowProgram(
        tensors=(
            Tensor(param=0, name="x", dtype=dtype, shape=extents, role="in"),
            Tensor(param=1, name="y", dtype=dtype, shape=extents, role="out"),
        ),
        rows=(Const(rows or 1, "int64"),),
        columns=Const(n, "int64"),
        reductions=(maximum,),
        outputs=(Output(param=1, index=index, value=value, dtype=dtype, per_row=False),),
    )
    assert not isinstance(program.columns, ColIndex)
    return RowFacts(
        program=program,
        rows=rows,
        columns=columns,
        passes=2,
        reductions=1,
        storage=(dtype,),
        accumulation=("float32",),
        kept=kept,
        arguments=arguments,
    )
