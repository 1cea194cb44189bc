"""What a policy is: a name and a price for (candidate, features, limits). Legality is never its business."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, Protocol, runtime_checkable

from tirx_reduce.errors import BadEstimate, ReduceError
from tirx_reduce.values import Candidate, CostEstimate, DeviceLimits, Features

LEGACY_GROUPS = 64
"""Programs that the older solver took for one wave, whatever the device."""
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
ROUNDS = "rounds"
"""Unit of prices that are no times: issue rounds of one lane."""


@runtime_checkable
class Policy(Protocol):
    """A complete objective for a whole launch.

    A policy may also have any of these: `scope(facts, limits, rows, columns)`, the candidates to look at
    (the default scope where it has none); `considers(candidate) -> bool`, which of them it prices;
    `bind(profile) -> Policy`, the same policy with a calibration; `extrapolates(candidate) -> bool`.
    """

    @property
    def name(self) -> str:
        """Lower-kebab."""
        ...

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        """The price of the whole launch; nothing multiplies its `kernel_score` afterwards."""
        ...


class LocalScore:
    """A policy that offers only the older hook, a score of one program, as a whole-launch objective.

    `kernel_score = local · ceil(programs / 64)`, which is what the older solver made of it.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name: str = inner.name

    def __getattr__(self, name: str) -> Any:
        # `considers`, `scope` and `extrapolates` are the wrapped policy's own, where it has them.
        if name in ("considers", "scope", "extrapolates"):
            return getattr(self.inner, name)
        raise AttributeError(name)

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        """Price by the local score and the older prior."""
        local = self.inner.reduction_score(candidate, features, limits)
        if not is_number(local):
            raise BadEstimate(f"policy {self.name!r} scored {local!r}; needs a number")
        launch = older_prior(features)
        return CostEstimate(
            local=float(local), launch=float(launch), kernel_score=float(local) * launch, unit=ROUNDS
        )


@contextmanager
def named(policy: Policy, hook: str, candidate: Candidate | None = None) -> Iterator[None]:
    """Notes on what `hook` raises whose it is: an exception of a stranger's code need not say so itself."""
    try:
        yield
    except Exception as error:
        about = f" for {candidate}" if candidate is not None else ""
        error.add_note(f"raised in {hook} of policy {policy.name!r}{about}")
        raise


def is_number(value: Any) -> bool:
    """Whether a policy may return it as a price: a real number of Python or NumPy."""
    return isinstance(value, Real) and not isinstance(value, bool)


def older_prior(features: Features) -> int:
    """Waves of 64 programs: the launch factor of the older solver."""
    return math.ceil(features.programs / LEGACY_GROUPS)


def as_policy(policy: Any) -> Policy:
    """`policy`, wrapped where it offers only the older hook.

    Raises
    ------
    ReduceError
        It has no name, one that is not lower-kebab, or neither hook.
    """
    if isinstance(policy, type):
        raise ReduceError(f"policy {policy.__name__} is a class; needs an instance of it")
    if not isinstance(getattr(policy, "name", None), str):
        raise ReduceError(f"policy {policy!r} has no name; needs a str `name`")
    if not NAME.fullmatch(policy.name):
        raise ReduceError(f"policy name {policy.name!r}; needs lower-kebab, such as 'my-policy'")
    if callable(getattr(policy, "reduction_cost", None)):
        return policy
    if callable(getattr(policy, "reduction_score", None)):
        return LocalScore(policy)
    raise ReduceError(
        f"policy {policy.name!r} has no reduction_cost(candidate, features, limits) "
        "and no reduction_score(candidate, features, limits); needs one of them"
    )
