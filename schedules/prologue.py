"""What a launch does while the one before still runs (CUDA, sm_90 and later): it asks for its first data, then waits.

After, for a softmax::

    if lane == 0 and group < EARLY: prefetch the group's row, 16 bytes and more at a time, into the second cache
    let the next launch take its place; wait until the launch before has ended

A prefetch reads nothing into the kernel, so that it may come before the wait even where the launch before writes that
row: the second cache is where both meet. What it brings counts where the launch before wrote something else, as with
weights, and with rows that were written earlier.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tirx_reduce.program import Const, Load, item_bytes

from . import cluster
from .memory import memory_dtype
from .passes import Pass
from .state import Kernel, first_row, loads_of, row_count
from .tir import Block, cast, imm, load
from .walks import load_ahead

# Rows that are asked for ahead: about those of the groups that can have a place while the launch before ends. For the
# others a prefetch is one request more. A cluster takes its place as a whole, and reaches further.
EARLY_BYTES, EARLY_GROUPS = 4 << 20, 512
# Groups that share out what is the same for every row, and the bytes below which a share is not worth a request.
SHARES, LEAST = 16, 128


def open_launch(k: Kernel, *, followed: bool = False) -> None:
    """Ask for the first rows and for the weights, then wait for the launch before.

    With `followed` the next launch is of the same function, and may count on everything before this one.
    """
    inputs = loads_of(k.program)
    _say_reads(k, inputs)
    if not followed:
        cluster.offer(k.block)
    first = tirx.EQ(k.lane, imm(0))
    if k.candidate.packing > 1:
        first = tirx.And(first, tirx.EQ(k.slot, imm(0)))
    with k.block.when(first) as one:
        _rows(k, one, [e for e in inputs if e.index.dense])
        _vectors(k, one, [e for e in inputs if not e.index.dense and k.walks.is_vector(e)])
    cluster.begin(k.block)
    if followed:
        cluster.offer(k.block)


def follow(k: Kernel, walks: tuple[Pass, ...], *, followed: bool) -> None:
    """Begin a launch that goes on with rows of the launch before: it loads them while that one still runs.

    What both read was there before the first of them began, which had waited before it offered a place to this one.
    """
    _say_reads(k, loads_of(k.program))
    cluster.follow(k.block)
    if not followed:
        cluster.offer(k.block)
    load_ahead(k, walks, early=True)
    cluster.begin(k.block)
    if followed:
        cluster.offer(k.block)


def _say_reads(k: Kernel, inputs: list[Load]) -> None:
    for param in dict.fromkeys(e.param for e in inputs):
        cluster.reads(k.block, _at(k, param, imm(0)))
    for array in (a for arrays in k.workspace.values() for a in arrays):
        cluster.reads(k.block, tirx.address_of(load(array, 0)))


def _at(k: Kernel, param: int, offset: Any) -> Any:
    return tirx.address_of(load(k.views[param], offset))


def _bytes(k: Kernel, e: Load) -> int:
    return item_bytes(memory_dtype(e.dtype, k.kind))


def _rows(k: Kernel, block: Block, loads: list[Load]) -> None:
    """The rows of a group, or its share of one row."""
    if not loads or not isinstance(k.program.columns, Const):
        return
    c, it = k.candidate, k.index_dtype
    each = c.rows_a_group
    columns = int(k.program.columns.value)
    share = columns // c.splits if c.splits > 1 else columns * each
    begin = cast(k.group, it) * imm(columns * each, it)
    if c.splits > 1:
        begin = first_row(k) * imm(columns, it) + cast(k.rank, it) * imm(share, it)
    loads = list({e.param: e for e in loads}.values())
    most = EARLY_BYTES * (2 if k.cluster else 1)
    early = max(1, min(EARLY_GROUPS, most // (share * sum(_bytes(k, e) for e in loads))))
    rows = row_count(k)
    if isinstance(rows, tirx.IntImm):
        stride = c.resident // c.splits
        # Resident groups whose rows stay in shared memory have two on their way.
        for turn in range(2 if c.resident and c.reuse == "shared" else 1):
            there = rows.value // each - turn * stride
            at = begin + imm(turn * stride * columns, it) if turn else begin
            with block.when(tirx.LT(k.group, imm(min(early, there * c.splits)))) as among:
                _ask(k, among, loads, at, share)
        return
    few: Any = None
    if k.rows.most is None or k.rows.most // each * c.splits > early:
        few = tirx.LT(k.group, imm(early))
    whole: Any = None
    if (each > 1 and not k.rows.whole) or c.resident:  # or every group has its rows
        whole = tirx.LE((cast(k.group, it) + imm(1, it)) * imm(each, it), cast(rows, it))
    with block.when(whole) as among:
        _ask(k, among, loads, begin, share, few)


def _ask(k: Kernel, block: Block, loads: list[Load], begin: Any, share: int, few: Any = None) -> None:
    """For `share` elements from `begin` on of each of `loads`; for none, where it is not among the `few`.

    Round the call, that condition kept CUDA's compiler from working out a lane's first address before the wait, which
    took 3 % of a LayerNorm of 512 rows of 1024 float32 columns.
    """
    for e in loads:
        size = imm(share * _bytes(k, e))
        cluster.prefetch(
            block, _at(k, e.param, begin), size if few is None else tirx.Select(few, size, imm(0))
        )


def _vectors(k: Kernel, block: Block, loads: list[Load]) -> None:
    """A share of each vector of columns."""
    if not loads or not isinstance(k.program.columns, Const):
        return
    columns, rows = int(k.program.columns.value), row_count(k)
    # A share of a group that never starts is left out, and a large one comes late.
    usual = int(rows.value) if isinstance(rows, tirx.IntImm) else k.rows.usual
    groups = min(SHARES, max(1, k.candidate.groups(usual)))
    for e in loads:
        if e.index.stride != 1 or not isinstance(e.index.row, Const):
            continue
        size = _bytes(k, e)
        share = max(LEAST // size, -(-columns // groups))
        share = -(-share // (LEAST // size)) * (LEAST // size)
        whole = columns // share
        start = imm(int(e.index.row.value), k.index_dtype)
        with block.when(tirx.LT(k.group, imm(whole))) as mine:
            at = start + cast(k.group, k.index_dtype) * imm(share, k.index_dtype)
            cluster.prefetch(mine, _at(k, e.param, at), imm(share * size))
        if columns % share:
            with block.when(tirx.EQ(k.group, imm(whole))) as last:
                at = start + imm(whole * share, k.index_dtype)
                cluster.prefetch(last, _at(k, e.param, at), imm(columns % share * size))
