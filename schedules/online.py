"""Two reductions in one walk: each lane keeps a running reference, and what it has summed about it.

For rows that are read again at every walk. Before, for a softmax::

    for r: m = max(m, x[…])
    m = that of the subgroup
    for r: s += exp(x[…] - m)

After::

    for c:                                 # some packets that are loaded together
        new = max(m, x[…], …)
        s = s · exp(m - new) + exp(x[…] - new) + …; m = new
    m, s = those of the subgroup
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tvm import tirx

from tirx_reduce.program import ColIndex, Expr, Load
from tirx_reduce.values import Candidate

from . import merge, passes
from .collectives import fold_chains, identity
from .elements import Turn, Walk, accumulate, staged
from .exchange import of_lanes
from .memory import from_memory
from .merge import Rider
from .packets import Segment
from .row_values import hoist, leaf, stream
from .state import Kernel
from .tir import SERIAL, UNROLLED, Block, cast, imm, load, translate
from .walks import IN_FLIGHT, fetch

_LARGEST = 3.4e38


def applies(candidate: Candidate, walks: tuple[passes.Pass, ...], clustered: bool, plain: bool) -> bool:
    """Whether the first two walks may be one; where a row is kept, a second one reads no memory."""
    return candidate.reuse == "reload" and not (clustered or plain or walks[0].outputs)


def walk_once(k: Kernel, plan: passes.Pass, riders: dict[int, Rider]) -> dict[int, Any]:
    """Write the walk; gives what this subgroup found, by reduction."""
    rules = {r.on: r.rule for r in riders.values()}
    values = {i: k.program.reductions[i].elements[0] for i in rules}
    hoist(k, tuple(values.values()))
    w = Walk(number=1, plan=plan)
    w.loads = {
        ref: stream(k, ref.param, ref.index, ref.dtype) for ref in passes.column_loads(k.program, plan)
    }
    vector = k.candidate.vector
    n = _cell(k.block, "n", 0.0) if "square" in rules.values() else None
    running: dict[int, _Running] = {
        i: _Maximum(k.block, vector) if rule == "exponential" else _Mean(k.block, vector, n)
        for i, rule in rules.items()
    }
    row, loops = k.geometry, Block()
    left = [(part, fetch(k, w, loops, part, imm(0), part.count)) for part in row.ends()]
    for segment in row.segments():
        size, count = max(1, IN_FLIGHT // vector), segment.count
        size = min(size, count) if isinstance(count, int) else size
        # Where columns are symbolic, packets behind the row are guarded like those at its end.
        steps = count // size if isinstance(count, int) else tirx.FloorDiv(count + imm(size - 1), imm(size))
        with loops.loop("c", steps, SERIAL) as (body, c):
            at = fetch(k, w, body, segment, c * imm(size), size)
            _chunk(k, w, body, segment, size, at, values, running, n)
        rest = count % size if isinstance(count, int) else 0
        if rest:
            at = fetch(k, w, loops, segment, imm(count - rest), rest)
            _chunk(k, w, loops, segment, rest, at, values, running, n)
    for part, at in left:
        _chunk(k, w, loops, part, part.count, at, values, running, n)
    k.block.stmts.extend(loops.stmts)
    own: dict[int, Any] = {}
    for i, each in running.items():
        own[i], later = each.found(k.block)
        own.update({j: later for j, r in riders.items() if r.on == i})
    return of_lanes(k, own, 0 if n is None else k.block.bind("n", load(n, 0)), riders)


class _Running(Protocol):
    """What a lane carries along: an earlier reduction, and what rides on it."""

    combiner: str

    def refer(self, block: Block, part: Any, count: merge.Count) -> None:
        """Take the earlier reduction of a chunk of `count` columns; what rides on it comes next."""

    def add(self, body: Block, v: Any, value: Any) -> None:
        """Take one element of the chunk into chain `v`."""

    def close(self, block: Block, count: merge.Count) -> None:
        """Take what was added."""

    def found(self, block: Block) -> tuple[Any, Any]:
        """Both reductions over the columns of this lane."""


class _Maximum:
    """A maximum m, and the sum of exp(x - m)."""

    combiner = "max"

    def __init__(self, block: Block, vector: int) -> None:
        self.vector = vector
        self.m = _cell(block, "m", float("-inf"))
        self.s = _cell(block, "s", 0.0)

    def refer(self, block: Block, part: Any, count: merge.Count) -> None:
        before = block.bind("m", load(self.m, 0))
        after = block.settle("m", tirx.Max(before, part))
        self.base = block.settle("b", merge.finite(after))
        self.factor = block.settle("f", merge.shrink(merge.finite(before), self.base))
        block.store(self.m, 0, after)
        self.chains = _chains(block, "e", self.vector)

    def add(self, body: Block, v: Any, value: Any) -> None:
        accumulate(body, "sum", [self.chains], v, (tirx.exp(value - self.base),))

    def close(self, block: Block, count: merge.Count) -> None:
        before = block.bind("s", load(self.s, 0))
        block.store(self.s, 0, before * self.factor + _folded(block, "sum", self.chains, self.vector))

    def found(self, block: Block) -> tuple[Any, Any]:
        return block.bind("m", load(self.m, 0)), block.bind("s", load(self.s, 0))


class _Mean:
    """A sum, and the sum of (x - mean)²; both about a pivot, the mean of the first chunk.

    A chunk adds the squares about its own mean, which is corrected by what its deviations sum to, and those of its
    mean about the mean so far (Chan, Golub, LeVeque 1979). Sums about the first element alone lose a variance to an
    outlier that stands there: over 8192 columns a lane the relative error of the variance is 4e-2 where the outlier is
    1e4 deviations away, against 5e-5 of two passes and 1e-7 of this. Without the pivot, a mean of 1e4 deviations is
    rounded at each chunk: 2e-5, against 5e-6 of two passes and 2e-7 of this.
    """

    combiner = "sum"

    def __init__(self, block: Block, vector: int, n: Any) -> None:
        self.vector, self.n = vector, n
        self.pivot, self.s, self.q = (_cell(block, name, 0.0) for name in ("k", "s", "q"))

    def refer(self, block: Block, part: Any, count: merge.Count) -> None:
        self.mean = block.settle("a", part * merge.inverse(count))
        self.rest = _chains(block, "d", self.vector)
        self.squares = _chains(block, "e", self.vector)

    def add(self, body: Block, v: Any, value: Any) -> None:
        step = body.settle("d", value - self.mean)
        accumulate(body, "sum", [self.rest], v, (step,))
        accumulate(body, "sum", [self.squares], v, (step * step,))

    def close(self, block: Block, count: merge.Count) -> None:
        columns = merge.real(count)
        n, s, q, pivot = (block.bind("o", load(cell, 0)) for cell in (self.n, self.s, self.q, self.pivot))
        pivot = block.settle("k", tirx.Select(tirx.LE(n, imm(0.0, "float32")), self.mean, pivot))
        rest = block.settle("r", _folded(block, "sum", self.rest, self.vector))
        offset = block.settle("o", rest * merge.inverse(count))
        mean = block.settle("a", self.mean - pivot + offset)
        step = block.settle("d", mean - s * merge.inverse(n))
        weight = n * columns * merge.inverse(n + columns)
        # Squares that overflow leave infinity, as two walks do, and not the NaN of a difference.
        excess = tirx.Min(rest * offset, imm(_LARGEST, "float32"))
        squares = _folded(block, "sum", self.squares, self.vector) - excess
        # A chunk without columns has no weight, but its step means nothing and its square may overflow.
        block.store(self.q, 0, q + squares + step * (step * weight))
        block.store(self.s, 0, s + mean * columns)
        block.store(self.pivot, 0, pivot)

    def found(self, block: Block) -> tuple[Any, Any]:
        n, s, q, pivot = (block.bind("o", load(cell, 0)) for cell in (self.n, self.s, self.q, self.pivot))
        return block.settle("t", pivot * n + s), q


def _chunk(
    k: Kernel,
    w: Walk,
    block: Block,
    part: Segment,
    size: int,
    at: Callable[[Any], Turn],
    values: dict[int, Expr],
    running: dict[int, _Running],
    n: Any | None,
) -> None:
    """A chunk: what `size` rounds have loaded; in registers it is walked twice."""
    vector = part.vector
    held = {i: block.alloc("g", size * vector, "float32") for i in values}
    chains = {i: _chains(block, "c", vector, each.combiner) for i, each in running.items()}
    counter = _cell(block, "i", 0.0) if part.guarded and n is not None else None

    def reduce(body: Block, t: Turn, v: Any) -> None:
        memo: dict[Expr, Any] = {}
        for i, e in values.items():
            place = t.u * imm(vector) + v
            body.store(held[i], place, cast(_value(k, w, body, t, v, e, memo), "float32"))
            accumulate(body, running[i].combiner, [chains[i]], v, (load(held[i], place),))
        if counter is not None:
            accumulate(body, "sum", [counter], 0, (imm(1.0, "float32"),))

    def ride(body: Block, t: Turn, v: Any) -> None:
        for i, each in running.items():
            each.add(body, v, body.bind("g", load(held[i], t.u * imm(vector) + v)))

    _each(k, block, size, at, reduce)
    count = size * vector if counter is None else block.bind("i", load(counter, 0))
    for i, each in running.items():
        each.refer(block, block.settle("p", _folded(block, each.combiner, chains[i], vector)), count)
    _each(k, block, size, at, ride)
    for each in running.values():
        each.close(block, count)
    if n is not None:
        block.store(n, 0, load(n, 0) + merge.real(count))


def _each(
    k: Kernel,
    block: Block,
    size: int,
    at: Callable[[Any], Turn],
    do: Callable[[Block, Turn, Any], None],
) -> None:
    """`do` for every element of a chunk."""
    with block.loop("u", size, UNROLLED) as (inner, u):
        t = at(u)
        some = inner.when(k.geometry.inside(t.part, t.number))
        with some as inside, inside.loop("v", t.part.vector, UNROLLED) as (body, v):
            do(body, t, v)


def _value(k: Kernel, w: Walk, block: Block, t: Turn, v: Any, e: Expr, memo: dict[Expr, Any]) -> Any:
    def each(x: Expr) -> Any:
        if x in k.known:
            return k.known[x]
        if isinstance(x, Load) and x in t.stage:
            return block.bind("e", from_memory(load(t.stage[x], staged(k, w, x, t, v)), x.dtype, k.kind))
        if isinstance(x, ColIndex):
            return cast(k.geometry.column(t.part, t.number, v), "int64")
        return leaf(k, x)

    return translate(e, each, block, k.kind, memo)


def _cell(block: Block, name: str, start: float) -> Any:
    array = block.alloc(name, 1, "float32")
    block.store(array, 0, imm(start, "float32"))
    return array


def _chains(block: Block, name: str, vector: int, combiner: str = "sum") -> Any:
    """Partial results of a chunk, independent of each other."""
    array = block.alloc(name, vector, "float32")
    with block.loop("v", vector, UNROLLED) as (body, v):
        body.store(array, v, identity(combiner, "float32"))
    return array


def _folded(block: Block, combiner: str, array: Any, vector: int) -> Any:
    (total,) = fold_chains(block, combiner, [array], vector)
    return total
