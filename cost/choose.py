"""The solver: prices in, the candidate of the least `kernel_score` out; nothing multiplies that score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from tirx_reduce.cost.analytic import Analytic
from tirx_reduce.cost.features import features as demand
from tirx_reduce.cost.policy import Policy, is_number, named
from tirx_reduce.errors import BadEstimate, Unsupported
from tirx_reduce.values import REUSES, Candidate, CostEstimate, DeviceLimits, FamilyCounts, Features, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The winner of a choice, and every loser with its price or the reason of its refusal."""

    winner: Candidate
    estimate: CostEstimate
    features: Features
    losers: tuple[tuple[Candidate, Verdict], ...]
    """Priced ones from cheap to dear, then those refused."""
    extrapolated: bool
    """The policy's calibration never saw this width."""

    @property
    def incumbent(self) -> tuple[Candidate, Features] | None:
        """The default policy's choice, where the features carry it."""
        return self.features.incumbent


def choose(
    policy: Policy,
    priced: Iterable[tuple[Candidate, Features]],
    limits: DeviceLimits,
    refused: Iterable[tuple[Candidate, str]] = (),
) -> Choice:
    """The candidate of the least `kernel_score`; ties go to the smaller width, then to reload.

    Parameters
    ----------
    policy
        Prices each candidate; those that it does not consider count as refused.
    priced
        Legal candidates with their demand, in any order.
    limits
        Handed to the policy.
    refused
        Illegal candidates with their reasons, kept in the result.

    Raises
    ------
    BadEstimate
        A price is no estimate, not finite and positive, or of another unit than the others.
    Unsupported
        No candidate is left.
    """
    turned_down = list(refused)
    considers: Callable[[Candidate], bool] = getattr(policy, "considers", None) or (lambda candidate: True)
    offers: list[tuple[CostEstimate, Candidate, Features]] = []
    for candidate, features in priced:
        with named(policy, "considers", candidate):
            considered = considers(candidate)
        if not considered:
            turned_down.append((candidate, f"policy {policy.name} does not consider it"))
            continue
        offers.append((_checked(policy, candidate, features, limits), candidate, features))
    if not offers:
        raise _nothing_left(turned_down, limits)
    units = sorted({estimate.unit for estimate, _, _ in offers})
    if len(units) > 1:
        raise BadEstimate(f"policy {policy.name!r} mixed units {', '.join(units)}; needs one")
    offers.sort(key=lambda offer: (offer[0].kernel_score, *_order(offer[1])))
    estimate, winner, features = offers[0]
    turned_down.sort(key=lambda pair: _order(pair[0]))
    extrapolates: Callable[[Candidate], bool] = getattr(policy, "extrapolates", None) or (
        lambda candidate: False
    )
    with named(policy, "extrapolates", winner):
        extrapolated = bool(extrapolates(winner))
    return Choice(
        winner=winner,
        estimate=estimate,
        features=features,
        losers=(*((c, e) for e, c, _ in offers[1:]), *turned_down),
        extrapolated=extrapolated,
    )


def _nothing_left(turned_down: list[tuple[Candidate, str]], limits: DeviceLimits) -> Unsupported:
    if not turned_down:
        return Unsupported(
            f"no candidate has at most {limits.max_threads} threads a group; "
            f"needs limits of a whole subgroup ({limits.subgroup_size}) or more"
        )
    reasons = "; ".join(dict.fromkeys(reason for _, reason in turned_down))
    return Unsupported(
        f"no candidate is left ({reasons}); needs a function within these limits, or a policy that considers more"
    )


def decide(
    policy: Policy,
    enumerated: Iterable[tuple[Candidate, str | None]],
    counts: Mapping[str, FamilyCounts],
    *,
    rows: int,
    columns: int,
    limits: DeviceLimits,
    default: Iterable[tuple[Candidate, str | None]] | None = None,
) -> Choice:
    """Price every legal candidate with its demand, the incumbent's beside it, and choose.

    Parameters
    ----------
    policy
        Ready to price (see `bind`).
    enumerated
        What `enumerate_candidates` gave.
    counts
        By reuse family; a candidate of a family without counts is refused.
    rows, columns
        Sizes to price for.
    limits
        Of the device.
    default
        The candidates of the default policy, where `enumerated` are others: the incumbent is one of these.
    """
    legal: list[Candidate] = []
    refused: list[tuple[Candidate, str]] = []
    for candidate, reason in enumerated:
        if reason is not None:
            refused.append((candidate, reason))
        elif candidate.reuse not in counts:
            refused.append((candidate, f"{candidate.reuse}: its demand was not counted"))
        else:
            legal.append(candidate)
    plain = [(c, demand(c, counts[c.reuse], rows, columns, limits)) for c in legal]
    if default is not None:
        seen = (c for c, reason in default if reason is None and c.reuse in counts)
        incumbent = _incumbent([(c, demand(c, counts[c.reuse], rows, columns, limits)) for c in seen], limits)
    else:
        incumbent = _incumbent(plain, limits)
    priced = [(c, demand(c, counts[c.reuse], rows, columns, limits, incumbent)) for c in legal]
    return choose(policy, priced, limits, refused)


def _incumbent(
    priced: list[tuple[Candidate, Features]], limits: DeviceLimits
) -> tuple[Candidate, Features] | None:
    try:
        found = choose(Analytic(), priced, limits)
    except Unsupported:
        return None
    return found.winner, found.features


def _order(candidate: Candidate) -> tuple[int, ...]:
    rest = (getattr(candidate, f.name) for f in fields(candidate) if f.name not in ("width", "reuse"))
    return (candidate.width, REUSES.index(candidate.reuse), *rest)


_LEAST = {"local": 0.0, "launch": 0.0, "kernel_score": math.ulp(0.0)}


def _checked(policy: Policy, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
    with named(policy, "reduction_cost", candidate):
        estimate: Any = policy.reduction_cost(candidate, features, limits)
    if not isinstance(estimate, CostEstimate):
        raise BadEstimate(f"policy {policy.name!r} returned {estimate!r}; needs a CostEstimate")
    for name, least in _LEAST.items():
        value: Any = getattr(estimate, name)
        if not is_number(value) or not math.isfinite(value) or value < least:
            wanted = "finite and positive" if least else "finite and 0 or more"
            raise BadEstimate(
                f"policy {policy.name!r}: {name} {value!r} for width {candidate.width}, {candidate.reuse}; "
                f"needs it {wanted}"
            )
    if not isinstance(estimate.unit, str) or not estimate.unit:
        raise BadEstimate(f"policy {policy.name!r}: unit {estimate.unit!r}; needs a text")
    prices: dict[str, Any] = {name: getattr(estimate, name) for name in _LEAST}
    if all(isinstance(value, int | float) for value in prices.values()):
        return estimate
    # Plans are written as JSON, which does not know NumPy's numbers.
    prices = {name: float(value) for name, value in prices.items()}
    return replace(estimate, **prices)
