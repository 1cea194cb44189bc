"""Offsets, strides, slices, misaligned starts, aliasing: right, or refused by an error before any launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, tirx, topi

from tests.faults import (
    add_rms_norm,
    fault,
    func,
    layer_norm,
    np_layer_norm,
    np_rms_norm,
    np_softmax,
    rms_norm,
    softmax,
)
from tests.launch import TARGETS, Kernel, check, narrow, run, wide
from tirx_reduce import emulator
from tirx_reduce.emulator import EmulatorError, linked
from tirx_reduce.errors import ReduceError, Unsupported
from tirx_reduce.schedules import as_target, build, force, lower, plan
from tirx_reduce.values import Candidate

BOTH = pytest.mark.parametrize("target", TARGETS)


def drawn(*shape: int, dtype: str = "float32") -> Any:
    return narrow(np.random.default_rng(sum(shape)).standard_normal(shape), dtype)


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tensors that the host function gets are changed by a function of their DLTensor."""

    real: Any = vars(linked)["DeviceTensor"]

    def install(change: Any) -> None:
        class Changed(real):
            def __init__(self, shape: Any, dtype: Any, address: int, device: int) -> None:
                super().__init__(shape, dtype, address, device)
                change(self._managed.tensor, self._strides)
                self.tensor = tvm_ffi.from_dlpack(self)

        monkeypatch.setattr(linked, "DeviceTensor", Changed)

    return install


def _offset(tensor: Any, _: Any) -> None:
    tensor.byte_offset = 64


def _strided(_: Any, strides: Any) -> None:
    strides[0] = 64


@BOTH
@pytest.mark.parametrize(("change", "text"), [(_offset, "byte_offset"), (_strided, "strides")])
@fault(
    "B39",
    "pytorch#131750",
    "row slice",
    "the host function checks offset, strides, shape, dtype and device of every tensor before the launch",
    "refused",
)
@fault(
    "B40",
    "mlx#657",
    "strides",
    "as B39; strides that the PrimFunc itself states are read into the index",
    "right or refused",
)
def test_views_are_refused_before_the_launch(change: Any, text: str, target: str, tensors: Any) -> None:
    x = drawn(4, 32)
    kernel = Kernel(func(softmax, x), target)
    tensors(change)
    with pytest.raises(EmulatorError, match=f"the host function refused the call: .*a0.{text}"):
        kernel.run(x)


@BOTH
def test_a_wrong_shape_is_refused_before_the_launch(target: str) -> None:
    kernel = Kernel(func(softmax, drawn(4, 32)), target)
    with pytest.raises(EmulatorError, match=r"refused the call: .*(shape|strides)"):
        emulator.emulate(kernel.executable, drawn(4, 31), drawn(4, 32), target=target)
    with pytest.raises(EmulatorError, match=r"refused the call: .*dtype"):
        emulator.emulate(kernel.executable, drawn(4, 32, dtype="float16"), drawn(4, 32), target=target)


@BOTH
@fault(
    "B39",
    "pytorch#131750",
    "row slice",
    "rows 1:3 as a tensor of their own, or as a slice in the PrimFunc, are those rows",
)
def test_slices_in_the_primfunc(target: str) -> None:
    x = np.array([[1, 2, 3, 4], [10, 20, 40, 80], [5, 5, 5, 6]], np.float32)

    def sliced(v: Any) -> Any:
        rows = te.compute((2, 4), lambda i, j: v[i + 1, j], name="rows")
        return layer_norm(1e-5, False, False)(rows)

    (y,) = run(func(sliced, x), target, x)
    check(y, np_layer_norm(wide(x[1:]), 1e-5))


@BOTH
@fault("B40", "mlx#657", "strides", "columns 0:2 and transposes as the PrimFunc reads them")
def test_strides_in_the_primfunc(target: str) -> None:
    x = drawn(4, 4)
    (y,) = run(func(lambda v: softmax(te.compute((4, 2), lambda i, j: v[i, j], name="cut")), x), target, x)
    check(y, np_softmax(wide(x[:, :2])))
    assert y.sum() == pytest.approx(4.0, rel=1e-6)
    x = drawn(64, 48)
    turned = te.compute
    (y,) = run(
        func(lambda v: rms_norm(1e-5, False)(turned((48, 64), lambda i, j: v[j, i], name="t")), x), target, x
    )
    check(y, np_rms_norm(wide(x.T), 1e-5))
    x = drawn(4, 4, 4)
    (y,) = run(func(lambda v: topi.nn.softmax(topi.transpose(v, [0, 2, 1]), -1), x), target, x)
    check(y, np_softmax(wide(x).transpose(0, 2, 1)))


