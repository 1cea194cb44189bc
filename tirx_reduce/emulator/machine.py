"""The machine that runs compiled texts: one runtime in a process, and the libraries that it has loaded."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from pathlib import Path

import numpy as np

from . import errors, toolchain
from .errors import EmulatorError, LimitExceeded, UnsupportedSource
from .kernels import Source
from .session import Library
from .text import read

_U32, _U64, _I32, _I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64


class Machine:
    """The runtime, one in a process; its lock is held for a whole call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        # Each is linked to this machine's runtime, and runs on no other.
        self.libraries: dict[tuple[str, str, str], Library] = {}
        self.path = toolchain.build_runtime(folder)
        self.runtime = ctypes.CDLL(str(self.path))
        self.runtime.emu_region.argtypes = [_U64, _U32, _U32, ctypes.POINTER(ctypes.c_void_p)]
        self.runtime.emu_unwritten.argtypes = [_I32, ctypes.POINTER(_I64)]
        self.runtime.emu_unwritten.restype = _U64
        self.runtime.emu_flag.argtypes = [_I32, _U32]
        self.runtime.emu_launch.argtypes = [ctypes.c_void_p]
        if self.runtime.emu_init() != 0:
            raise LimitExceeded("the memory of the model cannot be mapped")

    def load(self, text: str, kind: str, numerics: str) -> Library:
        """Compiles a text, or takes it from the cache."""
        key = (text, kind, numerics)
        if key not in self.libraries:
            if len(self.libraries) > 512:
                self.libraries.clear()
            self.libraries[key] = self._load(text, kind, numerics)
        return self.libraries[key]

    def _load(self, text: str, kind: str, numerics: str) -> Library:
        source = read(text, kind)
        try:
            path = toolchain.build_kernel(source.program, kind, numerics, self.folder, self.path)
        except toolchain.CompileError as error:
            raise _compile_fault(str(error), source) from None
        handle = ctypes.CDLL(str(path))
        bounds = (_U64 * 2)()
        handle.emu_range(bounds)
        return Library(source, path, handle, int(bounds[0]), int(bounds[1]), numerics)


def _compile_fault(message: str, source: Source) -> EmulatorError:
    rows = source.text.split("\n")
    shown = message.splitlines()
    for number, row in enumerate(shown):
        found = re.match(r"(.*?):\d+:(?:\d+:)? (?:fatal )?error: (.*)", row)
        if found is None:
            continue
        # An error inside the headers comes with the line of the text that led there.
        near = [row, *reversed(shown[:number]), *shown[number:]]
        places = (re.match(rf"kernel\.{source.kind}:(\d+):", r) for r in near)
        line = next((int(m[1]) for m in places if m is not None), 0)
        kind = errors.Uninitialized if "uninitialized" in found[2] else UnsupportedSource
        what = found[2].split(" [-W")[0]
        return kind(what, line=line, source=rows[line - 1] if 0 < line <= len(rows) else "")
    first = next((r for r in shown if "error" in r), message[:400])
    return UnsupportedSource(first.strip())


@functools.cache
def _machine(folder: str) -> Machine:
    return Machine(Path(folder))


def machine(cache_dir: str | os.PathLike[str] | None = None) -> Machine:
    """The machine that keeps its libraries in `cache_dir` (or the user's cache folder)."""
    return _machine(str(toolchain.cache_folder(cache_dir)))


# The NaNs that mark a value nobody wrote, and what conversions make of them; the sign may be either.
_POISON = {
    "float32": (0x7FE57FE5, 0x7FFCA000, 0x7FE50000, 0x7FE56000),
    "float16": (0x7FE5, 0x7F2B, 0x7F28),
    "bfloat16": (0x7FE5, 0x7FFC),
}


def poisoned(data: bytes, dtype_name: str) -> int:
    """The byte offset of the first poisoned element, or -1; only floats of 16 and 32 bits hold any."""
    if dtype_name not in _POISON:
        return -1
    size = 4 if dtype_name == "float32" else 2
    dtype = np.dtype(np.uint32 if size == 4 else np.uint16)
    mask = np.bitwise_and(np.frombuffer(data, dtype=dtype), dtype.type(0x7FFFFFFF if size == 4 else 0x7FFF))
    hit = np.flatnonzero(np.isin(mask, np.array(_POISON[dtype_name], dtype=dtype)))
    return int(hit[0]) * size if hit.size else -1
