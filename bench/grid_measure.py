"""One line of the grid: every contender recorded, verified, and timed in interleaved rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tirx_reduce.bench.build import Built, Case
from tirx_reduce.bench.grid_clock import Clock
from tirx_reduce.bench.grid_operands import (
    COLD_BYTES,
    LEAST_LAUNCHES,
    Buffers,
    check,
    copied_bytes,
    draw_inputs,
    empty_outputs,
    references,
    rotation,
    spoil,
)
from tirx_reduce.bench.measure import fault
from tirx_reduce.bench.peers import COPY, Peer, Tensors, copy
from tirx_reduce.bench.rounds import order_of
from tirx_reduce.bench.trial import COLD
from tirx_reduce.errors import ReduceError

PEER_SLACK = 4.0
"""Times the tolerance: peers round where they like, and only have to be the same operator."""
MEASURED, FAILED, REFUSED, ABSENT = "measured", "failed", "refused", "absent"


class DeviceLost(ReduceError):
    """The device does not answer any more; what ran last is known, and a new process goes on without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Operands of a line: launch `i` reads `inputs[i % len(inputs)]`."""

    inputs: tuple[Buffers, ...]
    outputs: tuple[Buffers, ...]
    """For contenders that write into given memory; launch `i` writes `outputs[i % len(outputs)]`."""
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something to time at one case."""

    name: str
    open: Callable[[Rotation], Callable[[int], Tensors]]
    """From the operands to a launch, which returns its results; may raise anything."""
    slack: float = 1.0
    """Times the tolerance of the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How a line is measured."""

    rounds: int = 11
    regime: str = COLD
    cold_bytes: float = COLD_BYTES
    gigabytes_per_second: float = 0.0
    """Of the device's memory; 0 where it is not known."""


def the_copy(case: Case) -> Contender:
    """The copy of the same bytes."""

    def open_(rotation: Rotation) -> Callable[[int], Tensors]:
        if rotation.inputs[0].matrices.shape != rotation.outputs[0].matrices.shape:
            raise ReduceError("matrices in and out differ in number; needs as many out as in for a copy")
        return lambda i: copy(_at(rotation.inputs, i), _at(rotation.outputs, i))

    return Contender(name=COPY, open=open_)


def the_peer(peer: Peer, case: Case) -> Contender:
    """A library's call, its results in memory that it allocates."""

    def open_(rotation: Rotation) -> Callable[[int], Tensors]:
        ready = peer.make(case)
        sets = tuple(ready.adapt(b.tensors) for b in rotation.inputs)
        return lambda i: ready.call(sets[i % len(sets)])

    return Contender(name=peer.name, open=open_, slack=PEER_SLACK)


def the_build(name: str, built: Callable[[], Built], load: Callable[[Built], Any], slack: float) -> Contender:
    """A kernel that TVM built, on Torch's memory."""

    def open_(rotation: Rotation) -> Callable[[int], Tensors]:
        import tvm_ffi

        found = built()
        if found.error:
            raise ReduceError(f"build: {found.error}")
        call = load(found)
        sets = [tuple(tvm_ffi.from_dlpack(t) for t in b.tensors) for b in rotation.inputs]
        outs = [tuple(tvm_ffi.from_dlpack(t) for t in b.tensors) for b in rotation.outputs]

        def launch(i: int) -> Tensors:
            call(*sets[i % len(sets)], *outs[i % len(outs)])
            return _at(rotation.outputs, i).tensors

        return launch

    return Contender(name=name, open=open_, slack=slack)


