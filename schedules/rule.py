"""Our hooks into TVM's scheduling: a dlight rule and a module pass. They decline with a reason and never raise.

What is no row reduction is told to the logger `tirx_reduce` at INFO, what went wrong at WARNING.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight as dl

from tirx_reduce import compat
from tirx_reduce.errors import ReduceError, Unsupported
from tirx_reduce.values import DeviceLimits

from .planning import lower, plan_with
from .settings import Declined, Settings, settings

log = logging.getLogger("tirx_reduce")
NO_TARGET = "no target; needs tvm.target.Target(...) around the pass or on the function"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a function is left to TVM."""

    reason: str
    fault: bool
    """Something went wrong in us, the policy or its calibration; the function may well be a row reduction."""


def schedule(func: tirx.PrimFunc, target: tvm.target.Target, how: Settings) -> tirx.PrimFunc | Refusal:
    """The scheduled function, or why it is left to TVM."""
    try:
        return lower(func, plan_with(func, target, how))
    except Unsupported as declined:
        return Refusal(str(declined), fault=False)
    except ReduceError as mistake:
        return Refusal(str(mistake), fault=True)
    except Exception as fault:
        return Refusal(f"internal: {type(fault).__name__}: {fault}", fault=True)


class RowReduction(dl.gpu.base.GPUScheduleRule):
    """A dlight rule for row reductions; place it before `dl.gpu.Reduction()`, which else takes rms_norm.

    Parameters
    ----------
    policy, calibration, limits, device
        See `tirx_reduce.plan`.

    Raises
    ------
    UnknownPolicy, BadCalibration
        In the constructor. `apply` never raises; the reasons of what it declined are in `declined`, and
        what went wrong in planning is logged as a warning.
    """

    def __init__(
        self,
        policy: Any = "analytic",
        calibration: Any = None,
        limits: DeviceLimits | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self._how = settings(policy, calibration, limits, device)
        self.declined: Declined = []
        """Name and reason of every function that was declined."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> s_tir.Schedule | None:
        """The schedule of a row reduction; None for everything else."""
        if not isinstance(func, tirx.PrimFunc) or target.kind.name not in ("metal", "cuda"):
            return None
        out = schedule(func, target, self._how)
        if isinstance(out, Refusal):
            _decline(self.declined, name_of(func), out, self._how)
            return None
        return s_tir.Schedule(out)


def name_of(func: tirx.PrimFunc) -> str:
    """Its global symbol, `main` where it has none."""
    return str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else "main"


def _decline(declined: Declined, name: str, why: Refusal, how: Settings) -> None:
    declined.append((name, why.reason))
    if why.fault:
        log.warning(
            "%s is left to TVM, since planning by policy %r failed: %s", name, how.selection.name, why.reason
        )
        return
    log.info("%s is left to TVM: %s", name, why.reason)


@tvm.transform.module_pass(opt_level=0, name="tirx_reduce.ScheduleReductions")
class ScheduleReductions:
    """An IRModule pass that schedules every row reduction and leaves the rest as it is.

    The target is the function's own, else `Target.current()`. The input module is not changed. Names and
    reasons of what is declined are in `declined`; what went wrong in planning, or has no target, is logged
    as a warning.

    Parameters
    ----------
    policy, calibration, limits, device
        See `tirx_reduce.plan`.

    Raises
    ------
    UnknownPolicy, BadCalibration
        In the constructor.
    """

    def __init__(
        self,
        policy: Any = "analytic",
        calibration: Any = None,
        limits: DeviceLimits | None = None,
        device: Any = None,
    ) -> None:
        self._how = settings(policy, calibration, limits, device)
        self.declined: Declined = []

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """A new module."""
        return schedule_module(mod, self._how, self.declined)


def scheduling_pass(how: Settings, declined: Declined) -> tvm.transform.Pass:
    """`ScheduleReductions` with settings that are checked already; it adds to `declined`."""

    @tvm.transform.module_pass(opt_level=0, name="tirx_reduce.ScheduleReductions")
    def _pass(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return schedule_module(mod, how, declined)

    return _pass


def schedule_module(mod: tvm.IRModule, how: Settings, declined: Declined) -> tvm.IRModule:
    """`mod` with its row reductions scheduled, as a new module."""
    out = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    around = tvm.target.Target.current(allow_none=True)
    for var, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc) or is_scheduled(func):
            continue
        target = target_of(func, around)
        if target is None:
            _without_target(declined, str(var.name_hint))
            continue
        if target.kind.name not in ("metal", "cuda"):
            continue
        scheduled = schedule(func, target, how)
        if isinstance(scheduled, Refusal):
            _decline(declined, str(var.name_hint), scheduled, how)
            continue
        out[var] = scheduled
    return out


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Whether somebody scheduled it already."""
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled"))


def _without_target(declined: Declined, name: str) -> None:
    declined.append((name, NO_TARGET))
    # Nothing went wrong in planning, and yet whoever asked for the pass expects kernels of it.
    log.warning("%s is left as it is: %s", name, NO_TARGET)


def target_of(func: Any, otherwise: Any) -> Any:
    """What a function is built for: its own target, where it carries one."""
    own = func.attrs.get("target") if func.attrs else None
    return otherwise if own is None else own


def gpu_function(func: Any) -> bool:
    """A PrimFunc with a GPU target of its own that nobody has scheduled."""
    if (
        not isinstance(func, tirx.PrimFunc)
        or is_scheduled(func)
        or not func.attrs
        or "target" not in func.attrs
    ):
        return False
    return "gpu" in func.attrs["target"].keys and not _has_threads(func)


def _has_threads(func: tirx.PrimFunc) -> bool:
    return compat.holds(func.body, (tirx.AttrStmt, tirx.For), _binds_threads)


def _binds_threads(stmt: Any) -> bool:
    if isinstance(stmt, tirx.For):
        return stmt.thread_binding is not None
    return str(stmt.attr_key) == "thread_extent"


def stock_rules() -> tvm.transform.Pass:
    """TVM's own default rules, for what is declined. `dl.gpu.RMSNorm` is left out: it raises on Relax's rms_norm."""
    return dl.ApplyDefaultSchedule(
        dl.gpu.Matmul(), dl.gpu.GEMV(), dl.gpu.Reduction(), dl.gpu.GeneralReduction(), dl.gpu.Fallback()
    )
