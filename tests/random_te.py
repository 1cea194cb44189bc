"""Random tensor expressions over one row space: maps, reductions, look-ups, masks, shifts, layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

from tvm import te, tirx, topi

F32 = "float32"

_UNARY: tuple[Callable[[Any], Any], ...] = (
    lambda e: tirx.exp(e * 0.1),
    tirx.tanh,
    tirx.abs,
    lambda e: e * 0.5,
    lambda e: tirx.sqrt(tirx.abs(e)),
)
_BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: tirx.max(a, b),
)
_BY_ROW: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / (tirx.abs(b) + 1.0),
)


class Expressions:
    """Grows a pool of matrices, row values and column vectors, then picks outputs among what was reduced."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rank = self.rng.choice([0, 1, 1, 2, 2, 3])
        self.rows: list[Any] = [self.rng.choice([1, 2, 3, 4, 5]) for _ in range(rank)]
        if rank and self.rng.random() < 0.3:
            self.rows[0] = te.var("n", "int64")
        self.columns = self.rng.choice([1, 3, 4, 5, 8])
        self.full = (*self.rows, self.columns)
        self.inputs: list[Any] = []
        self.matrices: list[Any] = []
        self.row_values: list[Any] = []
        self.vectors: list[Any] = []
        self.label: Any = None
        self.reduced: set[Any] = set()
        self._count = 0
        for _ in range(self.rng.choice([1, 1, 2])):
            self.matrices.append(self._matrix())
        if self.rng.random() < 0.5:
            self.vectors.append(self._input((self.columns,)))
        if rank and self.rng.random() < 0.3:
            self.row_values.append(self._input(tuple(self.rows)))
        if rank == 2 and self.rng.random() < 0.3:
            mask = self._input((self.rows[0], 1, self.columns))
            self.matrices.append(self._compute(self.full, lambda *i: mask(i[0], 0, i[2]) * 0.5))

    def func(self) -> Any:
        """The PrimFunc; None where nothing was reduced."""
        for _ in range(self.rng.randint(3, 9)):
            step: Callable[[], None] = self.rng.choice(
                [
                    self._unary,
                    self._binary,
                    self._binary,
                    self._with_vector,
                    self._with_row,
                    self._reduce,
                    self._reduce,
                    self._reduce,
                    self._rows_only,
                    self._mask,
                    self._round,
                    self._look_up,
                    self._shift,
                    self._roll,
                ]
            )
            step()
        found = [t for t in self.row_values + self.matrices if t in self.reduced]
        if not found:
            return None
        self.rng.shuffle(found)
        outputs = [self._output(t) for t in found[: self.rng.choice([1, 1, 2, 3])]]
        return te.create_prim_func(self.inputs + outputs)

    def _input(self, shape: tuple[Any, ...], dtype: str = F32) -> Any:
        self.inputs.append(te.placeholder(shape, dtype, name=f"p{len(self.inputs)}"))
        return self.inputs[-1]

    def _compute(self, shape: Any, function: Callable[..., Any], *sources: Any) -> Any:
        self._count += 1
        made = te.compute(shape, lambda *i: function(*i), name=f"t{self._count}")
        if any(s in self.reduced for s in sources):
            self.reduced.add(made)
        return made

    def _matrix(self) -> Any:
        if self.rng.random() < 0.25:
            order = list(range(len(self.full)))
            self.rng.shuffle(order)
            turned = self._input(tuple(self.full[a] for a in order))
            return self._compute(self.full, lambda *i: turned(*(i[a] for a in order)))
        plain = self._input(self.full, self.rng.choice([F32, F32, F32, "float16"]))
        if plain.dtype == F32:
            return plain
        return self._compute(self.full, lambda *i: plain(*i).astype(F32))

    def _unary(self) -> None:
        a, f = self.rng.choice(self.matrices), self.rng.choice(_UNARY)
        self.matrices.append(self._compute(self.full, lambda *i: f(a(*i)), a))

    def _binary(self) -> None:
        a, b, f = self.rng.choice(self.matrices), self.rng.choice(self.matrices), self.rng.choice(_BINARY)
        self.matrices.append(self._compute(self.full, lambda *i: f(a(*i), b(*i)), a, b))

    def _with_vector(self) -> None:
        if self.vectors:
            a, v = self.rng.choice(self.matrices), self.rng.choice(self.vectors)
            self.matrices.append(self._compute(self.full, lambda *i: a(*i) * v(i[-1]), a))

    def _with_row(self) -> None:
        if self.row_values:
            a, r, f = (
                self.rng.choice(self.matrices),
                self.rng.choice(self.row_values),
                self.rng.choice(_BY_ROW),
            )
            self.matrices.append(self._compute(self.full, lambda *i: f(a(*i), r(*i[:-1])), a, r))

    def _reduce(self) -> None:
        a, k = self.rng.choice(self.matrices), te.reduce_axis((0, self.columns))
        combine = self.rng.choice([te.sum, te.max, te.min])
        made = self._compute(tuple(self.rows), lambda *i: combine(a(*i, k), k))
        self.reduced.add(made)
        self.row_values.append(made)

    def _rows_only(self) -> None:
        if self.row_values:
            a, b = self.rng.choice(self.row_values), self.rng.choice(self.row_values)
            self.row_values.append(self._compute(tuple(self.rows), lambda *i: a(*i) * 0.5 + b(*i), a, b))

    def _mask(self) -> None:
        a = self.rng.choice(self.matrices)
        axis = self.rng.randrange(len(self.rows)) if self.rows else None

        def masked(*i: Any) -> Any:
            bound = tirx.const(1, "int32") if axis is None else i[axis]
            keep = i[-1] <= bound.astype(str(i[-1].ty.dtype))
            return tirx.Select(keep, a(*i), tirx.const(-1.0, F32))

        self.matrices.append(self._compute(self.full, masked, a))

    def _round(self) -> None:
        a = self.rng.choice(self.matrices)
        self.matrices.append(self._compute(self.full, lambda *i: a(*i).astype("float16").astype(F32), a))

    def _look_up(self) -> None:
        if self.rows:
            if self.label is None:
                self.label = self._input(tuple(self.rows), "int32")
            a, label, n = self.rng.choice(self.matrices), self.label, tirx.const(self.columns, "int32")
            self.row_values.append(self._compute(tuple(self.rows), lambda *i: a(*i, label(*i) % n), a))

    def _shift(self) -> None:
        if self.columns > 2:
            a, by, n = self.rng.choice(self.matrices), self.rng.choice([-1, 1]), self.columns

            def shifted(*i: Any) -> Any:
                inside = tirx.all(i[-1] + by >= 0, i[-1] + by < n)
                return tirx.if_then_else(inside, a(*i[:-1], i[-1] + by), tirx.const(0.0, F32))

            self.matrices.append(self._compute(self.full, shifted, a))

    def _roll(self) -> None:
        a, n = self.rng.choice(self.matrices), self.columns
        self.matrices.append(self._compute(self.full, lambda *i: a(*i[:-1], (i[-1] + 1) % n), a))

    def _output(self, made: Any) -> Any:
        fixed = all(isinstance(e, int) for e in self.rows)
        kind = self.rng.random()
        if made in self.matrices and kind < 0.3:
            order = list(range(len(self.full)))
            self.rng.shuffle(order)
            back = [order.index(a) for a in range(len(order))]
            turned = tuple(self.full[a] for a in order)
            return self._compute(turned, lambda *i: made(*(i[a] for a in back)))
        if fixed and kind < 0.45:
            return topi.reshape(made, (prod(int(e) for e in made.shape),))
        if kind < 0.6:
            return self._compute(made.shape, lambda *i: made(*i).astype("float16"))
        return self._compute(made.shape, lambda *i: made(*i))
