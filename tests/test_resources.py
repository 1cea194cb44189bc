"""Resources of kernels from a driver that does as it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tirx_reduce.bench.resources import ATTRIBUTES, kernels_of, of_build, resources
from tirx_reduce.errors import ReduceError

TEXT = """
extern "C" __global__ void __launch_bounds__(256) softmax_kernel(float* __restrict__ x);
extern "C" __global__ void __launch_bounds__(256) softmax_kernel(float* __restrict__ x) { }
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(128) softmax_kernel_1(float* x) { }
extern "C" __global__ void bare(float* x) { }
"""


class Driver:
    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.unloaded = 0

    def _status(self, name: str) -> int:
        return 209 if self.fails == name else 0

    def cuModuleLoadData(self, module: Any, image: Any) -> int:
        assert image.value == b"cubin"
        module._obj.value = 7
        return self._status("load")

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = len(name)
        return self._status("find")

    def cuFuncGetAttribute(self, value: Any, number: int, function: Any) -> int:
        value._obj.value = 100 * number + function.value
        return self._status("ask")

    def cuModuleUnload(self, module: Any) -> int:
        self.unloaded += 1
        return 0


def test_kernels_are_found_whatever_stands_before_their_names() -> None:
    assert kernels_of(TEXT) == ("softmax_kernel", "softmax_kernel_1", "bare")


def test_every_kernel_is_asked_for_every_attribute() -> None:
    driver = Driver()
    found = resources(TEXT, b"cubin", driver)
    assert list(found) == ["softmax_kernel", "softmax_kernel_1", "bare"]
    assert found["bare"] == {name: 100 * number + 4 for name, number in ATTRIBUTES.items()}
    assert driver.unloaded == 1


@pytest.mark.parametrize(
    ("fails", "message", "unloaded"),
    [("load", "load the module", 0), ("find", "find softmax_kernel", 1), ("ask", "tell max_threads", 1)],
)
def test_a_driver_that_refuses_is_quoted(fails: str, message: str, unloaded: int) -> None:
    driver = Driver(fails)
    with pytest.raises(ReduceError, match=f"does not {message}.*status 209"):
        resources(TEXT, b"cubin", driver)
    assert driver.unloaded == unloaded


def test_a_text_without_kernels_is_refused() -> None:
    with pytest.raises(ReduceError, match="defines no kernel"):
        resources("int x;", b"cubin", Driver())


def test_evidence_that_cannot_be_had_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm  # noqa: F401  (needs that function itself while it is imported)
    import tvm_ffi

    def absent(name: str) -> Any:
        raise RuntimeError("no NVRTC here")

    monkeypatch.setattr(tvm_ffi, "get_global_func", absent)
    assert of_build(TEXT, tmp_path) == {"error": "RuntimeError: no NVRTC here"}
