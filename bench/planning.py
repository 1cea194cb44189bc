"""From parsed arguments to subjects, target, and plans: what `run`, `plan`, `explain` and `show` share."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from tirx_reduce.bench.subjects import Subject, read_subjects
from tirx_reduce.bench.targets import read_limits, read_target
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import DeviceLimits, GroupPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the arguments ask for; everything that could be refused has been."""

    subjects: tuple[Subject, ...]
    target: Any
    policy: str
    calibration: str | None
    limits: DeviceLimits | None
    device: str | None

    def plan(self, subject: Subject) -> GroupPlan:
        """The plan of one subject."""
        from tirx_reduce import schedules

        return schedules.plan(
            subject.func,
            self.target,
            policy=self.policy,
            calibration=self.calibration,
            limits=self.limits,
            device=self.device,
        )

    def coefficients(self, dtype: str) -> dict[str, float] | None:
        """The coefficients that the policy prices with, where it has a calibration."""
        import tvm

        from tirx_reduce.cost import bind
        from tirx_reduce.device import device_name

        policy: Any = bind(
            self.policy,
            self.calibration,
            target_kind=self.target.kind.name,
            device=device_name(self.device, self.target),
            dtype=dtype,
            tvm_version=str(tvm.__version__),
        )
        calibration = getattr(getattr(policy, "service", policy), "calibration", None)
        if calibration is None:
            return None
        found = calibration.coefficients
        return {name: float(getattr(found, name)) for name in ("D", "R", "K", "P", "G", "W", "capacity")}


def read_request(args: argparse.Namespace) -> Request:
    """Check every argument before anything is planned.

    Raises
    ------
    ReduceError
        Any of them is wrong; the text quotes it.
    """
    from tirx_reduce.cost import resolve

    resolve(args.policy, args.calibration)
    target = read_target(args.target)
    limits = read_limits(
        target,
        max_threads=args.max_threads,
        private_scalars=args.private_scalars,
        shared_bytes=args.shared_bytes,
    )
    return Request(
        subjects=read_subjects(args.subject, args.shape, args.dtype),
        target=target,
        policy=args.policy,
        calibration=args.calibration,
        limits=limits,
        device=args.device,
    )


def only(request: Request) -> Subject:
    """The one subject.

    Raises
    ------
    ReduceError
        The file holds several PrimFuncs.
    """
    if len(request.subjects) != 1:
        names = ", ".join(s.label for s in request.subjects)
        raise ReduceError(f"{len(request.subjects)} PrimFuncs ({names}); needs one, as FILE.py:NAME")
    return request.subjects[0]
