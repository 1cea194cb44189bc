"""The default policy, and the incumbent of every comparison: reload only, no calibration."""

from __future__ import annotations

from dataclasses import dataclass

from tirx_reduce.cost.policy import ROUNDS, older_prior
from tirx_reduce.values import Candidate, CostEstimate, DeviceLimits, Features

ROUND_COST = 2
COLLECTIVE_COST = 5
"""Weights of a scalar round and of one subgroup's part in a collective (the published planner's)."""


@dataclass(frozen=True, slots=True)
class Analytic:
    """`local = 2 · scalar_rounds + 5 · reductions · subgroups`, times waves of 64 programs.

    A lane's packets count as `max(1, ceil(floor(N / V) / W))` a pass: a ragged tail costs nothing.
    """

    name: str = "analytic"

    def considers(self, candidate: Candidate) -> bool:
        """Reload, and one group for one program."""
        return candidate == Candidate(width=candidate.width, vector=candidate.vector)

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        """Price in issue rounds."""
        packets = max(1, -(-(features.columns // candidate.vector) // candidate.width))
        scalar_rounds = features.passes * packets * candidate.vector
        collectives = features.reductions * features.subgroups_per_program
        local = float(ROUND_COST * scalar_rounds + COLLECTIVE_COST * collectives)
        launch = older_prior(features)
        return CostEstimate(local=local, launch=float(launch), kernel_score=local * launch, unit=ROUNDS)
