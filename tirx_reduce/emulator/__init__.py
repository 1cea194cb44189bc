"""A checked CPU model of the GPU: emitted Metal and CUDA texts are executed, and faults cannot hide."""

from __future__ import annotations

from .counters import Counters, Limits
from .errors import (
    BarrierDivergence,
    DataRace,
    EmulatorError,
    LimitExceeded,
    Misaligned,
    NotWritten,
    OrderDependent,
    OutOfBounds,
    Undefined,
    Uninitialized,
    UnsupportedSource,
    WrittenTwice,
)
from .host import emulate
from .linter import Finding, checkers, lint
from .run import Emulation, run_source

__all__ = [
    "BarrierDivergence",
    "Counters",
    "DataRace",
    "EmulatorError",
    "Emulation",
    "Finding",
    "LimitExceeded",
    "Limits",
    "Misaligned",
    "NotWritten",
    "OrderDependent",
    "OutOfBounds",
    "Undefined",
    "Uninitialized",
    "UnsupportedSource",
    "WrittenTwice",
    "checkers",
    "emulate",
    "lint",
    "run_source",
]
