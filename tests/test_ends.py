"""Rows that do not start aligned: whole packets, and the elements at their ends, against float64 and in numbers."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx

from tests.covering import Row, label, long_sweep, pairwise
from tests.functions import symbol, topi_func
from tests.launch import TARGETS, Kernel, check, narrow, verified, wide
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.ends import fewest_packets, most_before, most_left
from tirx_reduce.values import Candidate

OPS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "add_rms_norm", "argmax", "masked_softmax")
COLUMNS = (2, 3, 5, 7, 9, 15, 17, 31, 33, 63, 127, 129, 255, 257, 1023, 1025, 1537, 4095, 4097)
MAPPINGS: dict[str, dict[str, Any]] = {
    "subgroup": {"width": 32},
    "packed": {"width": 4, "packing": 16},
    "few lanes": {"width": 1, "packing": 32},
    "wide": {"width": 128},
    "rows": {"width": 64, "rows": 2},
    "merged": {"width": 64, "merged": True},
    "split": {"width": 32, "splits": 2},
    "split merged": {"width": 64, "splits": 4, "merged": True},
}
FACTORS: dict[str, Any] = {
    "op": OPS,
    "columns": COLUMNS,
    "dtype": ("float32", "float16", "bfloat16"),
    "vector": (2, 4, 8),
    "reuse": ("reload", "private", "shared"),
    "mapping": tuple(MAPPINGS),
    "target": TARGETS,
}
FEWER: dict[str, Any] = {
    "columns": (3, 7, 17, 63, 129, 257, 1025, 4095),
    "mapping": ("few lanes", "wide", "rows", "merged", "split", "split merged"),
}
ROWS = 7


def candidate(row: Row) -> Candidate:
    return Candidate(vector=row["vector"], reuse=row["reuse"], **MAPPINGS[row["mapping"]])


def legal(row: Row) -> bool:
    """Roughly what the planner finds legal: no more, or building raises."""
    columns, vector, reuse, mapping = row["columns"], row["vector"], row["reuse"], row["mapping"]
    how = candidate(row)
    # The CPU model walks long rows of few lanes element by element.
    if columns > 600 and mapping in ("few lanes", "packed"):
        return False
    if vector > (4 if row["target"] == "metal" or row["dtype"] == "float32" else 8) or vector > columns:
        return False
    if reuse != "reload" and (row["op"] == "argmax" or (how.splits > 1 and row["target"] == "metal")):
        return False
    if reuse == "shared" and (how.rows > 1 or columns * how.packing * row_bytes(row) > 16384):
        return False
    if how.splits * how.width * vector > columns and how.splits > 1:
        return False
    scalars = math.ceil(columns / (how.width * how.splits * vector)) * vector * how.rows
    return reuse != "private" or scalars * (2 if row["op"] == "masked_softmax" else 1) <= 64


def row_bytes(row: Row) -> int:
    return 4 if row["dtype"] == "float32" else 2


def right(row: Row, orders: tuple[str, ...] = ("reverse",)) -> None:
    verified(row, (ROWS, row["columns"]), candidate(row), orders)


@pytest.mark.parametrize("row", pairwise({**FACTORS, **FEWER}, legal), ids=label)
def test_every_pair_of_column_count_and_mapping(row: Row) -> None:
    right(row)


test_more_of_them = long_sweep(FACTORS, legal, right)


@given(st.integers(1, 300), st.sampled_from([2, 4, 8]), st.integers(1, 40))
def test_the_numbers_are_those_of_real_rows(columns: int, vector: int, rows: int) -> None:
    before = [-row * columns % vector for row in range(max(rows, vector))]
    packets = [max(0, columns - b) // vector for b in before]
    most = most_before(columns, vector)
    assert max(before) == (most if columns % vector else 0)
    if columns % vector:
        assert min(packets) == fewest_packets(columns, vector, most)
        assert max(columns - p * vector for p in packets) == most_left(columns, vector, most)
    assert most_left(columns, vector, most) <= min(
        columns, most_left(None, vector, most_before(None, vector))
    )


def _offered(x: Any, pitch: Any, w: Any, b: Any) -> Any:
    """Of a row: a norm, times a weight; plus a bias, plus a matrix whose rows are longer."""
    m, n = x.shape
    k = te.reduce_axis((0, n), "k")
    total = te.compute((m,), lambda i: te.sum(x[i, k].astype("float32") * x[i, k].astype("float32"), axis=k))

    def value(i: Any, j: Any) -> Any:
        scaled = x[i, j].astype("float32") * tirx.rsqrt(total[i]) * w[j].astype("float32")
        if pitch is not None:
            scaled = scaled + b[j].astype("float32") + pitch[i, j].astype("float32")
        return scaled.astype(x.dtype)

    return te.compute((m, n), value)


@pytest.mark.parametrize(
    ("columns", "vector", "target"),
    [(17, 8, "cuda"), (100, 8, "cuda"), (259, 4, "cuda"), (101, 2, "cuda"), (259, 4, "metal")],
)
def test_what_starts_aligned_beside_rows_that_do_not(columns: int, vector: int, target: str) -> None:
    """Of wider and narrower elements, too: two packets of each in place of one that lies across them."""
    pitch = -(-columns // 8) * 8 + 8
    dtypes = ("bfloat16", "float16", "float32", "int8")
    shapes = ((5, columns), (5, pitch), (columns,), (columns,))
    rng = np.random.default_rng(columns)
    drawn = [rng.integers(-9, 9, s).astype("int8") for s in shapes]
    inputs = [narrow(a + 0.25 if d != "int8" else a, d) for a, d in zip(drawn, dtypes, strict=True)]
    x, longer, w, b = (wide(a).astype(np.float64) for a in inputs)
    want = x / np.sqrt((x * x).sum(-1, keepdims=True)) * w + b + longer[:, :columns]
    func = topi_func(_offered, *zip(shapes, dtypes, strict=True))
    for reuse in ("reload", "private"):
        kernel = Kernel(func, target, Candidate(width=32, vector=vector, reuse=reuse))
        (got,) = kernel.run(*inputs, orders=("forward", "random"))
        check(got, want, columns=columns)
        # Words of at least four bytes, CUDA alone.
        names = [f"straddle_{w}(" for w in ("4x2", "8x4", "2x1") if vector == 8]
        assert all(name in kernel.source for name in names)
        assert ("straddle" in kernel.source) == (target == "cuda")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "mapping",
    [{"width": 32}, {"width": 4, "packing": 8}, {"width": 64, "splits": 2}, {"width": 64, "merged": True}],
)
def test_symbolic_columns(mapping: dict[str, Any], target: str) -> None:
    """Rows shorter than a packet, too."""
    m, n, dtype = symbol("m"), symbol("n"), "bfloat16"
    candidate = Candidate(vector=8 if target == "cuda" else 4, **mapping)
    kernel = Kernel(topi_func(_scaled, ((m, n), dtype), ((n,), dtype)), target, candidate)
    for columns in (1, 3, 7, 8, 9, 17, 129, 519):
        rng = np.random.default_rng(columns)
        x, w = (narrow(rng.standard_normal(s), dtype) for s in ((5, columns), (columns,)))
        (got,) = kernel.run(x, w, orders=("forward", "random"))
        norm = np.sqrt((wide(x) ** 2).sum(-1, keepdims=True))
        check(got, wide(x) / norm * wide(w), columns=columns, looser=2, text=str(columns))


def _scaled(x: Any, w: Any) -> Any:
    return _offered(x, None, w, None)


def _text(op: str, shape: tuple[int, ...], dtype: str, target: str = "cuda", **mapping: Any) -> str:
    return Kernel(get_workload(op).func(shape, dtype), target, Candidate(**mapping)).source


@pytest.mark.parametrize(
    ("columns", "dtype", "vector", "target", "whole"),
    [
        (4097, "bfloat16", 8, "cuda", True),
        (4097, "float16", 8, "cuda", True),
        (4097, "bfloat16", 4, "cuda", False),
        (4096, "bfloat16", 8, "cuda", False),
        (4097, "float32", 4, "cuda", False),
        (4097, "bfloat16", 4, "metal", False),
    ],
)
def test_packets_of_rows_that_start_anywhere_are_stored_as_a_whole(
    columns: int, dtype: str, vector: int, target: str, whole: bool
) -> None:
    text = _text("softmax", (ROWS, columns), dtype, target, width=128, vector=vector, reuse="private")
    assert ("tirx_reduce_whole_4(" in text) is whole
    stores = re.findall(r"(.*)\n *\*\(uint4\*\)\(T_softmax", text)
    assert bool(stores) is (target == "cuda" and vector == 8)
    assert all(("tirx_reduce_whole_4((&(y_ptr" in line) is whole for line in stores)


@pytest.mark.parametrize(("dtype", "vector"), [("bfloat16", 8), ("bfloat16", 4), ("float16", 8)])
def test_packets_of_two_weights_are_moved_at_once(dtype: str, vector: int) -> None:
    """Every shift that there is: rows of an odd number of columns, more of them than a packet has elements."""
    op, shape = "layer_norm", (9, 3 * 64 * vector + 1)
    kernel = Kernel(
        get_workload(op).func(shape, dtype), "cuda", Candidate(width=64, vector=vector, reuse="private")
    )
    # Three rounds, two weights; the last round may have no packet.
    (count,) = set(re.findall(r"tirx_reduce_straddle_\w+_of_(\d+)\(\(&", kernel.source))
    assert int(count) >= 4
    inputs = get_workload(op).inputs(shape, dtype)
    assert get_workload(op).verify(tuple(kernel.run(*inputs)), inputs).ok


@pytest.mark.parametrize("shape", [(5, 1537), (600, 1537)], ids=["short", "long"])
def test_a_short_launch_asks_for_weights_before_it_computes(shape: tuple[int, int]) -> None:
    """Behind the row's packets; moved in registers once the second walk is done."""
    text = _text("layer_norm", shape, "bfloat16", width=192, vector=8, reuse="private")
    body = text[text.rindex("tirx_reduce_begin()") :]
    first = re.search(r"acc0_0_ptr\[\d\] = \(m", body)
    assert first is not None
    row = body.index("= *(uint4*)(x_ptr")
    weights = [body.index(f"= *(uint4*)({name}_ptr") for name in ("weight", "bias")]
    assert row < min(weights)
    moves = body.index(
        "tirx_reduce_straddle_4x2((&(ahead_ptr" if shape[0] == 5 else "tirx_reduce_straddle_4x2("
    )
    assert moves > body.rindex("__syncthreads()")
    assert all((at < first.start()) is (shape[0] == 5) for at in weights)


@pytest.mark.parametrize("reuse", ["private", "shared"])
@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
def test_weights_of_two_walks_are_there_for_the_first(dtype: str, reuse: str) -> None:
    """`x + b` is reduced and used again; of integers the CPU model has no value that stands for an empty register."""
    x, b = te.placeholder((4, 2049), dtype, "x"), te.placeholder((2049,), dtype, "b")
    k = te.reduce_axis((0, 2049), "k")
    largest = te.compute((4,), lambda i: te.max(x[i, k] + b[k], axis=k))
    out = te.compute((4, 2049), lambda i, j: x[i, j] + b[j] - largest[i])
    candidate = Candidate(width=128, vector=4, reuse=reuse)
    kernel = Kernel(te.create_prim_func([x, b, out]), "cuda", candidate)
    rows = narrow(np.random.default_rng(1).integers(-9, 9, (4, 2049)), dtype)
    weights = narrow(np.arange(2049) % 13, dtype)
    total = wide(rows) + wide(weights)
    assert np.array_equal(wide(kernel.run(rows, weights)[0]), total - total.max(1, keepdims=True))
