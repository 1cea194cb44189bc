"""`bench`: the four figures of one planned kernel on a device, verified first."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tirx_reduce.bench import explain as text
from tirx_reduce.bench.cli_plan import style_of
from tirx_reduce.bench.planning import only, read_request
from tirx_reduce.bench.terminal import number, table
from tirx_reduce.errors import ReduceError

NOT_TO_SUBTRACT = "four separate figures: do not subtract one from another"


def bench(args: argparse.Namespace) -> int:
    """Plan, build, verify, time; status 1 where the outputs are wrong or no timing is valid."""
    from tirx_reduce.bench.build import Case, build_plans
    from tirx_reduce.bench.cli_stand import timing_of
    from tirx_reduce.bench.measure import REPLAY
    from tirx_reduce.bench.stand import local_stand
    from tirx_reduce.bench.trial import try_out

    if args.grid == "dispatch":
        from tirx_reduce.bench import grid_dispatch

        return grid_dispatch.run(args)
    if args.grid:
        from tirx_reduce.bench import grid

        return grid.run(args)
    if args.subject is None:
        raise ReduceError("nothing to time; needs an operator and a shape, or --grid")
    regime = args.regime or "warm"
    request = read_request(args)
    subject = only(request)
    workload, shape, dtype = subject.runnable()
    plan = request.plan(subject)
    case = Case(operator=subject.operator, shape=shape, dtype=dtype)
    with tempfile.TemporaryDirectory() as scratch:
        stand = local_stand(request.target, Path(scratch), stand_in=args.stand_in)
        environment = stand.environment()
        built = build_plans(stand, {"bench": (case, plan)}, Path(scratch), workers=0)["bench"]
        result = try_out(
            stand,
            case,
            built,
            timing_of(args, REPLAY),
            regime=regime,
            cache_bytes=_cache_bytes(stand.device) if regime == "cold" else 0,
            device_name=environment["device"],
        )
    moved = workload.bytes_moved(shape, dtype)
    if args.json:
        print(json.dumps(_json(subject.label, environment["device"], plan, result, moved)))
    else:
        print("\n".join(_lines(args, subject.label, environment["device"], plan, result, moved)))
    return 0 if result["status"] == "measured" else 1


def _cache_bytes(device: Any) -> int:
    found = getattr(device, "l2_cache_size_bytes", None)
    if not found:
        raise ReduceError(
            "a cold run rotates over more than the cache, and this device does not say its size"
        )
    return int(found)


def _medians(result: dict[str, Any]) -> dict[str, float]:
    from tirx_reduce.bench.statistics import median

    phases = result["timing"]["phases"]
    return {name: median([float(s) for s in phase["samples_us"]]) for name, phase in phases.items()}


def _json(label: str, device: str, plan: Any, result: dict[str, Any], moved: int) -> dict[str, Any]:
    return {
        "subject": label,
        "device": device,
        "plan": text.plan_json(plan),
        "status": result["status"],
        "reason": result.get("reason"),
        "bytes_moved": moved,
        "median_us": _medians(result) if result["status"] == "measured" else None,
    }


def _lines(
    args: argparse.Namespace, label: str, device: str, plan: Any, result: dict[str, Any], moved: int
) -> list[str]:
    style = style_of(args)
    lines = [style(label, "bold") + f" on {device}: {text.mapping(plan.candidate)}"]
    if result["status"] != "measured":
        return [*lines, style(f"failed: {result['reason']}", "red")]
    medians = _medians(result)
    rows = [
        [name.replace("_", " "), number(us), number(moved / us / 1e3) if name == "gpu_batch" else ""]
        for name, us in medians.items()
    ]
    lines += table([f"phase ({args.regime or 'warm'})", "median µs", "GB/s"], rows, style=style)
    return [*lines, NOT_TO_SUBTRACT]
