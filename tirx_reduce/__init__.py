"""Plans a row reduction as a whole launch and emits it for Metal and CUDA.

Names resolve on first use, so that importing this package imports neither TVM nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import emulator as emulator
    from .cost import get_policy as get_policy
    from .cost import policies as policies
    from .cost import register_policy as register_policy
    from .emulator import Emulation as Emulation
    from .emulator import emulate as emulate
    from .errors import BadCalibration as BadCalibration
    from .errors import BadEstimate as BadEstimate
    from .errors import DuplicatePolicy as DuplicatePolicy
    from .errors import ReduceError as ReduceError
    from .errors import UnknownPolicy as UnknownPolicy
    from .errors import Unsupported as Unsupported
    from .facts import analyze as analyze
    from .schedules import RowReduction as RowReduction
    from .schedules import ScheduleReductions as ScheduleReductions
    from .schedules import compile as compile
    from .schedules import lower as lower
    from .schedules import plan as plan
    from .schedules import register as register
    from .schedules import use as use
    from .values import Candidate as Candidate
    from .values import CostEstimate as CostEstimate
    from .values import DeviceLimits as DeviceLimits
    from .values import Features as Features
    from .values import GroupPlan as GroupPlan
    from .values import RowFacts as RowFacts

__version__ = "0.1.0"

# No module of the package carries one of these names: importing it would put the module in the name's place.
_HOMES = {
    "cost": ("get_policy", "policies", "register_policy"),
    "emulator": ("Emulation", "emulate"),
    "errors": (
        "BadCalibration",
        "BadEstimate",
        "DuplicatePolicy",
        "ReduceError",
        "UnknownPolicy",
        "Unsupported",
    ),
    "facts": ("analyze",),
    "schedules": ("RowReduction", "ScheduleReductions", "compile", "lower", "plan", "register", "use"),
    "values": ("Candidate", "CostEstimate", "DeviceLimits", "Features", "GroupPlan", "RowFacts"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ROOMS = ("bench", "cost", "emulator", "schedules")

__all__ = sorted([*_HOME_OF, "emulator"])


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
