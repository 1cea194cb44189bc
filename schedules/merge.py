"""Two reductions in one exchange: the later one is computed from a part's value of the earlier, and corrected.

A softmax sums exp(x - m) with the maximum m of a part of the row and is scaled when the maximum of the row is known; a
variance sums (x - mean)² with the mean of the part (Chan, Golub, LeVeque 1979), to the error of two passes. A part is
what a lane, a subgroup or a group has of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import tirx

from tirx_reduce.program import Const, Expr, Op, RowProgram, RowValue, walk

from .passes import Pass
from .tir import imm

_MINUS_INFINITY = 0xFF800000
Count: TypeAlias = Any
"""A number of columns: an int where it is fixed, a float32 of TIR elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rider:
    """A reduction that rides on an earlier one."""

    on: int
    """The earlier reduction."""
    rule: str
    """`exponential`: a sum of exp(g - max of g); `square`: a sum of (g - mean of g)²."""

    def reference(self, value: Any, groups: int) -> Any:
        """What stands for the earlier row value while only this group's part of it is known.

        A group of -inf alone takes 0 for its maximum, so that exp(-inf - 0) is 0 and not NaN. A group's sum is
        scaled to the row, so that dividing it by the row's columns gives the group's own mean.
        """
        return finite(value) if self.rule == "exponential" else value * imm(float(groups), "float32")

    def base(self, total: Any) -> Any:
        """A total of some groups as the base of what follows: a part of -inf alone counts from 0."""
        return self.reference(total, 1) if self.rule == "exponential" else total

    def term(self, earlier: Any, own: Any, total: Any, share: Count, columns: Count) -> Any:
        """The later reduction of a part of `share` columns, corrected to `columns` of them; their sum is the whole's.

        `earlier` is the earlier reduction of the part, `total` that of the whole. Exact up to rounding.
        """
        if self.rule == "exponential":
            return own * self.factor(self.reference(earlier, 1), total)
        step = earlier * inverse(share) - total * inverse(columns)
        if isinstance(share, int):
            return own + step * step * imm(float(share), "float32")
        # A part may have no columns: then its step means nothing, and its square may overflow.
        return own + step * (step * share)

    def factor(self, mine: Any, total: Any) -> Any | None:
        """What makes a kept value of this group one of the row; None where nothing kept depends on it."""
        if self.rule != "exponential":
            return None
        return self.final(shrink(mine, total), total)

    def final(self, own: Any, total: Any) -> Any:
        """`own`, where `total` is that of the row."""
        if self.rule != "exponential":
            return own
        # A row of -inf alone is NaN, as exp(-inf - -inf) is; said with bits, since fast math need not know.
        return tirx.Select(_is_minus_infinity(total), imm(float("nan"), "float32"), own)


def finite(maximum: Any) -> Any:
    """A maximum to take exponentials about: 0 where there is only -inf."""
    return tirx.Select(_is_minus_infinity(maximum), imm(0.0, "float32"), maximum)


def shrink(mine: Any, total: Any) -> Any:
    """exp(mine - total), for a maximum of a part and one of the whole.

    A part of -inf alone took 0 for its maximum, which may be more than the whole's by any amount: its sum is 0, and
    an infinite factor would make it NaN.
    """
    return tirx.exp(tirx.Min(mine - total, imm(0.0, "float32")))


def inverse(count: Count) -> Any:
    """1 / count; 1 where there is nothing to count."""
    if isinstance(count, int):
        return imm(1.0 / count, "float32")
    return imm(1.0, "float32") / tirx.Max(count, imm(1.0, "float32"))


def real(count: Count) -> Any:
    """`count` as a float32 of TIR."""
    return imm(float(count), "float32") if isinstance(count, int) else count


def _is_minus_infinity(value: Any) -> Any:
    return tirx.EQ(tirx.reinterpret("uint32", value), imm(_MINUS_INFINITY, "uint32"))


def riders(program: RowProgram, walks: tuple[Pass, ...], step: int | None) -> dict[int, Rider]:
    """The reductions of the second walk that ride on those of the first; empty unless all of both take part.

    Parameters
    ----------
    step : int, optional
        Columns that all groups of a row take in one round; a square needs them to have equally many. None where both
        take one walk, which counts its columns and has its row outputs behind it.
    """
    if len(walks) < 2:
        return {}
    first, second = walks[:2]
    if not first.reductions or not second.reductions or second.outputs:
        return {}
    if step is not None and (first.row_outputs or second.row_outputs):
        return {}
    found: dict[int, Rider] = {}
    for j in second.reductions:
        rider = _rider(program, j, step)
        if rider is None or rider.on not in first.reductions:
            return {}
        found[j] = rider
    return found if {r.on for r in found.values()} == set(first.reductions) else {}


def _rider(program: RowProgram, j: int, step: int | None) -> Rider | None:
    r = program.reductions[j]
    if r.combiner != "sum" or r.dtypes != ("float32",) or r.init:
        return None
    (element,) = r.elements
    exponent = _operands(element, "exp")
    if exponent is not None:
        return _exponential(program, exponent[0])
    factors = _operands(element, "mul")
    if factors is None or factors[0] != factors[1]:
        return None
    equal = isinstance(program.columns, Const) and step is not None and int(program.columns.value) % step == 0
    if step is not None and not equal:
        return None
    return _square(program, factors[0])


def _exponential(program: RowProgram, exponent: Expr) -> Rider | None:
    """A sum of exp(g - m) that rides on the maximum m of g."""
    difference = _operands(exponent, "sub")
    if difference is None:
        return None
    value, base = difference
    if not isinstance(base, RowValue):
        return None
    return Rider(on=base.reduction, rule="exponential") if _earlier(program, base, "max", value) else None


def _square(program: RowProgram, factor: Expr) -> Rider | None:
    """A sum of (g - mean)² that rides on the sum of g."""
    difference = _operands(factor, "sub")
    if difference is None:
        return None
    value, mean = difference
    base = _sum_of_mean(program, mean)
    if base is None or not _earlier(program, base, "sum", value):
        return None
    return Rider(on=base.reduction, rule="square")


def _operands(e: Expr, name: str) -> tuple[Expr, ...] | None:
    return e.args if isinstance(e, Op) and e.name == name else None


def _earlier(program: RowProgram, base: RowValue, combiner: str, value: Expr) -> bool:
    r = program.reductions[base.reduction]
    return base.dtype == "float32" and r.combiner == combiner and r.elements == (value,) and not r.init


def _sum_of_mean(program: RowProgram, mean: Expr) -> RowValue | None:
    """The sum whose quotient by the number of columns `mean` is."""
    if not isinstance(mean, Op) or mean.name not in ("div", "mul"):
        return None
    base, by = mean.args
    if isinstance(base, Const) and mean.name == "mul":
        base, by = by, base
    if not isinstance(base, RowValue):
        return None
    if not isinstance(program.columns, Const):
        return base if mean.name == "div" and _widened(by) == program.columns else None
    if not isinstance(by, Const):
        return None
    columns = float(program.columns.value)
    wanted = columns if mean.name == "div" else 1.0 / columns
    return base if abs(float(by.value) - wanted) <= 1e-7 * wanted else None


def _widened(e: Expr) -> Expr:
    """What stands under casts."""
    while isinstance(e, Op) and e.name == "cast":
        (e,) = e.args
    return e


def depends(e: Expr, reduction: int) -> bool:
    """Whether `e` is computed from that reduction."""
    return any(isinstance(x, RowValue) and x.reduction == reduction for x in walk(e))
