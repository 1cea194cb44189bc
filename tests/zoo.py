"""The zoo: row reductions as people write them, each with its NumPy formula, and near misses with the
reason why not.

An entry builds a PrimFunc for one dtype; its formula sees the rounded inputs in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.functions import Spec
from tests.launch import numpy_dtype

FLOATS = ("float32", "float16", "bfloat16")
WIDE = ("float32",)
HALVES = ("float32", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One form of a row reduction."""

    name: str
    family: str
    origin: str
    """Where the PrimFunc comes from: `TOPI`, `te`, `Relax`, `Relax, fused`, `Relax, by pattern` or
    `TVMScript`.
    """
    make: Callable[[str], Any]
    """From a dtype to the PrimFunc."""
    specs: tuple[Spec, ...]
    """Shapes and dtypes of the inputs; the dtype `float` is the entry's own."""
    want: Callable[..., Any]
    """From the inputs in float64 (integers as they are) to the result, or a tuple of results."""
    dtypes: tuple[str, ...] = FLOATS
    declined: str = ""
    """Part of the reason where it is no row reduction for us; empty where it is accepted."""
    declined_on: tuple[tuple[str, str], ...] = ()
    """Target kinds that decline it although it is a row reduction, and part of the reason."""
    note: str = ""
    """What the table says beside it."""
    draw: str = "normal"
    """`normal`, `positive`, or `unit` (around 1)."""
    looser: float = 1.0
    """How many times the usual tolerance holds."""
    casts: int = 0
    """Roundings to the output's dtype on the way, each of a value as large as the row's largest."""
    ties: bool = False
    """An integer may be next to the right one: the value before rounding lies within rounding of a half."""

    def inputs(self, dtype: str, seed: int = 0) -> list[Any]:
        """Seeded inputs: floats as drawn, integers small, booleans mostly true with column 0 always true."""
        rng = np.random.default_rng([seed, len(self.name), *map(ord, self.name[:8])])
        return [draw(rng, shape, dtype if d == "float" else d, self.draw) for shape, d in self.specs]

    def typed(self, dtype: str) -> tuple[Spec, ...]:
        """The inputs for one dtype."""
        return tuple((s, dtype if d == "float" else d) for s, d in self.specs)


def draw(rng: Any, shape: tuple[int, ...], dtype: str, kind: str = "normal") -> Any:
    """Seeded values of one tensor."""
    if dtype == "bool":
        values = rng.random(shape) < 0.8
        if values.ndim and values.size:
            values[..., 0] = True
        return values
    if "int" in dtype:
        low, high = (0, 24) if dtype.startswith("uint") else (-100, 100)
        if dtype in ("int32", "int64") and kind == "label":
            low, high = 0, 8
        return rng.integers(low, high, shape).astype(dtype)
    values = rng.standard_normal(shape)
    if kind == "positive":
        values = 0.1 + 0.9 * rng.random(shape)
    if kind == "unit":
        values = 1 + 0.1 * values
    return np.asarray(values).astype(numpy_dtype(dtype))


def entries() -> tuple[Entry, ...]:
    """All of them."""
    from tests import zoo_norms, zoo_reductions, zoo_softmax

    found = (*zoo_softmax.ENTRIES, *zoo_norms.ENTRIES, *zoo_reductions.ENTRIES)
    names = [e.name for e in found]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise ValueError(f"entries named twice: {sorted(twice)}")
    return found
