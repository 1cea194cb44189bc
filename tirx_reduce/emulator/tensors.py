"""Tensors of a device that is not there: DLPack structures whose data lies in the memory of the model."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .errors import EmulatorError


class Dtype(ctypes.Structure):
    """DLPack's data type."""

    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
# Types that NumPy lacks, as DLPack's code and bits.
BITS = {
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}


def dtype_of(name: str) -> Dtype:
    """The DLPack type of a NumPy or `ml_dtypes` name."""
    if name in BITS:
        return Dtype(*BITS[name], 1)
    try:
        d: np.dtype[Any] | None = np.dtype(name)
    except TypeError:
        # Names of strings and records are none that NumPy reads back.
        d = None
    if d is None or d.kind not in _CODES:
        raise EmulatorError(f"dtype {name} has no counterpart in TVM; needs numbers")
    return Dtype(_CODES[d.kind], 8 * d.itemsize, 1)


class DeviceTensor:
    """A tensor of a device that is not there: its data lies in the memory of the model."""

    def __init__(self, shape: tuple[int, ...], dtype: Dtype, address: int, device: int) -> None:
        import tvm_ffi

        self._shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        strides: list[int] = []
        at = 1
        for n in reversed(shape):
            strides.insert(0, at)
            at *= n
        self._strides = (ctypes.c_int64 * max(len(shape), 1))(*strides)
        self._managed = _Managed(
            _DLTensor(address, _Device(device, 0), len(shape), dtype, self._shape, self._strides, 0),
            None,
            None,
        )
        self._device = device
        self.tensor = tvm_ffi.from_dlpack(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)
