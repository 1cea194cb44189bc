"""The machine that runs compiled texts: device memory, launches, and faults as typed errors."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import errors, toolchain
from .errors import EmulatorError, LimitExceeded, UnsupportedSource
from .text import Kernel, Source, read

ORDERS = ("forward", "reverse", "random")
SPACES = ("device", "threadgroup", "thread", "constant")
_U32, _U64, _I32, _I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64

TRACKED, ONCE, CONSTANT, WORKSPACE, INPUT, WRITTEN = 1, 2, 4, 8, 16, 32

# In the order of the runtime's enumeration.
_FAULTS: tuple[type[EmulatorError], ...] = (
    EmulatorError,
    errors.OutOfBounds,
    errors.DataRace,
    errors.BarrierDivergence,
    errors.Misaligned,
    errors.Uninitialized,
    errors.WrittenTwice,
    errors.LimitExceeded,
    errors.Undefined,
)


class _Fault(ctypes.Structure):
    _fields_ = [
        ("kind", _I32),
        ("space", _I32),
        ("line", _I32),
        ("site", _I32),
        ("lane", _I32 * 3),
        ("block", _I32 * 3),
        ("other_lane", _I32),
        ("other_block", _I32),
        ("region", _I32),
        ("write", _I32),
        ("bytes", _I32),
        ("offset", _I64),
        ("pc", ctypes.c_void_p),
        ("text", ctypes.c_char * 160),
    ]


class _Counters(ctypes.Structure):
    _fields_ = [
        ("loads", _U64 * 4),
        ("stores", _U64 * 4),
        ("load_bytes", _U64 * 4),
        ("store_bytes", _U64 * 4),
        ("barriers", _U64),
        ("collectives", _U64),
        ("subgroup_barriers", _U64),
        ("cluster_barriers", _U64),
        ("async_copies", _U64),
        ("async_bytes", _U64),
    ]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("locals", ctypes.c_void_p),
        ("shareds", ctypes.c_void_p),
        ("n_locals", _U32),
        ("n_shareds", _U32),
        ("grid", _U32 * 3),
        ("block", _U32 * 3),
        ("order", _U32),
        ("dynamic_bytes", _U32),
        ("cluster", _U32),
        ("seed", _U64),
        ("max_accesses", _U64),
        ("module_lo", _U64),
        ("module_hi", _U64),
        ("watch", _I64),
        ("fault", _Fault),
        ("watched", _Fault),
        ("counters", _Counters),
    ]


class _ArrayRow(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("bytes", _U32),
        ("align", _U32),
        ("granule", _U32),
        ("line", _U32),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a launch may ask for."""

    max_threads: int = 1024
    shared_bytes: int = 32768
    max_arguments: int = 31
    max_accesses: int = 1 << 40
    """Loads and stores of one launch; beyond it a kernel counts as endless."""


