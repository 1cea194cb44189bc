"""The peers' grid: our planned kernels, the peers and the copy, interleaved at every line; one record file.

Run as `python -m tirx_reduce.bench.grid --out FILE`, or through the command line's `bench --grid peers`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Built, Case, cache_compiles
from tirx_reduce.bench.grid_arguments import add_grid_arguments, add_place_arguments
from tirx_reduce.bench.grid_clock import Clock, GraphClock, HostClock
from tirx_reduce.bench.grid_lines import lines, title
from tirx_reduce.bench.grid_measure import (
    PEER_SLACK,
    Contender,
    DeviceLost,
    Method,
    measure_line,
    the_build,
    the_copy,
    the_peer,
)
from tirx_reduce.bench.grid_plans import Planned, aliases, build_planned, plan_case
from tirx_reduce.bench.grid_trail import Trail
from tirx_reduce.bench.grid_warm import Place, warm_up
from tirx_reduce.bench.peers import COPY, DLIGHT, OURS, PEERS, read_peers, versions
from tirx_reduce.bench.records import Writer, digest
from tirx_reduce.bench.resources import of_build
from tirx_reduce.bench.shapes import parse_shape
from tirx_reduce.bench.stand import BANDWIDTH, LocalStand, local_stand, target_json
from tirx_reduce.bench.stock import DLIGHT_DTYPES, build_stock
from tirx_reduce.bench.targets import read_target
from tirx_reduce.bench.trial import COLD, keep_source
from tirx_reduce.errors import ReduceError

LINE, SETTINGS = "grid line", "grid settings"
"""Kinds of record."""
UNFINISHED = 3
"""Exit status where lines are left over at the end of the budget: the same command goes on."""
LOST = 4
"""Exit status where a kernel took the device along: the same command goes on without it, in a new process."""
WARM_SHARE = 0.4
"""Of the time budget, for peers that compile beforehand."""
WARM_LIMIT_S = 240.0
"""The same where there is no budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure."""

    cases: tuple[Case, ...]
    peers: tuple[str, ...]
    policies: tuple[str, ...]
    """The first one stands against the peers."""
    method: Method
    calibration: str | None = None
    workers: int = 0
    budget_s: float | None = None

    def settings(self) -> dict[str, Any]:
        """What has to be the same where a file goes on."""
        return {
            "peers": list(self.peers),
            "policies": list(self.policies),
            "regime": self.method.regime,
            "rounds": self.method.rounds,
            "cold_bytes": self.method.cold_bytes,
            "versions": versions(self.peers),
        }


def run(args: argparse.Namespace) -> int:
    """Measure what the arguments ask for, and print the table; 3: lines are left, 4: device lost."""
    if not args.out:
        raise ReduceError("the grid keeps every sample; needs --out FILE")
    began = time.monotonic()
    with ExitStack() as stack:
        stand = open_stand(args, stack)
        environment = stand.environment()
        request = _request(args, str(environment["device"]))
        writer = stack.enter_context(Writer(args.out, environment))
        clock = HostClock() if args.stand_in else GraphClock()
        try:
            left = measure_grid(request, stand, clock, writer, say=_say, began=began)
        except DeviceLost as error:
            _say(f"{' '.join(str(error).split())}; the same command goes on without it, in a new process")
            return LOST
    _print(args)
    if left:
        _say(f"{left} lines are left; the same command goes on")
    return UNFINISHED if left else 0


def open_stand(args: argparse.Namespace, stack: ExitStack) -> LocalStand:
    """Where a grid runs: the CUDA device of this machine, or the CPU in its place."""
    scratch = args.scratch or stack.enter_context(tempfile.TemporaryDirectory())
    stand = local_stand(
        read_target(args.target),
        Path(scratch),
        stand_in=args.stand_in,
        commit=args.commit,
        dirty=args.dirty if args.commit else None,
    )
    if stand.kind != "cuda" and not args.stand_in:
        raise ReduceError(f"the grid is timed by CUDA graphs; target {stand.kind!r} has none")
    return stand


def measure_grid(
    request: Request,
    stand: LocalStand,
    clock: Clock,
    writer: Writer,
    *,
    say: Callable[[str], None] = lambda text: None,
    began: float | None = None,
) -> int:
    """Plan, build, and measure every line that the file does not hold; how many are left at the end."""
    began = time.monotonic() if began is None else began
    check_settings(writer, SETTINGS, request.settings())
    have = {digest(r["case"]) for r in writer.of_kind(LINE)}
    todo = tuple(c for c in request.cases if digest(c.to_json()) not in have)
    if not todo:
        return 0
    planned = _plan(request, todo, stand)
    say(f"{len(todo)} lines planned, {time.monotonic() - began:.0f} s")
    target = target_json(stand.target)
    built = build_planned(
        [p for named in planned.values() for p in named.values()],
        target,
        stand.folder,
        stand_in=stand.stand_in,
        workers=request.workers,
    )
    failed = [b for b in built.values() if b.error]
    say(f"{len(built)} kernels built, {len(failed)} failed, {time.monotonic() - began:.0f} s")
    if request.workers:
        place = Place(device=clock.device, target=target, folder=str(stand.folder), stand_in=stand.stand_in)
        limit_s = WARM_LIMIT_S if request.budget_s is None else request.budget_s * WARM_SHARE
        late = warm_up(todo, request.peers, place, workers=request.workers, limit_s=limit_s)
        say(f"peers compiled, {late} processes stopped at the limit, {time.monotonic() - began:.0f} s")
    trail = Trail(writer.path.with_name(writer.path.name + ".trail"))
    left = len(todo)
    for position, case in enumerate(todo):
        if request.budget_s is not None and time.monotonic() - began > request.budget_s:
            return left
        contenders = _contenders(request, case, planned[case], built, stand, target)
        line = _line(request, case, contenders, clock, trail, position)
        writer.append(LINE, {**line, **_ours(planned[case], built, stand)})
        for one in planned[case].values():
            if one.key in built:
                keep_source(writer, built[one.key].source, built[one.key].source_sha256)
        left -= 1
        clock.release()
        say(f"{position + 1}/{len(todo)} {_told(case, line)}, {time.monotonic() - began:.0f} s")
    return left


def _request(args: argparse.Namespace, device: str) -> Request:
    cases = lines(
        tuple(args.groups.split(",")),
        operators=args.operators,
        shapes=tuple(parse_shape(s) for s in args.shapes),
        dtypes=args.dtypes,
    )
    policies = tuple(p for p in args.policies.split(",") if p)
    peers = read_peers(args.peers)
    if OURS in peers and not policies:
        raise ReduceError("ours is to be measured with no policy; needs one or more")
    if args.rounds < 1 or args.cold_mb <= 0:
        raise ReduceError("rounds and the megabytes of a cold run need to be 1 or more")
    return Request(
        cases=cases[: args.lines],
        peers=peers,
        policies=policies if OURS in peers else (),
        method=Method(
            rounds=args.rounds,
            regime=args.regime or COLD,
            cold_bytes=args.cold_mb * 1e6,
            gigabytes_per_second=BANDWIDTH.get(device, 0.0),
        ),
        calibration=args.calibration,
        workers=args.workers,
        budget_s=args.budget_s,
    )


def check_settings(writer: Writer, kind: str, wanted: Mapping[str, Any]) -> None:
    """Write the settings of a new file; one that was begun with others is refused, and the text names one."""
    for known in writer.of_kind(kind):
        differ = [name for name in wanted if known[name] != wanted[name]]
        if differ:
            name = differ[0]
            raise ReduceError(
                f"{writer.path} was measured with {name} {known[name]!r}, not {wanted[name]!r}; "
                "needs a new file"
            )
    if not writer.of_kind(kind):
        writer.append(kind, wanted)


def _plan(request: Request, cases: Sequence[Case], stand: LocalStand) -> dict[Case, dict[str, Planned]]:
    # Without a device in the question, a stand-in would look for the calibration of one.
    device = None if stand.stand_in else stand.device
    return {
        case: plan_case(case, request.policies, stand.target, calibration=request.calibration, device=device)
        for case in cases
    }


def _contenders(
    request: Request,
    case: Case,
    planned: Mapping[str, Planned],
    built: Mapping[str, Built],
    stand: LocalStand,
    target: str,
) -> list[Contender]:
    load = partial(load_build, stand)
    # What stands in for our kernel is TVM's plain one, which rounds after every operation.
    ours_slack = 64.0 if stand.stand_in else 1.0
    found: list[Contender] = []
    for name in request.peers:
        if name == COPY:
            found.append(the_copy(case))
        elif name == DLIGHT and case.dtype in DLIGHT_DTYPES:
            stock = partial(build_stock, case, target, stand.folder, stand_in=stand.stand_in)
            found.append(the_build(DLIGHT, stock, load, max(PEER_SLACK, ours_slack)))
        elif name == OURS:
            for policy, first in aliases(dict(planned)).items():
                if policy == first:
                    key = planned[policy].key
                    found.append(the_build(policy, partial(built.__getitem__, key), load, ours_slack))
        elif name in PEERS:
            found += [the_peer(peer, case) for peer in PEERS[name]]
    return found


def load_build(stand: LocalStand, built: Built) -> Any:
    """The function of a library, ready to be called on Torch's memory."""
    import tvm

    if stand.kind == "cuda":
        cache_compiles(Path(built.library).parent)
    return tvm.runtime.load_module(built.library)[built.entry]


