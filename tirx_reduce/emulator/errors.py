"""The faults that the CPU model of the GPU finds, each with the place where it was found."""

from __future__ import annotations

from tirx_reduce.errors import ReduceError


class EmulatorError(ReduceError):
    """A kernel is wrong, or cannot be executed here.

    Attributes
    ----------
    kernel : name of the kernel, or "" where none is running.
    line : line of the device text (from 1), 0 where it is not known.
    lane : (x, y, z) of the thread in its group, or None.
    group : (x, y, z) of the group in the grid, or None.
    buffer : name of the parameter or array, or "".
    offset : byte offset in `buffer`, or None.
    order : the order of lanes in which it was seen, or "".
    """

    def __init__(
        self,
        text: str,
        *,
        kernel: str = "",
        line: int = 0,
        lane: tuple[int, int, int] | None = None,
        group: tuple[int, int, int] | None = None,
        buffer: str = "",
        offset: int | None = None,
        order: str = "",
        source: str = "",
    ) -> None:
        self.text = text
        self.kernel = kernel
        self.line = line
        self.lane = lane
        self.group = group
        self.buffer = buffer
        self.offset = offset
        self.order = order
        self.source = source
        super().__init__(self._message())

    def _message(self) -> str:
        parts = [self.text]
        if self.buffer:
            parts.append(f"in {self.buffer}" + ("" if self.offset is None else f" at byte {self.offset}"))
        if self.kernel:
            parts.append(f"kernel {self.kernel}" + (f" line {self.line}" if self.line else ""))
        elif self.line:
            parts.append(f"line {self.line}")
        if self.lane is not None:
            parts.append(f"lane {self.lane} of group {self.group}")
        if self.order:
            parts.append(f"order {self.order}")
        head = "; ".join(parts)
        return f"{head}\n    {self.source.strip()}" if self.source.strip() else head


class OutOfBounds(EmulatorError):
    """An access outside the buffer, threadgroup array or thread array."""


class DataRace(EmulatorError):
    """Two lanes touch one location, one of them writes, and no barrier of that memory stands between."""


class BarrierDivergence(EmulatorError):
    """A barrier or a collective is not reached by all, or a shuffle reads from a lane that is not there."""


class Misaligned(EmulatorError):
    """A vector access at an address that is no multiple of its alignment."""


class Uninitialized(EmulatorError):
    """Memory is read, or a value reaches an output, that nobody has written."""


class WrittenTwice(EmulatorError):
    """An element of an output is written a second time, or an input is written."""


class NotWritten(EmulatorError):
    """An element of an output is never written."""


class LimitExceeded(EmulatorError):
    """More threads, threadgroup memory, arguments or steps than the device allows."""


class UnsupportedSource(EmulatorError):
    """The text uses what the model does not know; it names it."""


class OrderDependent(EmulatorError):
    """Results differ from one order of lanes to another."""


class Undefined(EmulatorError):
    """Behaviour that the language leaves undefined, such as an integer division by zero."""
