"""Groups that stay and keep rows where they came in shared memory: what is refused, and nasty rows (CPU model)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import te

import tirx_reduce as tr
from tests.functions import topi_func
from tests.launch import HOPPER, Kernel, check, verified, wide
from tirx_reduce import facts
from tirx_reduce.bench.explain import plan_lines
from tirx_reduce.bench.terminal import Style
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.candidates import refusal
from tirx_reduce.values import Candidate, DeviceLimits

CUDA = DeviceLimits(kind="cuda", shared_bytes=49152, opt_in_shared_bytes=232448, max_cluster=8)
STAYS = Candidate(width=64, vector=4, reuse="shared", splits=2, resident=4)


@pytest.mark.parametrize(
    ("op", "shape", "how", "reason"),
    [
        ("layer_norm", (9, 2048), {}, "None"),
        ("argmax", (9, 2048), {}, "shared: no pass reads again what an earlier one read"),
        ("add_rms_norm", (9, 2048), {}, "resident: what is kept is computed; needs private"),
        ("layer_norm", (9, 2048), {"vector": 2}, "resident: packets of 8 bytes; copies take 16 each"),
        (
            "layer_norm",
            (9, 32768),
            {"width": 1024, "resident": 2**18},
            "resident: 4294967296 elements from a row of a group to its next",
        ),
        ("layer_norm", (9, 2050), {}, "resident: rows of 2050 columns, 2 from one to the next of a group"),
        (
            "layer_norm",
            (9, 2050),
            {"reuse": "private", "splits": 1},
            "resident: rows of 2050 columns in registers; needs a multiple of the vector",
        ),
        (
            "layer_norm",
            (9, 2048),
            {"resident": 3},
            "resident: 3 groups in clusters of 2; needs whole clusters",
        ),
        # One mailbox an exchange: with one a row, what is asked for would just fit.
        (
            "layer_norm",
            (94, 8192),
            {"width": 1024, "resident": 2},
            "resident: 49632 bytes for the exchanges of 94 rows; limit 49152",
        ),
        (
            "add_rms_norm",
            (9, 32768),
            {"width": 1024, "splits": 1, "reuse": "private"},
            "resident: 262400 bytes of threadgroup memory; limit 232448",
        ),
        (
            "layer_norm",
            (9, 2048),
            {"vector": 2, "splits": 1, "reuse": "private"},
            "resident: no dense matrix with packets of 16 bytes",
        ),
        ("layer_norm", (131, 2048), {}, "resident: 66 rows a cluster; needs as many lanes, which have 64"),
        ("layer_norm", (9, 2048), {"reuse": "private"}, "resident: private rows over 2 groups; needs shared"),
        (
            "layer_norm",
            (9, 2048),
            {"splits": 1, "packing": 2},
            "resident: shared with packing 2; needs private or shared, and packing 1",
        ),
        (
            "layer_norm",
            (960, 32768),
            {"width": 512, "splits": 8, "resident": 16},
            "resident: 499200 bytes for the exchanges of 480 rows; limit 49152",
        ),
        (
            "layer_norm",
            (9, 40960),
            {"width": 512},
            "resident: 247120 bytes of threadgroup memory; limit 232448",
        ),
    ],
)
def test_refusals(op: str, shape: tuple[int, int], how: dict[str, Any], reason: str) -> None:
    read = facts.analyze(get_workload(op).func(shape, "float32"))
    assert str(refusal(replace(STAYS, **how), read, CUDA)).startswith(reason)


def test_rows_that_nobody_counts_are_refused() -> None:
    read = facts.analyze(get_workload("layer_norm").func((9, 2048), "float32", symbolic_rows=True))
    assert str(refusal(STAYS, read, CUDA)).startswith("resident: the number of rows is symbolic")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm", "softmax"])
@pytest.mark.parametrize(
    ("rows", "columns", "mapping"),
    [
        (5, 4104, {"width": 64, "splits": 2, "resident": 4}),
        (17, 3088, {"width": 96, "splits": 2, "resident": 2}),
        (17, 3080, {"width": 96, "splits": 2, "resident": 4}),
        (5, 1037, {"width": 32, "resident": 16}),
        (3, 8200, {"width": 128, "splits": 4, "resident": 16}),
        (7, 1040, {"width": 64, "resident": 3}),
        (7, 1032, {"width": 64, "resident": 2}),
        (37, 1037, {"width": 32, "resident": 16}),
        (19, 1027, {"width": 32, "splits": 2, "resident": 32}),
        (26, 2050, {"width": 64, "splits": 2, "resident": 16}),
    ],
)
def test_rows_that_are_no_whole_number_of_rounds(
    op: str, dtype: str, rows: int, columns: int, mapping: dict[str, Any]
) -> None:
    candidate = Candidate(vector=4 if dtype == "float32" else 8, reuse="shared", **mapping)
    what = {"op": op, "dtype": dtype, "target": HOPPER}
    verified(what, (rows, columns), candidate, ("forward", "random"))


def test_a_matrix_that_is_read_once_needs_no_shelf() -> None:
    """A sum over x·y, of which x alone is read again."""

    def build(x: Any, y: Any, w: Any) -> Any:
        m, n = x.shape
        k = te.reduce_axis((0, n), "k")
        total = te.compute((m,), lambda i: te.sum(x[i, k] * y[i, k], axis=k))
        return te.compute((m, n), lambda i, j: (x[i, j] - total[i]) * w[j])

    rows, columns = 9, 2048
    func = topi_func(build, *[((rows, columns), "float32")] * 2, ((columns,), "float32"))
    rng = np.random.default_rng(0)
    x, y, w = (rng.standard_normal(s).astype("float32") for s in ((rows, columns),) * 2 + ((columns,),))
    y /= columns
    kernel = Kernel(func, HOPPER, STAYS)
    (got,) = kernel.run(x, y, w, orders=("forward", "random"))
    total = (wide(x) * wide(y)).sum(-1, keepdims=True)
    check(got, (wide(x) - total) * wide(w), columns=columns)
    (counters,) = kernel.emulation.counters.values()
    assert counters.async_bytes == rows * columns * 4


def test_weights_are_words_in_the_loop_over_rows() -> None:
    """Unpacked before it, they take the registers of another group, or wait in every row."""
    func = get_workload("layer_norm").func((12, 8192), "bfloat16")
    candidate = Candidate(width=128, vector=8, reuse="shared", splits=2, resident=4)
    text = Kernel(func, HOPPER, candidate).source
    loop = text[text.index("for (int step") :]
    assert loop.count("tirx_reduce_whole_4((&(ahead_ptr") == 2 * 8192 // (2 * 128 * 8)
    assert "weight_ptr" not in loop
    assert "bias_ptr" not in loop


def test_a_plan_says_that_they_stay() -> None:
    func = get_workload("layer_norm").func((1024, 32768), "bfloat16")
    plan = tr.plan(func, HOPPER, policy="ladder")
    assert "resident=132" in str(plan)
    text = "\n".join(plan_lines(plan, Style()))
    assert "splits 2 in a cluster, groups that stay" in text
    assert "132 groups × 512 threads" in text
