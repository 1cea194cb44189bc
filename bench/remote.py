"""A device behind TVM's RPC tracker: where to connect goes in, a stand comes back.

On the Mac: `python -m tvm.exec.rpc_tracker --port 9190` anywhere that both sides reach, and
`python -m tvm.exec.rpc_server --tracker HOST:9190 --key m1-max` on the machine with the GPU.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from tirx_reduce.bench.stand import RpcStand
from tirx_reduce.errors import ReduceError

MAC_HOST = {"kind": "llvm", "mtriple": "arm64-apple-macos"}
WAIT_S = 60
"""How long a tracker may take to hand out a server."""


def rpc_stand(
    tracker: str,
    key: str,
    device_name: str,
    target: Any,
    folder: Path,
    *,
    stand_in: bool = False,
    commit: str | None = None,
    dirty: bool | None = None,
    wait_s: float = WAIT_S,
) -> RpcStand:
    """A stand on a server of a tracker.

    Parameters
    ----------
    tracker
        `HOST:PORT`.
    key
        Of the server.
    device_name
        What records and calibrations call the device: the far side does not say it.
    target
        What to build for.
    folder
        Where libraries are put on this side.
    stand_in
        The far side runs plain code on its CPU.
    commit, dirty
        Of the checkout.
    wait_s
        How long to ask the tracker for a free server.

    Raises
    ------
    ReduceError
        The address is malformed, no tracker answers, no server of that key is free, or it lacks the device.
    """
    from tvm import rpc

    host, _, port = tracker.rpartition(":")
    if not host or not port.isdigit():
        raise ReduceError(f"tracker {tracker!r}; needs HOST:PORT")
    try:
        # TVM's client would go on trying for a minute.
        socket.create_connection((host, int(port)), timeout=min(wait_s, 10)).close()
    except OSError as error:
        raise ReduceError(f"no tracker answers at {tracker} ({error}); needs one that does") from error
    found = far_target(target)
    try:
        remote = rpc.connect_tracker(host, int(port)).request(key, session_timeout=max(1, int(wait_s)))
    except Exception as error:  # TVM's client raises OSError, RuntimeError or errors of its own
        reason = str(error).strip().splitlines()
        raise ReduceError(
            f"no server {key!r} at tracker {tracker} ({reason[-1] if reason else type(error).__name__}); "
            "needs a running `python -m tvm.exec.rpc_server --tracker HOST:PORT --key KEY`"
        ) from error
    device = remote.device("cpu" if stand_in else str(found.kind.name), 0)
    if not device.exist:
        raise ReduceError(f"the server {key!r} has no {found.kind.name} device; needs one")
    return RpcStand(
        target=found,
        remote=remote,
        device=device,
        name=device_name,
        folder=folder,
        stand_in=stand_in,
        commit=commit,
        dirty=dirty,
    )


def far_target(target: Any) -> Any:
    """A target with the far side's host code: one for Metal that names no host is an Apple Silicon Mac."""
    import tvm

    found = target if isinstance(target, tvm.target.Target) else tvm.target.Target(target)
    if found.kind.name == "metal" and found.host is None:
        return tvm.target.Target(found, tvm.target.Target(MAC_HOST))
    return found


def round_trip_us(stand: RpcStand, times: int = 5) -> float:
    """Host time of one empty round trip: why end-to-end phases are not measured from here."""
    start = time.perf_counter()
    for _ in range(times):
        stand.device.sync()
    return (time.perf_counter() - start) * 1e6 / times
