"""From a policy's name and a calibration to a policy that is ready to price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tirx_reduce.cost import calibration as _calibration
from tirx_reduce.cost.policy import Policy, as_policy
from tirx_reduce.cost.registry import get_policy


@dataclass(frozen=True, slots=True)
class Selection:
    """A policy that is known and a calibration that is sound; not yet for a certain device and dtype."""

    policy: Policy
    calibration: _calibration.Calibration | None
    """None where the policy takes none."""

    @property
    def name(self) -> str:
        """The policy's."""
        return self.policy.name

    def bind(self, *, target_kind: str, device: str | None, dtype: str, tvm_version: str) -> Policy:
        """The policy, with the profile that fits.

        Raises
        ------
        BadCalibration
            No profile fits, or the policy refuses it.
        """
        if self.calibration is None:
            return self.policy
        profile = _calibration.select(
            self.calibration, target_kind=target_kind, device=device, dtype=dtype, tvm_version=tvm_version
        )
        bound: Policy = self.policy.bind(profile)  # type: ignore[attr-defined]
        return bound


def resolve(policy: Any, calibration: Any = None) -> Selection:
    """Look up the policy and read the calibration, so that mistakes show where they are made.

    Parameters
    ----------
    policy
        A name, or an object with `reduction_cost` or `reduction_score`.
    calibration
        See `calibration.load`. It is checked whatever the policy; only a policy with `bind` gets it.

    Raises
    ------
    UnknownPolicy, BadCalibration, ReduceError
        No such policy; unsound coefficients; an object that is no policy.
    """
    found = get_policy(policy) if isinstance(policy, str) else as_policy(policy)
    takes = callable(getattr(found, "bind", None))
    if calibration is None and getattr(found, "calibration", None) is not None:
        # An object that came with its calibration keeps it.
        return Selection(found, None)
    loaded = _calibration.load(calibration) if takes or calibration is not None else None
    if takes and isinstance(loaded, _calibration.Bare):
        found.bind(loaded)  # type: ignore[attr-defined]
    return Selection(found, loaded if takes else None)


def bind(
    policy: Any,
    calibration: Any = None,
    *,
    target_kind: str,
    device: str | None,
    dtype: str,
    tvm_version: str,
) -> Policy:
    """A policy that is ready to price for one device and dtype: `resolve`, then `Selection.bind`."""
    return resolve(policy, calibration).bind(
        target_kind=target_kind, device=device, dtype=dtype, tvm_version=tvm_version
    )
