"""The row program: what one output row computes, as plain values without TVM.

`facts` writes it from a PrimFunc, `schedules` reads it; nothing here knows of either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

# Names of `Op`. Arithmetic has dtype float32, an integer, or bool: 16-bit floats are only loaded, cast and stored.
BINARY = frozenset(
    "add sub mul div min max floordiv floormod truncdiv truncmod pow atan2 "
    "eq ne lt le gt ge and or bitwise_and bitwise_or bitwise_xor shift_left shift_right".split()
)
UNARY = frozenset(
    "neg not cast reinterpret exp exp2 exp10 log log2 log10 log1p sqrt rsqrt tanh sin cos tan erf sigmoid "
    "abs floor ceil round trunc nearbyint bitwise_not isnan isinf isfinite".split()
)
TERNARY = frozenset({"select", "if_then_else", "fma"})
COMBINERS = frozenset({"sum", "prod", "max", "min", "argmax", "argmin", "all", "any"})


@dataclass(frozen=True, slots=True)
class Const:
    """A literal."""

    value: int | float | bool
    dtype: str


@dataclass(frozen=True, slots=True)
class Sym:
    """A symbolic extent, by the name of its variable in the PrimFunc."""

    name: str
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar parameter of the PrimFunc."""

    param: int
    dtype: str


@dataclass(frozen=True, slots=True)
class RowIndex:
    """The index along one axis of the row space (int64, from 0)."""

    axis: int
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class ColIndex:
    """The flat index along the reduced extent (int64, from 0)."""

    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class Access:
    """The element offset of a load or a store in its (flat, row-major) tensor."""

    row: Expr
    """Offset at column 0; free of `ColIndex`. May hold loads of integers (a label that is looked up)."""
    stride: int | None
    """Elements from one column to the next; 0 where the column plays no part; None where it is not affine."""
    full: Expr | None = None
    """The whole offset, only where `stride` is None."""
    dense: bool = False
    """Proved: `row` equals the flat row index times the number of columns, and `stride` is 1."""
    align: int = 1
    """The largest power of two up to 16 that is proved to divide `row` in every row (elements)."""


@dataclass(frozen=True, slots=True)
class Load:
    """An element of an input tensor."""

    param: int
    index: Access
    dtype: str


@dataclass(frozen=True, slots=True)
class RowValue:
    """One result of a reduction, the same in the whole row."""

    reduction: int
    item: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Op:
    """A pure operation; `cast` and `reinterpret` take their target from `dtype`."""

    name: str
    args: tuple[Expr, ...]
    dtype: str
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Cached, so that shared subexpressions are found in constant time however deep they are.
        object.__setattr__(self, "_hash", hash((self.name, self.args, self.dtype)))

    def __hash__(self) -> int:
        return self._hash


Expr: TypeAlias = Const | Sym | Scalar | RowIndex | ColIndex | Load | RowValue | Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A reduction over the columns; its identity is that of `combiner`."""

    combiner: str
    """One of `COMBINERS`."""
    elements: tuple[Expr, ...]
    """One expression for each value; (index, value) for argmax and argmin, whose index is `ColIndex` cast."""
    dtypes: tuple[str, ...]
    """Accumulator dtypes: float32 for every float, the PrimFunc's own for integers."""
    init: tuple[Expr, ...] = ()
    """Values to combine with the result where the PrimFunc starts from something else than the identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One tensor that is written: an element for every (row, column), or one for each row."""

    param: int
    index: Access
    value: Expr
    dtype: str
    """Storage dtype; the value is rounded to it once, here."""
    per_row: bool
    """One element a row (then `value` is free of columns)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor parameter of the PrimFunc."""

    param: int
    name: str
    dtype: str
    shape: tuple[Expr, ...]
    role: str
    """`in` or `out`; an output that later blocks read is still `out`, its reads are replaced by its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProgram:
    """All that one row computes, for every row of a row space."""

    tensors: tuple[Tensor, ...]
    rows: tuple[Expr, ...]
    """Extents of the row space, outermost first; `RowIndex(i)` runs over `rows[i]`. Empty for a single row."""
    columns: Expr
    """The reduced extent (all reduced axes as one)."""
    reductions: tuple[Reduction, ...]
    """In order: a reduction refers only to earlier ones."""
    outputs: tuple[Output, ...]

    def level(self, expr: Expr) -> int:
        """How many passes must be over before `expr` can be computed (0: at once)."""
        memo: dict[Expr, int] = {}
        return _level(self, expr, memo)

    def reduction_level(self, index: int) -> int:
        """The pass (from 1) that computes reduction `index`."""
        return 1 + max(self.level(e) for e in self.reductions[index].elements)

    @property
    def depth(self) -> int:
        """The number of passes that end in a collective."""
        return max((self.reduction_level(i) for i in range(len(self.reductions))), default=0)


def _level(program: RowProgram, expr: Expr, memo: dict[Expr, int]) -> int:
    if expr in memo:
        return memo[expr]
    if isinstance(expr, RowValue):
        elements = program.reductions[expr.reduction].elements
        result = 1 + max(_level(program, e, memo) for e in elements)
    else:
        result = max((_level(program, e, memo) for e in children(expr)), default=0)
    memo[expr] = result
    return result


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a scalar dtype.

    >>> item_bytes("bfloat16"), item_bytes("float8_e4m3fn"), item_bytes("bool")
    (2, 1, 1)
    """
    bits = re.search(r"\d+", dtype)
    return 1 if bits is None else max(1, int(bits.group()) // 8)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The operands of `expr`, the index of a load included."""
    if isinstance(expr, Op):
        return expr.args
    if isinstance(expr, Load):
        return (expr.index.row,) if expr.index.full is None else (expr.index.full,)
    return ()


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every distinct subexpression of `roots`, operands before what uses them."""
    seen: set[Expr] = set()

    def visit(expr: Expr) -> Iterator[Expr]:
        if expr in seen:
            return
        seen.add(expr)
        for child in children(expr):
            yield from visit(child)
        yield expr

    for root in roots:
        yield from visit(root)


def uses_row(access: Access) -> bool:
    """Whether the offset plays out differently from row to row, by the row's index or by what is looked up."""
    return any(isinstance(e, RowIndex | Load) for e in walk(access.full or access.row))


def uses_column(expr: Expr) -> bool:
    """Whether `expr` differs from column to column."""
    return any(isinstance(e, ColIndex) or (isinstance(e, Load) and e.index.stride != 0) for e in walk(expr))


def rewrite(expr: Expr, replace: Callable[[Expr], Expr | None]) -> Expr:
    """`expr` with each subexpression for which `replace` gives an answer put in its place, outermost first."""
    memo: dict[Expr, Expr] = {}

    def visit(e: Expr) -> Expr:
        if e in memo:
            return memo[e]
        found = replace(e)
        if found is not None:
            out = found
        elif isinstance(e, Op):
            out = Op(e.name, tuple(visit(a) for a in e.args), e.dtype)
        else:
            out = e
        memo[e] = out
        return out

    return visit(expr)
