"""`run` and `emulate`: plan, build, run, verify."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from tirx_reduce.bench import explain as text
from tirx_reduce.bench.cli_plan import style_of
from tirx_reduce.bench.execute import Execution, rows_text, run_on_gpu, run_on_model
from tirx_reduce.bench.planning import only, read_request
from tirx_reduce.bench.shapes import row_count, shape_text
from tirx_reduce.bench.targets import device_of
from tirx_reduce.bench.terminal import Style, number
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import GroupPlan

FAILED = 1
ORDERS = ("forward", "reverse", "random")


def run(args: argparse.Namespace) -> int:
    """Plan, build, run on what is here, verify; status 1 where an output is wrong."""
    request = read_request(args)
    subject = only(request)
    workload, shape, dtype = subject.runnable()
    plan = request.plan(subject)
    device = None if args.cpu_model else device_of(request.target.kind.name)
    if device is not None:
        done = run_on_gpu(workload, shape, dtype, plan, request.target, device, args.seed)
    else:
        done = run_on_model(
            workload, shape, dtype, plan, request.target, rows_limit=args.rows_limit, seed=args.seed
        )
    if args.json:
        print(json.dumps(_json(subject.label, str(request.target), shape, plan, done)))
    else:
        _print(subject.label, shape, plan, done, style_of(args), args.top)
    return 0 if done.verdict.ok else FAILED


def emulate(args: argparse.Namespace) -> int:
    """Run on the CPU model in several orders of lanes; a fault of the kernel is an error of its own."""
    request = read_request(args)
    subject = only(request)
    workload, shape, dtype = subject.runnable()
    orders = tuple(args.orders.split(","))
    unknown = [o for o in orders if o not in ORDERS]
    if unknown:
        raise ReduceError(f"order {unknown[0]!r} is not known; needs some of {', '.join(ORDERS)}")
    plan = request.plan(subject)
    done = run_on_model(
        workload,
        shape,
        dtype,
        plan,
        request.target,
        rows_limit=args.rows_limit,
        seed=args.seed,
        orders=orders,
        numerics=args.numerics,
    )
    if args.json:
        out = _json(subject.label, str(request.target), shape, plan, done)
        print(json.dumps({**out, "orders": list(orders), "numerics": args.numerics}))
    else:
        style = style_of(args)
        print(
            style(subject.label, "bold") + f" on {request.target.kind.name}: {text.mapping(plan.candidate)}"
        )
        print("\n".join(_result_lines(shape, done, style)))
        print(f"orders {', '.join(orders)}; numerics {args.numerics}; no fault")
        for name, value in sorted(done.counters.items()):
            print(f"  {name.replace('_', ' ')}: {value}")
    return 0 if done.verdict.ok else FAILED


def _print(label: str, shape: Any, plan: GroupPlan, done: Execution, style: Style, top: int) -> None:
    print(style(label, "bold") + f" on {plan.target_kind}")
    print("\n".join(text.plan_lines(plan, style)))
    print(text.limit_line(plan.limits))
    print()
    print("\n".join(text.candidate_lines(plan, style, top)))
    print()
    print("\n".join(_result_lines(shape, done, style)))


def _result_lines(shape: Any, done: Execution, style: Style) -> list[str]:
    v = done.verdict
    word = style("verified", "green", "bold") if v.ok else style("WRONG", "red", "bold")
    return [
        f"ran   {done.where}",
        f"      {rows_text(shape, done.shape)}, {done.seconds:.2f} s wall time (not a timing of the kernel)"
        + (f"; {done.missed}" if done.missed else ""),
        f"{word} against float64: largest error {_number(v.max_abs)} absolute, "
        f"{_number(v.max_rel)} relative, {_share(v.share)} of what is allowed, at {v.where}",
        style(f"      allowed: {v.allowed}", "dim"),
    ]


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}" if math.isfinite(value) else "∞"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %" if math.isfinite(value) and value < 1e4 else number(value)


def _json(label: str, target: str, shape: Any, plan: GroupPlan, done: Execution) -> dict[str, Any]:
    v = done.verdict
    return {
        "subject": label,
        "target": target,
        "plan": text.plan_json(plan),
        "ran": {
            "where": done.where,
            "on_gpu": done.on_gpu,
            "shape": shape_text(done.shape),
            "rows": row_count(done.shape),
            "of_rows": row_count(shape),
            "wall_s": done.seconds,
            "counters": done.counters,
        },
        "verified": {
            "ok": v.ok,
            # JSON has no infinity; null stands for a number against a NaN or an infinity.
            "max_abs": v.max_abs if math.isfinite(v.max_abs) else None,
            "max_rel": v.max_rel if math.isfinite(v.max_rel) else None,
            "share_of_allowed": v.share if math.isfinite(v.share) else None,
            "where": v.where,
            "allowed": v.allowed,
        },
    }
