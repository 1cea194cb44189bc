"""Hard limits of a device, from a TVM target and, where there is one, from the device itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm

from .errors import ReduceError
from .values import DeviceLimits

METAL_DEFAULT_THREADS = 256
"""What TVM's plain `metal` target states; taken as not stated, since every Apple GPU takes 1024."""
MOST_THREADS = 1024
"""Threads of a group on any device of either target (CUDA C++ Programming Guide; Metal Feature Set Tables)."""
CUDA_KERNEL_ARGUMENTS = 512
"""4096 bytes of kernel parameters, 8 bytes each (CUDA C++ Programming Guide; later drivers take more)."""
OPT_IN_SHARED_BYTES = {
    "sm_70": 98304,
    "sm_75": 65536,
    "sm_80": 166912,
    "sm_86": 101376,
    "sm_87": 166912,
    "sm_89": 101376,
    "sm_90": 232448,
    "sm_100": 232448,
    "sm_103": 232448,
    "sm_110": 232448,
    "sm_120": 101376,
}
"""Shared bytes of one group with opt-in (CUDA C++ Programming Guide, table of compute capabilities)."""
CLUSTER = {"sm_90": 16, "sm_100": 16, "sm_103": 16, "sm_110": 16}
"""Groups of a cluster, the non-portable sizes above 8 included (CUDA C++ Programming Guide)."""
ASSUMED_CORES = {"sm_80": 108, "sm_90": 132}
"""Multiprocessors of the usual board (A100; H100 SXM and H200), for planning without one."""


def limits_for(
    target: tvm.target.Target, device: tvm.runtime.Device | None = None, limits: DeviceLimits | None = None
) -> DeviceLimits:
    """The hard limits that hold for kernels of `target`.

    Parameters
    ----------
    target
        A Metal or CUDA target.
    device
        Asked for its number of multiprocessors, where it exists.
    limits
        Taken as they are, where given; only the kind is always that of the target.

    Raises
    ------
    ReduceError
        The target is of another kind, or a group would have more threads than on any device.
    """
    kind = target.kind.name
    if kind not in ("metal", "cuda"):
        raise ReduceError(f"target {kind!r} states no limits of a GPU; needs metal or cuda")
    found = _metal(target) if kind == "metal" else _cuda(target, device)
    if limits is None:
        return _possible(found, "the target's max_threads_per_block")
    _possible(limits, "DeviceLimits.max_threads")
    if limits.cores:
        return replace(limits, kind=kind)
    return replace(limits, kind=kind, cores=found.cores, cores_assumed=found.cores_assumed)


def _possible(limits: DeviceLimits, where: str) -> DeviceLimits:
    if limits.max_threads > MOST_THREADS:
        raise ReduceError(
            f"{where} is {limits.max_threads}; needs {MOST_THREADS} or fewer, as every group of metal and cuda has"
        )
    return limits


def _metal(target: tvm.target.Target) -> DeviceLimits:
    stated = _attr(target, "max_threads_per_block", METAL_DEFAULT_THREADS)
    return DeviceLimits(
        # TVM's default of 16 is that of no Apple GPU.
        subgroup_size=32,
        max_threads=1024 if stated == METAL_DEFAULT_THREADS else stated,
        shared_bytes=_attr(target, "max_shared_memory_per_block", 32768),
        max_arguments=_attr(target, "max_function_args", 31),
        kind="metal",
    )


def _cuda(target: tvm.target.Target, device: tvm.runtime.Device | None) -> DeviceLimits:
    arch = str(target.attrs.get("arch", "")).rstrip("af")
    cores = _cores(device)
    return DeviceLimits(
        subgroup_size=_attr(target, "thread_warp_size", 32),
        max_threads=_attr(target, "max_threads_per_block", _attr(target, "max_num_threads", 1024)),
        shared_bytes=_attr(target, "max_shared_memory_per_block", 49152),
        opt_in_shared_bytes=OPT_IN_SHARED_BYTES.get(arch, 0),
        max_arguments=CUDA_KERNEL_ARGUMENTS,
        max_cluster=CLUSTER.get(arch, 1),
        kind="cuda",
        cores=cores or ASSUMED_CORES.get(arch, 0),
        cores_assumed=not cores and arch in ASSUMED_CORES,
    )


def _attr(target: tvm.target.Target, name: str, default: int) -> int:
    value: Any = target.attrs.get(name)
    return default if value is None else int(value)


def _cores(device: tvm.runtime.Device | None) -> int:
    if device is None or not device.exist:
        return 0
    return int(device.multi_processor_count or 0)


def device_name(
    device: tvm.runtime.Device | str | None, target: tvm.target.Target | None = None
) -> str | None:
    """The name that calibrations know a device by; None where no device answers.

    Parameters
    ----------
    device
        A name (taken as it is), a device, or None for device 0 of `target`.
    target
        Where to look for a device if none is named.
    """
    if isinstance(device, str):
        return device
    asked = device
    if asked is None and target is not None:
        asked = tvm.runtime.device(target.kind.name, 0)
    if asked is None or not asked.exist:
        return None
    name = asked.device_name
    return None if name is None else str(name)
