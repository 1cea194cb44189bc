"""Random row programs: a generator, their PrimFunc, a float64 interpreter of the same text, and a shrinker.

`python -m tests.fuzz --count 10000 --seed 0` checks that many and writes what fails, shrunk, as lines of
JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import numpy as np
from tvm import te, tirx, topi

import tirx_reduce as tr
from tests.interpret import by_order
from tests.interpret import run as interpret
from tests.launch import ROUNDOFF, Kernel, narrow, numpy_dtype, poisoned, wide
from tirx_reduce import emulator, facts
from tirx_reduce.candidates import full_scope, refusal
from tirx_reduce.device import limits_for
from tirx_reduce.program import Load, RowProgram, walk
from tirx_reduce.schedules import as_target
from tirx_reduce.values import Candidate

FLOATS = ("float32", "float16", "bfloat16")
_SHAPES: dict[str, Callable[[tuple[int, ...], int], tuple[int, ...]]] = {
    "matrix": lambda rows, n: (*rows, n),
    "columns": lambda rows, n: (n,),
    "rows": lambda rows, n: rows,
    "inner": lambda rows, n: (*rows[1:], n),
    "mask": lambda rows, n: (*rows, n),
    "shared mask": lambda rows, n: (1,) * (len(rows) - 1) + (rows[-1], n),
}
Tree = list[Any]
"""An operation and its operands: ["add", a, b], ["in", number], ["red", number], ["map", number], ["const",
0.5].
"""


@dataclass(frozen=True)
class Program:
    """One random row program; JSON-able."""

    rows: tuple[int, ...]
    columns: int
    inputs: tuple[tuple[str, str], ...]
    """Kind and dtype of each input."""
    stages: tuple[tuple[str, Tree], ...]
    """`map`, `sum`, `max`, `min`, `argmax` or `argmin`, and the element, in order."""
    outputs: tuple[tuple[Tree, str], ...]
    """Value and dtype; one a row where it needs no column, else one for each row and column."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Program:
        """What `to_json` wrote."""
        data = json.loads(text)
        return cls(
            rows=tuple(data["rows"]),
            columns=data["columns"],
            inputs=tuple((k, d) for k, d in data["inputs"]),
            stages=tuple((k, t) for k, t in data["stages"]),
            outputs=tuple((t, d) for t, d in data["outputs"]),
        )


# --- generator


class _Maker:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.inputs = [("matrix", rng.choice(FLOATS))]
        self.stages: list[tuple[str, Tree]] = []

    def value(self) -> Tree:
        """A float leaf: an input, a literal, an index, an earlier result."""
        rng = self.rng
        known: list[Tree] = [["in", i] for i, (k, d) in enumerate(self.inputs) if d != "bool"]
        known += [["in", 0]] * 3 + [["const", rng.choice([0.5, -1.25, 2.0])]]
        for number, (kind, _) in enumerate(self.stages):
            if kind == "map":
                known.append(["map", number])
            elif not kind.startswith("arg"):
                known += [["red", number]] * 2
        if rng.random() < 0.05:
            known.append(["col"])
        if rng.random() < 0.05:
            known.append(["row"])
        return rng.choice(known)

    def tree(self, depth: int) -> Tree:
        rng = self.rng
        if depth == 0 or rng.random() < 0.15:
            return self.value()
        kind = rng.choice(
            [
                "add",
                "sub",
                "mul",
                "max",
                "min",
                "tanh",
                "exp",
                "root",
                "abs",
                "over",
                "select",
                "add",
                "mul",
                "sub",
            ]
        )
        if kind in ("tanh", "exp", "root", "abs"):
            return [kind, self.tree(depth - 1)]
        if kind == "select":
            masks: list[Tree] = [["in", i] for i, (_, d) in enumerate(self.inputs) if d == "bool"]
            # Only what is exact decides, so that no rounding flips it.
            masks.append(["less", ["in", 0], ["const", 0.25]])
            return [kind, rng.choice(masks), self.tree(depth - 1), self.tree(depth - 1)]
        return [kind, self.tree(depth - 1), self.tree(depth - 1)]