def with_input(f: Any, buffer: Any, number: int = 0) -> Any:
    """`f` with its first parameter, or another, laid out as `buffer`."""
    old = f.params[number]
    body = tvm_ffi.structural_map(f.body, (tirx.Var, lambda v: buffer if v.same_as(old) else v))
    params = [buffer if i == number else p for i, p in enumerate(f.params)]
    return tirx.PrimFunc(params, body, None, f.attrs)


@BOTH
def test_strides_that_a_buffer_states(target: str) -> None:
    """Either right or refused: never the row-major reading of a strided tensor."""
    x = tirx.decl_buffer((4, 8), "float32", strides=[16, 1], name="x")
    f = with_input(func(softmax, drawn(4, 8)), x)
    try:
        kernel_ = build(lower(f, plan(f, target)), target)
    except ReduceError as refused:
        if "; needs" not in str(refused):
            raise
        return
    y = np.zeros((4, 8), np.float32)
    with pytest.raises(EmulatorError, match=r"refused the call: .*strides"):
        emulator.emulate(kernel_, drawn(4, 8), y, target=target)


@pytest.mark.parametrize("strides", [[0, 1], [4, 1], [8, 0]])
def test_a_strided_output_of_which_elements_share_a_place_is_declined(strides: list[int]) -> None:
    f = func(softmax, drawn(4, 8))
    y = tirx.decl_buffer((4, 8), "float32", strides=strides, name="y")
    with pytest.raises(Unsupported, match=r"y is written with strides .*elements may have one place"):
        plan(with_input(f, y, number=1), "metal")


@BOTH
@pytest.mark.parametrize("reuse", ["reload", "private", "shared"])
@pytest.mark.parametrize("build_", [softmax, rms_norm(1e-5, False)], ids=["softmax", "rms_norm"])
def test_an_output_may_be_the_input(build_: Any, reuse: str, target: str) -> None:
    """Every lane reads an element for the last time before it writes it.

    Programs without a row, in the last group of packed ones, read nothing: else they would read what others write.
    """
    for rows, width, packing, n in (
        (4, 32, 2, 64),
        (3, 32, 2, 67),
        (5, 64, 4, 67),
        (9, 8, 8, 64),
        (3, 4, 8, 33),
    ):
        x = drawn(rows, n)
        want = np_softmax(wide(x)) if build_ is softmax else np_rms_norm(wide(x), 1e-5)
        f = func(build_, x)
        c = Candidate(width=width, packing=packing, vector=4, reuse=reuse)
        emulator.emulate(build(lower(f, force(f, c, target)), target), x, x, target=target, once=False)
        check(x, want)


@pytest.mark.parametrize(
    ("target", "reuse", "splits"),
    [
        ("metal", "reload", 1),
        ("metal", "reload", 2),
        ("metal", "private", 1),
        ("cuda", "reload", 1),
        ("cuda", "reload", 2),
        ("cuda", "private", 2),
    ],
)
def test_a_residual_may_take_the_place_of_its_input(target: str, reuse: str, splits: int) -> None:
    """What is written in the first of two walks, and read again in the second, would be added twice.

    The rows are long enough for real loops: in short ones compilers keep what they have read.
    """
    x, r, g = drawn(3, 2048), drawn(3, 2048) * np.float32(2), drawn(2048)
    total = wide(x) + wide(r)
    f = func(add_rms_norm(1e-5), x, r, g)
    c = Candidate(width=32, vector=4, reuse=reuse, splits=splits)
    y = np.zeros_like(x)
    emulator.emulate(build(lower(f, force(f, c, target)), target), x, r, g, r, y, target=target, once=False)
    check(r, total)
    check(y, np_rms_norm(total, 1e-5) * wide(g), columns=2048)


@BOTH
def test_a_partial_overlap_is_refused_by_the_model(target: str) -> None:
    memory = drawn(5, 32)
    kernel = Kernel(func(softmax, drawn(4, 32)), target)
    with pytest.raises(EmulatorError, match="overlap in memory in part"):
        emulator.emulate(kernel.executable, memory[:4], memory[1:], target=target)


def _shifted(by: int) -> Any:
    def change(tensor: Any, _: Any) -> None:
        tensor.data += by

    return change


