"""What the named pipelines plan with: the defaults, or those of an enclosing `use`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tvm

from tirx_reduce.cost import Selection, resolve
from tirx_reduce.errors import check_type
from tirx_reduce.values import DeviceLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A policy that is known, a calibration that is sound, and what else a plan depends on."""

    selection: Selection
    limits: DeviceLimits | None = None
    device: Any = None
    """A profile's device name, a `tvm.runtime.Device`, or None for device 0 of the target."""

    def __post_init__(self) -> None:
        if self.limits is not None:
            check_type("limits", self.limits, DeviceLimits, "a DeviceLimits")
        if self.device is not None:
            check_type("device", self.device, (str, tvm.runtime.Device), "a name or a tvm.runtime.Device")


def settings(
    policy: Any = "analytic", calibration: Any = None, limits: DeviceLimits | None = None, device: Any = None
) -> Settings:
    """Check what can be checked before a function is seen.

    Raises
    ------
    UnknownPolicy, BadCalibration, ReduceError
        At once, where they are named.
    """
    return Settings(selection=resolve(policy, calibration), limits=limits, device=device)


Declined = list[tuple[str, str]]
"""Name and reason of every function that was declined."""
_current: ContextVar[tuple[Settings, Declined] | None] = ContextVar("tirx_reduce.settings", default=None)


def current() -> tuple[Settings, Declined]:
    """The settings of the innermost `use`, else the defaults; and the list of what is declined under them."""
    return _current.get() or (settings(), [])


@contextmanager
def using(how: Settings) -> Iterator[Declined]:
    """`use`, with settings that are checked already; gives the list of what is declined inside of it."""
    declined: Declined = []
    token = _current.set((how, declined))
    try:
        yield declined
    finally:
        _current.reset(token)


@contextmanager
def use(
    policy: Any = "analytic", calibration: Any = None, limits: DeviceLimits | None = None, device: Any = None
) -> Iterator[None]:
    """What the named pipelines plan with inside of it.

    Parameters
    ----------
    policy : str or policy
        A registered name, or an object with `reduction_cost` or `reduction_score`.
    calibration : path, mapping, loaded profile, or None
        None takes the packaged file.
    limits : DeviceLimits, optional
        Taken as they are.
    device : str or tvm.runtime.Device, optional
        Whose profile to look for.

    Raises
    ------
    UnknownPolicy, BadCalibration
        On entry, before anything is compiled.
    """
    with using(settings(policy, calibration, limits, device)):
        yield
