"""What combiner turns an accumulator into its new value: recognised in expressions, by data flow.

In go a new value and the mark of its accumulator, out come the combiner and its element, or None.
"""

from __future__ import annotations

from math import inf

from . import compat
from .facts_ops import LOWEST, NARROW_FLOATS, is_float
from .program import Const, Expr, Op, RowValue, rewrite, uses_column, walk

CHAINS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
BOOL_CHAINS = {"and": "all", "or": "any", "bitwise_and": "all", "bitwise_or": "any"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """`expr` with `new` wherever `old` stands."""
    return rewrite(expr, lambda e: new if e == old else None)


def linear(expr: Expr, mark: RowValue) -> bool:
    """Whether `expr` is `mark` times values of the row."""
    if expr == mark:
        return True
    if not (isinstance(expr, Op) and expr.name in ("mul", "div")):
        return False
    scaled, factor = expr.args
    if expr.name == "mul" and mark not in set(walk(scaled)):
        scaled, factor = factor, scaled
    return not uses_column(factor) and mark not in set(walk(factor)) and linear(scaled, mark)


def chain(value: Expr, mark: RowValue) -> tuple[str, list[Expr]] | None:
    """`acc ∘ a ∘ b` as (∘, [a, b])."""
    if not isinstance(value, Op):
        return None
    name = value.name
    if name not in (BOOL_CHAINS if mark.dtype == "bool" else CHAINS) and name not in CHAINS:
        return None
    parts = list(_operands(value, name, mark))
    if sum(p == mark for p in parts) != 1:
        return None
    rest = [p for p in parts if p != mark]
    return (name, rest) if rest else None


def _operands(expr: Expr, name: str, mark: RowValue) -> list[Expr]:
    if isinstance(expr, Op) and expr.name == name and any(e == mark for e in walk(expr)):
        return [p for a in expr.args for p in _operands(a, name, mark)]
    return [expr]


def chosen(value: Expr, mark: RowValue) -> tuple[str, list[Expr]] | None:
    """`select(acc > x, acc, x)` and its kin as a max or a min."""
    taken = _choice(value, mark)
    if taken is None:
        return None
    name, other = taken
    return ("max" if name in ("gt", "ge") else "min"), [other]


def _choice(value: Expr, mark: RowValue) -> tuple[str, Expr] | None:
    """(relation, x) where `value` keeps the accumulator if `acc relation x`, else takes x."""
    if not (isinstance(value, Op) and value.name in ("select", "if_then_else")):
        return None
    condition, yes, no = value.args
    relation = _relation(condition, mark)
    if relation is None:
        return None
    name, other = relation
    if yes == mark and no == other:
        return name, other
    if no == mark and yes == other:
        return {"gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}[name], other
    return None


def _relation(condition: Expr, mark: RowValue) -> tuple[str, Expr] | None:
    """`condition` as (relation, x) of `acc relation x`."""
    if not (isinstance(condition, Op) and condition.name in _MIRRORED):
        return None
    a, b = condition.args
    if a == mark:
        return condition.name, b
    if b == mark:
        return _MIRRORED[condition.name], a
    return None


def arg_pair(values: list[Expr], marks: list[RowValue]) -> tuple[str, int, Expr, Expr] | None:
    """(combiner, which is the index, index, value), if it is an argmax or argmin with the lowest index."""
    for item in (0, 1):
        kept, index_mark, value_mark = values[1 - item], marks[item], marks[1 - item]
        best = _extreme(kept, value_mark)
        if best is None or is_float(index_mark.dtype):
            continue
        combiner, value = best
        index = _kept_index(values[item], index_mark, value_mark, value, "gt" if combiner == "max" else "lt")
        if index is not None:
            return "arg" + combiner, item, index, value
    return None


def _extreme(kept: Expr, mark: RowValue) -> tuple[str, Expr] | None:
    found = chain(kept, mark)
    if found is None or found[0] not in ("max", "min"):
        found = chosen(kept, mark)
    if found is None or len(found[1]) != 1:
        return None
    return found[0], found[1][0]


def _kept_index(
    picked: Expr, index_mark: RowValue, value_mark: RowValue, value: Expr, better: str
) -> Expr | None:
    """The column's index in `select(acc better value or tie, kept, index)`, ties keeping the lower one."""
    if not (isinstance(picked, Op) and picked.name in ("select", "if_then_else")):
        return None
    condition, yes, no = picked.args
    if no == index_mark:  # select(value better acc, index, kept): the serial order keeps the first of equals
        relation = _relation(condition, value_mark)
        opposite = {"gt": "lt", "lt": "gt"}[better]
        return yes if relation == (opposite, value) else None
    if yes != index_mark:
        return None
    relation = _relation(condition, value_mark)
    if relation is not None:
        return no if relation == (better[0] + "e", value) else None
    if not (isinstance(condition, Op) and condition.name == "or"):
        return None
    for first, second in (condition.args, condition.args[::-1]):
        if _relation(first, value_mark) != (better, value):
            continue
        if isinstance(second, Op) and second.name == "and":
            for tie, lower in (second.args, second.args[::-1]):
                equal = isinstance(tie, Op) and tie.name == "eq" and set(tie.args) == {value_mark, value}
                if equal and _relation(lower, index_mark) in (("lt", no), ("le", no)):
                    return no
    return None


def is_identity(combiner: str, init: Expr, dtype: str) -> bool:
    """Whether `init` leaves every value as it is; the lowest finite value counts as minus infinity."""
    if not isinstance(init, Const):
        if isinstance(init, Op) and init.name == "cast" and dtype in NARROW_FLOATS:
            inner = init.args[0]
            if isinstance(inner, Op) and inner.name == "cast" and isinstance(inner.args[0], Const):
                return is_identity(combiner, inner.args[0], dtype)
        return False
    value = init.value
    if combiner in ("sum", "any"):
        return bool(value == 0)
    if combiner in ("prod", "all"):
        return bool(value == 1)
    if is_float(dtype):
        lowest = LOWEST.get(dtype, -inf)
        return bool(value <= lowest) if combiner == "max" else bool(value >= -lowest)
    return bool(value == (compat.lowest(dtype) if combiner == "max" else compat.highest(dtype)))


def describe(value: Expr) -> str:
    """The outermost operations of a value."""
    if not isinstance(value, Op):
        return "acc" if isinstance(value, RowValue) and value.reduction < 0 else type(value).__name__.lower()
    return f"{value.name}({', '.join(a.name if isinstance(a, Op) else describe(a) for a in value.args)})"
