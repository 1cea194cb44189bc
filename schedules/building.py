"""Our named pipelines, and `compile`, which uses them: what we emit keeps every barrier and array that it has."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import tvm
from tvm import ir, relax, s_tir, tirx
from tvm.tirx import compilation_pipeline

from tirx_reduce import compat
from tirx_reduce.device import limits_for
from tirx_reduce.errors import ReduceError, Unsupported, check_type
from tirx_reduce.values import DeviceLimits

from .addresses import check_addresses
from .planning import KIND, MAPPING, as_target, lower, plan_with
from .rule import gpu_function, is_scheduled, name_of, scheduling_pass, stock_rules, target_of
from .settings import Settings, current, settings, using

NAME = "tirx_reduce"
log = logging.getLogger(NAME)


def _own_passes() -> tvm.transform.Pass:
    """TVM's lowering without storage rewriting and thread synchronisation: both add barriers to ours."""
    t, s = tirx.transform, s_tir.transform
    return tvm.transform.Sequential(
        [
            s.LowerInitBlock(),
            s.ConvertBlocksToOpaque(),
            s.UnifyThreadBinding(),
            t.StmtSimplify(),
            s.LowerOpaqueBlock(),
            t.FlattenBuffer(),
            t.BF16ComputeLegalize(),
            t.NarrowDataType(32),
            t.VectorizeLoop(True),
            t.UnrollLoop(),
            t.StmtSimplify(),
            t.RemoveNoOp(),
            t.FP8ComputeLegalize(),
            t.VerifyMemory(),
            t.AnnotateEntryFunc(),
            t.SplitHostDevice(),
            t.MakePackedAPI(),
            check_addresses,
            t.FP8StorageLegalize(),
            t.BF16StorageLegalize(),
        ]
    )


def _split(mod: tvm.IRModule, ours: Callable[[Any], bool]) -> tuple[tvm.IRModule, tvm.IRModule]:
    mine = {g: f for g, f in mod.functions_items() if ours(f)}
    rest = {g: f for g, f in mod.functions_items() if not ours(f)}
    return tvm.IRModule(mine, attrs=mod.attrs), tvm.IRModule(rest, attrs=mod.attrs)


def _emitted(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc) and func.attrs is not None and MAPPING in func.attrs


BEGIN = "tirx_reduce_begin"
"""Name of the call by which a kernel waits for the launch before it."""
_LAUNCH = "tirx.kernel_launch_params"
_DEPENDENT = "tirx.use_programtic_dependent_launch"
"""TVM's own spelling."""


def _dependent(mod: tvm.IRModule) -> tvm.IRModule:
    """Kernels that wait for the launch before (`cluster.begin`) are launched so that they may start early."""
    out = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    for var, func in mod.functions_items():
        tags = [str(t) for t in func.attrs.get(_LAUNCH, ())] if func.attrs else []
        if not tags or not compat.holds(func.body, compat.Call, _begins_early):
            continue
        # The size of dynamic shared memory must come last.
        tags.insert(len(tags) - (tags[-1] == "tirx.use_dyn_shared_memory"), _DEPENDENT)
        out[var] = func.with_attr(_LAUNCH, tags)
    return out


def _begins_early(call: Any) -> bool:
    name = call.args[0] if len(call.args) else None
    return isinstance(name, ir.StringImm) and str(name.value) == BEGIN


