"""Dtype names as people write them, and what NumPy calls them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tirx_reduce.errors import ReduceError

FLOATS = ("float32", "float16", "bfloat16")
DTYPES = (*FLOATS, "int32", "int64", "int8", "bool")

_SPELLINGS = {
    "f32": "float32",
    "fp32": "float32",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "i32": "int32",
    "i64": "int64",
    "i8": "int8",
}

_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def dtype_name(text: str) -> str:
    """TVM's name of a dtype: `f16`, `half` and `float16` are one."""
    name = _SPELLINGS.get(text, text)
    if name not in DTYPES:
        raise ReduceError(f"unknown dtype {text!r} (known: {', '.join(DTYPES)})")
    return name


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a TVM dtype name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def unit_roundoff(name: str) -> float:
    """Largest relative error of one rounding to nearest; 0 for integers."""
    return _ROUNDOFF.get(name, 0.0)
