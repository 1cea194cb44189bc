"""From a PrimFunc to a plan, and from a plan to the scheduled PrimFunc."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tirx_reduce import facts as reader
from tirx_reduce.candidates import Scope, enumerate_candidates, refusal, widest_vector
from tirx_reduce.cost import Policy, decide, features
from tirx_reduce.cost.policy import named
from tirx_reduce.describe import digest
from tirx_reduce.device import device_name, limits_for
from tirx_reduce.errors import ReduceError, Unsupported, check_type
from tirx_reduce.facts_count import count
from tirx_reduce.facts_keep import Walks
from tirx_reduce.program import Const
from tirx_reduce.values import (
    Candidate,
    CostEstimate,
    DeviceLimits,
    FamilyCounts,
    GroupPlan,
    Interval,
    RowFacts,
)

from . import by_rows
from .settings import Settings, settings
from .state import short_launch
from .tir import function

BFLOAT16 = 80
"""The first CUDA architecture that has bfloat16."""
# Row counts at which a symbolic launch is planned; between two that agree there is one mapping.
ROW_COUNTS = tuple(4**k for k in range(11))
# Columns assumed where they are symbolic: the hidden size that most language models of this size class have.
ASSUMED_COLUMNS = 4096


def as_target(target: Any) -> tvm.target.Target:
    """A TVM target from a name, a mapping, or itself; `cuda` means sm_90 where no GPU answers.

    Raises
    ------
    ReduceError
        TVM knows no such target.
    """
    if isinstance(target, tvm.target.Target):
        return target
    if target == "cuda" and not tvm.cuda(0).exist:
        target = {"kind": "cuda", "arch": "sm_90"}
    try:
        return tvm.target.Target(target)
    except (ValueError, TypeError, RuntimeError, tvm.error.InternalError) as error:
        text = str(error).strip().splitlines()[-1]
        raise ReduceError(
            f"target {target!r}: {text}; needs one that TVM knows, such as 'metal' or 'cuda'"
        ) from error


def plan(
    func: tirx.PrimFunc,
    target: Any,
    policy: Any = "analytic",
    calibration: Any = None,
    limits: DeviceLimits | None = None,
    device: Any = None,
) -> GroupPlan:
    """The mapping of a row reduction that a policy prices lowest, with all that lost.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        A chain of maps and reductions over the columns of every row.
    target : str, mapping or tvm.target.Target
        Metal or CUDA.
    policy : str or policy
        A registered name, or an object with `reduction_cost` or `reduction_score`.
    calibration : path, mapping, loaded profile, or None
        For policies that need coefficients; None takes the packaged file.
    limits : DeviceLimits, optional
        In place of those of the target.
    device : str or tvm.runtime.Device, optional
        Whose calibration to take; None asks device 0 of the target.

    Returns
    -------
    GroupPlan
        Frozen, JSON-able; `lower` makes the kernel of it.

    Raises
    ------
    Unsupported
        The function is no row reduction, or no candidate is legal.
    UnknownPolicy, BadCalibration, BadEstimate, ReduceError
        What was named does not exist, does not fit, or priced badly.
    """
    return plan_with(func, as_target(target), settings(policy, calibration, limits, device))


def plan_with(func: tirx.PrimFunc, target: tvm.target.Target, how: Settings) -> GroupPlan:
    """`plan` with settings that are checked already; the same question is answered from a memo."""
    key = (
        tvm_ffi.structural_hash(func),
        str(target),
        how.limits,
        how.device,
        how.selection.name,
        id(how.selection.policy),
    )
    for known, selection, found in _memo.get(key, ()):
        if selection == how.selection and tvm_ffi.structural_equal(known, func):
            return found
    found = _plan(reader.read(func), target, how)
    if len(_memo) >= _MEMO_ENTRIES:
        _memo.clear()
    _memo.setdefault(key, []).append((func, how.selection, found))
    return found


# Plans are pure functions of what the key holds; the memo may be dropped at any time.
_memo: dict[Any, list[tuple[Any, Any, GroupPlan]]] = {}
_MEMO_ENTRIES = 4096


def _plan(reading: Any, target: tvm.target.Target, how: Settings) -> GroupPlan:
    facts: RowFacts = reading.facts
    device = how.device if isinstance(how.device, tvm.runtime.Device) else None
    hard = limits_for(target, device, how.limits)
    policy = how.selection.bind(
        target_kind=hard.kind,
        device=device_name(how.device, target) if how.selection.calibration is not None else None,
        dtype=storage_dtype(facts),
        tvm_version=str(tvm.__version__),
    )
    if facts.columns == 0:
        raise Unsupported("a row of 0 columns; needs 1 or more")
    _check_dtypes(facts, target)
    counts = capture(reading, hard)
    if facts.rows is not None:
        return _decide(reading, policy, counts, hard, max(1, facts.rows))
    return _by_rows(reading, policy, counts, hard)


def _check_dtypes(facts: RowFacts, target: tvm.target.Target) -> None:
    """TVM turns bfloat16 into float32 arithmetic on 16-bit words for GPUs without it, and loses our tensors there."""
    arch = re.search(r"sm_(\d+)", str(target.attrs.get("arch", "")))
    if target.kind.name != "cuda" or arch is None or int(arch[1]) >= BFLOAT16:
        return
    if any(tensor.dtype == "bfloat16" for tensor in facts.program.tensors):
        raise Unsupported(f"dtype: bfloat16 on cuda {arch[0]}; needs sm_{BFLOAT16} or later")


def storage_dtype(facts: RowFacts) -> str:
    """The dtype that calibrations are made for: that of the first matrix that is read."""
    for tensor in facts.program.tensors:
        if tensor.role == "in" and len(tensor.shape) >= 1:
            return tensor.dtype
    return facts.storage[0] if facts.storage else "float32"


def capture(reading: Any, limits: DeviceLimits) -> dict[str, FamilyCounts]:
    """Lower each reuse family in its plain form, count it, and throw it away."""
    facts: RowFacts = reading.facts
    counts = {"reload": _count(reading, limits, "reload")}
    if facts.kept and facts.columns is not None:
        counts["private"] = _count(reading, limits, "private")
        # Threadgroup memory holds the same values of the same walks.
        counts |= {reuse: replace(counts["private"], reuse=reuse) for reuse in ("shared", "mixed")}
    return counts


def _count(reading: Any, limits: DeviceLimits, reuse: str) -> FamilyCounts:
    """Counts of one family; they do not depend on the width, nor on whether that width is legal."""
    width = limits.max_threads // limits.subgroup_size * limits.subgroup_size or limits.max_threads
    vector = widest_vector(reading.facts, limits)
    candidate = Candidate(width=width, vector=vector, reuse=reuse)
    return count(_lowered(reading, candidate, limits, plain=True), reuse)


def _decide(
    reading: Any, policy: Policy, counts: dict[str, FamilyCounts], limits: DeviceLimits, rows: int
) -> GroupPlan:
    facts: RowFacts = reading.facts
    columns = facts.columns if facts.columns is not None else ASSUMED_COLUMNS
    scope = _scope(policy)
    candidates = enumerate_candidates(facts, limits, rows=rows, columns=columns, scope=scope)
    # The incumbent is the default policy's choice, whatever the asked one looks at.
    default = enumerate_candidates(facts, limits, rows=rows, columns=columns) if scope is not None else None
    choice = decide(policy, candidates, counts, rows=rows, columns=columns, limits=limits, default=default)
    return GroupPlan(
        candidate=choice.winner,
        estimate=choice.estimate,
        policy=policy.name,
        features=replace(choice.features, incumbent=None),
        limits=limits,
        rejected=choice.losers,
        incumbent=choice.incumbent[0] if choice.incumbent is not None else None,
        extrapolated=choice.extrapolated,
        subject=subject(facts),
    )


def _scope(policy: Policy) -> Scope | None:
    """The policy's own scope, where it has one."""
    scope: Scope | None = getattr(policy, "scope", None)
    if scope is None:
        return None

    def own(
        facts: RowFacts, limits: DeviceLimits, rows: int | None, columns: int | None
    ) -> tuple[Candidate, ...]:
        # Drained in here, since a scope may be a generator.
        with named(policy, "scope"):
            return tuple(scope(facts, limits, rows, columns))

    return own


