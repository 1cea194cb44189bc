"""Ownership: which iteration of a block writes an element, each element being written exactly once."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_blocks import Block, Store
from .facts_index import Indices
from .facts_poly import ONE as ONE_TERM
from .facts_poly import Polynomial, Polynomials, coefficient, multiplied
from .facts_space import ZERO


def stored_at(reader: Indices, block: Block, store: Store, indices: tuple[Any, ...]) -> dict[Any, Any]:
    """The iterators of `block` for which `store` writes at `indices`.

    An index is an iterator, or several of them as the digits of a flat index (`i·N + j`).

    Raises
    ------
    Unsupported
        If the store does not put every spatial iteration into an element of its own that covers the tensor.
    """
    extents = {i.var: i for i in block.iters if not i.reduces}
    placed = {i.var: ZERO for i in block.iters if i.unit and not i.reduces}
    shape = store.buffer.ty.shape
    for at, index, extent in zip(store.indices, indices, shape, strict=True):
        if isinstance(at, tirx.Cast):
            at = at.value
        if isinstance(at, tirx.IntImm) and at.value == 0 and _one(extent):
            continue
        digits = None if isinstance(at, compat.Var) else _digits(reader, at, extents, extent)
        if digits is not None:
            for var in digits:
                del extents[var]
            placed |= reader.space.unravel(list(digits.items()), index)
            continue
        iterator = extents.pop(at, None) if isinstance(at, compat.Var) else None
        if iterator is None:
            raise _unowned(
                block, store, "; needs each element owned by one iteration (distinct iterators as indices)"
            )
        if not _one(iterator.extent) and not _same(iterator.extent, extent):
            raise _unowned(
                block, store, f" for {iterator.extent} of {extent} elements; needs all of them written"
            )
        if _one(iterator.extent) and not _one(extent):
            raise _unowned(block, store, f" for 1 of {extent} elements; needs all of them written")
        placed[at] = index
    if any(not i.unit for i in extents.values()):
        raise _unowned(block, store, " many times; needs every element written once")
    return placed


def _digits(reader: Indices, at: Any, iters: dict[Any, Any], extent: Any) -> dict[Any, Any] | None:
    """The extents of the iterators that are the digits of the flat index `at`, the largest first.

    None where `at` is anything else, or does not run through `extent` elements once each.
    """
    poly = Polynomials()
    terms = poly.of(at)
    weights: dict[Any, Polynomial | None] = {
        var: coefficient(terms, poly.number(var)) for var in iters if not iters[var].unit
    }
    weights = {var: weight for var, weight in weights.items() if weight}
    if terms.get(ONE_TERM) or len(weights) < 2:
        return None
    size: Polynomial = {ONE_TERM: 1}
    found: dict[Any, Any] = {}
    while len(found) < len(weights):
        var = next((v for v, weight in weights.items() if v not in found and weight == size), None)
        if var is None:
            return None
        found = {var: reader.extent(iters[var].extent), **found}
        size = multiplied(size, poly.of(iters[var].extent))
    whole = sum(len(weight) for weight in weights.values() if weight)
    return found if size == poly.of(extent) and whole == len(terms) else None


def _unowned(block: Block, store: Store, why: str) -> Unsupported:
    at = ", ".join(str(i) for i in store.indices)
    return Unsupported(f"block {block.name} writes {store.buffer.name}[{at}]{why}")


def _one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and extent.value == 1


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return bool(a.value == b.value)
    return compat.equal(a, b)