def measure_line(
    case: Case,
    contenders: Sequence[Contender],
    clock: Clock,
    method: Method,
    *,
    position: int = 0,
    before: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Record, verify and time all contenders of a case in one run; JSON-able.

    Parameters
    ----------
    case
        The line.
    contenders
        In the order of their first round.
    clock
        Where and by what.
    method
        Rounds and regime.
    position
        Of the line, so that no contender is always first.
    before
        Told the name of a contender before anything of it runs.

    Raises
    ------
    DeviceLost
        A contender took the device along.
    """
    cold = method.regime == COLD
    sets, launches = rotation(case, method.cold_bytes) if cold else (1, LEAST_LAUNCHES)
    inputs = tuple(draw_inputs(case, clock.device, seed=i) for i in range(sets))
    outputs = tuple(empty_outputs(case, clock.device) for _ in range(launches if cold else 1))
    operands = Rotation(inputs=inputs, outputs=outputs, launches=launches)
    wanted = {i: references(case, _at(inputs, i).tensors) for i in (0, launches - 1)}
    found: dict[str, dict[str, Any]] = {}
    replays: dict[str, _Recorded] = {}
    for contender in contenders:
        before(contender.name)
        try:
            recorded = _record(contender, operands, clock, keep=launches if cold else 1)
            found[contender.name] = _verify(case, contender, recorded, operands, clock, wanted)
            if found[contender.name]["status"] == MEASURED:
                replays[contender.name] = recorded
        except Exception as error:  # a library may raise anything; the line goes on and keeps the reason
            found[contender.name] = _failure(error)
        if not clock.alive():
            raise DeviceLost(f"{contender.name}: {found[contender.name].get('reason', 'the device is lost')}")
    moved = copied_bytes(case)
    floor_us = moved / (method.gigabytes_per_second * 1e3) if cold and method.gigabytes_per_second else 0.0
    before("")
    for name in replays:
        found[name] |= {"samples_us": [], "rejected": []}
    for number in range(method.rounds if replays else 0):
        for name in order_of(tuple(replays), number, position):
            us = clock.seconds(replays[name].replay) * 1e6 / launches
            reason = fault(us, floor_us)
            found[name]["samples_us"].append(us if reason is None else None)
            if reason is not None:
                found[name]["rejected"].append([number, repr(us), reason])
    for name in replays:
        if all(s is None for s in found[name]["samples_us"]):
            found[name] |= {"status": FAILED, "reason": f"timing: {found[name]['rejected'][0][2]}"}
    return {
        "case": case.to_json(),
        "regime": method.regime,
        "rounds": method.rounds,
        "sets": sets,
        "launches": launches,
        "copied_bytes": moved,
        "contenders": found,
    }


@dataclass(slots=True, kw_only=True)
class _Recorded:
    """A recording with the results that it writes: dropped memory would go to the next launch."""

    replay: Any
    results: list[Tensors]


def _record(contender: Contender, operands: Rotation, clock: Clock, *, keep: int) -> _Recorded:
    launch = contender.open(operands)
    results: list[Tensors] = [()] * keep

    def step(i: int) -> None:
        results[i % keep] = launch(i)

    return _Recorded(replay=clock.record(step, operands.launches), results=results)


def _verify(
    case: Case,
    contender: Contender,
    recorded: _Recorded,
    operands: Rotation,
    clock: Clock,
    wanted: dict[int, Any],
) -> dict[str, Any]:
    """Spoil the first and the last results, replay, compare: launches that were not recorded show too."""
    last = operands.launches - 1
    keep = len(recorded.results)
    # With one memory for all launches only the last one's result is there to be seen.
    looked_at = (0, last) if keep > 1 else (last,)
    for i in looked_at:
        spoil(recorded.results[i % keep])
    clock.replay(recorded.replay)
    shares = []
    for i in looked_at:
        if contender.name == COPY:
            same = all(
                bool((a == b).all())
                for a, b in zip(recorded.results[i % keep], _at(operands.inputs, i).tensors, strict=False)
            )
            shares.append({"ok": same, "share": 0.0 if same else "inf", "allowed": "equal"})
            continue
        shares.append(check(case, recorded.results[i % keep], wanted[i], contender.slack))
    worst = max(shares, key=lambda s: math.inf if s["share"] == "inf" else float(s["share"]))
    if worst["ok"]:
        return {"status": MEASURED, "verified": worst}
    return {
        "status": FAILED,
        "verified": worst,
        "reason": f"wrong result: {worst['share']} of what is allowed",
    }


def _failure(error: Exception) -> dict[str, Any]:
    status = (
        ABSENT if isinstance(error, ImportError) else REFUSED if isinstance(error, ReduceError) else FAILED
    )
    text = " ".join(str(error).split())[:600]
    if isinstance(error, ReduceError) and text.startswith("build:"):
        status = FAILED
    return {"status": status, "reason": text if status == REFUSED else f"{type(error).__name__}: {text}"}


def _at(buffers: Sequence[Buffers], i: int) -> Buffers:
    return buffers[i % len(buffers)]