def generate(seed: int) -> Program:
    """The program of a seed."""
    rng = Random(seed)
    rows = tuple(rng.choice([1, 2, 3, 5]) for _ in range(rng.choice([1, 1, 2])))
    columns = rng.choice([1, 2, 3, 7, 16, 31, 32, 33, 64, 100, 129, 257, 600])
    maker = _Maker(rng)
    for kind in _SHAPES:
        if kind == "inner" and len(rows) < 2:
            continue
        if rng.random() < 0.3:
            maker.inputs.append((kind, "bool" if "mask" in kind else rng.choice(FLOATS)))
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        if rng.random() < 0.4:
            maker.stages.append(("map", maker.tree(2)))
        kind = rng.choice(["sum", "sum", "max", "min", "argmax", "argmin"])
        element: Tree = maker.tree(2)
        if kind.startswith("arg"):
            element = rng.choice(
                [["in", 0], ["max", ["in", 0], ["const", -0.5]], ["mul", ["in", 0], ["const", 2.0]]]
            )
        maker.stages.append((kind, element))
    outputs: list[tuple[Tree, str]] = []
    reductions = [i for i, (k, _) in enumerate(maker.stages) if k != "map"]
    for i in reductions:
        if maker.stages[i][0].startswith("arg"):
            outputs.append((["red", i], "int32"))
    plain = [i for i in reductions if not maker.stages[i][0].startswith("arg")]
    if plain and rng.random() < 0.5:
        outputs.append((["tanh", ["red", plain[-1]]], rng.choice(FLOATS)))
    if not outputs or rng.random() < 0.7:
        last = ["red", plain[-1]] if plain else ["const", 1.0]
        outputs.append((["sub", maker.tree(2), last], rng.choice(FLOATS)))
    return Program(
        rows=rows,
        columns=columns,
        inputs=tuple(maker.inputs),
        stages=tuple(maker.stages),
        outputs=tuple(outputs),
    )


def arrays(program: Program, seed: int = 0) -> list[Any]:
    """Seeded inputs."""
    rng = np.random.default_rng(seed)
    made = []
    for kind, dtype in program.inputs:
        shape = _SHAPES[kind](program.rows, program.columns)
        made.append(rng.random(shape) < 0.7 if dtype == "bool" else narrow(rng.standard_normal(shape), dtype))
    return made


def by_column(program: Program, tree: Tree) -> bool:
    """Whether a value differs from column to column."""
    if tree[0] == "in":
        return program.inputs[tree[1]][0] != "rows"
    if tree[0] == "map":
        return True
    if tree[0] == "red":
        return False
    if tree[0] == "col":
        return True
    return any(by_column(program, t) for t in tree[1:] if isinstance(t, list))


# --- PrimFunc


