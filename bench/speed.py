"""How long planning takes: the 24 cases of the report, first and again, after the imports.

python -m tirx_reduce.bench.speed --target metal
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from tirx_reduce.bench.cohorts import HELD_OUT_SHAPES, OPERATORS, TRAINING_SHAPES
from tirx_reduce.bench.shapes import shape_text
from tirx_reduce.bench.statistics import median
from tirx_reduce.bench.targets import read_target
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError

FIRST_MS = 50.0
AGAIN_MS = 0.2
"""What planning may take: a function that was never planned, and one that was."""
REPEATS = 20


def measure_planning(target: str, policy: str = "analytic") -> dict[str, tuple[float, float]]:
    """(first, again) in ms by case; the first plan of the process is not counted, since it warms TVM up."""
    from tirx_reduce import schedules

    found = read_target(target)
    schedules.plan(get_workload("softmax").func((3, 5)), found, policy=policy)
    times = {}
    for operator in OPERATORS:
        for shape in (*TRAINING_SHAPES, *HELD_OUT_SHAPES):
            func = get_workload(operator).func(shape)
            start = time.perf_counter()
            schedules.plan(func, found, policy=policy)
            first = time.perf_counter() - start
            start = time.perf_counter()
            for _ in range(REPEATS):
                schedules.plan(func, found, policy=policy)
            again = (time.perf_counter() - start) / REPEATS
            times[f"{operator} {shape_text(shape)}"] = (1e3 * first, 1e3 * again)
    return times


def main(argv: Sequence[str] | None = None) -> int:
    """Print the medians; status 1 where one is above what planning may take."""
    parser = argparse.ArgumentParser(prog="python -m tirx_reduce.bench.speed", description=__doc__)
    parser.add_argument("--target", default="metal", help="metal or cuda (default: %(default)s)")
    parser.add_argument("--policy", default="analytic", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    try:
        times = measure_planning(args.target, args.policy)
    except ReduceError as error:
        print(f"speed: error: {error}", file=sys.stderr)
        return 2
    first = median([t[0] for t in times.values()])
    again = median([t[1] for t in times.values()])
    if args.json:
        print(json.dumps({"cases": times, "first_ms": first, "again_ms": again}))
    else:
        slowest = max(times, key=lambda case: times[case][0])
        print(f"{len(times)} cases on {args.target}: median {first:.1f} ms first, {again:.3f} ms again")
        print(f"slowest: {slowest}, {times[slowest][0]:.1f} ms")
    return 0 if first < FIRST_MS and again < AGAIN_MS else 1


if __name__ == "__main__":
    sys.exit(main())
