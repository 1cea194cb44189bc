"""Every error of ours: what was seen, and what is needed."""

from __future__ import annotations

from typing import Any


class ReduceError(Exception):
    """Base of every error that tirx-reduce raises."""


class Unsupported(ReduceError):
    """A function, dtype, shape or candidate is declined; the text says what was seen and what is needed."""


def check_type(
    what: str, value: Any, kinds: type | tuple[type, ...], needs: str, error: type[ReduceError] = ReduceError
) -> None:
    """Refuse a value of another type than `kinds`, as `error`."""
    if not isinstance(value, kinds):
        raise error(f"{what} is of type {type(value).__name__}; needs {needs}")


class BadCalibration(ReduceError):
    """A calibration is missing, malformed, or was made for something else."""


class Uncalibrated(BadCalibration, Unsupported):
    """A calibration does not cover this one function or candidate; elsewhere it may serve."""


class UnknownPolicy(ReduceError):
    """No policy of that name is registered; the text lists the known ones."""


class DuplicatePolicy(ReduceError):
    """Two policies claim one name; the text names both origins."""


class BadEstimate(ReduceError):
    """A policy returned a price that is not finite and positive, or of another unit."""
