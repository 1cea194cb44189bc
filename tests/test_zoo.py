"""The zoo on both targets through the CPU model: accepted and right, or declined with a reason and left as
it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tirx_reduce as tr
from tests import zoo
from tests.launch import TARGETS, Kernel, check, wide
from tirx_reduce.schedules import as_target

ENTRIES = zoo.entries()
TAKEN = tuple(e for e in ENTRIES if not e.declined)
DECLINED = tuple(e for e in ENTRIES if e.declined)


def combinations() -> list[Any]:
    """Every (entry, dtype, target); one of each entry runs by default, so that dtypes and targets take
    turns.
    """
    found = []
    for number, entry in enumerate(TAKEN):
        every = [(d, t) for d in entry.dtypes for t in TARGETS if t not in dict(entry.declined_on)]
        for at, (dtype, target) in enumerate(every):
            marks = [] if at == number % len(every) else [pytest.mark.slow]
            found.append(pytest.param(entry, dtype, target, marks=marks, id=f"{entry.name}-{dtype}-{target}"))
    return found


def arguments(entry: zoo.Entry, kernel: Kernel, dtype: str) -> list[Any]:
    """Inputs, scalars as numbers where the PrimFunc takes them so."""
    tensors = {t.param: t.role for t in kernel.tensors}
    numbers = [i for i in range(len(kernel.func.params)) if tensors.get(i) != "out"]
    return [v if i in tensors else v.item() for i, v in zip(numbers, entry.inputs(dtype), strict=True)]


@pytest.mark.parametrize(("entry", "dtype", "target"), combinations())
def test_right(entry: zoo.Entry, dtype: str, target: str) -> None:
    kernel = Kernel(entry.make(dtype), target)
    inputs = entry.inputs(dtype)
    with np.errstate(all="ignore"):
        want = entry.want(*map(wide, inputs))
    got = kernel.run(*arguments(entry, kernel, dtype))
    for one, formula in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        check(one, formula, looser=entry.looser, casts=entry.casts, ties=entry.ties, text=entry.name)


@pytest.mark.parametrize("entry", DECLINED, ids=lambda e: e.name)
def test_declined(entry: zoo.Entry) -> None:
    func = entry.make(entry.dtypes[0])
    before = str(func)
    for target in TARGETS:
        with pytest.raises(tr.Unsupported, match="; needs ") as caught:
            tr.plan(func, target)
        assert entry.declined in str(caught.value)
        rule = tr.RowReduction()
        assert rule.apply(func, as_target(target), False) is None
        assert entry.declined in rule.declined[0][1]
    assert str(func) == before


@pytest.mark.parametrize(
    ("entry", "target"),
    [(e, t) for e in TAKEN for t, _ in e.declined_on],
    ids=lambda v: getattr(v, "name", v),
)
def test_declined_on_one_target(entry: zoo.Entry, target: str) -> None:
    with pytest.raises(tr.Unsupported, match="; needs ") as caught:
        tr.plan(entry.make(entry.dtypes[0]), target)
    assert dict(entry.declined_on)[target] in str(caught.value)


def test_acceptance_rate() -> None:
    """At least 95 % of the row reductions, counted by (entry, dtype, target)."""
    taken = refused = 0
    for entry in ENTRIES:
        if entry.family == "other":
            continue
        for _ in entry.dtypes:
            for target in TARGETS:
                declined = bool(entry.declined) or target in dict(entry.declined_on)
                taken, refused = taken + (not declined), refused + declined
    assert taken / (taken + refused) >= 0.95, (taken, refused)
