"""Running reductions, as people write them by hand: Welford's mean and spread, the sum of an online softmax.

In go the new values of a block's accumulators, out comes which of them are a mean, a spread, a count, a maximum or a
sum relative to it. An update is recognised by what it computes and not by how it is written: it is evaluated in exact
rationals at random points beside the one that is looked for, exponentials as powers of two. Two rational functions that
differ agree at all points with a chance below 2^-100. An update may branch on the order of the maximum and the element
alone, and points of both orders are taken. Refused, by None: everything else.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import TypeAlias

from .facts_combine import chain, chosen
from .program import ColIndex, Const, Expr, Load, Op, RowValue, walk

Number: TypeAlias = Fraction | float | bool
TRIALS = 12
LARGEST = 4096
"""Exponents above it are not taken."""
EXPONENTIALS = ("exp", "exp2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """x̄ += (x - x̄) / n; the spread is the sum of (x - x̄)², the count is n."""

    element: Expr
    mean: int
    """Number of the accumulator."""
    spread: int | None
    count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Online:
    """m = max(m, x), d = d·exp(m_old - m) + y·exp(x - m): d is the sum of y·exp(x - max x)."""

    element: Expr
    factor: Expr | None
    """y; None for 1."""
    maximum: int
    total: int
    exponential: str
    """`exp` or `exp2`."""


def recognise(
    values: Sequence[Expr], marks: Sequence[RowValue], inits: Sequence[Expr]
) -> Mean | Online | None:
    """What running reduction the accumulators `marks` are, if they are one."""
    if not all(m.dtype == "float32" or m.dtype.startswith("int") for m in marks):
        return None
    return _mean(values, marks, inits) or _online(values, marks, inits)


def _mean(values: Sequence[Expr], marks: Sequence[RowValue], inits: Sequence[Expr]) -> Mean | None:
    if len(marks) > 3 or not all(isinstance(i, Const) and i.value == 0 for i in inits):
        return None
    for order in permutations(range(len(marks))):
        count = next((i for i in order if _counts(values[i], marks[i])), None)
        rest = [i for i in order if i != count]
        if len(rest) not in (1, 2):
            continue
        mean, spread = rest[0], rest[1] if len(rest) == 2 else None
        for element in _elements(values[mean]):
            if _is_mean(values, marks, element, mean, spread, count):
                return Mean(element=element, mean=mean, spread=spread, count=count)
    return None


def _counts(value: Expr, mark: RowValue) -> bool:
    found = chain(value, mark)
    return (
        found is not None
        and found[0] == "add"
        and all(isinstance(p, Const) and p.value == 1 for p in found[1])
    )


def _is_mean(
    values: Sequence[Expr],
    marks: Sequence[RowValue],
    element: Expr,
    mean: int,
    spread: int | None,
    count: int | None,
) -> bool:
    for known in _points(values, (element,), whole=()):
        column = known[ColIndex()]
        if count is not None:
            known[marks[count]] = column
        x, old = known[element], known[marks[mean]]
        new = old + (x - old) / (column + 1)
        if _evaluated(values[mean], known) != new:
            return False
        if spread is not None and _evaluated(values[spread], known) != known[marks[spread]] + (x - old) * (
            x - new
        ):
            return False
    return True


def _online(values: Sequence[Expr], marks: Sequence[RowValue], inits: Sequence[Expr]) -> Online | None:
    if len(marks) != 2:
        return None
    for maximum, total in ((0, 1), (1, 0)):
        found = chain(values[maximum], marks[maximum]) or chosen(values[maximum], marks[maximum])
        start = inits[total]
        if found is None or found[0] != "max" or len(found[1]) != 1 or _marked(found[1][0]):
            continue
        if not (isinstance(start, Const) and start.value == 0):
            continue
        (element,) = found[1]
        names = {e.name for e in walk(values[total]) if isinstance(e, Op) and _marked(e)}
        for name in (n for n in EXPONENTIALS if n in names):
            for factor in (None, *_elements(values[total])):
                if factor != element and _is_online(values, marks, element, factor, (maximum, total), name):
                    return Online(
                        element=element, factor=factor, maximum=maximum, total=total, exponential=name
                    )
    return None


def _is_online(
    values: Sequence[Expr],
    marks: Sequence[RowValue],
    element: Expr,
    factor: Expr | None,
    items: tuple[int, int],
    name: str,
) -> bool:
    maximum, total = items
    atoms = (element,) if factor is None else (element, factor)
    top = marks[maximum]
    for trial, known in enumerate(_points(values, atoms, whole=(element, top))):
        if trial % 2 == (known[element] < known[top]):
            known[element], known[top] = known[top], known[element]
        x, old = known[element], known[top]
        new = max(x, old)
        weight = Fraction(1) if factor is None else known[factor]
        want = known[marks[total]] * _power(old - new) + weight * _power(x - new)
        ordered = frozenset({element, top, values[maximum]})
        if _evaluated(values[total], known, name, ordered) != want:
            return False
    return True


def _marked(expr: Expr) -> bool:
    return any(isinstance(e, RowValue) and e.reduction == -1 for e in walk(expr))


def _elements(value: Expr) -> Iterator[Expr]:
    """The largest parts of an update that hold no accumulator, and are read somewhere."""
    seen: set[Expr] = set()
    waiting = [value]
    while waiting:
        expr = waiting.pop()
        if expr in seen:
            continue
        seen.add(expr)
        if not _marked(expr):
            if any(isinstance(e, Load) for e in walk(expr)):
                yield expr
        elif isinstance(expr, Op):
            waiting.extend(expr.args)


def _points(
    values: Sequence[Expr], atoms: Sequence[Expr], whole: Sequence[Expr]
) -> Iterator[dict[Expr, Fraction]]:
    """Random values of the column, the accumulators and atoms; integers where a power is to be taken of them."""
    marks = sorted(
        {e for e in walk(*values) if isinstance(e, RowValue) and e.reduction == -1}, key=lambda m: m.item
    )
    for trial in range(TRIALS):
        rng = random.Random(trial)
        point: dict[Expr, Fraction] = {ColIndex(): Fraction(rng.randrange(1, 1 << 40))}
        for e in (*marks, *atoms):
            exact = Fraction(rng.randrange(-1 << 40, 1 << 40), rng.randrange(1, 1 << 40))
            point[e] = Fraction(rng.randrange(-60, 60)) if e in whole else exact
        yield point


def _power(exponent: Number) -> Fraction:
    if not isinstance(exponent, Fraction) or exponent.denominator != 1 or abs(exponent) > LARGEST:
        raise _Unknown
    return Fraction(2) ** int(exponent)


class _Unknown(Exception):
    """An operation that has no exact value here."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """What an update may be made of."""

    power: str
    """The exponential that is evaluated as a power of two."""
    ordered: frozenset[Expr]
    """Values that may be compared with one another, and with infinity."""


def _evaluated(
    expr: Expr, known: Mapping[Expr, Number], power: str = "", ordered: frozenset[Expr] = frozenset()
) -> Number | None:
    """The exact value of `expr`; None where it has none."""
    try:
        return _value(expr, dict(known), _Terms(power, ordered))
    except (_Unknown, ZeroDivisionError):
        return None


def _value(expr: Expr, known: dict[Expr, Number], terms: _Terms) -> Number:
    found = known.get(expr)
    if found is not None:
        return found
    if isinstance(expr, Const):
        number = float(expr.value)
        return number if math.isinf(number) or math.isnan(number) else Fraction(expr.value)
    if not isinstance(expr, Op):
        raise _Unknown
    args = [_value(a, known, terms) for a in expr.args]
    known[expr] = found = _operated(expr, args, terms)
    return found


def _operated(expr: Op, args: list[Number], terms: _Terms) -> Number:
    name = expr.name
    if name == terms.power:
        return _power(args[0])
    if name in _ORDER:
        if not all(a in terms.ordered or (isinstance(a, Const) and math.isinf(a.value)) for a in expr.args):
            raise _Unknown
        return _ORDER[name](*args)
    if name in ("select", "if_then_else"):
        return args[1] if args[0] else args[2]
    if not all(isinstance(a, Fraction) for a in args):
        raise _Unknown  # an infinity may be compared with, not computed with
    if name == "cast" and expr.dtype in ("float32", "int32", "int64"):
        if expr.dtype != "float32" and args[0] != int(args[0]):
            raise _Unknown
        return args[0]
    if name not in _ARITHMETIC:
        raise _Unknown
    return _ARITHMETIC[name](*args)


_ARITHMETIC: dict[str, Callable[..., Number]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "fma": lambda a, b, c: a * b + c,
}
_ORDER: dict[str, Callable[..., Number]] = {
    "max": max,
    "min": min,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
