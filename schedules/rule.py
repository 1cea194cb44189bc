"""Our hooks into TVM's scheduling: a dlight rule and a module pass. They decline with a reason and never raise."""

from __future__ import annotations

import logging
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight as dl

from tirx_reduce import compat
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import DeviceLimits

from .planning import lower, plan_with
from .settings import Settings, settings

log = logging.getLogger("tirx_reduce")


def schedule(func: tirx.PrimFunc, target: tvm.target.Target, how: Settings) -> tirx.PrimFunc | str:
    """The scheduled function, or the reason why it is declined."""
    try:
        return lower(func, plan_with(func, target, how))
    except ReduceError as declined:
        return str(declined)
    except Exception as fault:
        return f"internal: {type(fault).__name__}: {fault}"


class RowReduction(dl.gpu.base.GPUScheduleRule):
    """A dlight rule for row reductions; place it before `dl.gpu.Reduction()`, which else takes rms_norm.

    Parameters
    ----------
    policy, calibration, limits, device
        See `tirx_reduce.plan`.

    Raises
    ------
    UnknownPolicy, BadCalibration
        In the constructor. `apply` never raises; the reasons of what it declined are in `declined`.
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
        self.declined: list[tuple[str, str]] = []
        """Name and reason of every function that was declined."""

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> s_tir.Schedule | None:
        """The schedule of a row reduction; None for everything else."""
        if not isinstance(func, tirx.PrimFunc) or target.kind.name not in ("metal", "cuda"):
            return None
        out = schedule(func, target, self._how)
        if isinstance(out, str):
            _decline(self.declined, name_of(func), out)
            return None
        return s_tir.Schedule(out)


def name_of(func: tirx.PrimFunc) -> str:
    """Its global symbol, `main` where it has none."""
    return str(func.attrs["global_symbol"]) if func.attrs and "global_symbol" in func.attrs else "main"


def _decline(declined: list[tuple[str, str]], name: str, reason: str) -> None:
    declined.append((name, reason))
    log.info("%s is left to TVM: %s", name, reason)


@tvm.transform.module_pass(opt_level=0, name="tirx_reduce.ScheduleReductions")
class ScheduleReductions:
    """An IRModule pass that schedules every row reduction and leaves the rest as it is.

    The target is the function's own, else `Target.current()`. The input module is not changed.

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
        self.declined: list[tuple[str, str]] = []

    def transform_module(self, mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """A new module."""
        return schedule_module(mod, self._how, self.declined)


def scheduling_pass(how: Settings) -> tvm.transform.Pass:
    """`ScheduleReductions` with settings that are checked already."""

    @tvm.transform.module_pass(opt_level=0, name="tirx_reduce.ScheduleReductions")
    def _pass(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        return schedule_module(mod, how, [])

    return _pass


def schedule_module(mod: tvm.IRModule, how: Settings, declined: list[tuple[str, str]]) -> tvm.IRModule:
    """`mod` with its row reductions scheduled, as a new module."""
    out = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    for var, func in mod.functions_items():
        target = _target(func)
        if target is None or is_scheduled(func):
            continue
        scheduled = schedule(func, target, how)
        if isinstance(scheduled, str):
            _decline(declined, str(var.name_hint), scheduled)
            continue
        out[var] = scheduled
    return out


def is_scheduled(func: tirx.PrimFunc) -> bool:
    """Whether somebody scheduled it already."""
    return bool(func.attrs and func.attrs.get("tirx.is_scheduled"))


def _target(func: Any) -> tvm.target.Target | None:
    """The GPU target that a PrimFunc is for; None for host functions and anything else."""
    if not isinstance(func, tirx.PrimFunc):
        return None
    own = func.attrs.get("target") if func.attrs else None
    target = own if own is not None else tvm.target.Target.current(allow_none=True)
    return target if target is not None and target.kind.name in ("metal", "cuda") else None


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
