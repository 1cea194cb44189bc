"""Elements whose place is looked up for every column: in a table, by an index that is an element itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te, tirx, topi

import tirx_reduce as tr
from tests.launch import TARGETS, check, wide
from tirx_reduce.values import Candidate

BOTH = pytest.mark.parametrize("target", TARGETS)


def drawn(*shape: int, below: int = 0) -> Any:
    rng = np.random.default_rng(sum(shape))
    return (
        rng.integers(0, below, shape).astype("int32") if below else rng.normal(size=shape).astype("float32")
    )


def biased_softmax(heads: int, rows: int, columns: int, buckets: int) -> Any:
    """Scores and a bias for each bucket of a distance, as T5 has it."""
    x = te.placeholder((heads, rows, columns), "float32", name="x")
    bucket = te.placeholder((rows, columns), "int32", name="bucket")
    table = te.placeholder((buckets, heads), "float32", name="table")
    scores = te.compute(
        (heads, rows, columns), lambda h, i, j: x[h, i, j] + table[bucket[i, j], h], name="scores"
    )
    return te.create_prim_func([x, bucket, table, topi.nn.softmax(scores)])


@BOTH
@pytest.mark.parametrize("columns", [1, 3, 64, 257])
@pytest.mark.parametrize("policy", ["analytic", "ladder"])
def test_a_bias_by_bucket(policy: str, columns: int, target: Any) -> None:
    x, bucket, table = drawn(2, 5, columns), drawn(5, columns, below=32), drawn(32, 2)
    y = np.zeros_like(x)
    func = biased_softmax(2, 5, columns, 32)
    tr.emulate(tr.compile(func, target, policy=policy, fallback=False), x, bucket, table, y, target=target)
    scores = wide(x) + wide(table)[bucket].transpose(2, 0, 1)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    check(y, e / e.sum(-1, keepdims=True))


@BOTH
@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(width=32, vector=4),
        Candidate(width=32, vector=1, reuse="private"),
        Candidate(width=32, vector=2, reuse="shared"),
        Candidate(width=8, packing=8, vector=4),
    ],
    ids=str,
)
def test_an_index_of_an_index(candidate: Candidate, target: Any) -> None:
    rows, columns = 9, 75
    x = te.placeholder((rows, columns), "float32", name="x")
    first = te.placeholder((columns,), "int32", name="first")
    second = te.placeholder((rows, 16), "int32", name="second")
    k = te.reduce_axis((0, columns), "k")
    top = te.compute((rows,), lambda i: te.max(x[i, second[i, first[k]]], axis=k), name="top")
    y = te.compute((rows, columns), lambda i, j: x[i, second[i, first[j]]] - top[i], name="y")
    func = te.create_prim_func([x, first, second, y])
    data, of, to = drawn(rows, columns), drawn(columns, below=16), drawn(rows, 16, below=columns)
    built = tr.schedules.build(tr.lower(func, tr.schedules.force(func, candidate, target)), target)
    found = np.zeros_like(data)
    tr.emulate(built, data, of, to, found, target=target)
    taken = np.take_along_axis(data, to[:, of], 1)
    assert (found == taken - taken.max(1, keepdims=True)).all()


@BOTH
@pytest.mark.parametrize(
    ("dtype", "place", "of"),
    [
        ("uint8", lambda v: (v + tirx.const(100, "uint8")).astype("int32"), lambda a: a + np.uint8(100)),
        ("uint8", lambda v: (v * tirx.const(3, "uint8")).astype("int32"), lambda a: a * np.uint8(3)),
        ("int8", lambda v: v.astype("uint8").astype("int32"), lambda a: a.astype("uint8")),
        ("int32", lambda v: v.astype("uint8").astype("int32"), lambda a: a.astype("uint8")),
    ],
    ids=["add", "mul", "sign", "cut"],
)
def test_an_index_wraps_as_its_own_dtype_does(dtype: str, place: Any, of: Any, target: Any) -> None:
    rows, columns = 3, 40
    index = te.placeholder((rows, columns), dtype, name="index")
    label = te.placeholder((rows,), dtype, name="label")
    table = te.placeholder((256,), "float32", name="table")
    k = te.reduce_axis((0, columns), "k")
    top = te.compute(
        (rows,), lambda i: te.max(table[place(index[i, k])] + table[place(label[i])], axis=k), name="top"
    )
    func = te.create_prim_func([index, label, table, top])
    end = np.iinfo("int16" if dtype == "int32" else dtype)
    rng = np.random.default_rng(1)
    at = rng.integers(end.min, end.max, (rows, columns), endpoint=True).astype(dtype)
    of_row = rng.integers(end.min, end.max, rows, endpoint=True).astype(dtype)
    values, found = drawn(256), np.zeros(rows, "float32")
    tr.emulate(tr.compile(func, target, fallback=False), at, of_row, values, found, target=target)
    assert (found == (values[of(at)] + values[of(of_row)][:, None]).max(1)).all()
