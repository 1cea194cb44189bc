"""One run in one order of lanes: its memory, its launches, and faults as typed errors."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tirx_reduce.errors import check_type

from . import errors, toolchain
from .abi import ArrayRow, Fault, Launch
from .counters import Counters, Limits, add, limits_of
from .errors import EmulatorError, LimitExceeded
from .kernels import Kernel, Source

__all__ = ["Counters", "Library", "Limits", "Region", "Session", "limits_of"]

ORDERS = ("forward", "reverse", "random")

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
    numerics: str


@dataclass(slots=True)
class Session:
    """One run in one order of lanes: memory, what was launched, what it did."""

    runtime: ctypes.CDLL
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

    def __post_init__(self) -> None:
        check_type("seed", self.seed, int, "an int", EmulatorError)

    def region(self, data: bytes | None, size: int, granule: int, flags: int, label: str) -> Region:
        """A new buffer with `data` in it."""
        address = ctypes.c_void_p()
        number = self.runtime.emu_region(ctypes.c_uint64(size), granule, flags, ctypes.byref(address))
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
        first = ctypes.c_int64()
        count = self.runtime.emu_unwritten(region.number, ctypes.byref(first))
        return int(count), int(first.value)

    def launch(
        self,
        kernel: Kernel,
        values: Sequence[Any],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic: int = 0,
        cluster: int = 1,
        dependent: bool = False,
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
                    self.runtime.emu_flag(
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
        launch = Launch()
        launch.entry = ctypes.cast(getattr(lib, f"emu_entry_{number}"), ctypes.c_void_p).value
        launch.arguments = ctypes.addressof(pointers)
        for label in ("locals", "shareds"):
            row = ArrayRow.in_dll(lib, f"emu_{label}_{number}")
            setattr(launch, label, ctypes.addressof(row))
            setattr(launch, f"n_{label}", sum(a.shared == (label == "shareds") for a in kernel.arrays))
        launch.grid[:], launch.block[:] = grid, block
        launch.order = ORDERS.index(self.order)
        launch.dynamic_bytes = dynamic
        launch.cluster, launch.dependent = cluster, dependent
        launch.seed = self.seed + 1
        launch.max_accesses = self.limits.max_accesses
        launch.module_lo, launch.module_hi = self.library.low, self.library.high
        launch.watch = self.watch
        launch.flush = self.library.numerics == "fast"
        if 0 in grid:
            return
        result = self.runtime.emu_launch(ctypes.byref(launch))
        if result < 0:
            raise LimitExceeded("the arrays of the kernel do not fit into the model", kernel=kernel.name)
        self.counters[kernel.name] = add(self.counters.get(kernel.name), launch.counters)
        if launch.watched.kind:
            self.watched = self._error(launch.watched, kernel, values)
        if result:
            raise self._error(launch.fault, kernel, values)

    def _error(self, fault: Fault, kernel: Kernel, values: Sequence[Any]) -> EmulatorError:
        line = fault.line
        if not line and fault.pc:
            line = toolchain.line_of(self.library.path, fault.pc - self.library.low, self.library.source.kind)
        text = fault.text.decode()
        if fault.bytes > 0:
            text = f"{'store' if fault.write else 'load'} of {fault.bytes} bytes: {text}"
        if fault.other_lane >= 0:
            where = "the group" if fault.other_rank < 0 else f"group {fault.other_rank} of the cluster"
            text += f" (the other is lane {fault.other_lane} of {where})"
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
            table = (ArrayRow * len(arrays)).in_dll(self.library.handle, f"emu_{label}_{number}")
            for a, entry in zip(arrays, table, strict=True):
                length = re.fullmatch(r"\[\((\d+)\)\]", a.dims)
                if a.name in words and length and not 0 <= index < int(length[1]):
                    return a.name, index * (int(entry.bytes) // int(length[1]))
        return "", index

    def _buffer(self, fault: Fault, kernel: Kernel, values: Sequence[Any]) -> str:
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
    rows = (ArrayRow * max(n, 1)).in_dll(session.library.handle, f"emu_shareds_{number}")
    static = sum(int(rows[i].bytes) for i in range(n))
    most = min(limits.shared_bytes, 49152)
    if static > most or static + dynamic > limits.shared_bytes:
        raise LimitExceeded(
            f"{static} bytes of threadgroup memory in the text; {most} are allowed"
            if static > most
            else f"{static + dynamic} bytes of threadgroup memory; {limits.shared_bytes} are allowed",
            **place,
        )
