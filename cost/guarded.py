"""The service choice where its predicted gain exceeds the calibration's own error; else the incumbent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tirx_reduce.cost.calibration import Bare, Profile
from tirx_reduce.cost.service import Service
from tirx_reduce.errors import BadCalibration, Uncalibrated
from tirx_reduce.values import Candidate, CostEstimate, DeviceLimits, Features


@dataclass(frozen=True, slots=True)
class Guarded:
    """Service prices with a margin on everything but the incumbent.

    A candidate of price s beats the incumbent of price t if and only if t / s − 1 > error, the largest
    leave-one-shape-out regret of the profile: so its own price is s · (1 + error).
    """

    service: Service = field(default_factory=Service)
    name: str = "guarded"

    def bind(self, calibration: Bare | Profile) -> Guarded:
        """The policy with a profile.

        Raises
        ------
        BadCalibration
            The calibration is a bare mapping, which knows of no error.
        """
        if not isinstance(calibration, Profile):
            raise BadCalibration(
                "guarded with a bare mapping; needs a profile with its leave-one-shape-out error"
            )
        return Guarded(self.service.bind(calibration), self.name)

    def extrapolates(self, candidate: Candidate) -> bool:
        """As service."""
        return self.service.extrapolates(candidate)

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        """Price with the margin.

        Raises
        ------
        Uncalibrated
            No incumbent came with the features, or the calibration does not cover the candidate.
        """
        estimate = self.service.reduction_cost(candidate, features, limits)
        if features.incumbent is None:
            raise Uncalibrated("guarded without an incumbent; needs the features to carry one")
        if candidate == features.incumbent[0]:
            return estimate
        # Up by one step of the float, so that an exact tie stays with the incumbent.
        score = math.nextafter(estimate.kernel_score * (1.0 + self.error), math.inf)
        return replace(estimate, kernel_score=score)

    @property
    def error(self) -> float:
        """The gain that a prediction must exceed (0.05 is 5 %)."""
        calibration = self.service.calibration
        return calibration.max_regret if isinstance(calibration, Profile) else 0.0
