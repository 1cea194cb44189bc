"""Small constructors of TIR, and the translation of row-program expressions into it.

Everything is built with constructors: parsing TVMScript costs 30 ms a kernel, this costs about one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import ir, s_tir, tirx
from tvm.tirx.buffer import buffer_data

from tirx_reduce.errors import Unsupported
from tirx_reduce.program import Const, Expr, Op, children

from .expansions import expand

SERIAL, VECTORIZED, UNROLLED = (
    tirx.ForKind.SERIAL,
    tirx.ForKind.VECTORIZED,
    tirx.ForKind.UNROLLED,
)


def imm(value: int | float | bool, dtype: str = "int32") -> Any:
    """A literal, to the last bit.

    Infinities and NaN are bit patterns, since neither backend prints them as a token; so are values that seven digits,
    all that TVM prints, do not tell: 1/3072 as a factor would move a mean of 1e5 deviations by 1 % of one.
    """
    if dtype == "float32" and not _printable(float(value)):
        bits = 0x7FC00000 if value != value else int(np.float32(value).view(np.uint32))
        return tirx.reinterpret("float32", tirx.IntImm("uint32", bits))
    if dtype.startswith(("float", "bfloat")):
        return tirx.FloatImm(dtype, float(value))
    return tirx.IntImm(dtype, int(value))


def _printable(value: float) -> bool:
    """Whether TVM's text of a float32 is read as the same float32."""
    with np.errstate(over="ignore"):
        return math.isfinite(value) and np.float32(f"{value:.6e}") == np.float32(value)


def dtype_of(expr: Any) -> str:
    """The dtype of a TIR expression as a string."""
    return str(expr.ty.dtype)


def cast(expr: Any, dtype: str) -> Any:
    """`expr` as `dtype`, unchanged where it has it already."""
    if isinstance(expr, tirx.IntImm) and not dtype.startswith(("float", "bfloat")):
        return tirx.IntImm(dtype, expr.value)
    return expr if dtype_of(expr) == dtype else tirx.Cast(dtype, expr)


def both(one: Any | None, other: Any | None) -> Any | None:
    """Whether two conditions hold, of which None always does."""
    return tirx.And(one, other) if one is not None and other is not None else other if one is None else one


def load(buffer: Any, *index: Any) -> Any:
    """One element of a buffer."""
    return tirx.BufferLoad(buffer, [imm(i) if isinstance(i, int) else i for i in index])


def flat(param: Any, name: str, dtype: str, index_dtype: str | None = None) -> tuple[Any, Any]:
    """A one-dimensional view of a parameter as `dtype`, and the statement that declares it.

    TVM takes offsets in the dtype of the view's extent, where it knows no bound of them: that is `index_dtype`.
    Without it an extent stays as it is.
    """
    numel: Any = imm(1, "int64")
    for extent in param.shape:
        numel = numel * extent
    numel = tvm.sym.Analyzer().simplify(numel)
    if index_dtype is not None:
        numel = cast(numel, index_dtype)
    view = tirx.decl_buffer((numel,), dtype, name=name, data=buffer_data(param))
    return view, tirx.DeclBuffer(view, data=buffer_data(param))


