"""Groups that stay and take row after row while the next rows are on their way (CUDA, sm_80 and later).

Under private reuse, a row each::

    copy row g to shared memory, asynchronously
    for step in range(rows of this group):
        wait; take the row from shared memory
        copy row g + (step + 1)·groups to shared memory, asynchronously
        walks over the row, their collectives, their stores

Under shared reuse, a row each or a row a cluster, which keeps its weights in registers as long as it stays::

    copy rows g, g + clusters, g + 2·clusters to three shelves in shared memory, asynchronously
    for step in range(rows of this cluster):
        wait for the oldest
        walks over the row where it lies, their collectives, their stores
        copy row g + (step + 3)·clusters to its shelf, asynchronously
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import tirx

from tirx_reduce.candidates import SHELVES
from tirx_reduce.errors import Unsupported

from . import cluster
from .passes import Pass, column_loads
from .prefetch import Prefetch, commit, issue, load_left, receive, take_left, wait_oldest
from .state import Kernel, Mixed, first_row, launched, next_row, place, row_count
from .tir import cast, imm
from .walks import load_ahead


def write(k: Kernel, walks: tuple[Pass, ...], row: Callable[[tuple[Pass, ...]], None]) -> Any:
    """The launch; `row` writes all walks over one row."""
    place(k, first_row(k))
    stays = k.candidate.reuse == "shared"
    # What is read once needs no shelf.
    ahead = Prefetch.of(k, walks[0].kept if stays else column_loads(k.program, walks[0]))
    if ahead is None:
        raise Unsupported(
            "resident groups with a row that cannot be prefetched; needs dense rows and whole packets of 16 bytes"
        )
    if stays:
        _on_shelves(k, walks, row, ahead)
    else:
        _in_registers(k, walks, row, ahead)
    return launched(k, imm(k.candidate.resident))


def _in_registers(
    k: Kernel, walks: tuple[Pass, ...], write_row: Callable[[tuple[Pass, ...]], None], ahead: Prefetch
) -> None:
    it = k.index_dtype
    rows, begin, stride = cast(row_count(k), it), first_row(k), imm(k.candidate.resident, it)
    ahead.open(k)
    # Weights are the same for every row: loaded once where registers allow.
    load_ahead(k, walks, vectors=True)
    once = k.ahead
    with k.block.when(tirx.LT(begin, rows)) as some:
        issue(k, some, ahead, begin)
        commit(some)
    steps = tirx.FloorDiv(rows - begin + (stride - imm(1, it)), stride)
    outer = k.block
    with outer.loop("step", steps, annotations={}) as (body, step):
        k.block = body
        k.turn, k.turns = cast(tirx.FloorMod(step, imm(2, it)), "int32"), 2
        row = begin + step * stride
        next_row(k, row, once)
        receive(k, ahead)
        following = row + stride
        with body.when(tirx.LT(following, rows)) as more:
            issue(k, more, ahead, following)
            commit(more)
        write_row(walks)
    k.block = outer


def _on_shelves(
    k: Kernel, walks: tuple[Pass, ...], write_row: Callable[[tuple[Pass, ...]], None], ahead: Prefetch
) -> None:
    c, it = k.candidate, k.index_dtype
    count = row_count(k)
    if not isinstance(count, tirx.IntImm) or ahead.loads != walks[0].kept:
        raise Unsupported(
            "resident groups whose rows stay in shared memory; needs fixed rows that are kept as they are"
        )
    rows, begin, stride = imm(count.value, it), first_row(k), c.resident // c.splits
    ahead.open(k, SHELVES)
    left = load_left(k, k.block, ahead, begin, tirx.LT(begin, rows))
    if left is not None:
        # What is moved in registers waits for its load: not behind three rows.
        load_ahead(k, walks, vectors=True, early=True)
    for shelf in range(SHELVES):
        row = begin + imm(shelf * stride, it)
        with k.block.when(tirx.LT(row, rows)) as some:
            issue(k, some, ahead, row, imm(shelf * ahead.extent))
        commit(k.block)
    if left is None:
        load_ahead(k, walks, vectors=True, early=True)
    once = k.ahead
    if k.cluster:
        # Every row has slots and mailboxes of its own: what comes from a group that is ahead disturbs nobody.
        k.turns = -(-count.value // stride)
        cluster.wait(k.block)
        k.begun = True
    else:
        k.turns = 2
    k.shared_arrays = [ahead.array]
    array = ahead.array if left is None else Mixed(private=left, shared=ahead.array)
    kept = dict.fromkeys(walks[0].kept, array)
    steps = tirx.FloorDiv(rows - begin + imm(stride - 1, it), imm(stride, it))
    outer = k.block
    with outer.loop("step", steps, annotations={}) as (body, step):
        k.block = body
        number = cast(step, "int32")
        k.turn = number if k.cluster else tirx.FloorMod(number, imm(2))
        k.shelf = tirx.FloorMod(number, imm(SHELVES)) * imm(ahead.extent)
        row = begin + step * imm(stride, it)
        next_row(k, row, once)
        k.kept = kept
        coming = row + imm(stride, it)
        there = tirx.LT(coming, rows)
        next_left = load_left(k, body, ahead, coming, there)
        wait_oldest(body)
        write_row((replace(walks[0], found=walks[0].kept), *walks[1:]))
        following = row + imm(SHELVES * stride, it)
        with body.when(tirx.LT(following, rows)) as more:
            issue(k, more, ahead, following, k.shelf)
        commit(body)
        take_left(k, body, left, next_left, there)
    k.block = outer