def subject(facts: RowFacts) -> str:
    """SHA-256 of the row program, the same in every process."""
    return digest(facts.program)


def _by_rows(
    reading: Any, policy: Policy, counts: dict[str, FamilyCounts], limits: DeviceLimits
) -> GroupPlan:
    """One plan for each interval of row counts at whose ends the policy agrees."""
    fixed = prod(int(e.value) for e in reading.facts.program.rows if isinstance(e, Const))
    plans = [_decide(reading, policy, counts, limits, max(fixed, rows)) for rows in ROW_COUNTS]
    variants: list[tuple[Interval, GroupPlan]] = []
    low = 1
    for here, after, rows in zip(plans, [*plans[1:], None], ROW_COUNTS, strict=True):
        if after is not None and _alike(here, after, reading.facts):
            continue
        variants.append(((low, rows if after is not None else None), here))
        low = rows + 1
    # The largest launches come first: where only one plan is asked for, it is theirs.
    return plans[-1] if len(variants) == 1 else replace(plans[-1], variants=tuple(variants))


def _alike(here: GroupPlan, after: GroupPlan, facts: RowFacts) -> bool:
    """Whether one kernel serves the row counts of both: a short launch loads weights sooner."""
    if here.candidate != after.candidate:
        return False
    short = [short_launch(plan.candidate, plan.features.rows) for plan in (here, after)]
    return short[0] == short[1] or here.candidate.reuse == "reload" or not _weights(facts)