class Block:
    """A list of statements under construction."""

    def __init__(self) -> None:
        self.stmts: list[Any] = []

    def add(self, stmt: Any) -> None:
        """Append a statement."""
        self.stmts.append(stmt)

    def bind(self, name: str, value: Any) -> Any:
        """Name what is read from memory or comes from a call.

        Anything else stays an expression: TVM's simplifier copies such a name into every use, and leaves the name.
        """
        # TVM's bf16 legalisation changes the type of a value but not of the variable bound to it.
        if not isinstance(value, (ir.TensorLoad, ir.Call)) or dtype_of(value) == "bfloat16":
            return value
        var = tirx.Var(name, dtype_of(value))
        self.add(tirx.Bind(var, value))
        return var

    def settle(self, name: str, value: Any) -> Any:
        """Name a value that is used often, through memory.

        The text of an argmax would grow exponentially with the number of lanes it folds.
        """
        if isinstance(value, (tirx.Var, tirx.IntImm, tirx.FloatImm)):
            return value
        cell = self.alloc(name, 1, dtype_of(value))
        self.store(cell, 0, value)
        return self.bind(name, load(cell, 0))

    def alloc(self, name: str, extent: int, dtype: str, scope: str = "local") -> Any:
        """A fresh one-dimensional array in `scope`."""
        buffer = tirx.decl_buffer((extent,), dtype, name=name, scope=scope)
        self.add(tirx.AllocBuffer(buffer))
        return buffer

    def store(self, buffer: Any, index: Any, value: Any) -> None:
        """Write one element."""
        self.add(tirx.BufferStore(buffer, value, [imm(index) if isinstance(index, int) else index]))

    def barrier(self) -> None:
        """Every lane of the group meets here; threadgroup memory is visible afterwards."""
        self.add(tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared")))

    @contextmanager
    def loop(
        self, name: str, extent: Any, kind: Any = SERIAL, annotations: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[Block, Any]]:
        """A loop from 0; a loop of one step is its body with the index 0."""
        inner = Block()
        if isinstance(extent, int) and extent == 1:
            yield inner, imm(0)
            self.stmts.extend(inner.stmts)
            return
        extent = imm(extent) if isinstance(extent, int) else extent
        var = tirx.Var(name, dtype_of(extent))
        yield inner, var
        if inner.stmts:
            self.add(tirx.For(var, imm(0, dtype_of(extent)), extent, kind, inner.stmt(), None, annotations))

    @contextmanager
    def when(self, condition: Any | None) -> Iterator[Block]:
        """A guarded block; without a condition, the block itself."""
        inner = Block()
        yield inner
        if condition is None:
            self.stmts.extend(inner.stmts)
        elif inner.stmts:
            self.add(tirx.IfThenElse(condition, inner.stmt(), None))

    def either(self, condition: Any, then: Block, otherwise: Block) -> None:
        """Two guarded blocks."""
        self.add(tirx.IfThenElse(condition, then.stmt(), otherwise.stmt() if otherwise.stmts else None))

    def stmt(self) -> Any:
        """All of it as one statement."""
        return self.stmts[0] if len(self.stmts) == 1 else tirx.SeqStmt(self.stmts)


def launch(body: Any, threads: tuple[tuple[Any, str, Any], ...]) -> Any:
    """`body` under thread extents, innermost first: (variable, tag, extent)."""
    for var, tag, extent in threads:
        axis = tirx.IterVar(ir.Range(0, extent), var, tirx.IterVar.ThreadIndex, tag)
        body = tirx.AttrStmt(axis, "thread_extent", extent, body)
    return body


def function(params: list[Any], body: Any, attrs: Mapping[str, Any]) -> Any:
    """A scheduled PrimFunc. Its body stands in a root block: Relax passes die on a bare one."""
    root = s_tir.SBlock([], [], [], "root", body)
    func = tirx.PrimFunc(params, s_tir.SBlockRealize([], tirx.IntImm("bool", 1), root))
    return func.with_attr(dict(attrs))


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": tirx.Add,
    "sub": tirx.Sub,
    "mul": tirx.Mul,
    "div": tirx.Div,
    "truncdiv": tirx.Div,
    "truncmod": tirx.Mod,
    "floordiv": tirx.FloorDiv,
    "floormod": tirx.FloorMod,
    "min": tirx.Min,
    "max": tirx.Max,
    "eq": tirx.EQ,
    "ne": tirx.NE,
    "lt": tirx.LT,
    "le": tirx.LE,
    "gt": tirx.GT,
    "ge": tirx.GE,
    "and": tirx.And,
    "or": tirx.Or,
    "pow": lambda a, b: tirx.power(a, b),
    "atan2": lambda a, b: tirx.atan2(a, b),
    "bitwise_and": lambda a, b: tirx.bitwise_and(a, b),
    "bitwise_or": lambda a, b: tirx.bitwise_or(a, b),
    "bitwise_xor": lambda a, b: tirx.bitwise_xor(a, b),
    "shift_left": lambda a, b: a << b,
    "shift_right": lambda a, b: a >> b,
}

_CALLS = frozenset(
    "exp exp2 exp10 log log2 log10 log1p sqrt rsqrt tanh sin cos tan erf floor ceil round trunc nearbyint".split()
)


def _bits(value: Any) -> Any:
    """The bits of |value|: fast math may drop a comparison with NaN or infinity, never one of integers."""
    return tirx.bitwise_and(tirx.reinterpret("uint32", value), imm(0x7FFFFFFF, "uint32"))


