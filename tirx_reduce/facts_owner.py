"""Ownership: which iteration of a block writes an element, each element being written exactly once."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from . import compat
from .errors import Unsupported
from .facts_blocks import Block, Store
from .facts_space import ZERO


def stored_at(block: Block, store: Store, indices: tuple[Any, ...]) -> dict[Any, Any]:
    """The iterators of `block` for which `store` writes at `indices`.

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


def _unowned(block: Block, store: Store, why: str) -> Unsupported:
    at = ", ".join(str(i) for i in store.indices)
    return Unsupported(f"block {block.name} writes {store.buffer.name}[{at}]{why}")


def _one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and extent.value == 1


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return bool(a.value == b.value)
    return compat.equal(a, b)