def default_limits(kind: str) -> Limits:
    """Limits of an Apple GPU, or of compute capability 9.0 (227 KiB of shared memory)."""
    return Limits() if kind == "metal" else Limits(shared_bytes=232448, max_arguments=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What one kernel did, all lanes and launches together."""

    launches: int
    loads: dict[str, int]
    """Loads by memory space: device, threadgroup, thread, constant."""
    stores: dict[str, int]
    load_bytes: dict[str, int]
    store_bytes: dict[str, int]
    barriers: int
    """Barriers passed, each once per group."""
    collectives: int
    """Shuffles and reductions, each once per subgroup."""
    subgroup_barriers: int
    cluster_barriers: int = 0
    async_copies: int = 0
    async_bytes: int = 0
    """Bytes of asynchronous copies; they count as loads of device and stores of threadgroup memory, too."""


def _add(a: Counters | None, c: _Counters) -> Counters:
    def tally(old: dict[str, int] | None, new: Any) -> dict[str, int]:
        return {s: (old[s] if old else 0) + int(new[i]) for i, s in enumerate(SPACES)}

    return Counters(
        launches=(a.launches if a else 0) + 1,
        loads=tally(a.loads if a else None, c.loads),
        stores=tally(a.stores if a else None, c.stores),
        load_bytes=tally(a.load_bytes if a else None, c.load_bytes),
        store_bytes=tally(a.store_bytes if a else None, c.store_bytes),
        barriers=(a.barriers if a else 0) + int(c.barriers),
        collectives=(a.collectives if a else 0) + int(c.collectives),
        subgroup_barriers=(a.subgroup_barriers if a else 0) + int(c.subgroup_barriers),
        cluster_barriers=(a.cluster_barriers if a else 0) + int(c.cluster_barriers),
        async_copies=(a.async_copies if a else 0) + int(c.async_copies),
        async_bytes=(a.async_bytes if a else 0) + int(c.async_bytes),
    )


@dataclass(slots=True)
class Region:
    """One buffer in the memory of the model."""

    number: int
    address: int
    bytes: int
    label: str


@dataclass(slots=True)
class Library:
    """A compiled text."""

    source: Source
    path: Path
    handle: ctypes.CDLL
    low: int
    high: int


@dataclass(slots=True)
class Session:
    """One run in one order of lanes: memory, what was launched, what it did."""

    machine: Machine
    library: Library
    order: str
    seed: int
    limits: Limits
    once: bool = True
    regions: list[Region] = field(default_factory=list)
    counters: dict[str, Counters] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    """Regions that a launched kernel stores to, as its text has it."""
    watch: int = -1
    watched: EmulatorError | None = None

    def region(self, data: bytes | None, size: int, granule: int, flags: int, label: str) -> Region:
        """A new buffer with `data` in it."""
        address = ctypes.c_void_p()
        number = self.machine.runtime.emu_region(_U64(size), granule, flags, ctypes.byref(address))
        if number < 0:
            raise LimitExceeded(f"{label} has {size} bytes; the memory of the model is full")
        if data is not None and size:
            ctypes.memmove(address.value or 0, data, size)
        made = Region(number, address.value or 0, size, label)
        self.regions.append(made)
        return made

    def at(self, address: int) -> Region | None:
        """The buffer that an address lies in."""
        for region in self.regions:
            if region.address <= address < region.address + max(region.bytes, 1):
                return region
        return None

    def read(self, region: Region) -> bytes:
        """The bytes of a buffer."""
        return ctypes.string_at(region.address, region.bytes) if region.bytes else b""

    def unwritten(self, region: Region) -> tuple[int, int]:
        """How many elements of a buffer nobody has written, and where the first one is."""
        first = _I64()
        count = self.machine.runtime.emu_unwritten(region.number, ctypes.byref(first))
        return int(count), int(first.value)

    def launch(
        self,
        kernel: Kernel,
        values: Sequence[Any],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic: int = 0,
        cluster: int = 1,
    ) -> None:
        """Runs a kernel.

        Parameters
        ----------
        values : an address for each pointer, a ctypes value for each scalar, bytes for each struct.
        """
        _check_launch(self, kernel, grid, block, dynamic)
        if not 1 <= cluster <= 16 or grid[0] % cluster:
            raise LimitExceeded(
                f"a cluster of {cluster} groups in a grid of {grid[0]}; needs 1 to 16 that divide it",
                kernel=kernel.name,
            )
        lib = self.library.handle
        number = self.library.source.kernels.index(kernel)
        slots: list[Any] = []
        for parameter, value in zip(kernel.parameters, values, strict=True):
            if parameter.kind == "pointer":
                region = self.at(value)
                if region is not None and (parameter.stored or parameter.aliased):
                    self.machine.runtime.emu_flag(
                        region.number, TRACKED | (ONCE if self.once and parameter.stored else 0)
                    )
                    if parameter.stored:
                        self.stored.add(region.number)
                slots.append(ctypes.c_void_p(value))
            elif parameter.kind == "reference":
                held = self.region(value, len(value), 4, CONSTANT, parameter.name)
                slots.append(ctypes.c_void_p(held.address))
            else:
                slots.append(value)
        pointers = (ctypes.c_void_p * max(len(slots), 1))(*(ctypes.addressof(s) for s in slots))
        launch = _Launch()
        launch.entry = ctypes.cast(getattr(lib, f"emu_entry_{number}"), ctypes.c_void_p).value
        launch.arguments = ctypes.addressof(pointers)
        for label in ("locals", "shareds"):
            row = _ArrayRow.in_dll(lib, f"emu_{label}_{number}")
            setattr(launch, label, ctypes.addressof(row))
            setattr(launch, f"n_{label}", sum(a.shared == (label == "shareds") for a in kernel.arrays))
        launch.grid[:], launch.block[:] = grid, block
        launch.order = ORDERS.index(self.order)
        launch.dynamic_bytes = dynamic
        launch.cluster = cluster
        launch.seed = self.seed + 1
        launch.max_accesses = self.limits.max_accesses
        launch.module_lo, launch.module_hi = self.library.low, self.library.high
        launch.watch = self.watch
        if 0 in grid:
            return
        result = self.machine.runtime.emu_launch(ctypes.byref(launch))
        if result < 0:
            raise LimitExceeded("the arrays of the kernel do not fit into the model", kernel=kernel.name)
        self.counters[kernel.name] = _add(self.counters.get(kernel.name), launch.counters)
        if launch.watched.kind:
            self.watched = self._error(launch.watched, kernel, values)
        if result:
            raise self._error(launch.fault, kernel, values)

    def _error(self, fault: _Fault, kernel: Kernel, values: Sequence[Any]) -> EmulatorError:
        line = fault.line
        if not line and fault.pc:
            line = toolchain.line_of(self.library.path, fault.pc - self.library.low, self.library.source.kind)
        text = fault.text.decode()
        if fault.bytes > 0:
            text = f"{'store' if fault.write else 'load'} of {fault.bytes} bytes: {text}"
        if fault.other_lane >= 0:
            text += f" (the other is lane {fault.other_lane} of the group)"
        rows = self.library.source.text.split("\n")
        buffer, offset = self._buffer(fault, kernel, values), int(fault.offset)
        if fault.site == 1 and fault.region < 0 and 0 < line <= len(rows):
            buffer, offset = self._indexed(kernel, rows[line - 1], offset)
        lane, group = tuple(fault.lane), tuple(fault.block)
        return _FAULTS[fault.kind](
            text,
            kernel=kernel.name,
            line=line,
            lane=(lane[0], lane[1], lane[2]),
            group=(group[0], group[1], group[2]),
            buffer=buffer,
            offset=offset if buffer else None,
            order=self.order,
            source=rows[line - 1] if 0 < line <= len(rows) else "",
        )

    def _indexed(self, kernel: Kernel, row: str, index: int) -> tuple[str, int]:
        """The array on a line of the text, and the byte offset of an index that lies outside it."""
        number = self.library.source.kernels.index(kernel)
        words = set(re.findall(r"\w+", row))
        for shared, label in ((True, "shareds"), (False, "locals")):
            arrays = [a for a in kernel.arrays if a.shared == shared]
            if not arrays:
                continue
            table = (_ArrayRow * len(arrays)).in_dll(self.library.handle, f"emu_{label}_{number}")
            for a, entry in zip(arrays, table, strict=True):
                length = re.fullmatch(r"\[\((\d+)\)\]", a.dims)
                if a.name in words and length and not 0 <= index < int(length[1]):
                    return a.name, index * (int(entry.bytes) // int(length[1]))
        return "", index

    def _buffer(self, fault: _Fault, kernel: Kernel, values: Sequence[Any]) -> str:
        if fault.region < 0:
            return ""
        if fault.space in (1, 2):
            return [a.name for a in kernel.arrays if a.shared == (fault.space == 1)][fault.region]
        region = next(r for r in self.regions if r.number == fault.region)
        for parameter, value in zip(kernel.parameters, values, strict=True):
            if parameter.kind == "pointer" and self.at(value) is region:
                return parameter.name
        return region.label


def _check_launch(
    session: Session, kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], dynamic: int
) -> None:
    limits, source = session.limits, session.library.source
    place: dict[str, Any] = {"kernel": kernel.name, "line": kernel.line, "order": session.order}
    threads = block[0] * block[1] * block[2]
    if threads < 1 or min(grid) < 0:
        raise LimitExceeded(f"grid {grid} of groups {block}; needs at least one thread", **place)
    allowed = min(limits.max_threads, kernel.max_threads or limits.max_threads)
    if threads > allowed:
        raise LimitExceeded(f"{threads} threads in a group; {allowed} are allowed", **place)
    if len(kernel.parameters) > limits.max_arguments:
        raise LimitExceeded(
            f"{len(kernel.parameters)} arguments; {limits.max_arguments} are allowed", **place
        )
    number = source.kernels.index(kernel)
    n = sum(a.shared for a in kernel.arrays)
    rows = (_ArrayRow * max(n, 1)).in_dll(session.library.handle, f"emu_shareds_{number}")
    static = sum(int(rows[i].bytes) for i in range(n))
    most = min(limits.shared_bytes, 49152)
    if static > most or static + dynamic > limits.shared_bytes:
        raise LimitExceeded(
            f"{static + dynamic} bytes of threadgroup memory; "
            f"{most if static > most else limits.shared_bytes} are allowed",
            **place,
        )


class Machine:
    """The runtime, one in a process; its lock is held for a whole call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
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
        if key not in _LIBRARIES:
            if len(_LIBRARIES) > 512:
                _LIBRARIES.clear()
            _LIBRARIES[key] = self._load(text, kind, numerics)
        return _LIBRARIES[key]

    def _load(self, text: str, kind: str, numerics: str) -> Library:
        source = read(text, kind)
        try:
            path = toolchain.build_kernel(source.program, kind, numerics, self.folder, self.path)
        except toolchain.CompileError as error:
            raise _compile_fault(str(error), source) from None
        handle = ctypes.CDLL(str(path))
        bounds = (_U64 * 2)()
        handle.emu_range(bounds)
        return Library(source, path, handle, int(bounds[0]), int(bounds[1]))


_LIBRARIES: dict[tuple[str, str, str], Library] = {}


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