def tir_pipeline() -> tuple[tvm.transform.Pass, Callable[[], Any], Callable[[], Any]]:
    """The TIR pipeline `tirx_reduce`: schedule what is a row reduction, give the rest to TVM, lower each its way."""
    stock, host, device = compilation_pipeline.get_tir_pipeline("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="tirx_reduce.tir_pipeline")
    def _pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        mod = schedule_all(mod)
        mine, rest = _split(mod, _emitted)
        out = tvm.IRModule({}, attrs=mod.attrs)
        if len(mine.functions):
            out.update(_dependent(_own_passes()(mine)))
        if len(rest.functions):
            out.update(stock(rest))
        return out

    return _pipeline, host, device


def schedule_all(mod: tvm.IRModule) -> tvm.IRModule:
    """Ours first, then TVM's own default rules for GPU functions that are still without threads."""
    mod = scheduling_pass(*current())(mod)
    for var, func in mod.functions_items():
        if not gpu_function(func):
            continue
        with func.attrs["target"]:
            single = tvm.IRModule({var: func})
            mod[var] = stock_rules()(single)[var]
    return mod


def _dataflow_lower_passes(target: tvm.target.Target) -> list[tvm.transform.Pass]:
    if target.kind.name != "cuda":
        return list(relax.pipeline.dataflow_lower_passes(target))
    # TVM 0.27 looks for it in a package that does not export it.
    from tvm.relax.backend.cuda import pipeline

    return list(pipeline.dataflow_lower_passes(target))


def relax_pipeline() -> tvm.transform.Pass:
    """The Relax pipeline `tirx_reduce`: TVM's default for the target, our pass before its scheduling.

    For targets other than Metal and CUDA it is TVM's default and nothing else.
    """

    @tvm.transform.module_pass(opt_level=0, name="tirx_reduce.relax_pipeline")
    def _pipeline(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current(allow_none=False)
        if target.kind.name not in ("metal", "cuda"):
            # Nothing there is ours; and TVM 0.27 does not export the single lists of every back end.
            return relax.get_default_pipeline(target)(mod)
        passes = [
            *relax.pipeline.library_dispatch_passes(target),
            *relax.pipeline.legalize_passes(target),
            *_dataflow_lower_passes(target),
            *relax.pipeline.finalize_passes(target),
        ]
        for number, each in enumerate(passes):
            if isinstance(each, tvm.transform.Pass) and each.info.name == "ApplyDefaultSchedule":
                passes.insert(number, scheduling_pass(*current()))
                break
        return tvm.transform.Sequential(passes)(mod)

    return _pipeline


def register() -> None:
    """Make the pipelines known to TVM by name; again does nothing."""
    if NAME not in compilation_pipeline.PIPELINE_MAP:
        compilation_pipeline.register_tir_pipeline(NAME, tir_pipeline)
    if NAME not in relax.pipeline.PIPELINE_MAP:
        relax.register_pipeline(NAME)(relax_pipeline)


def build(mod: Any, target: Any) -> tvm.runtime.Executable:
    """Build functions that are scheduled already, ours through our own passes.

    Raises
    ------
    ReduceError
        `mod` is no PrimFunc and no IRModule, or holds a function that was lowered for another target kind.
    """
    register()
    target = as_target(target)
    return tvm.compile(_module(mod, target), target, tir_pipeline=NAME)


def _module(mod: Any, target: tvm.target.Target) -> tvm.IRModule:
    """`mod`, a PrimFunc as a module of its own, where all that is lowered in it is for `target`."""
    if isinstance(mod, tirx.PrimFunc):
        name = name_of(mod)
        mod = tvm.IRModule({name: mod.with_attr("global_symbol", name)})
    check_type("mod", mod, tvm.IRModule, "a PrimFunc or an IRModule")
    for var, func in mod.functions_items():
        kind = func.attrs.get(KIND) if func.attrs else None
        wanted = target_of(func, target).kind.name
        if kind is not None and kind != wanted:
            raise ReduceError(
                f"{var.name_hint} was lowered for {kind}, the target is {wanted}; "
                f"needs target {kind}, or the function lowered with a plan for {wanted}"
            )
    return mod


def compile(
    mod: Any,
    target: Any,
    policy: Any = "analytic",
    calibration: Any = None,
    limits: DeviceLimits | None = None,
    device: Any = None,
    fallback: bool = True,
) -> tvm.runtime.Executable:
    """Plan, lower and build every row reduction of a module; the rest goes to TVM.

    What is no row reduction is declined and built by TVM's own rules. So is a function in whose planning
    something went wrong, such as an error in the policy: a warning of the logger `tirx_reduce` names it.
    Where TVM fails on what was declined, notes on its exception say so, with name and reason.

    Parameters
    ----------
    mod : PrimFunc or IRModule
        Relax modules included.
    target : str, mapping or tvm.target.Target
        Metal or CUDA.
    policy, calibration, limits, device
        See `plan`.
    fallback : bool
        False raises for the first PrimFunc that is declined.

    Raises
    ------
    Unsupported
        Without `fallback`, for a function that is no row reduction.
    UnknownPolicy, BadCalibration, ReduceError
        What was named does not exist or does not fit.
    """
    target = as_target(target)
    how = settings(policy, calibration, limits, device)
    # A target or device that does not fit is the caller's mistake, not one function's.
    limits_for(target, None, limits)
    register()
    mod = _module(mod, target)
    pipelines = {"tir_pipeline": NAME}
    if _is_relax(mod):
        pipelines["relax_pipeline"] = NAME
    if not fallback:
        mod = _all_lowered(mod, target, how)
    with using(how) as declined:
        try:
            return tvm.compile(mod, target, **pipelines)
        except Exception as error:
            for name, reason in dict.fromkeys(declined):
                error.add_note(f"tirx-reduce had declined {name}: {reason}")
            raise


def _all_lowered(mod: tvm.IRModule, target: tvm.target.Target, how: Settings) -> tvm.IRModule:
    """`mod` with every PrimFunc that nobody has scheduled lowered; none may be declined."""
    if _is_relax(mod):
        raise Unsupported(
            "fallback=False with a Relax module; needs PrimFuncs, since a whole model holds other operators"
        )
    return tvm.IRModule(
        {
            g: lower(f, plan_with(f, target_of(f, target), how)) if _schedulable(f) else f
            for g, f in mod.functions_items()
        },
        attrs=mod.attrs,
    )


def _is_relax(mod: tvm.IRModule) -> bool:
    return any(isinstance(f, relax.Function) for _, f in mod.functions_items())


def _schedulable(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc) and not is_scheduled(func)