@pytest.mark.parametrize(
    ("dtype", "vector", "needs"),
    [("float32", 4, 16), ("float32", 2, 8), ("float16", 8, 16), ("float16", 4, 8), ("bfloat16", 8, 16)],
)
def test_a_misaligned_start_is_refused_before_the_launch(
    dtype: str, vector: int, needs: int, tensors: Any
) -> None:
    """A slice of rows is contiguous and starts anywhere: an access of 16 bytes would fault on the device."""
    x = drawn(4, 64, dtype=dtype)
    kernel = Kernel(func(softmax, x), "cuda", Candidate(width=32, vector=vector, reuse="reload"))
    tensors(_shifted(needs // 2))
    text = rf"refused the call: main: a0 does not start at a multiple of {needs} bytes; needs"
    with pytest.raises(EmulatorError, match=text):
        kernel.run(x)


@pytest.mark.parametrize(("by", "vector"), [(4, 1), (8, 2), (16, 4)])
def test_a_start_that_the_mapping_can_take_is_taken(by: int, vector: int, tensors: Any) -> None:
    """No stricter than the accesses: the launch takes place, and ends where the shifted tensor does."""
    x = drawn(4, 12)
    kernel = Kernel(func(softmax, x), "cuda", Candidate(width=32, vector=vector, reuse="reload"))
    tensors(_shifted(by))
    with pytest.raises(emulator.OutOfBounds, match="in a0_ptr at byte 192"):
        kernel.run(x)


def _moved(number: int, onto: int, by: int) -> Any:
    """Tensor `number` of a call starts `by` bytes behind tensor `onto`."""
    starts: list[int] = []

    def change(tensor: Any, _: Any) -> None:
        starts.append(int(tensor.data))
        if len(starts) == number + 1:
            tensor.data = starts[onto] + by

    return change


@pytest.mark.parametrize(
    ("number", "onto", "by", "names"),
    [
        (3, 0, 16, "a0 and residual"),
        (3, 0, 1024 - 16, "a0 and residual"),
        (4, 3, 16, "residual and out"),
        (3, 2, 0, "a2 and residual"),
        (3, 2, 240, "a2 and residual"),
    ],
)
def test_outputs_across_other_tensors_are_refused_before_the_launch(
    number: int, onto: int, by: int, names: str, tensors: Any
) -> None:
    """The weights lie inside the output, or an output begins inside another tensor."""
    x, r, g = drawn(4, 64), drawn(4, 64) * np.float32(2), drawn(64)
    kernel = Kernel(func(add_rms_norm(1e-5), x, r, g), "cuda")
    tensors(_moved(number, onto, by))
    with pytest.raises(
        EmulatorError, match=f"refused the call: main: {names} overlap in part.*; needs tensors apart"
    ):
        kernel.run(x, r, g)


def test_a_metal_buffer_is_no_address(tensors: Any) -> None:
    """What a Metal tensor points to is an object; only its offset says where the data starts."""
    x = drawn(4, 12)
    kernel = Kernel(func(softmax, x), "metal", Candidate(width=32, vector=4, reuse="reload"))
    tensors(_shifted(4))
    with pytest.raises(EmulatorError) as launched:
        kernel.run(x)
    assert "refused the call" not in str(launched.value)


def test_symbolic_rows_and_weights_are_checked_by_name(tensors: Any) -> None:
    from tirx_reduce.bench.workloads import get_workload

    workload = get_workload("rms_norm")
    kernel = Kernel(workload.func((3, 64), symbolic_rows=True), "cuda")
    x, w = drawn(3, 64), drawn(64)
    names = [t.name for t in kernel.tensors]
    seen: list[int] = []

    def only_the_second(tensor: Any, _: Any) -> None:
        seen.append(len(seen))
        tensor.data += 4 if len(seen) == 2 else 0

    tensors(only_the_second)
    with pytest.raises(EmulatorError, match=rf"call: \w+: {names[1]} does not start at a multiple of 16"):
        kernel.run(x, w)


def test_a_misaligned_start_is_a_fault_of_the_model_and_refused_by_the_adapter(
    tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of rows is contiguous and starts anywhere; 16-byte accesses would fault in the driver."""
    torch = pytest.importorskip("torch")
    from tirx_reduce import torch as adapter
    from tirx_reduce.bench.workloads import get_workload

    x = drawn(5, 33)
    f = func(softmax, x)
    # TVM's stock pipeline checks offset, strides and shape, but no address.
    stock = tvm.compile(lower(f, plan(f, "cuda")), as_target("cuda"))
    tensors(_shifted(4))
    with pytest.raises(emulator.Misaligned):
        emulator.emulate(stock, x, np.zeros_like(x), target="cuda")
    monkeypatch.setattr(adapter, "KINDS", {"cpu": "cuda"})
    whole = torch.randn(6, 33)
    assert adapter._check(get_workload("softmax"), (whole,))[1] == (6, 33)
    with pytest.raises(ReduceError, match=r"softmax: x starts 4 bytes behind a multiple of 16; needs"):
        adapter._check(get_workload("softmax"), (whole[1:],))
