"""The opt-in policy: the published whole-launch objective with fitted coefficients; fails closed."""

from __future__ import annotations

from dataclasses import dataclass

from tirx_reduce.cost.calibration import MAKE_ONE, Bare, Coefficients, Profile
from tirx_reduce.errors import BadCalibration, Uncalibrated
from tirx_reduce.values import Candidate, CostEstimate, DeviceLimits, Features

BARE_FAMILIES = ("reload", "private")
BARE_UNIT = "us"


@dataclass(frozen=True, slots=True)
class Service:
    """`D + local·waves + programs·global·G + worker·W`, in the unit of its calibration.

    `local = scalar_rounds·R + reductions·subgroups·K + private·P`, and
    `waves = max(1, groups·subgroups·programs_a_group / capacity)`: a fitted prior, no integer residency.
    """

    calibration: Bare | Profile | None = None
    name: str = "service"

    def bind(self, calibration: Bare | Profile) -> Service:
        """The policy with a calibration."""
        return Service(calibration, self.name)

    def extrapolates(self, candidate: Candidate) -> bool:
        """Whether the width or the vector is none that the calibration was fitted on."""
        if not isinstance(self.calibration, Profile):
            return False
        return (
            candidate.width not in self.calibration.widths or candidate.vector not in self.calibration.vectors
        )

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        """Price a candidate of a family that was fitted.

        Raises
        ------
        BadCalibration
            No calibration is bound.
        Uncalibrated
            The calibration does not cover the candidate, or a payload fact is missing.
        """
        if self.calibration is None:
            raise BadCalibration(f"policy {self.name!r} has no calibration; make one with: {MAKE_ONE}")
        _check(self.calibration, candidate, features, limits)
        c = self.calibration.coefficients
        waves = launch_waves(c, candidate, features)
        local = local_work(c, features)
        score = (
            c.D
            + local * waves
            + features.programs * features.program_global_access_bytes * c.G
            + features.worker_global_access_bytes * c.W
        )
        unit = self.calibration.unit if isinstance(self.calibration, Profile) else BARE_UNIT
        return CostEstimate(local=local, launch=waves, kernel_score=score, unit=unit)


def launch_waves(c: Coefficients, candidate: Candidate, features: Features) -> float:
    """How many times the launch fills the device; packed tail subgroups count."""
    return max(1.0, features.threadgroups * features.subgroups_per_program * candidate.packing / c.capacity)


def local_work(c: Coefficients, features: Features) -> float:
    """Work of one program."""
    return (
        features.scalar_rounds * c.R
        + features.reductions * features.subgroups_per_program * c.K
        + features.worker_private_access_bytes * c.P
    )


def _check(
    calibration: Bare | Profile, candidate: Candidate, features: Features, limits: DeviceLimits
) -> None:
    families = calibration.families if isinstance(calibration, Profile) else BARE_FAMILIES
    if candidate.reuse not in families:
        raise Uncalibrated(f"{candidate.reuse} reuse; the calibration was fitted on {', '.join(families)}")
    if candidate.packing != 1:
        raise Uncalibrated(f"{candidate.packing} rows a group; the calibration was fitted on 1")
    if candidate.splits != 1:
        raise Uncalibrated(
            f"rows split over {candidate.splits} groups; the calibration was fitted on whole rows"
        )
    if candidate.unroll != 1:
        raise Uncalibrated(f"unroll {candidate.unroll}; the calibration was fitted on 1")
    if candidate != Candidate(width=candidate.width, vector=candidate.vector, reuse=candidate.reuse):
        raise Uncalibrated(f"{candidate}; the calibration was fitted on one group a row, one row a group")
    if candidate.width < limits.subgroup_size:
        raise Uncalibrated(f"width {candidate.width}; the calibration was fitted on whole subgroups")
    for name in ("program_global_access_bytes", "worker_global_access_bytes"):
        if getattr(features, name) <= 0:
            raise Uncalibrated(f"payload fact {name} is missing; service needs every one")
    if candidate.reuse == "private" and features.worker_private_access_bytes <= 0:
        raise Uncalibrated("payload fact worker_private_access_bytes is missing; service needs every one")
    if isinstance(calibration, Profile) and candidate.reuse == "private":
        kept = features.worker_private_access_bytes // (features.accumulation_bytes * (1 + features.passes))
        if kept > calibration.private_scalars:
            raise Uncalibrated(
                f"{kept} private scalars a lane; "
                f"the calibration was fitted under {calibration.private_scalars}"
            )
