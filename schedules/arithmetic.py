"""Cheaper arithmetic with the same value: a row program in, one with fewer dear operations a column out."""

from __future__ import annotations

from dataclasses import replace

from tirx_reduce.program import Const, Expr, Op, RowProgram, RowValue, rewrite, uses_column


def prepare(program: RowProgram) -> RowProgram:
    """Divide once a row where a column would be divided by a value of its row.

    ``x / s`` → ``x * (1 / s)``, only where 1 / s cannot leave the normal range: s is a square root, or a sum of
    exponentials. Elsewhere a large s would make the factor subnormal, which fast math flushes to zero.
    """

    def once(e: Expr) -> Expr | None:
        if not (isinstance(e, Op) and e.name == "div" and e.dtype == "float32"):
            return None
        over, under = e.args
        if not uses_column(over) or uses_column(under) or not _near_one(program, under):
            return None
        factor = Op("div", (Const(1.0, "float32"), under), "float32")
        return Op("mul", (rewrite(over, once), factor), "float32")

    return replace(
        program,
        reductions=tuple(
            replace(r, elements=tuple(rewrite(e, once) for e in r.elements)) for r in program.reductions
        ),
        outputs=tuple(replace(o, value=rewrite(o.value, once)) for o in program.outputs),
    )


def _near_one(program: RowProgram, divisor: Expr) -> bool:
    """Whether 1 / divisor stays normal: a square root spans half of the exponents, a softmax's sum is from 1 to N."""
    if isinstance(divisor, Op):
        return divisor.name == "sqrt"
    if not isinstance(divisor, RowValue):
        return False
    reduction = program.reductions[divisor.reduction]
    element = reduction.elements[0]
    if reduction.combiner != "sum" or not (isinstance(element, Op) and element.name in ("exp", "exp2")):
        return False
    # Without the row's maximum taken off, the sum may be as large as float32 goes.
    exponent = element.args[0]
    return isinstance(exponent, Op) and exponent.name == "sub" and _maximum(program, exponent.args[1])


def _maximum(program: RowProgram, value: Expr) -> bool:
    return isinstance(value, RowValue) and program.reductions[value.reduction].combiner == "max"
