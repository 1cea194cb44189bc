"""Public faults of row reductions: the registry that the tests fill and the table of the documentation is
written from.

Cases are numbered as in the list of public reports that this project was given; sources are named by
repository.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from tvm import te, tirx, topi

from tests.functions import topi_func

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One public case, and how its whole kind is ruled out here."""

    case: str
    source: str
    kind: str
    verdict: str
    """`right`, `refused`, `right or refused`, or `our decision`."""
    how: str
    """How the kind is ruled out."""
    test: str
    """Module and function of the test."""


REGISTRY: list[Fault] = []


def fault(case: str, source: str, kind: str, how: str, verdict: str = "right") -> Callable[[F], F]:
    """Marks a test as that of a public case."""

    def add(test: F) -> F:
        place = f"{test.__module__.rsplit('.', 1)[-1]}::{test.__name__}"
        if not any(f.case == case and f.test == place for f in REGISTRY):
            REGISTRY.append(Fault(case=case, source=source, kind=kind, verdict=verdict, how=how, test=place))
        return test

    return add


# --- the operators of the cases, accumulated in float32 as their authors meant them


def f32(x: Any, *i: Any) -> Any:
    """An element in float32."""
    return x[i].astype("float32")


def layer_norm(eps: float, weight: bool = True, bias: bool = True) -> Callable[..., Any]:
    """LayerNorm over the last axis of a matrix; the result has the dtype of x."""

    def build(x: Any, *affine: Any) -> Any:
        m, n = x.shape
        k, j = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "j")
        size = float(n.value)
        total = te.compute((m,), lambda i: te.sum(f32(x, i, k), axis=k), name="total")

        def centred(i: Any, c: Any) -> Any:
            return f32(x, i, c) - total[i] / size

        square = te.compute((m,), lambda i: te.sum(centred(i, j) * centred(i, j), axis=j), name="square")

        def out(i: Any, c: Any) -> Any:
            y = centred(i, c) * tirx.rsqrt(square[i] / size + tirx.const(eps, "float32"))
            rest = list(affine)
            y = y * f32(rest.pop(0), c) if weight else y
            return (y + f32(rest.pop(0), c) if bias else y).astype(x.dtype)

        return te.compute(x.shape, out, name="out")

    return build


def rms_norm(eps: float, weight: bool = True) -> Callable[..., Any]:
    """RMSNorm over the last axis of a matrix."""

    def build(x: Any, *g: Any) -> Any:
        m, n = x.shape
        k = te.reduce_axis((0, n), "k")
        square = te.compute((m,), lambda i: te.sum(f32(x, i, k) * f32(x, i, k), axis=k), name="square")

        def out(i: Any, c: Any) -> Any:
            y = f32(x, i, c) * tirx.rsqrt(square[i] / float(n.value) + tirx.const(eps, "float32"))
            return (y * f32(g[0], c) if weight else y).astype(x.dtype)

        return te.compute(x.shape, out, name="out")

    return build


def l2_norm(eps: float) -> Callable[[Any], Any]:
    """x / sqrt(Σ x² + eps)."""

    def build(x: Any) -> Any:
        m, n = x.shape
        k = te.reduce_axis((0, n), "k")
        square = te.compute((m,), lambda i: te.sum(f32(x, i, k) * f32(x, i, k), axis=k), name="square")
        return te.compute(
            x.shape,
            lambda i, c: (f32(x, i, c) * tirx.rsqrt(square[i] + tirx.const(eps, "float32"))).astype(x.dtype),
        )

    return build


def add_rms_norm(eps: float) -> Callable[..., Any]:
    """Residual (rounded where it is stored) and its RMSNorm."""

    def build(x: Any, r: Any, g: Any) -> Any:
        total = te.compute(
            x.shape, lambda i, j: (f32(x, i, j) + f32(r, i, j)).astype(x.dtype), name="residual"
        )
        return [total, rms_norm(eps)(total, g)]

    return build


def add_layer_norm(eps: float) -> Callable[..., Any]:
    """Residual and its LayerNorm."""

    def build(x: Any, r: Any, g: Any, b: Any) -> Any:
        total = te.compute(
            x.shape, lambda i, j: (f32(x, i, j) + f32(r, i, j)).astype(x.dtype), name="residual"
        )
        return [total, layer_norm(eps)(total, g, b)]

    return build


def wide_sum(x: Any) -> Any:
    """Σ x, stored in the dtype of x."""
    return topi.sum(x, -1)


def wide_mean(x: Any) -> Any:
    """The mean in float32, stored in the dtype of x: a count above 65504 has no float16."""
    m, n = x.shape
    k = te.reduce_axis((0, n), "k")
    total = te.compute((m,), lambda i: te.sum(f32(x, i, k), axis=k), name="total")
    return te.compute((m,), lambda i: (total[i] / float(n.value)).astype(x.dtype), name="mean")


def wide_variance(x: Any) -> Any:
    """The population variance in float32, stored in the dtype of x."""
    m, n = x.shape
    k, j = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "j")
    total = te.compute((m,), lambda i: te.sum(f32(x, i, k), axis=k), name="total")
    square = te.compute(
        (m,),
        lambda i: te.sum(
            (f32(x, i, j) - total[i] / float(n.value)) * (f32(x, i, j) - total[i] / float(n.value)), axis=j
        ),
        name="square",
    )
    return te.compute((m,), lambda i: (square[i] / float(n.value)).astype(x.dtype), name="variance")


def softmax(x: Any) -> Any:
    """TOPI's."""
    return topi.nn.softmax(x, -1)


def func(build: Callable[..., Any], *arrays: Any) -> Any:
    """The PrimFunc of `build` for the shapes and dtypes of some arrays."""
    return topi_func(build, *((a.shape, a.dtype.name) for a in arrays))


# --- references


def np_softmax(x: Any) -> Any:
    """In float64."""
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)


def np_layer_norm(x: Any, eps: float) -> Any:
    """In float64, with the population variance."""
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + eps)


def np_rms_norm(x: Any, eps: float) -> Any:
    """In float64."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
