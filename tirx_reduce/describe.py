"""A row program in words: text for people, JSON for tools. Takes plain values, gives plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from .facts_keep import Walks
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
    children,
    walk,
)
from .values import RowFacts

FORMAT = 1
# 1: first version.

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "floormod": "%",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "and",
    "or": "or",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}


class _Table:
    """Numbers expressions, operands first."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self._numbers: dict[Expr, int] = {}

    def number(self, expr: Expr) -> int:
        for part in walk(expr):
            if part not in self._numbers:
                self._numbers[part] = len(self.nodes)
                self.nodes.append(self._node(part))
        return self._numbers[expr]

    def access(self, index: Access) -> dict[str, Any]:
        return {
            "row": self.number(index.row),
            "stride": index.stride,
            "full": None if index.full is None else self.number(index.full),
            "dense": index.dense,
            "align": index.align,
        }

    def _node(self, expr: Expr) -> dict[str, Any]:
        node: dict[str, Any] = {"node": type(expr).__name__, "dtype": expr.dtype}
        if isinstance(expr, Const):
            # JSON has no infinities and no NaN.
            node["value"] = repr(expr.value) if isinstance(expr.value, float) else expr.value
        elif isinstance(expr, Sym):
            node["name"] = expr.name
        elif isinstance(expr, Scalar):
            node["param"] = expr.param
        elif isinstance(expr, RowIndex):
            node["axis"] = expr.axis
        elif isinstance(expr, RowValue):
            node |= {"reduction": expr.reduction, "item": expr.item}
        elif isinstance(expr, Load):
            node |= {"param": expr.param, "index": self.access(expr.index)}
        elif isinstance(expr, Op):
            node |= {"op": expr.name, "args": [self.number(a) for a in expr.args]}
        return node


