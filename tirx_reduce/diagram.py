"""A row program as a person reads it: inputs, one line a pass, outputs, what is kept. No TVM."""

from __future__ import annotations

from .program import (
    Access,
    ColIndex,
    Const,
    Expr,
    Load,
    Op,
    Output,
    Reduction,
    RowIndex,
    RowProgram,
    RowValue,
    Scalar,
    Sym,
    Tensor,
)
from .values import RowFacts

LONGEST = 72
"""Characters of an expression before its parts get names."""

_INFIX = {
    "add": ("+", 4),
    "sub": ("−", 4),
    "mul": ("·", 5),
    "div": ("/", 5),
    "floordiv": ("//", 5),
    "floormod": ("%", 5),
    "truncdiv": ("÷", 5),
    "truncmod": ("rem", 5),
    "eq": ("==", 3),
    "ne": ("!=", 3),
    "lt": ("<", 3),
    "le": ("<=", 3),
    "gt": (">", 3),
    "ge": (">=", 3),
    "and": ("and", 2),
    "or": ("or", 1),
    "bitwise_and": ("&", 3),
    "bitwise_or": ("|", 3),
    "bitwise_xor": ("^", 3),
    "shift_left": ("<<", 3),
    "shift_right": (">>", 3),
}
_ATOM = 9


class Writer:
    """Writes expressions of one program; long ones are cut into named parts."""

    def __init__(self, program: RowProgram) -> None:
        self.program = program
        self.tensors = {t.param: t for t in program.tensors}
        self.parts: list[str] = []
        self._memo: dict[Expr, tuple[str, int]] = {}

    def text(self, expr: Expr) -> str:
        """`expr` in infix form."""
        return self._write(expr)[0]

    def _write(self, expr: Expr) -> tuple[str, int]:
        if expr not in self._memo:
            text, level = self._form(expr)
            if len(text) > LONGEST and isinstance(expr, Op):
                name = f"t{len(self.parts)}"
                self.parts.append(f"{name} = {text}")
                text, level = name, _ATOM
            self._memo[expr] = (text, level)
        return self._memo[expr]

    def _form(self, expr: Expr) -> tuple[str, int]:
        match expr:
            case Const(value=value):
                return (f"{value:.6g}" if isinstance(value, float) else str(value)), _ATOM
            case Sym(name=name):
                return name, _ATOM
            case Scalar(param=param):
                return f"scalar{param}", _ATOM
            case RowIndex(axis=axis):
                return f"i{axis}", _ATOM
            case ColIndex():
                return "j", _ATOM
            case RowValue(reduction=reduction, item=item):
                several = len(self.program.reductions[reduction].elements) > 1
                return (f"r{reduction}.{item}" if several else f"r{reduction}"), _ATOM
            case Load(param=param, index=index):
                return f"{self._name(param)}{self._index(index)}", _ATOM
            case Op():
                return self._op(expr)

    def _name(self, param: int) -> str:
        return self.tensors[param].name if param in self.tensors else f"p{param}"

    def _index(self, index: Access) -> str:
        if index.stride is None:
            return f"[{self.text(index.full)}]" if index.full is not None else "[…]"
        row = any(isinstance(e, RowIndex | Load) for e in _subexpressions(index.row))
        if index.stride == 0:
            return "[row]" if row else "[0]"
        if not row:
            return "[j]"
        return ""

    def _op(self, expr: Op) -> tuple[str, int]:
        args = expr.args
        if expr.name in _INFIX and len(args) == 2:
            sign, level = _INFIX[expr.name]
            left, right = self._write(args[0]), self._write(args[1])
            before = left[0] if left[1] >= level else f"({left[0]})"
            after = right[0] if right[1] > level else f"({right[0]})"
            return f"{before} {sign} {after}", level
        if expr.name == "cast":
            return f"{expr.dtype}({self.text(args[0])})", _ATOM
        if expr.name == "neg":
            inner = self._write(args[0])
            return ("−" + inner[0] if inner[1] == _ATOM else f"−({inner[0]})"), 6
        return f"{expr.name}({', '.join(self.text(a) for a in args)})", _ATOM


def _subexpressions(expr: Expr) -> list[Expr]:
    from .program import walk

    return list(walk(expr))


def diagram(facts: RowFacts, name: str = "row program") -> list[str]:
    """Lines that show what one row computes.

    >>> # softmax over 6144 columns
    >>> # pass 1 │ r0 = max(x)
    >>> # pass 2 │ r1 = sum(exp(x − r0))
    >>> # pass 3 │ y = exp(x − r0) / r1
    """
    program = facts.program
    writer = Writer(program)
    rows = " × ".join(writer.text(e) for e in program.rows) or "1"
    lines = [f"{name}: {rows} rows × {writer.text(program.columns)} columns"]
    lines += [_tensor(writer, t) for t in program.tensors if t.role == "in"]
    # A pass ends in its collectives; the last one writes.
    passes: dict[int, list[str]] = {}
    for i, reduction in enumerate(program.reductions):
        passes.setdefault(program.reduction_level(i), []).append(_reduction(writer, i, reduction))
    per_row = [_output(writer, o) for o in program.outputs if o.per_row]
    for output in program.outputs:
        if not output.per_row:
            passes.setdefault(program.depth + 1, []).append(_output(writer, output))
    lines += [f"  where  │ {part}" for part in writer.parts]
    for level in sorted(passes):
        lines += _block(f"pass {level}", passes[level])
    lines += _block("row", per_row)
    kept = "nothing" if not facts.kept else f"{facts.kept} value{'s' if facts.kept > 1 else ''} a column"
    lines.append(
        f"  {_count(facts.passes, 'pass')}, {_count(facts.reductions, 'collective reduction')}, kept: {kept}"
    )
    return lines


def _block(title: str, texts: list[str]) -> list[str]:
    return [f"  {title if not i else '':6} │ {text}" for i, text in enumerate(texts)]


def _count(number: int, noun: str) -> str:
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural}"


def _tensor(writer: Writer, tensor: Tensor) -> str:
    extents = ", ".join(writer.text(e) for e in tensor.shape)
    return f"  in     │ {tensor.name}[{extents}] {tensor.dtype}"


def _reduction(writer: Writer, index: int, reduction: Reduction) -> str:
    elements = [writer.text(e) for e in reduction.elements]
    inner = f"({', '.join(elements)})"
    start = f" from {', '.join(writer.text(e) for e in reduction.init)}" if reduction.init else ""
    return f"r{index} = {reduction.combiner}{inner}{start}  [{', '.join(reduction.dtypes)}]"


def _output(writer: Writer, output: Output) -> str:
    name = writer.tensors[output.param].name if output.param in writer.tensors else f"p{output.param}"
    return f"{name}{'[row]' if output.per_row else ''} = {writer.text(output.value)}  → {output.dtype}"
