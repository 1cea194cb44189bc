"""Targets as people write them, and whether a device of their kind is here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tirx_reduce.errors import ReduceError
from tirx_reduce.values import DeviceLimits

ABSENT_CUDA_ARCH = "sm_90"
"""What `cuda` means where no GPU says otherwise; TVM's own guess, sm_50, is refused by current compilers."""


def read_target(text: str) -> Any:
    """The TVM target that `text` names: a kind, a tag, or JSON.

    Raises
    ------
    ReduceError
        TVM does not know it, or it is not of a kind that kernels are emitted for.
    """
    import json

    import tvm

    known: Any = text
    if text.lstrip().startswith("{"):
        try:
            known = json.loads(text)
        except ValueError as error:
            raise ReduceError(f"target {text!r} is not JSON: {error}") from error
    if known == "cuda" and not device_of("cuda"):
        known = {"kind": "cuda", "arch": ABSENT_CUDA_ARCH}
    try:
        target = tvm.target.Target(known)
    except Exception as error:
        # TVM raises errors of several types here, with a C++ trace in their text.
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        raise ReduceError(
            f"target {text!r} is not known to TVM ({reason}); needs metal, cuda, a tag or JSON"
        ) from error
    if target.kind.name not in ("metal", "cuda"):
        raise ReduceError(f"target {text!r} is of kind {target.kind.name!r}; needs metal or cuda")
    # Tags of Apple GPUs bring their Mac's host along; the host function is built for this machine.
    return tvm.target.Target(target, tvm.target.Target("llvm"))


def device_of(kind: str) -> Any:
    """Device 0 of a target kind, or None where there is none."""
    import tvm

    try:
        device = tvm.runtime.device(kind, 0)
        return device if device.exist else None
    except Exception:
        # A runtime that is not linked in raises instead of answering.
        return None


def read_limits(
    target: Any, *, max_threads: int | None, private_scalars: int | None, shared_bytes: int | None
) -> DeviceLimits | None:
    """The device's limits with those fields that were given in their place; None where none was.

    Raises
    ------
    ReduceError
        A given one is wider than the device's: a kernel would be planned that cannot be launched.
    """
    given: dict[str, Any] = {
        name: value
        for name, value in (
            ("max_threads", max_threads),
            ("private_scalars", private_scalars),
            ("shared_bytes", shared_bytes),
        )
        if value is not None
    }
    if not given:
        return None
    from tirx_reduce.device import limits_for

    own = limits_for(target, device_of(target.kind.name))
    for name, value in given.items():
        if value > getattr(own, name):
            option = f"--{name.replace('_', '-')}"
            raise ReduceError(
                f"{option} {value} is wider than the device's {getattr(own, name)}; needs that or less"
            )
    if shared_bytes is not None:
        # What a kernel may ask for at its launch is threadgroup memory as well.
        given["opt_in_shared_bytes"] = min(own.opt_in_shared_bytes, shared_bytes)
    return replace(own, **given)