def prim_func(program: Program) -> Any:
    """As tensor expressions: every stage a buffer."""
    rows, n = program.rows, program.columns
    placed = [te.placeholder(_SHAPES[k](rows, n), d, name=f"x{i}") for i, (k, d) in enumerate(program.inputs)]
    done: list[Any] = []

    def value(tree: Tree, i: tuple[Any, ...], k: Any) -> Any:
        kind, *args = tree
        if kind == "in":
            what, dtype = program.inputs[args[0]]
            index = {
                "columns": (k,),
                "rows": i,
                "inner": (*i[1:], k),
                "shared mask": (*([0] * (len(i) - 1)), i[-1], k),
            }.get(what, (*i, k))
            loaded = placed[args[0]][index]
            return loaded if dtype == "bool" else loaded.astype("float32")
        if kind == "const":
            return tirx.const(args[0], "float32")
        if kind == "col":
            return k.astype("float32") * tirx.const(1.0 / n, "float32")
        if kind == "row":
            return i[0].astype("float32") * tirx.const(0.25, "float32")
        if kind == "map":
            return done[args[0]][(*i, k)]
        if kind == "red":
            return done[args[0]][i]
        a = [value(t, i, k) for t in args]
        if kind == "over":
            return a[0] / (tirx.abs(a[1]) + tirx.const(1.0, "float32"))
        if kind == "exp":
            return tirx.exp(tirx.min(a[0], tirx.const(2.0, "float32")))
        if kind == "root":
            return tirx.sqrt(tirx.abs(a[0]) + tirx.const(1.0, "float32"))
        if kind == "less":
            return a[0] < a[1]
        return _TE[kind](*a)

    def matrix(tree: Tree, dtype: str, name: str) -> Any:
        return te.compute((*rows, n), lambda *i: value(tree, i[:-1], i[-1]).astype(dtype), name=name)

    def folded(kind: str, tree: Tree, number: int) -> Any:
        k = te.reduce_axis((0, n), f"k{number}")
        fold = {"sum": te.sum, "max": te.max, "min": te.min}[kind]
        # The mean, so that values stay small.
        scale = tirx.const(1.0 / n, "float32")
        return te.compute(
            rows,
            lambda *i: fold(value(tree, i, k) * scale if kind == "sum" else value(tree, i, k), axis=k),
            name=f"red{number}",
        )

    def of_rows(tree: Tree, dtype: str, name: str) -> Any:
        return te.compute(rows, lambda *i: value(tree, i, None).astype(dtype), name=name)

    for number, (kind, element) in enumerate(program.stages):
        if kind == "map":
            done.append(matrix(element, "float32", f"map{number}"))
        elif kind.startswith("arg"):
            done.append(getattr(topi, kind)(matrix(element, "float32", f"arg{number}"), len(rows)))
        else:
            done.append(folded(kind, element, number))
    outs = []
    for number, (tree, dtype) in enumerate(program.outputs):
        if dtype == "int32":
            outs.append(done[tree[1]])
        else:
            make = matrix if by_column(program, tree) else of_rows
            outs.append(make(tree, dtype, f"y{number}"))
    return te.create_prim_func([*placed, *outs])


_TE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "max": tirx.max,
    "min": tirx.min,
    "tanh": tirx.tanh,
    "abs": tirx.abs,
    "select": tirx.Select,
}


# --- interpreter


def evaluate(program: Program, inputs: list[Any]) -> tuple[list[Any], float]:
    """The outputs in float64, and the largest magnitude on the way."""
    rows, n = program.rows, program.columns
    whole = (*rows, n)
    done: list[Any] = []
    largest = 1.0

    def seen(v: Any) -> Any:
        nonlocal largest
        if v.dtype.kind == "f" and v.size:
            largest = max(largest, float(np.abs(v).max()))
        return v

    def value(tree: Tree) -> Any:
        kind, *args = tree
        if kind == "in":
            what = program.inputs[args[0]][0]
            v = wide(inputs[args[0]])
            return v[..., None] if what == "rows" else v
        if kind == "const":
            return np.float64(args[0]) * np.ones((1,) * len(whole))
        if kind == "col":
            return np.arange(n, dtype=np.float64) / n
        if kind == "row":
            return (0.25 * np.arange(rows[0], dtype=np.float64)).reshape(rows[0], *[1] * len(rows))
        if kind == "map":
            return done[args[0]]
        if kind == "red":
            return done[args[0]][..., None]
        a = [value(t) for t in args]
        return seen(np.asarray(_NUMPY[kind](*a)))

    for kind, element in program.stages:
        v = np.broadcast_to(value(element), whole)
        if kind == "map":
            done.append(v)
        elif kind == "sum":
            done.append(seen(v.mean(-1)))
        else:
            fold: Any = getattr(np, kind)
            done.append(fold(v, -1))
    outs = []
    for tree, dtype in program.outputs:
        if dtype == "int32":
            outs.append(done[tree[1]])
        elif by_column(program, tree):
            outs.append(np.broadcast_to(value(tree), whole))
        else:
            outs.append(np.broadcast_to(value(tree), (*rows, 1))[..., 0])
    return outs, largest


_NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "tanh": np.tanh,
    "abs": np.abs,
    "select": np.where,
    "less": np.less,
    "over": lambda a, b: a / (np.abs(b) + 1),
    "exp": lambda a: np.exp(np.minimum(a, 2)),
    "root": lambda a: np.sqrt(np.abs(a) + 1),
}


# --- checking


class Wrong(Exception):
    """An output differs, or a fault that is no refusal."""


