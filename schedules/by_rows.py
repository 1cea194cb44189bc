"""Which kernel for how many rows: what the host asks before it launches, where the number of rows is symbolic.

After, for a plan that has one mapping from 1 row on and another from 257 rows on, two rows a group::

    if rows == 1:    the first, for one row
    elif rows >= 257:
        if rows > 2^31 / columns:  the second, with offsets of 64 bits
        elif rows % 2 == 0:        the second, without guards
        else:                      the second
    elif rows >= 1:  the first
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tvm import tirx

from tirx_reduce.program import Const, Sym
from tirx_reduce.values import Candidate, DeviceLimits, GroupPlan, RowFacts

from .kernel import emit
from .state import ANY_ROWS, Rows, small_rows
from .tir import Block, imm

FEW = 8
"""Rows that a launch has as a rule where it may have less; one row has a kernel of its own."""


def body(reading: Any, plan: GroupPlan) -> Any:
    """The launches of a plan: one where rows are fixed, else one for each case of their number."""
    facts: RowFacts = reading.facts
    if facts.rows == 0:
        return tirx.Evaluate(imm(0))
    if facts.rows is not None:
        return kernel(reading, plan.candidate, plan.limits, _up_to(facts.rows))
    rows = _row_count(reading)
    variants = plan.variants or (((1, None), plan),)
    out: Any = None
    small = small_rows(facts.program)
    for (low, high), variant in variants:
        usual = max(low, FEW)
        of = variant.candidate, plan.limits
        if high is not None:
            launch = _guarded_or_not(reading, *of, rows, _up_to(high, usual))
        else:
            launch = kernel(reading, *of, Rows(usual=usual))
            if low <= small < math.inf:
                # Offsets of 64 bits take registers that cost a group a multiprocessor: only where rows are that many.
                narrow = _guarded_or_not(reading, *of, rows, Rows(usual=usual, most=int(small)))
                launch = _either(tirx.LE(rows, imm(int(small), "int64")), narrow, launch)
        # A launch of no group is an error on both backends: below the first interval nothing runs.
        out = _either(tirx.GE(rows, imm(low, "int64")), launch, out)
    return _one_row_apart(reading, variants[0][1].candidate, plan.limits, rows, out)


def kernel(
    reading: Any,
    candidate: Candidate,
    limits: DeviceLimits,
    rows: Rows = ANY_ROWS,
    *,
    symbols: Mapping[str, Any] | None = None,
    plain: bool = False,
) -> Any:
    """One mapping as a launch; `plain` is the form on which features are counted."""
    return emit(
        reading.facts.program,
        list(reading.params),
        dict(reading.symbols if symbols is None else symbols),
        candidate,
        kind=limits.kind,
        subgroup=limits.subgroup_size,
        max_cluster=limits.max_cluster,
        plain=plain,
        rows=rows,
    )


def _up_to(most: int, usual: int = 1) -> Rows:
    return Rows(planned=most, most=most, usual=usual)


def _guarded_or_not(reading: Any, candidate: Candidate, limits: DeviceLimits, count: Any, rows: Rows) -> Any:
    """Where a group takes several rows, a kernel without guards for every group full, and one for the rest.

    Guarded, 4096 rows of 128 bfloat16 columns took 1.25 times as long.
    """
    guarded = kernel(reading, candidate, limits, rows)
    each = candidate.rows_a_group
    if each == 1:
        return guarded
    full = tirx.EQ(tirx.FloorMod(count, imm(each, "int64")), imm(0, "int64"))
    return _either(full, kernel(reading, candidate, limits, replace(rows, whole=True)), guarded)


def _one_row_apart(
    reading: Any, candidate: Candidate, limits: DeviceLimits, count: Any, otherwise: Any
) -> Any:
    """One row has a kernel of its own, the launch that a model makes for every token: its offsets are constants.

    Else they are worked out behind the wait for the launch before, which takes up to 6 % of such a launch.
    """
    axes = reading.facts.program.rows
    # Of an axis such as `4 * n` nothing becomes constant.
    if not all(isinstance(e, Sym) or (isinstance(e, Const) and int(e.value) == 1) for e in axes):
        return otherwise
    one = {e.name: imm(1, e.dtype) for e in axes if isinstance(e, Sym)}
    single = kernel(reading, candidate, limits, _up_to(1), symbols={**dict(reading.symbols), **one})
    return _either(tirx.EQ(count, imm(1, "int64")), single, otherwise)


def _either(condition: Any, then: Any, otherwise: Any = None) -> Any:
    """`then` or `otherwise`, as loops of one round or none.

    TVM's own lowering may put barriers into a kernel, and refuses to where a condition stands around the launch.
    """
    sides = [(condition, then)] + ([] if otherwise is None else [(tirx.Not(condition), otherwise)])
    out = Block()
    for holds, side in sides:
        with out.loop("once", tirx.Cast("int32", holds)) as (inside, _):
            inside.add(side)
    return out.stmt()


def _row_count(reading: Any) -> Any:
    """The number of rows as a host expression."""
    axes = reading.facts.program.rows
    total: Any = imm(prod(int(e.value) for e in axes if isinstance(e, Const)), "int64")
    for extent in (e for e in axes if not isinstance(e, Const)):
        value = reading.extent(extent)
        total = total * (value if str(value.ty.dtype) == "int64" else tirx.Cast("int64", value))
    return total
