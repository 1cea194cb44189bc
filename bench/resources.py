"""What a compiled CUDA kernel takes of a multiprocessor, as the driver says: registers and memory.

Local bytes of a kernel that indexes no array by a variable are spills.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

from tirx_reduce.errors import ReduceError

ATTRIBUTES = {"max_threads": 0, "shared_bytes": 1, "local_bytes": 3, "registers": 4}
"""Numbers of `CUfunction_attribute`."""
_KERNEL = re.compile(r"__global__\s+void\s+(?:__\w+__\s*\([^)]*\)\s*)*(\w+)\s*\(")


def kernels_of(text: str) -> tuple[str, ...]:
    """Names of the kernels that a CUDA text defines."""
    return tuple(dict.fromkeys(m.group(1) for m in _KERNEL.finditer(text)))


def resources(text: str, binary: bytes, driver: Any = None) -> dict[str, dict[str, int]]:
    """Resources of each kernel of a text that was compiled to `binary`.

    Parameters
    ----------
    text
        CUDA source.
    binary
        Its cubin, or PTX.
    driver
        The driver's library; loaded where it is None. A context has to be current.

    Raises
    ------
    ReduceError
        The driver refuses.
    """
    names = kernels_of(text)
    if not names:
        raise ReduceError("the text defines no kernel")
    if driver is None:
        driver = ctypes.CDLL("libcuda.so.1")
    module = ctypes.c_void_p()
    _ask(driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(binary)), "load the module")
    try:
        return {name: _of_kernel(driver, module, name) for name in names}
    finally:
        driver.cuModuleUnload(module)


def of_build(source: str, folder: Path) -> dict[str, Any]:
    """The same for a text that was built into `folder`; what goes wrong is in the result."""
    import tvm_ffi

    from tirx_reduce.bench.build import CUDA_CALLBACK, cache_compiles

    try:
        cache_compiles(folder)
        binary = bytes(tvm_ffi.get_global_func(CUDA_CALLBACK)(source))
        return {"kernels": resources(source, binary)}
    except Exception as error:  # evidence beside a timing; never a reason to lose it
        return {"error": f"{type(error).__name__}: {error}"}


def _of_kernel(driver: Any, module: Any, name: str) -> dict[str, int]:
    function = ctypes.c_void_p()
    _ask(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"find {name}")
    found = {}
    for what, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        _ask(driver.cuFuncGetAttribute(ctypes.byref(value), number, function), f"tell {what} of {name}")
        found[what] = value.value
    return found


def _ask(status: int, what: str) -> None:
    if status != 0:
        raise ReduceError(f"the CUDA driver does not {what}: status {status}")
