"""Workloads: their reference is what their PrimFunc computes, and wrong outputs are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tirx_reduce.bench import workloads as table
from tirx_reduce.bench.shapes import limit_rows, parse_shape
from tirx_reduce.bench.workloads import Operand, Workload, get_workload
from tirx_reduce.errors import ReduceError


def run_on_cpu(workload: Workload, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
    """Inputs, and the outputs of the unscheduled PrimFunc built for the CPU."""
    import tvm

    inputs = workload.inputs(shape, dtype, seed=3)
    outputs = workload.empty(shape, dtype)
    built = tvm.compile(workload.func(shape, dtype), "llvm")
    tensors = [tvm.runtime.tensor(a) for a in (*inputs, *outputs)]
    built(*tensors)
    return inputs, tuple(t.numpy() for t in tensors[len(inputs) :])


@pytest.mark.parametrize("name", table.workloads())
@pytest.mark.parametrize("shape", [(5, 769), (2, 3, 33), (1, 1)])
def test_reference_is_what_the_primfunc_computes(name: str, shape: tuple[int, ...]) -> None:
    workload = get_workload(name)
    dtype = workload.dtypes[0]
    inputs, outputs = run_on_cpu(workload, shape, dtype)
    verdict = workload.verify(outputs, inputs)
    assert verdict.ok, verdict


def test_half_precision_layer_norm_rounds_where_relax_casts() -> None:
    workload = get_workload("layer_norm")
    inputs, outputs = run_on_cpu(workload, (4, 300), "float16")
    assert workload.verify(outputs, inputs).ok
    x, weight, bias = (a.astype(np.float64) for a in inputs)
    unrounded = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias
    (expected,) = workload.expected(inputs)
    assert np.max(np.abs(expected - unrounded)) > 0


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "sum", "argmax"])
def test_one_wrong_element_is_seen(name: str) -> None:
    workload = get_workload(name)
    inputs, outputs = run_on_cpu(workload, (4, 100), "float32")
    damaged = tuple(o.copy() for o in outputs)
    damaged[0].reshape(-1)[-1] += (
        1 if name == "argmax" else max(0.01, 0.01 * abs(float(damaged[0].reshape(-1)[-1])))
    )
    verdict = workload.verify(damaged, inputs)
    assert not verdict.ok
    assert verdict.where.startswith("y[3")


def test_a_nan_and_an_untouched_output_are_seen() -> None:
    workload = get_workload("softmax")
    inputs = workload.inputs((2, 8))
    assert not workload.verify(workload.empty((2, 8)), inputs).ok
    (expected,) = workload.expected(inputs)
    assert workload.verify((expected.astype(np.float32),), inputs).ok


def test_a_row_of_minus_infinity_expects_nan() -> None:
    workload = get_workload("softmax")
    (x,) = workload.inputs((2, 8))
    x[1] = -np.inf
    (expected,) = workload.expected((x,))
    assert np.isnan(expected[1]).all()
    assert np.isfinite(expected[0]).all()
    with np.errstate(all="ignore"):
        assert workload.verify((expected.astype(np.float32),), (x,)).ok


def test_inputs_are_seeded_and_in_their_dtype() -> None:
    workload = get_workload("where_softmax")
    first = workload.inputs((3, 5, 7), "bfloat16", seed=1)
    again = workload.inputs((3, 5, 7), "bfloat16", seed=1)
    other = workload.inputs((3, 5, 7), "bfloat16", seed=2)
    assert [str(a.dtype) for a in first] == ["bfloat16", "bool"]
    assert [a.shape for a in first] == [(3, 5, 7), (5, 7)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_bytes_count_each_tensor_once() -> None:
    assert get_workload("softmax").bytes_moved((768, 6144)) == 2 * 768 * 6144 * 4
    assert get_workload("rms_norm").bytes_moved((8, 64), "float16") == (2 * 8 * 64 + 64) * 2
    assert get_workload("argmax").bytes_moved((8, 64), "float32") == 8 * 64 * 4 + 8 * 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0x5", "shape '0x5' has the extent 0; every extent must be 1 or more"),
        ("12", None),
        ("", "shape '' is not read; needs positive extents joined by 'x', such as 768x6144"),
        ("8x-4", "shape '8x-4' is not read; needs positive extents joined by 'x', such as 768x6144"),
        ("4x2147483648", "shape '4x2147483648' has the extent 2147483648; every extent must be below 2^31"),
    ],
)
def test_shapes_are_read_or_refused(text: str, message: str | None) -> None:
    if message is None:
        assert parse_shape(text) == (12,)
        return
    with pytest.raises(ReduceError) as caught:
        parse_shape(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("shape", "rows", "expected"),
    [
        ((768, 6144), 8, (8, 6144)),
        ((3, 6144), 8, (3, 6144)),
        ((4, 32, 128, 64), 16, (1, 1, 16, 64)),
        ((4, 3, 5), 7, (2, 3, 5)),
        ((64,), 1, (64,)),
    ],
)
def test_rows_are_cut_from_the_outside(shape: tuple[int, ...], rows: int, expected: tuple[int, ...]) -> None:
    assert limit_rows(shape, rows) == expected


def test_a_file_without_a_name_is_said_to_be_one() -> None:
    with pytest.raises(ReduceError, match=r"^mine\.py names a file; needs mine\.py:NAME"):
        get_workload("mine.py")


def test_unknown_names_are_answered_with_the_known() -> None:
    with pytest.raises(
        ReduceError, match=r"^unknown operator 'sofmax'; did you mean 'softmax'\? \(known: add_rms_norm"
    ):
        get_workload("sofmax")
    with pytest.raises(
        ReduceError, match=r"^softmax has dtype 'int32'; it takes float32, float16, bfloat16$"
    ):
        get_workload("softmax").func((2, 4), "int32")
    with pytest.raises(ReduceError, match=r"^masked_softmax has shape '4'; needs at least two axes$"):
        get_workload("masked_softmax").func((4,))
    with pytest.raises(ReduceError, match=r"^softmax has an extent of -1; needs 0 or more$"):
        get_workload("softmax").func((-1, 100))


def test_a_user_adds_a_workload_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table.workloads()
    monkeypatch.setattr(table, "_TABLE", dict(table._TABLE))
    mine = Workload(
        name="abs_sum",
        summary="Σ |x|",
        operands=(Operand(name="x"),),
        results=(Operand(name="y", axes="rows"),),
        express=lambda relax, x: relax.op.sum(relax.op.abs(x), axis=-1),
        reference=lambda x, cast: (np.sum(np.abs(x), axis=-1),),
        scale="sum",
    )
    table.register_workload(mine)
    inputs, outputs = run_on_cpu(get_workload("abs_sum"), (3, 50), "float32")
    assert mine.verify(outputs, inputs).ok
    with pytest.raises(
        ReduceError, match=r"^workload 'abs_sum' is registered already \(Σ \|x\|\); needs a new name$"
    ):
        table.register_workload(mine)


def test_a_workload_that_nobody_registered_has_its_function() -> None:
    alone = replace(get_workload("sum"), name="sum_alone")
    assert str(alone.func((4, 8)).attrs["global_symbol"]) == "sum_alone"


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("4x4", "the shape of softmax is of type str; needs a tuple of ints, such as (768, 6144)"),
        (4, "the shape of softmax is of type int; needs a tuple of ints, such as (768, 6144)"),
        (("n", 4), "an extent of softmax, 'n', is of type str; needs an int"),
        ((4.0, 4), "an extent of softmax, 4.0, is of type float; needs an int"),
    ],
)
def test_what_is_no_shape_is_refused(shape: Any, message: str) -> None:
    workload = get_workload("softmax")
    for refused in (workload.func, workload.inputs):
        with pytest.raises(ReduceError) as caught:
            refused(shape)
        assert str(caught.value) == message


def test_numbers_of_numpy_and_open_rows_are_shapes() -> None:
    workload = get_workload("softmax")
    numpys: Any = (np.int64(4), np.int32(8))
    assert workload.func(numpys).same_as(workload.func((4, 8)))
    opened: Any = (None, 8)
    assert str(workload.func(opened, symbolic_rows=True).attrs["global_symbol"]) == "softmax"


def test_what_is_no_workload_is_refused() -> None:
    number: Any = 3
    with pytest.raises(ReduceError, match=r"^workload is of type int; needs a Workload$"):
        table.register_workload(number)
