"""What a launch may ask for, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tirx_reduce.errors import check_type
from tirx_reduce.values import DeviceLimits

from .abi import RawCounters
from .errors import EmulatorError

SPACES = ("device", "threadgroup", "thread", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a launch may ask for."""

    max_threads: int = 1024
    shared_bytes: int = 32768
    max_arguments: int = 31
    max_accesses: int = 1 << 40
    """Loads and stores of one launch; beyond it a kernel counts as endless."""


def limits_of(given: Any, kind: str) -> Limits:
    """What was passed as limits; None: an Apple GPU, or compute capability 9.0 (227 KiB of shared memory).

    Raises
    ------
    EmulatorError
        They are of another type.
    """
    if given is None:
        return Limits() if kind == "metal" else Limits(shared_bytes=232448, max_arguments=1024)
    if isinstance(given, DeviceLimits):
        return Limits(
            max_threads=given.max_threads,
            shared_bytes=max(given.shared_bytes, given.opt_in_shared_bytes),
            max_arguments=given.max_arguments,
        )
    check_type("limits", given, Limits, "Limits or DeviceLimits", EmulatorError)
    limits: Limits = given
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What one kernel did, all lanes and launches together."""

    launches: int
    loads: dict[str, int]
    """Loads by memory space: device, threadgroup, thread, constant."""
    stores: dict[str, int]
    load_bytes: dict[str, int]
    store_bytes: dict[str, int]
    barriers: int
    """Barriers passed, each once per group."""
    collectives: int
    """Shuffles and reductions, each once per subgroup."""
    subgroup_barriers: int
    cluster_barriers: int = 0
    """Barriers of clusters, each once per cluster."""
    async_copies: int = 0
    async_bytes: int = 0
    """Bytes of asynchronous copies; they count as loads of device and stores of threadgroup memory, too."""
    mailbox_waits: int = 0
    """Mailboxes waited on, each once per group; what is sent to them counts as stores to threadgroup memory."""


def add(a: Counters | None, c: RawCounters) -> Counters:
    """The counts of a kernel's launches so far, and of one more."""

    def tally(old: dict[str, int] | None, new: Any) -> dict[str, int]:
        return {s: (old[s] if old else 0) + int(new[i]) for i, s in enumerate(SPACES)}

    return Counters(
        launches=(a.launches if a else 0) + 1,
        loads=tally(a.loads if a else None, c.loads),
        stores=tally(a.stores if a else None, c.stores),
        load_bytes=tally(a.load_bytes if a else None, c.load_bytes),
        store_bytes=tally(a.store_bytes if a else None, c.store_bytes),
        barriers=(a.barriers if a else 0) + int(c.barriers),
        collectives=(a.collectives if a else 0) + int(c.collectives),
        subgroup_barriers=(a.subgroup_barriers if a else 0) + int(c.subgroup_barriers),
        cluster_barriers=(a.cluster_barriers if a else 0) + int(c.cluster_barriers),
        async_copies=(a.async_copies if a else 0) + int(c.async_copies),
        async_bytes=(a.async_bytes if a else 0) + int(c.async_bytes),
        mailbox_waits=(a.mailbox_waits if a else 0) + int(c.mailbox_waits),
    )
