"""Policies: published widths, the service objective, guarding, and every way to fail closed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost_cases import COEFFICIENTS, LIMITS, OPERATORS, counts, families, grid
from tirx_reduce import cost
from tirx_reduce.cost import Choice, Profile
from tirx_reduce.cost.calibration import Bare, CapacityRow, Coefficients
from tirx_reduce.cost.guarded import Guarded
from tirx_reduce.cost.service import Service
from tirx_reduce.errors import BadCalibration, BadEstimate, ReduceError, Uncalibrated, Unsupported
from tirx_reduce.values import Candidate, CostEstimate, DeviceLimits, Features

BOUND = {"target_kind": "cuda", "device": "Test GPU", "dtype": "float32", "tvm_version": "0.27.0"}


def profile(**changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "target_kind": "cuda",
        "device": "Test GPU",
        "dtype": "float32",
        "coefficients": Coefficients(**COEFFICIENTS),
        "unit": "us",
        "families": ("reload", "private"),
        "widths": (64, 128, 256, 512, 1024),
        "vectors": (4,),
        "private_scalars": 64,
        "tvm_version": "0.27.0",
        "driver": "1",
        "libraries": (("numpy", "2"),),
        "records_sha256": "0" * 64,
        "trials": 101,
        "infeasible": 19,
        "operators": ("softmax",),
        "shapes": ((23, 769), (128, 2048)),
        "capacities": (CapacityRow(capacity=512, mean_regret=0.05, max_regret=0.2, relative_rmse=0.1),),
        "mean_regret": 0.05,
        "max_regret": 0.2,
        "date": "2026-01-01",
    }
    return Profile(**{**fields, **changes})


def decide(policy: Any, operator: str, rows: int, columns: int, **limits: Any) -> Choice:
    device = replace(LIMITS, **limits)
    return cost.decide(
        policy, grid(columns, device), families(operator), rows=rows, columns=columns, limits=device
    )


def service(calibration: Any = COEFFICIENTS) -> Any:
    return cost.bind("service", calibration, **BOUND)


# analytic


@pytest.mark.parametrize("operator", sorted(OPERATORS))
@pytest.mark.parametrize(("rows", "columns", "width"), [(768, 6144, 384), (37, 1537, 192)])
def test_analytic_has_the_published_widths(operator: str, rows: int, columns: int, width: int) -> None:
    found = decide(cost.get_policy("analytic"), operator, rows, columns)
    assert (found.winner.width, found.winner.reuse) == (width, "reload")
    assert found.incumbent is not None
    assert found.incumbent[0] == found.winner


def test_analytic_score_by_hand() -> None:
    # floor(6144/4)/384 = 4 packets: 2·(3·4·4) + 5·2·12 = 216, in ceil(768/64) = 12 waves.
    estimate = decide(cost.get_policy("analytic"), "softmax", 768, 6144).estimate
    assert estimate == CostEstimate(local=216.0, launch=12.0, kernel_score=2592.0, unit="rounds")


def test_analytic_turns_private_down_with_a_reason() -> None:
    found = decide(cost.get_policy("analytic"), "softmax", 37, 1537)
    reasons = {v for c, v in found.losers if c.reuse == "private" and isinstance(v, str)}
    assert "policy analytic does not consider it" in reasons
    assert len(found.losers) == 63


# service


def test_service_objective_by_hand() -> None:
    c = Candidate(width=256, vector=4, reuse="private")
    f = cost.features(c, counts("softmax", "private"), 768, 6144, LIMITS)
    estimate = service().reduction_cost(c, f, LIMITS)
    # 6144/(256·4) = 6 packets of 4; 768·8/512 = 12 waves; 24·4·4 private bytes a lane.
    local = 72 * 0.02 + 2 * 8 * 0.05 + 24 * 4 * 4 * 1e-4
    assert estimate.launch == 12.0
    assert math.isclose(estimate.local, local)
    assert math.isclose(
        estimate.kernel_score, 2.0 + local * 12 + 768 * 6144 * 8 * 1e-6 + 24 * 8 * 1e-4, rel_tol=1e-12
    )
    assert estimate.unit == "us"


def test_waves_are_at_least_one() -> None:
    c = Candidate(width=64, vector=4)
    f = cost.features(c, counts("softmax", "reload"), 1, 769, LIMITS)
    assert service().reduction_cost(c, f, LIMITS).launch == 1.0


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        (Candidate(width=64, vector=4, reuse="shared"), "shared reuse; the calibration was fitted on reload"),
        (Candidate(width=64, packing=2, vector=4), "2 rows a group; the calibration was fitted on 1"),
        (Candidate(width=64, splits=2, vector=4), "rows split over 2 groups"),
        (Candidate(width=64, unroll=2, vector=4), "unroll 2"),
        (Candidate(width=16, vector=4), "width 16; the calibration was fitted on whole subgroups"),
    ],
)
@pytest.mark.parametrize("calibration", [COEFFICIENTS, profile()], ids=["bare", "profile"])
def test_service_refuses_families_it_was_not_fitted_on(
    candidate: Candidate, message: str, calibration: Any
) -> None:
    f = cost.features(candidate, counts("softmax", candidate.reuse), 8, 769, LIMITS)
    with pytest.raises(Uncalibrated, match=message):
        service(calibration).reduction_cost(candidate, f, LIMITS)


def test_a_profile_of_reload_alone_refuses_private() -> None:
    with pytest.raises(Uncalibrated, match="private reuse; the calibration was fitted on reload"):
        decide(service(profile(families=("reload",))), "softmax", 8, 769)


def test_uncalibrated_is_both_a_bad_calibration_and_unsupported() -> None:
    assert issubclass(Uncalibrated, BadCalibration)
    assert issubclass(Uncalibrated, Unsupported)


@pytest.mark.parametrize(
    "fact", ["program_global_access_bytes", "worker_global_access_bytes", "worker_private_access_bytes"]
)
def test_a_missing_payload_fact_is_an_error(fact: str) -> None:
    c = Candidate(width=64, vector=4, reuse="private")
    f = cost.features(c, counts("softmax", "private"), 8, 769, LIMITS)
    without: dict[str, Any] = {fact: 0}
    with pytest.raises(Uncalibrated, match=f"payload fact {fact} is missing"):
        service().reduction_cost(c, replace(f, **without), LIMITS)


def test_more_private_state_than_the_fit_saw_is_an_error() -> None:
    c = Candidate(width=32, vector=4, reuse="private")
    f = cost.features(c, counts("softmax", "private"), 8, 12289, LIMITS)
    with pytest.raises(Uncalibrated, match="388 private scalars a lane; the calibration was fitted under 64"):
        service(profile()).reduction_cost(c, f, DeviceLimits(private_scalars=512))


def test_service_without_a_calibration_names_the_command() -> None:
    f = cost.features(Candidate(width=64), counts("softmax", "reload"), 8, 769, LIMITS)
    with pytest.raises(BadCalibration, match=r"tirx-reduce search .* && tirx-reduce fit"):
        Service().reduction_cost(Candidate(width=64), f, LIMITS)


def test_a_score_that_overflows_is_an_error_and_not_a_choice() -> None:
    huge = {**COEFFICIENTS, "G": 1e308}
    with pytest.raises(BadEstimate, match="kernel_score inf"):
        decide(service(huge), "softmax", 768, 6144)


def test_extrapolation_is_marked() -> None:
    c = {"D": 1.0, "R": 1.0, "K": 0.0, "P": 0.0, "G": 0.0, "W": 0.0, "capacity": 1e9}
    widest = profile(coefficients=Coefficients(**c))
    assert decide(service(widest), "softmax", 37, 1537).winner.width == 416
    assert decide(service(widest), "softmax", 37, 1537).extrapolated
    assert not decide(service(widest), "softmax", 37, 512 * 4).extrapolated
    assert not decide(service(c), "softmax", 37, 1537).extrapolated


# guarded


def gain_policy(gain: float, error: float) -> tuple[Choice, Choice]:
    """Service and guarded choices where everything but the incumbent is `gain` cheaper."""

    @dataclass(frozen=True)
    class Fixed(Service):
        def reduction_cost(
            self, candidate: Candidate, features: Features, limits: DeviceLimits
        ) -> CostEstimate:
            assert features.incumbent is not None
            score = 1.0 + gain if candidate == features.incumbent[0] else 1.0
            return CostEstimate(local=score, launch=1.0, kernel_score=score, unit="us")

    plain = Fixed(profile(max_regret=error))
    return decide(plain, "softmax", 37, 1537), decide(Guarded(plain), "softmax", 37, 1537)


def test_guarded_takes_the_service_choice_where_the_gain_exceeds_the_error() -> None:
    by_service, by_guarded = gain_policy(gain=0.25, error=0.2)
    assert by_guarded.winner == by_service.winner
    assert by_guarded.incumbent is not None
    assert by_guarded.winner != by_guarded.incumbent[0]


@pytest.mark.parametrize("gain", [0.15, 0.25])
def test_guarded_keeps_the_incumbent_where_it_does_not(gain: float) -> None:
    _, by_guarded = gain_policy(gain=gain, error=0.25)
    assert by_guarded.incumbent is not None
    assert by_guarded.winner == by_guarded.incumbent[0]


def test_guarded_refuses_bare_coefficients_and_a_missing_incumbent() -> None:
    with pytest.raises(BadCalibration, match="guarded with a bare mapping"):
        cost.resolve("guarded", COEFFICIENTS)
    c = Candidate(width=64, vector=4)
    f = cost.features(c, counts("softmax", "reload"), 8, 769, LIMITS)
    with pytest.raises(Uncalibrated, match="guarded without an incumbent"):
        cost.bind("guarded", profile(), **BOUND).reduction_cost(c, f, LIMITS)


# the solver


@dataclass(frozen=True)
class Inverted:
    """Its best launch has the worst local score."""

    name: str = "inverted"

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        local = float(candidate.width)
        return CostEstimate(local=local, launch=1.0, kernel_score=2000.0 - local, unit="points")


def test_a_custom_policy_can_invert_local_and_whole_launch() -> None:
    found = decide(Inverted(), "softmax", 768, 6144)
    assert (found.winner.width, found.winner.reuse) == (1024, "reload")
    priced = [v for _, v in found.losers if not isinstance(v, str)]
    assert found.estimate.local == max([found.estimate.local, *(v.local for v in priced)])


class Local:
    name = "local"

    def reduction_score(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> float:
        return abs(candidate.width - 96) + 1.0


def test_the_older_hook_is_multiplied_once_by_the_older_prior() -> None:
    found = decide(cost.as_policy(Local()), "softmax", 129, 1537)
    assert found.winner.width == 96
    assert found.estimate == CostEstimate(local=1.0, launch=3.0, kernel_score=3.0, unit="rounds")


def test_the_older_hook_must_return_a_number() -> None:
    class Text(Local):
        def reduction_score(self, candidate: Any, features: Any, limits: Any) -> Any:
            return "cheap"

    with pytest.raises(BadEstimate, match="scored 'cheap'; needs a number"):
        decide(cost.as_policy(Text()), "softmax", 1, 769)


@dataclass(frozen=True)
class Flat:
    name: str = "flat"
    score: Any = 1.0

    def reduction_cost(self, candidate: Candidate, features: Features, limits: DeviceLimits) -> CostEstimate:
        return CostEstimate(local=1.0, launch=1.0, kernel_score=self.score, unit="points")


@given(st.permutations(grid(1537)))
def test_ties_go_to_the_smaller_width_then_to_reload_in_any_order(
    order: list[tuple[Candidate, str | None]],
) -> None:
    found = cost.decide(Flat(), order, families("softmax"), rows=37, columns=1537, limits=LIMITS)
    assert (found.winner.width, found.winner.reuse) == (32, "reload")
    again = cost.decide(service(), order, families("softmax"), rows=37, columns=1537, limits=LIMITS)
    assert again == decide(service(), "softmax", 37, 1537)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 0.0, -1.0, "1", None, True])
def test_scores_that_are_not_finite_and_positive_are_refused(score: Any) -> None:
    with pytest.raises(BadEstimate, match="policy 'flat': kernel_score"):
        decide(Flat(score=score), "softmax", 37, 1537)


@pytest.mark.parametrize("field", ["local", "launch"])
def test_local_and_launch_must_be_finite_too(field: str) -> None:
    class Bad(Flat):
        def reduction_cost(self, candidate: Any, features: Any, limits: Any) -> CostEstimate:
            changed: dict[str, Any] = {field: math.nan}
            return replace(super().reduction_cost(candidate, features, limits), **changed)

    with pytest.raises(BadEstimate, match=f"{field} nan"):
        decide(Bad(), "softmax", 37, 1537)


def test_prices_may_be_numbers_of_numpy() -> None:
    class Counted(Flat):
        def reduction_cost(self, candidate: Any, features: Any, limits: Any) -> CostEstimate:
            return CostEstimate(np.float32(3), np.int64(1), np.float32(candidate.width), "points")  # type: ignore[arg-type]

    found = decide(Counted(), "softmax", 37, 1537).estimate
    assert found == CostEstimate(local=3.0, launch=1.0, kernel_score=32.0, unit="points")
    assert {type(v) for v in (found.local, found.launch, found.kernel_score)} == {float}


def test_mixed_units_are_refused() -> None:
    class Mixed(Flat):
        def reduction_cost(self, candidate: Any, features: Any, limits: Any) -> CostEstimate:
            unit = "us" if candidate.width > 512 else "rounds"
            return replace(super().reduction_cost(candidate, features, limits), unit=unit)

    with pytest.raises(BadEstimate, match="mixed units rounds, us; needs one"):
        decide(Mixed(), "softmax", 37, 1537)


def test_no_candidate_left_says_why() -> None:
    refused = [(Candidate(width=64), "group: too wide")]
    with pytest.raises(Unsupported, match="group: too wide"):
        cost.choose(Flat(), [], LIMITS, refused)
    with pytest.raises(
        Unsupported, match=r"at most 1 threads a group; needs limits of a whole subgroup \(32\)"
    ):
        cost.choose(Flat(), [], replace(LIMITS, max_threads=1))


def test_refusals_keep_their_reasons() -> None:
    found = decide(service(), "softmax", 8, 12289)
    reasons = [v for c, v in found.losers if (c.width, c.reuse) == (64, "private")]
    assert reasons == ["private: 196 scalars a lane; limit 64"]


def test_objects_that_are_no_policies_are_refused() -> None:
    with pytest.raises(ReduceError, match="has no name"):
        cost.as_policy(object())
    with pytest.raises(ReduceError, match="is a class; needs an instance"):
        cost.as_policy(Flat)
    with pytest.raises(ReduceError, match="has no reduction_cost"):
        cost.as_policy(type("Nameonly", (), {"name": "x"})())
    with pytest.raises(ReduceError, match=r"^policy name ''; needs lower-kebab"):
        cost.as_policy(Flat(name=""))


def test_an_object_that_came_with_its_calibration_keeps_it() -> None:
    mine = Service(Bare(Coefficients(**COEFFICIENTS)))
    assert cost.bind(mine, None, **BOUND) is mine


class Raising:
    """A policy one of whose hooks raises."""

    name = "raising"

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def _maybe(self, hook: str) -> None:
        if hook == self.hook:
            raise KeyError("a fault of the policy")

    def scope(self, *_: Any) -> Any:
        self._maybe("scope")
        yield Candidate(width=64)

    def considers(self, candidate: Candidate) -> bool:
        self._maybe("considers")
        return True

    def extrapolates(self, candidate: Candidate) -> bool:
        self._maybe("extrapolates")
        return False

    def reduction_cost(self, *_: Any) -> CostEstimate:
        self._maybe("reduction_cost")
        return CostEstimate(1.0, 1.0, 1.0, "us")


@pytest.mark.parametrize("hook", ["scope", "considers", "extrapolates", "reduction_cost"])
def test_what_a_policy_raises_stays_and_is_noted(hook: str) -> None:
    import tirx_reduce as tr
    from tirx_reduce.bench.workloads import get_workload

    with pytest.raises(KeyError, match="a fault of the policy") as caught:
        tr.plan(get_workload("softmax").func((4, 64)), "metal", policy=Raising(hook))
    (note,) = caught.value.__notes__
    about = "" if hook == "scope" else f" for {Candidate(width=64)}"
    assert note == f"raised in {hook} of policy 'raising'{about}"