def _line(
    request: Request, case: Case, contenders: Sequence[Contender], clock: Clock, trail: Trail, position: int
) -> dict[str, Any]:
    allowed = [c for c in contenders if not trail.barred(title(case), c.name)]
    now = [""]

    def before(name: str) -> None:
        now[0] = name
        if name:
            trail.begin(title(case), name)
        else:
            trail.end()

    try:
        line = measure_line(case, allowed, clock, request.method, position=position, before=before)
    except DeviceLost:
        trail.keep(title(case), now[0])
        raise
    except Exception as error:  # memory, most likely; the other lines go on
        trail.end()
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
        line = {"case": case.to_json(), "regime": request.method.regime, "reason": reason, "contenders": {}}
    for barred in (c.name for c in contenders if c not in allowed):
        line["contenders"][barred] = {
            "status": "failed",
            "reason": "it ended the process, or took the device along, each time it was tried",
        }
    return line


def _ours(planned: Mapping[str, Planned], built: Mapping[str, Built], stand: LocalStand) -> dict[str, Any]:
    plans = {policy: one.to_json() for policy, one in planned.items()}
    for policy, one in planned.items():
        if one.key not in built:
            continue
        plans[policy] |= built[one.key].hashes()
        if stand.kind == "cuda" and built[one.key].source:
            plans[policy]["resources"] = of_build(built[one.key].source, stand.folder)
    return {"plans": plans, "aliases": aliases(dict(planned))}


def _told(case: Case, line: Mapping[str, Any]) -> str:
    from tirx_reduce.bench.statistics import median

    parts = []
    for name, found in line["contenders"].items():
        times = [s for s in found.get("samples_us", []) if s is not None]
        parts.append(f"{name} {median(times):.2f}" if times else f"{name} {found['status']}")
    return f"{title(case)}: {', '.join(parts) or line.get('reason', '')}"


def _print(args: argparse.Namespace) -> None:
    from tirx_reduce.bench.grid_report import as_json, markdown, rows_of

    rows = rows_of([args.out])
    print(json.dumps(as_json(rows), ensure_ascii=False) if args.json else markdown(rows))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid by itself."""
    parser = argparse.ArgumentParser(prog="python -m tirx_reduce.bench.grid", description=__doc__)
    add_grid_arguments(parser)
    add_place_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run(args)
    except ReduceError as error:
        _say(f"error: {' '.join(str(error).split())}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
