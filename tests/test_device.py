"""Device limits from targets, as design.md has them."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from tirx_reduce.device import device_name, limits_for
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import DeviceLimits


def target(text: Any) -> Any:
    return tvm.target.Target(text)


@pytest.mark.parametrize(
    ("text", "threads"),
    [
        ("metal", 1024),
        ("apple/m1-gpu", 1024),
        ({"kind": "metal", "max_threads_per_block": 512}, 512),
        ({"kind": "metal", "max_threads_per_block": 256}, 1024),
    ],
)
def test_metal_counts_as_subgroup_32_and_1024_threads_unless_it_says_otherwise(
    text: Any, threads: int
) -> None:
    found = limits_for(target(text))
    assert (found.subgroup_size, found.max_threads, found.shared_bytes) == (32, threads, 32768)
    assert (found.max_arguments, found.private_scalars, found.kind) == (31, 64, "metal")


def test_cuda_sm_90() -> None:
    found = limits_for(target({"kind": "cuda", "arch": "sm_90"}))
    assert (found.subgroup_size, found.max_threads, found.shared_bytes) == (32, 1024, 49152)
    assert (found.opt_in_shared_bytes, found.cores, found.cores_assumed) == (232448, 132, True)


def test_an_unknown_arch_assumes_nothing() -> None:
    found = limits_for(target({"kind": "cuda", "arch": "sm_61"}))
    assert (found.opt_in_shared_bytes, found.cores, found.cores_assumed) == (0, 0, False)


class FakeDevice:
    exist = True
    multi_processor_count = 78
    device_name = "Fake GPU"


def test_cores_come_from_a_device_that_exists() -> None:
    device: Any = FakeDevice()
    found = limits_for(target({"kind": "cuda", "arch": "sm_90"}), device)
    assert (found.cores, found.cores_assumed) == (78, False)
    assert device_name(device) == "Fake GPU"


def test_limits_are_taken_as_they_are_but_for_the_kind() -> None:
    mine = DeviceLimits(max_threads=256, private_scalars=32)
    found = limits_for(target({"kind": "cuda", "arch": "sm_90"}), None, mine)
    assert (found.max_threads, found.private_scalars, found.kind, found.cores) == (256, 32, "cuda", 132)


def test_a_target_without_limits_is_refused() -> None:
    with pytest.raises(ReduceError, match="target 'llvm' states no limits of a GPU; needs metal or cuda"):
        limits_for(target("llvm"))


def test_device_names() -> None:
    assert device_name("NVIDIA H200") == "NVIDIA H200"
    assert device_name(None) is None


@pytest.mark.parametrize("kind", ["metal", "cuda"])
def test_no_group_has_more_than_1024_threads(kind: str) -> None:
    assert limits_for(target(kind), None, DeviceLimits(max_threads=1024)).max_threads == 1024
    needs = "needs 1024 or fewer, as every group of metal and cuda has"
    with pytest.raises(ReduceError, match=rf"^DeviceLimits\.max_threads is 5000; {needs}$"):
        limits_for(target(kind), None, DeviceLimits(max_threads=5000))
    with pytest.raises(ReduceError, match=rf"^the target's max_threads_per_block is 2048; {needs}$"):
        limits_for(target({"kind": kind, "max_threads_per_block": 2048}))
