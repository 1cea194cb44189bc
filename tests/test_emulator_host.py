"""TVM's own compiled host function runs on the CPU model: launches, branches, workspaces, dtypes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm

import tirx_reduce as tr
from tests.emulator_functions import copy_rows, host_only, two_kernels
from tirx_reduce import emulator
from tirx_reduce.bench.workloads import get_workload

KINDS = ("metal", "cuda")


def target(kind: str) -> Any:
    return tvm.target.Target("metal" if kind == "metal" else {"kind": "cuda", "arch": "sm_90"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1, 31, 33, 70])
def test_symbolic_rows_workspace_and_branch(kind: str, rows: int) -> None:
    executable = tvm.compile(two_kernels(), target(kind))
    x = np.random.default_rng(rows).normal(size=(rows, 100)).astype(np.float32)
    y = np.full(rows, -7, np.float32)
    done = emulator.emulate(executable, x, y, 2.0)
    np.testing.assert_allclose(y, 2 * x.sum(axis=1), rtol=1e-5, atol=1e-4)
    assert done.kernels == (("sums_kernel", "sums_kernel_1") if rows else ())
    if rows:
        assert done.counters["sums_kernel"].load_bytes["device"] == rows * 400
        assert done.counters["sums_kernel"].store_bytes["device"] == rows * 8


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int32"])
def test_dtypes_and_bits_of_them(kind: str, dtype: str) -> None:
    executable = tvm.compile(copy_rows(dtype), target(kind))
    d = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    x = np.random.default_rng(0).normal(scale=20, size=(8, 64)).astype(d)
    y = np.zeros_like(x)
    emulator.emulate(executable, x, y)
    assert np.array_equal(x.view(np.uint8), y.view(np.uint8))
    if dtype == "bfloat16":
        z = np.zeros((8, 64), np.uint16)
        emulator.emulate(executable, x.view(np.uint16), z)
        assert np.array_equal(x.view(np.uint16), z)


@pytest.mark.parametrize("kind", KINDS)
def test_fault_of_a_compiled_function_is_typed_and_changes_nothing(kind: str) -> None:
    executable = tvm.compile(copy_rows("float32", extra=1), target(kind))
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    with pytest.raises(emulator.OutOfBounds, match="copy_kernel") as caught:
        emulator.emulate(executable, x, y, orders=("forward",))
    assert caught.value.buffer == "y_ptr"
    assert not y.any()
    fine = np.zeros((8, 64), np.float32)
    emulator.emulate(tvm.compile(copy_rows("float32"), target(kind)), x, fine)
    assert np.array_equal(x, fine)


@pytest.mark.parametrize("kind", KINDS)
def test_host_refusals_are_errors_of_ours(kind: str) -> None:
    executable = tvm.compile(copy_rows("float32"), target(kind))
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    with pytest.raises(emulator.EmulatorError, match="host function refused"):
        emulator.emulate(executable, x[:7].copy(), y)
    with pytest.raises(emulator.EmulatorError, match="host function refused"):
        emulator.emulate(executable, x.astype(np.float16), y)
    with pytest.raises(emulator.EmulatorError, match="not contiguous"):
        emulator.emulate(executable, np.ones((64, 8), np.float32).T, y)
    both = np.ones((12, 64), np.float32)
    with pytest.raises(emulator.EmulatorError, match="overlap"):
        emulator.emulate(executable, both[:8], both[4:])


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (">f4", r"^argument 0 has dtype >f4, bytes in the other order; needs float32$"),
        ("<U8", r"^argument 0 has dtype <U8; needs numbers$"),
        ("S8", r"^argument 0 has dtype \|S8; needs numbers$"),
        ([("a", "f4"), ("b", "f4")], r"^dtype void64 has no counterpart in TVM; needs numbers$"),
    ],
)
def test_dtypes_that_no_kernel_reads_are_refused(dtype: Any, text: str) -> None:
    executable = tvm.compile(copy_rows("float32"), target("metal"))
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    with pytest.raises(emulator.EmulatorError, match=text):
        emulator.emulate(executable, x.astype(dtype), y)


def test_one_order_may_come_by_itself() -> None:
    executable = tvm.compile(copy_rows("float32"), target("metal"))
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    assert emulator.emulate(executable, x, y, orders="reverse").orders == ("reverse",)
    assert y.all()
    for orders, said in (
        ("sideways", "order is 'sideways'; needs one of forward, "),
        (3, "orders is of type int"),
    ):
        given: Any = orders
        with pytest.raises(emulator.EmulatorError, match=f"^{said}"):
            emulator.emulate(executable, x, y, orders=given)


def test_a_refusal_says_what_was_given() -> None:
    executable = tvm.compile(copy_rows("float32"), target("metal"))
    x, y = np.ones((8, 65), np.float32), np.zeros((8, 64), np.float32)
    with pytest.raises(emulator.EmulatorError, match=r"; it was given float32\[8, 65\], float32\[8, 64\]$"):
        emulator.emulate(executable, x, y)


@pytest.mark.parametrize("outputs", [None, [1]])
def test_a_read_only_output_is_refused_before_any_is_written(outputs: Any) -> None:
    executable = tvm.compile(two_kernels(), target("metal"))
    x, y = np.ones((8, 100), np.float32), np.zeros(8, np.float32)
    y.flags.writeable = False
    with pytest.raises(emulator.EmulatorError, match="argument 1 is read-only, and an output; needs"):
        emulator.emulate(executable, x, y, 2.0, outputs=outputs)
    x.flags.writeable, fine = False, np.zeros(8, np.float32)
    emulator.emulate(executable, x, fine, 2.0, outputs=outputs)
    assert fine.all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"outputs": 1}, r"outputs is 1; needs positions among the 2 arguments, from 0"),
        ({"outputs": [7]}, r"outputs is \[7\]; needs positions among the 2 arguments, from 0"),
        ({"outputs": ["y"]}, r"outputs is \['y'\]; needs positions"),
        ({"seed": "a"}, "seed is of type str; needs an int"),
        ({"limits": 3}, "limits is of type int; needs Limits or DeviceLimits"),
    ],
)
def test_options_of_another_type(options: dict[str, Any], text: str) -> None:
    executable = tvm.compile(copy_rows("float32"), target("metal"))
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    with pytest.raises(emulator.EmulatorError, match=f"^{text}"):
        emulator.emulate(executable, x, y, **options)


@pytest.mark.parametrize("nothing", [None, 3, tvm.IRModule({})])
def test_what_cannot_be_run_is_refused(nothing: Any) -> None:
    with pytest.raises(emulator.EmulatorError, match=r"is of type \w+; needs what tr.compile returned"):
        emulator.emulate(nothing)


def test_no_rows_at_all_launch_nothing() -> None:
    executable = tr.compile(get_workload("softmax").func((0, 64)), "metal")
    x = np.zeros((0, 64), np.float32)
    with pytest.raises(emulator.UnsupportedSource, match="and rows"):
        tr.emulate(executable, x, x.copy())


def test_device_stays_absent() -> None:
    before = tvm.metal(0).exist, tvm.cuda(0).exist
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    for kind in KINDS:
        emulator.emulate(tvm.compile(copy_rows("float32"), target(kind)), x, y)
    assert (tvm.metal(0).exist, tvm.cuda(0).exist) == before


def test_another_target_than_that_of_the_kernels_is_refused() -> None:
    executable = tvm.compile(two_kernels(), target("metal"))
    x, y = np.zeros((3, 100), np.float32), np.zeros(3, np.float32)
    with pytest.raises(emulator.EmulatorError, match="target is cuda and the kernels are for metal"):
        emulator.emulate(executable, x, y, 2.0, target="cuda")
    done = emulator.emulate(executable, x, y, 2.0, target="metal")
    assert "source" not in repr(done)


def test_prim_func_without_target_is_refused() -> None:
    with pytest.raises(emulator.EmulatorError, match="no target"):
        emulator.emulate(copy_rows("float32"), np.ones((8, 64), np.float32), np.ones((8, 64), np.float32))


def test_prim_func_that_is_scheduled() -> None:
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    emulator.emulate(copy_rows("float32"), x, y, target="metal")
    assert np.array_equal(x, y)


def test_module_with_several_functions_needs_an_entry() -> None:
    module = tvm.IRModule({"copy": copy_rows("float32"), "sums": two_kernels()})
    executable = tvm.compile(module, target("metal"))
    x, y = np.ones((8, 64), np.float32), np.zeros((8, 64), np.float32)
    with pytest.raises(emulator.UnsupportedSource, match="copy, sums"):
        emulator.emulate(executable, x, y)
    emulator.emulate(executable, x, y, entry="copy")
    assert np.array_equal(x, y)


def test_function_without_kernels_is_refused() -> None:
    with pytest.raises(emulator.UnsupportedSource, match="scheduled"):
        emulator.emulate(tvm.compile(host_only(), "llvm"), np.zeros(8, np.float32))