def compare(program: Program, got: list[Any], want: list[Any], largest: float, where: str) -> None:
    """Within float32 rounding of the largest value on the way, and the rounding of the store."""
    for number, (g, w, (_, dtype)) in enumerate(zip(got, want, program.outputs, strict=True)):
        g = np.asarray(g).reshape(w.shape)
        if dtype == "int32":
            if (g != w).any():
                raise Wrong(f"{where}: index output {number} differs")
            continue
        seen = g.astype(np.float64)
        exact = w.astype(numpy_dtype(dtype)).astype(np.float64)
        allowed = 4e-5 * largest**2 + 2.02 * ROUNDOFF[dtype] * np.abs(w) + 1e-7
        over = np.isfinite(exact) & ~(np.abs(seen - w) <= allowed)
        if over.any():
            at = np.unravel_index(int(np.argmax(over)), over.shape)
            raise Wrong(f"{where}: output {number} at {at}: {seen[at]!r}, want {w[at]!r}")


def check(program: Program, seed: int = 0, target: str | None = None) -> str:
    """Analyse and interpret; with a target, also run a random candidate on the CPU model.

    Returns
    -------
    str
        `right`, or `declined: ` and the reason.
    """
    try:
        func = prim_func(program)
    except Exception as error:
        raise ValueError(f"the generator made no PrimFunc: {error}") from error
    inputs = arrays(program, seed)
    with np.errstate(all="ignore"):
        want, largest = evaluate(program, inputs)
    if not np.isfinite(largest) or largest > 1e3:
        return "declined: values too large to compare"
    try:
        read = facts.analyze(func)
    except tr.Unsupported as refused:
        return f"declined: {refused}"
    except Exception as fault:
        raise Wrong(f"analysis: {type(fault).__name__}: {fault}") from fault
    found = interpret(read.program, by_order(read.program, inputs))
    outs = [found[t.param] for t in read.program.tensors if t.role == "out"]
    compare(program, outs, want, largest, "row program")
    if target is None:
        return "right"
    chosen = candidate(read, target, seed)
    where = f"{target}, {chosen}"
    try:
        (*got,) = Kernel(func, target, chosen).run(*inputs, numerics=("plain", "fma", "fast")[seed % 3])
    except tr.Unsupported as refused:
        return f"declined: {refused}"
    except Exception as fault:
        raise Wrong(f"{where}: {type(fault).__name__}: {fault}") from fault
    compare(program, got, want, largest, where)
    return "right"


def in_place(program: RowProgram) -> list[tuple[int, int]]:
    """Parameters (input, output) that may be the same memory: matrices that are read where the output is written."""
    roots = [o.value for o in program.outputs] + [e for r in program.reductions for e in r.elements]
    loads = [e for e in walk(*roots) if isinstance(e, Load)]
    return [
        (t.param, o.param)
        for t in program.tensors
        for o in program.outputs
        if t.role == "in" and t.dtype == o.dtype and o.index.dense and not o.per_row
        if {e.index for e in loads if e.param == t.param} == {o.index}
    ]


def check_in_place(program: Program, target: str, chosen: Candidate, seed: int = 0) -> int:
    """Run once for every output in the place of an input; the number of runs."""
    func, inputs = prim_func(program), arrays(program, seed)
    with np.errstate(all="ignore"):
        want, largest = evaluate(program, inputs)
    if not np.isfinite(largest) or largest > 1e3:
        return 0
    try:
        pairs = in_place(facts.analyze(func).program)
        kernel = Kernel(func, target, chosen)
    except tr.Unsupported:
        return 0
    for source, output in pairs:
        given = iter([a.copy() for a in inputs])
        outs = [t for t in kernel.tensors if t.role == "out"]
        at = {t.param for t in outs}
        memory: list[Any] = [None if i in at else next(given) for i in range(len(func.params))]
        for t in outs:
            memory[t.param] = poisoned([int(e.value) for e in func.params[t.param].shape], t.dtype)
        # A single row may be a vector, of another rank.
        memory[output] = memory[source].reshape(memory[output].shape)
        where = f"{target}, {chosen}, parameter {output} in the place of {source}"
        try:
            emulator.emulate(kernel.executable, *memory, target=target, once=False)
        except Exception as fault:
            raise Wrong(f"{where}: {type(fault).__name__}: {fault}") from fault
        compare(program, [memory[t.param] for t in outs], want, largest, where)
    return len(pairs)


