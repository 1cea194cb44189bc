"""Plans and builds of the grid: every policy at every line; one build for identical mappings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Built, Case, Job, Progress, build_all, quiet
from tirx_reduce.bench.records import digest
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import GroupPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one policy said to one case."""

    case: Case
    policy: str
    plan: GroupPlan | None = None
    reason: str = ""
    """Why there is no plan."""

    @property
    def key(self) -> str:
        """The same for plans of the same kernel, whoever chose it and at whatever price."""
        if self.plan is None:
            return ""
        mapping = [asdict(self.plan.candidate), asdict(self.plan.limits)]
        return "grid-" + digest([self.case.to_json(), mapping])[:16]

    def to_json(self) -> dict[str, Any]:
        """What a record keeps of it."""
        if self.plan is None:
            return {"status": "declined", "reason": self.reason}
        return {
            "status": "planned",
            "candidate": asdict(self.plan.candidate),
            "plan_key": self.plan.key,
            "build_key": self.key,
        }


def plan_case(
    case: Case, policies: Sequence[str], target: Any, *, calibration: str | None, device: Any = None
) -> dict[str, Planned]:
    """The plan of every policy; a policy that declines is in the result with its reason."""
    from tirx_reduce import schedules

    found = {}
    for policy in policies:
        # Policies without coefficients refuse a calibration.
        given = calibration if policy in ("service", "guarded") else None
        try:
            func = get_workload(case.operator).func(case.shape, case.dtype)
            plan = schedules.plan(func, target, policy=policy, calibration=given, device=device)
            found[policy] = Planned(case=case, policy=policy, plan=plan)
        except ReduceError as error:
            found[policy] = Planned(case=case, policy=policy, reason=" ".join(str(error).split()))
        except Exception as error:  # one policy's fault is no reason to lose the grid
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            found[policy] = Planned(case=case, policy=policy, reason=reason)
    return found


def aliases(planned: dict[str, Planned]) -> dict[str, str]:
    """Each planned policy to the first that chose the same kernel (itself, where none did before)."""
    first: dict[str, str] = {}
    found = {}
    for policy, one in planned.items():
        if one.plan is not None:
            found[policy] = first.setdefault(one.key, policy)
    return found


def build_planned(
    planned: Sequence[Planned],
    target_json: str,
    folder: Path,
    *,
    stand_in: bool,
    workers: int,
    progress: Progress = quiet,
) -> dict[str, Built]:
    """Build every kernel once, in parallel; by `Planned.key`."""
    jobs: dict[str, Job] = {}
    for one in planned:
        if one.plan is not None:
            jobs[one.key] = Job(
                key=one.key,
                case=one.case,
                plan=one.plan.to_json(),
                target=target_json,
                folder=str(folder),
                stand_in=stand_in,
            )
    built: dict[str, Built] = {}
    for done in build_all(jobs.values(), workers=workers):
        built[done.key] = done
        progress(len(built), len(jobs), done.key)
    return built
