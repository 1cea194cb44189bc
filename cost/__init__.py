"""Cost policies: (candidate, features, limits) in, the price of a whole launch out; no TVM, no SciPy."""

from __future__ import annotations

from tirx_reduce.cost.bind import Selection, bind, resolve
from tirx_reduce.cost.calibration import Bare, Calibration, Coefficients, Profile
from tirx_reduce.cost.choose import Choice, choose, decide
from tirx_reduce.cost.features import features
from tirx_reduce.cost.policy import LocalScore, Policy, as_policy
from tirx_reduce.cost.registry import get_policy, policies, register_policy

__all__ = [
    "Bare",
    "Calibration",
    "Choice",
    "Coefficients",
    "LocalScore",
    "Policy",
    "Profile",
    "Selection",
    "as_policy",
    "bind",
    "choose",
    "decide",
    "features",
    "get_policy",
    "policies",
    "register_policy",
    "resolve",
]