def _weights(facts: RowFacts) -> bool:
    """Whether a row reads what every row reads."""
    walks = Walks(facts.program)
    return any(walks.is_vector(load) for roots in walks.roots for e in roots for load in walks.loads(e))


def force(
    func: tirx.PrimFunc, candidate: Candidate, target: Any, limits: DeviceLimits | None = None
) -> GroupPlan:
    """A plan for a named candidate, as searches and tests need it; no policy is asked.

    Raises
    ------
    Unsupported
        The candidate is illegal for the function on the device; the text is the reason.
    ReduceError
        It is no Candidate.
    """
    check_type("candidate", candidate, Candidate, "a Candidate, such as tr.Candidate(width=256)")
    reading = reader.read(func)
    facts: RowFacts = reading.facts
    hard = limits_for(as_target(target), None, limits)
    columns = facts.columns if facts.columns is not None else ASSUMED_COLUMNS
    why = refusal(candidate, facts, hard, columns=facts.columns)
    if why is not None:
        raise Unsupported(why)
    _check_dtypes(facts, as_target(target))
    counts = capture(reading, hard)
    if candidate.reuse not in counts:
        raise Unsupported(f"{candidate.reuse}: no candidate of that family is legal here")
    rows = max(1, facts.rows if facts.rows is not None else ROW_COUNTS[-1])
    demand = features(candidate, counts[candidate.reuse], rows, columns, hard)
    return GroupPlan(
        candidate=candidate,
        # Named, not priced: the estimate says so by its unit.
        estimate=CostEstimate(local=1.0, launch=1.0, kernel_score=1.0, unit="forced"),
        policy="forced",
        features=demand,
        limits=hard,
        subject=subject(facts),
    )


def lower(func: tirx.PrimFunc, plan: GroupPlan) -> tirx.PrimFunc:
    """The kernel of a plan: the same parameters, the same results, marked `tirx.is_scheduled`.

    Raises
    ------
    Unsupported
        The function is no row reduction.
    ReduceError
        The plan was made for another function, or is none.
    """
    check_type("plan", plan, GroupPlan, "a GroupPlan, as tr.plan gives it")
    reading = reader.read(func)
    _check_subject(plan, reading.facts)
    return _finish(func, by_rows.body(reading, plan), plan)


def _check_subject(plan: GroupPlan, facts: RowFacts) -> None:
    found = subject(facts)
    if plan.subject in ("", found):
        return
    rows, columns = facts.rows or "symbolic", facts.columns or "symbolic"
    raise ReduceError(
        f"the plan is for {plan.features.rows} rows of {plan.features.columns} columns ({plan.subject[:12]}), "
        f"the function has {rows} rows of {columns} ({found[:12]}); needs its own plan"
    )


def _lowered(reading: Any, candidate: Candidate, limits: DeviceLimits, plain: bool) -> tirx.PrimFunc:
    return function(list(reading.params), by_rows.kernel(reading, candidate, limits, plain=plain), {})


def _finish(func: tirx.PrimFunc, body: Any, plan: GroupPlan) -> tirx.PrimFunc:
    attrs = dict(func.attrs) if func.attrs else {}
    attrs["tirx.is_scheduled"] = True
    attrs["tirx.noalias"] = True
    attrs[MAPPING] = describe(plan.candidate) if not plan.variants else "by row count"
    attrs[KIND] = plan.target_kind
    return function(list(func.params), body, attrs)


MAPPING = "tirx_reduce.mapping"
"""Attribute of the functions that we emit: the mapping in words. Our pipeline knows them by it."""
KIND = "tirx_reduce.kind"
"""Attribute of the functions that we emit: the target kind, for which alone they can be built."""


def describe(candidate: Candidate) -> str:
    """A mapping in words."""
    return (
        f"W={candidate.width} P={candidate.packing} V={candidate.vector} U={candidate.unroll} "
        f"S={candidate.splits} {candidate.reuse}"
        + (f" resident={candidate.resident}" if candidate.resident else "")
        + (f" rows={candidate.rows}" if candidate.rows > 1 else "")
        + (" merged" if candidate.merged else "")
    )