def digest(program: RowProgram) -> str:
    """SHA-256 of `program`, the same in every process; time and room grow with its distinct nodes only.

    Names of tensors and symbols play no part: TVM counts functions that differ in them alone as equal.
    """
    table = _Table()
    described = _program(program, table)
    tensors = [{k: v for k, v in t.items() if k != "name"} for t in described["tensors"]]
    nodes = [{k: v for k, v in n.items() if k != "name"} for n in table.nodes]
    told = json.dumps([{**described, "tensors": tensors}, nodes], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def facts_to_json(facts: RowFacts) -> dict[str, Any]:
    """`facts` as JSON-able values; expressions stand in a table of nodes, operands before what uses them.

    Parameters
    ----------
    facts : RowFacts
        What is proved of a function.

    Returns
    -------
    dict
        `format`, the summary fields, `program` and `nodes`; numbers in `program` refer to `nodes`.
    """
    table = _Table()
    described = _program(facts.program, table)
    return {
        "format": FORMAT,
        "rows": facts.rows,
        "columns": facts.columns,
        "passes": facts.passes,
        "reductions": facts.reductions,
        "storage": list(facts.storage),
        "accumulation": list(facts.accumulation),
        "kept": facts.kept,
        "arguments": facts.arguments,
        "payload_bytes": dict(facts.payload_bytes),
        "program": described,
        "nodes": table.nodes,
    }


def _program(program: RowProgram, table: _Table) -> dict[str, Any]:
    return {
        "tensors": [
            {
                "param": t.param,
                "name": t.name,
                "dtype": t.dtype,
                "shape": [table.number(e) for e in t.shape],
                "role": t.role,
            }
            for t in program.tensors
        ],
        "rows": [table.number(e) for e in program.rows],
        "columns": table.number(program.columns),
        "reductions": [
            {
                "combiner": r.combiner,
                "elements": [table.number(e) for e in r.elements],
                "dtypes": list(r.dtypes),
                "init": [table.number(e) for e in r.init],
            }
            for r in program.reductions
        ],
        "outputs": [
            {
                "param": o.param,
                "index": table.access(o.index),
                "value": table.number(o.value),
                "dtype": o.dtype,
                "per_row": o.per_row,
            }
            for o in program.outputs
        ],
    }


def explain_program(program: RowProgram) -> str:
    """`program` as text: its row space, inputs, passes with their reductions, and outputs.

    Values that are used more than once get a name; what varies by column is written with `[row, col]`.
    """
    return _Text(program).text()


class _Text:
    """Writes one program."""

    def __init__(self, program: RowProgram) -> None:
        self.program = program
        self.tensors = {t.param: t for t in program.tensors}
        self.names: dict[Expr, str] = {}
        self.uses: dict[Expr, int] = {}

    def text(self) -> str:
        program = self.program
        rows = " × ".join(self.show(e) for e in program.rows) or "1"
        lines = [f"for each row of {rows}, over {self.show(program.columns)} columns:"]
        for tensor in program.tensors:
            shape = ", ".join(self.show(e) for e in tensor.shape)
            lines.append(f"  {tensor.role:3} {tensor.name}: {tensor.dtype}[{shape}]")
        roots = [e for r in program.reductions for e in r.elements] + [o.value for o in program.outputs]
        self._count(roots)
        kept = Walks(program).kept()
        for level in range(program.depth + 1):
            lines += self._pass(level)
            if level == 0 and kept:
                lines.append(f"    serves later passes too: {', '.join(self.show(e) for e in kept)}")
        return "\n".join(lines)

    def _pass(self, level: int) -> list[str]:
        program = self.program
        reductions = [
            (i, r) for i, r in enumerate(program.reductions) if program.reduction_level(i) == level + 1
        ]
        outputs = [o for o in program.outputs if not o.per_row and program.level(o.value) == level]
        singles = [o for o in program.outputs if o.per_row and program.level(o.value) == level]
        lines: list[str] = []
        for o in singles:
            lines += self._let(o.value)
            lines.append(f"  {self._target(o)} = {self.show(o.value)}")
        if not reductions and not outputs:
            return lines
        lines.append(f"  pass {level + 1}:")
        for i, reduction in reductions:
            for element in reduction.elements:
                lines += ["  " + line for line in self._let(element)]
            lines.append(f"    s{i} = {self._reduction(reduction)}")
        for o in outputs:
            lines += ["  " + line for line in self._let(o.value)]
            lines.append(f"    {self._target(o)} = {self.show(o.value)}")
        return lines

    def _reduction(self, reduction: Reduction) -> str:
        parts = ", ".join(self.show(e) for e in reduction.elements)
        text = f"{reduction.combiner} over columns of {parts}  ({', '.join(reduction.dtypes)})"
        if reduction.init:
            text += f", starting from {', '.join(self.show(e) for e in reduction.init)}"
        return text

    def _target(self, output: Output) -> str:
        place = "[row]" if output.per_row and output.index.row == RowIndex(0) else self._place(output.index)
        return f"{self.tensors[output.param].name}{place} ({output.dtype})"

    def _count(self, roots: Iterable[Expr]) -> None:
        roots = list(roots)
        for expr in walk(*roots):
            for child in children(expr):
                self.uses[child] = self.uses.get(child, 0) + 1
        for root in roots:
            self.uses[root] = self.uses.get(root, 0) + 1

    def _let(self, expr: Expr) -> list[str]:
        """Lines that name the operations inside `expr` that are used more than once."""
        lines = []
        for part in walk(expr):
            plain = isinstance(part, Op) and not (part.name == "cast" and not children(part.args[0]))
            if plain and self.uses.get(part, 0) > 1 and part not in self.names:
                if part.dtype == "int64" and not any(isinstance(e, Load | RowValue) for e in walk(part)):
                    continue
                shown = self.show(part)
                self.names[part] = f"t{len(self.names)}"
                lines.append(f"  {self.names[part]} = {shown}")
        return lines

    def show(self, expr: Expr) -> str:
        """`expr` as text."""
        if expr in self.names:
            return self.names[expr]
        if isinstance(expr, Const):
            return f"{expr.value:.9g}" if isinstance(expr.value, float) else str(expr.value)
        if isinstance(expr, Sym):
            return expr.name
        if isinstance(expr, Scalar):
            return f"arg{expr.param}"
        if isinstance(expr, RowIndex):
            return f"r{expr.axis}"
        if isinstance(expr, ColIndex):
            return "col"
        if isinstance(expr, RowValue):
            many = len(self.program.reductions[expr.reduction].dtypes) > 1
            return f"s{expr.reduction}" + (f".{expr.item}" if many else "")
        if isinstance(expr, Load):
            return self._load(expr)
        return self._op(expr)

    def _load(self, load: Load) -> str:
        return self.tensors[load.param].name + self._place(load.index)

    def _place(self, index: Access) -> str:
        if index.full is not None:
            return f"[{self.show(index.full)}]"
        if index.dense:
            return "[row, col]"
        column = {0: "", 1: "col"}.get(index.stride or 0, f"col*{index.stride}")
        row = "" if index.row == Const(0, "int64") else self.show(index.row)
        return f"[{' + '.join(p for p in (row, column) if p) or '0'}]"

    def _op(self, op: Op) -> str:
        args = [self.show(a) for a in op.args]
        if op.name in _INFIX:
            return f"({args[0]} {_INFIX[op.name]} {args[1]})"
        if op.name == "cast":
            # Widening a load says nothing.
            widened = isinstance(op.args[0], Load) and op.dtype == "float32"
            return args[0] if widened else f"{op.dtype}({args[0]})"
        if op.name == "reinterpret":
            return f"bits_as_{op.dtype}({args[0]})"
        return f"{op.name}({', '.join(args)})"


__all__ = ["digest", "explain_program", "facts_to_json"]
