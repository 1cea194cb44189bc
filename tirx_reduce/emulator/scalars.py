"""Numbers as the C types of a kernel's parameters, and structs of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import UnsupportedSource
from .kernels import Parameter

# Types whose arrays may be given as bits. Metal's `ushort` may be bfloat16, and counts as what the array is.
FLOATS = {
    "float": "float32",
    "half": "float16",
    "__half": "float16",
    "nv_bfloat16": "bfloat16",
    "__nv_bfloat16": "bfloat16",
}
_C_SCALARS: dict[str, Any] = {
    "int": ctypes.c_int32,
    "uint": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "long": ctypes.c_int64,
    "ulong": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "long long": ctypes.c_int64,
    "unsigned long long": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "char": ctypes.c_int8,
    "signed char": ctypes.c_int8,
    "uchar": ctypes.c_uint8,
    "unsigned char": ctypes.c_uint8,
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "short": ctypes.c_int16,
    "ushort": ctypes.c_uint16,
    "int16_t": ctypes.c_int16,
    "uint16_t": ctypes.c_uint16,
    "unsigned short": ctypes.c_uint16,
}


def c_scalar(type_name: str, value: Any) -> Any:
    """A number as the C type of a parameter."""
    if type_name in ("half", "__half"):
        return ctypes.c_uint16(int(np.float16(value).view(np.uint16)))
    if type_name in ("nv_bfloat16", "__nv_bfloat16"):
        bits = int(np.float32(value).view(np.uint32))
        return ctypes.c_uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF)
    if type_name not in _C_SCALARS:
        raise UnsupportedSource(f"a scalar parameter of type {type_name} is not known")
    c = _C_SCALARS[type_name]
    return c(float(value) if c in (ctypes.c_float, ctypes.c_double) else int(value))


def pack(parameter: Parameter, values: Sequence[Any]) -> bytes:
    """The bytes of a Metal argument struct: each member in 8 bytes, as TVM lays it out."""
    out = b""
    for f, value in zip(parameter.fields, values, strict=True):
        data = bytes(c_scalar(f.type, value))
        out += data + b"\0" * (8 - len(data))
    return out