def candidate(read: Any, target: str, seed: int) -> Candidate | None:
    """A legal one at random; None (the default policy's) every fourth time."""
    rng = Random(seed)
    if rng.random() < 0.25:
        return None
    limits = limits_for(as_target(target))
    scope = [c for c in full_scope(read, limits) if c.threads <= 256 and c.width * c.vector <= 1024]
    rng.shuffle(scope)
    return next((c for c in scope if refusal(c, read, limits) is None), None)


# --- shrinking


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    if len(program.outputs) > 1:
        for i in range(len(program.outputs)):
            yield replace(program, outputs=program.outputs[:i] + program.outputs[i + 1 :])
    if program.columns > 1:
        for n in (1, 2, 3, program.columns // 2, program.columns - 1):
            if 0 < n < program.columns:
                yield replace(program, columns=n)
    for i, m in enumerate(program.rows):
        if m > 1:
            yield replace(program, rows=(*program.rows[:i], 1, *program.rows[i + 1 :]))
    for i, (kind, dtype) in enumerate(program.inputs):
        if dtype in ("float16", "bfloat16"):
            yield replace(program, inputs=(*program.inputs[:i], (kind, "float32"), *program.inputs[i + 1 :]))
    for i, (kind, tree) in enumerate(program.stages):
        for less in simpler(tree):
            yield replace(program, stages=(*program.stages[:i], (kind, less), *program.stages[i + 1 :]))
    for i, (tree, dtype) in enumerate(program.outputs):
        if dtype in ("float16", "bfloat16"):
            yield replace(
                program, outputs=(*program.outputs[:i], (tree, "float32"), *program.outputs[i + 1 :])
            )
        if dtype != "int32":
            for less in simpler(tree):
                yield replace(
                    program, outputs=(*program.outputs[:i], (less, dtype), *program.outputs[i + 1 :])
                )


def simpler(tree: Tree) -> Iterator[Tree]:
    """Each operand in the tree's place, and the tree with a simpler operand."""
    if tree[0] in ("in", "const", "col", "row", "map", "red"):
        return
    for part in tree[1:]:
        if tree[0] == "select" and part is tree[1]:
            continue
        yield part
    for i, part in enumerate(tree[1:], 1):
        for less in simpler(part):
            yield [*tree[:i], less, *tree[i + 1 :]]


def fails(program: Program, seed: int, target: str | None) -> str | None:
    """The fault of a program, or None."""
    try:
        check(program, seed, target)
    except Wrong as wrong:
        return str(wrong)
    except ValueError:
        return None
    return None


def shrink(program: Program, seed: int, target: str | None, steps: int = 200) -> Program:
    """The smallest program found that still fails."""
    left = steps
    while left > 0:
        for less in smaller(program):
            left -= 1
            if fails(less, seed, target) is not None:
                program = less
                break
            if left <= 0:
                break
        else:
            return program
    return program


def main(arguments: list[str] | None = None) -> int:
    """The offline run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--run-every", type=int, default=1, help="every how many programs are run on the CPU model"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args(arguments)
    begin, counts = time.monotonic(), {"right": 0, "declined": 0, "wrong": 0}
    reasons: dict[str, int] = {}
    for number in range(given.count):
        if time.monotonic() - begin > given.seconds:
            break
        seed = given.seed + number
        program = generate(seed)
        target = ("metal", "cuda")[number // given.run_every % 2] if number % given.run_every == 0 else None
        try:
            said = check(program, seed, target)
            counts["right" if said == "right" else "declined"] += 1
            if said != "right":
                reasons[said[:90]] = reasons.get(said[:90], 0) + 1
        except Wrong as wrong:
            counts["wrong"] += 1
            small = shrink(program, seed, target)
            print(
                json.dumps(
                    {"seed": seed, "target": target, "fault": str(wrong)[:300], "program": small.to_json()}
                )
            )
            sys.stdout.flush()
    print(counts, f"{time.monotonic() - begin:.0f} s")
    for reason, count in sorted(reasons.items(), key=lambda r: -r[1])[:20]:
        print(count, reason)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
