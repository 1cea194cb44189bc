"""Torch operators. Without a GPU only the refusals are real; the rest has the CPU in a device's place."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tirx_reduce import torch as tt  # noqa: E402 - Torch is optional
from tirx_reduce.bench.workloads import Workload, get_workload  # noqa: E402
from tirx_reduce.errors import ReduceError  # noqa: E402


def test_without_torch_the_way_to_get_it_is_said() -> None:
    code = "import sys\nsys.modules['torch'] = None\nimport tirx_reduce.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith('Torch is optional; needs: pip install "tirx-reduce[torch]"')


def test_a_cpu_tensor_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ReduceError) as caught:
        tt.softmax(torch.ones(2, 8))
    assert str(caught.value) == (
        "softmax: x is on cpu; needs a tensor on cuda or mps "
        "(tirx_reduce.emulate runs a kernel without a GPU)"
    )
    assert not [key for key in tt._kernels if key[0] == "softmax" and key[1] != "llvm"]


@pytest.fixture
def cpu_as_device(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The CPU counts as a device, and kernels are the plain functions; gives the list of what was built."""
    import tvm

    built: list[tuple[Any, ...]] = []

    def build(workload: Workload, kind: str, index: int, shape: Any, dtype: str, *_: Any) -> Any:
        built.append((workload.name, shape, dtype))
        return tvm.compile(workload.func(shape, dtype), "llvm")[workload.name]

    monkeypatch.setattr(tt, "KINDS", {"cpu": "llvm"})
    monkeypatch.setattr(tt, "_build", build)
    monkeypatch.setattr(tt, "_kernels", {})
    return built


def test_kernels_write_torch_memory_and_are_cached_by_shape(cpu_as_device: list[tuple[Any, ...]]) -> None:
    x, w, b = torch.randn(6, 40), torch.randn(40), torch.randn(40)
    for _ in range(3):
        y = tt.layer_norm(x, w, b)
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (40,), w, b, 1e-5), rtol=1e-4, atol=1e-5)
    tt.layer_norm(x[:3], w, b)
    tt.layer_norm(x[1:4], w, b)
    assert cpu_as_device == [("layer_norm", (6, 40), "float32"), ("layer_norm", (3, 40), "float32")]


def test_a_view_that_is_dense_keeps_its_offset(cpu_as_device: list[tuple[Any, ...]]) -> None:
    x = torch.randn(7, 24)
    torch.testing.assert_close(tt.softmax(x[2:5]), torch.softmax(x[2:5], -1), rtol=1e-5, atol=1e-6)


def test_several_results_and_dtypes(cpu_as_device: list[tuple[Any, ...]]) -> None:
    x, r, w = torch.randn(4, 32), torch.randn(4, 32), torch.ones(32)
    total, y = tt.operator("add_rms_norm")(x, r, w)
    torch.testing.assert_close(total, x + r)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(x + r, (32,), w, 1e-5), rtol=1e-4, atol=1e-5)
    index = tt.operator("argmax")(x)
    assert index.dtype == torch.int64
    assert torch.equal(index, x.argmax(-1))


def test_torch_compile_keeps_the_operator(cpu_as_device: list[tuple[Any, ...]]) -> None:
    def block(x: Any, w: Any) -> Any:
        return tt.rms_norm(x * 2.0, w) + 1.0

    x, w = torch.randn(4, 16), torch.randn(16)
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, w), block(x, w))


def test_the_operator_passes_torchs_own_check(cpu_as_device: list[tuple[Any, ...]]) -> None:
    defined = tt.operator("softmax")
    torch.library.opcheck(defined, (torch.randn(3, 8),), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            lambda: (torch.randn(8, 4).T,),
            "softmax: x has strides (1, 4) for shape (4, 8); needs a contiguous tensor",
        ),
        (
            lambda: (torch.randn(4, 8, dtype=torch.float64),),
            "softmax: x has dtype torch.float64; needs one of ",
        ),
        (lambda: (torch.ones(4, 8, dtype=torch.int32),), "softmax has dtype 'int32'; it takes float32, "),
        (lambda: (torch.tensor(1.0),), "softmax: x has no axis; needs rows × columns"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    cpu_as_device: list[tuple[Any, ...]], tensors: Any, message: str
) -> None:
    with pytest.raises(ReduceError) as caught:
        tt.operator("softmax")(*tensors())
    assert str(caught.value).startswith(message)
    assert cpu_as_device == []


def test_operands_must_fit(cpu_as_device: list[tuple[Any, ...]]) -> None:
    with pytest.raises(ReduceError, match=r"^rms_norm: weight has shape \(7,\); needs \(8,\)$"):
        tt.rms_norm(torch.randn(2, 8), torch.randn(7))
    with pytest.raises(ReduceError, match=r"^rms_norm: weight has dtype torch.float16; needs float32$"):
        tt.rms_norm(torch.randn(2, 8), torch.randn(8, dtype=torch.float16))


def test_empty_tensors_launch_nothing(cpu_as_device: list[tuple[Any, ...]]) -> None:
    assert tt.softmax(torch.empty(0, 8)).shape == (0, 8)


def test_one_name_has_one_policy() -> None:
    tt.operator("mean")
    with pytest.raises(ReduceError, match=r"^operator tirx_reduce::mean is registered with another workload"):
        tt.operator(get_workload("mean"), policy="service")


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    device = "cuda" if torch.cuda.is_available() else "mps"
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(37, 1537, device=device, dtype=dtype)
        torch.testing.assert_close(tt.softmax(x), torch.softmax(x, -1), rtol=2e-2, atol=2e-3)
    stream = torch.cuda.Stream() if device == "cuda" else None
    if stream is not None:
        with torch.cuda.stream(stream):
            y = tt.softmax(x)
        stream.synchronize()
        torch.testing.assert_close(y, torch.softmax(x, -1), rtol=2e-2, atol=2e-3)