def _unary(name: str, a: Any, dtype: str, kind: str) -> Any:
    if name == "cast":
        if dtype == "bfloat16" and kind == "metal":
            from .memory import round_bfloat16  # it builds on this module

            return round_bfloat16(cast(a, "float32"))
        return cast(a, dtype)
    if name == "reinterpret":
        return tirx.reinterpret(dtype, a)
    if name == "neg":
        return tirx.Sub(imm(0, dtype), a) if not dtype.startswith("float") else tirx.Mul(a, imm(-1.0, dtype))
    if name == "not":
        return tirx.Not(a)
    if name == "bitwise_not":
        return tirx.bitwise_not(a)
    if name == "abs":
        return tirx.abs(a)
    if name == "isnan":
        return tirx.GT(_bits(a), imm(0x7F800000, "uint32"))
    if name == "isinf":
        return tirx.EQ(_bits(a), imm(0x7F800000, "uint32"))
    if name == "isfinite":
        return tirx.LT(_bits(a), imm(0x7F800000, "uint32"))
    if name == "sigmoid":
        one = imm(1.0, dtype)
        return tirx.Div(one, tirx.Add(one, tirx.exp(tirx.Mul(a, imm(-1.0, dtype)))))
    if name in _CALLS:
        if (
            kind == "metal" and name == "nearbyint"
        ):  # no library function of that name, under TVM's own lowering
            return tirx.call_extern(dtype, "rint", a)
        return getattr(tirx, name)(a)
    raise Unsupported(f"operation {name}; needs one that both backends have")


def operate(name: str, args: tuple[Any, ...], dtype: str, kind: str) -> Any:
    """One operation of a row program on TIR operands."""
    if dtype in _NARROW and name in _WRAPPING:
        # C computes in int; what does not fit has to be cut off before it is compared, divided or converted.
        wide = "uint32" if dtype.startswith("u") else "int32"
        return cast(_operate(name, tuple(cast(a, wide) for a in args), wide, kind), dtype)
    return _operate(name, args, dtype, kind)


def _operate(name: str, args: tuple[Any, ...], dtype: str, kind: str) -> Any:
    if name in _BINARY:
        return _BINARY[name](*args)
    if name == "select":
        return tirx.Select(*args)
    if name == "if_then_else":
        return tirx.if_then_else(*args)
    if name == "fma":
        return tirx.Add(tirx.Mul(args[0], args[1]), args[2])
    return _unary(name, args[0], dtype, kind)


_NARROW = ("int8", "uint8", "int16", "uint16")
_WRAPPING = ("add", "sub", "mul", "neg", "abs", "bitwise_not", "shift_left", "fma")
# Operations from which on a value used twice is settled.
_HEAVY = 3


def _weight(expr: Expr) -> int:
    """Operations in `expr`, counted up to `_HEAVY`; a library call weighs as much."""
    if not isinstance(expr, Op):
        return 0
    total = _HEAVY if expr.name in _CALLS else 1
    for arg in expr.args:
        total += _weight(arg)
        if total >= _HEAVY:
            break
    return total


def translate(
    expr: Expr,
    leaf: Callable[[Expr], Any],
    block: Block,
    kind: str,
    memo: dict[Expr, Any] | None = None,
) -> Any:
    """`expr` as TIR. What occurs twice in `expr` is named in `block`, so that it is computed once.

    `leaf` answers for loads, indices, row values and whatever else the caller keeps; it returns None
    for an operation that is to be computed here.
    """
    memo = {} if memo is None else memo
    uses: dict[Expr, int] = {}

    def count(e: Expr) -> None:
        uses[e] = uses.get(e, 0) + 1
        if uses[e] == 1 and e not in memo and isinstance(e, Op):
            for child in children(e):
                count(child)

    def visit(e: Expr) -> Any:
        if e in memo:
            return memo[e]
        found = leaf(e)
        if found is None and isinstance(e, Const):
            found = imm(e.value, e.dtype)
        longer = expand(e, kind) if found is None and isinstance(e, Op) else None
        if longer is not None:
            count(longer)
            found = visit(longer)
        elif found is None and isinstance(e, Op):
            found = operate(e.name, tuple(visit(a) for a in e.args), e.dtype, kind)
            # `if_then_else` guards what it holds: naming its parts outside would run them.
            if uses.get(e, 0) > 1 and not guarded:
                found = (block.settle if _weight(e) >= _HEAVY else block.bind)("t", found)
        if found is None:
            raise Unsupported(f"{type(e).__name__} outside of its place; needs a value of this pass")
        memo[e] = found
        return found

    count(expr)
    guarded = any(isinstance(e, Op) and e.name == "if_then_else" for e in uses)
    return visit(expr)
