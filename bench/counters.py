"""Hardware counters of chosen lines of the grid, ours beside peers, read by Nsight Compute; one record file.

    python -m tirx_reduce.bench.counters --lines softmax:1024x32768:bfloat16 --peers quack,ours --out FILE

Every call runs with flushed caches and at free clocks. The counters' own times include no launch overhead
and no overlap of launches, so they explain a grid's line and do not replace it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.counters_launch import MARK
from tirx_reduce.bench.counters_report import DURATION, markdown, rows_of
from tirx_reduce.bench.dtypes import dtype_name
from tirx_reduce.bench.grid import open_stand
from tirx_reduce.bench.grid_arguments import add_place_arguments
from tirx_reduce.bench.grid_plans import aliases, build_planned, plan_case
from tirx_reduce.bench.grid_warm import Place, warm_up
from tirx_reduce.bench.peers import DLIGHT, OURS, PEERS, read_peers
from tirx_reduce.bench.records import Writer
from tirx_reduce.bench.shapes import parse_shape
from tirx_reduce.bench.stand import target_json
from tirx_reduce.bench.trial import keep_source
from tirx_reduce.errors import ReduceError

COUNTERS = "counters"
"""Kind of record: one contender at one line."""
STALLS = (
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "membar",
    "lg_throttle",
    "mio_throttle",
    "math_pipe_throttle",
    "wait",
    "not_selected",
    "sleeping",
)
METRICS = (
    DURATION,
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__inst_executed.sum",
    *(f"smsp__average_warps_issue_stalled_{s}_per_issue_active.ratio" for s in STALLS),
    "launch__registers_per_thread",
    "launch__block_size",
    "launch__grid_size",
    "launch__waves_per_multiprocessor",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__occupancy_limit_blocks",
)
USUAL_PLACES = ("ncu", "/usr/local/cuda/bin/ncu")
Kernel = dict[str, Any]


def run(args: argparse.Namespace) -> int:
    """Build, launch under the profiler, record, print; status 1 where nothing was counted."""
    cases = tuple(read_line(text) for text in args.lines)
    names = tuple(n for n in read_peers(args.peers) if n != "copy")
    policies = tuple(p for p in args.policies.split(",") if p) if OURS in names else ()
    profiler = None if args.stand_in and not args.ncu else find_profiler(args.ncu)
    with ExitStack() as stack:
        stand = open_stand(args, stack)
        writer = stack.enter_context(Writer(args.out, stand.environment()))
        target, device = target_json(stand.target), "cpu" if args.stand_in else "cuda"
        spec: dict[str, Any] = {"device": device, "target": target, "folder": str(stand.folder)}
        spec |= {"stand_in": args.stand_in, "calls": args.calls, "lines": []}
        planned = {
            case: plan_case(
                case,
                policies,
                stand.target,
                calibration=args.calibration,
                device=None if args.stand_in else stand.device,
            )
            for case in cases
        }
        built = build_planned(
            [p for named in planned.values() for p in named.values()],
            target,
            stand.folder,
            stand_in=args.stand_in,
            workers=args.workers,
        )
        if args.workers:
            place = Place(device=device, target=target, folder=str(stand.folder), stand_in=args.stand_in)
            warm_up(cases, names, place, workers=args.workers, limit_s=args.limit_s / 2)
        for case in cases:
            mine = aliases(planned[case])
            ours = {
                policy: asdict(built[planned[case][policy].key])
                for policy, first in mine.items()
                if policy == first
            }
            others = [n for n in names if n in PEERS or n == DLIGHT]
            spec["lines"].append({"case": case.to_json(), "ours": ours, "peers": others})
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        marks, kernels, text = launch(spec, work, profiler, limit_s=args.limit_s, warm=args.regime == "warm")
        if text:
            Path(f"{args.out}.csv").write_text(text)
        for line, found in group(marks, kernels).items():
            number, name = line
            case = cases[number]
            entry = {"case": case.to_json(), "name": name, "regime": args.regime or "cold", **found}
            if name in planned[case]:
                entry["plan"] = planned[case][name].to_json() | built[planned[case][name].key].hashes()
                one = built[planned[case][name].key]
                keep_source(writer, one.source, one.source_sha256)
            writer.append(COUNTERS, entry)
    rows = rows_of([args.out])
    print(json.dumps({"rows": rows}) if args.json else markdown(rows))
    return 0 if any(r["metrics"] for r in rows) else 1


def read_line(text: str) -> Case:
    """`softmax:1024x32768:bfloat16`; float32 where the dtype is left out.

    Raises
    ------
    ReduceError
        It is not of this form.
    """
    operator, _, rest = text.partition(":")
    shape, _, dtype = rest.partition(":")
    if not operator or not shape:
        raise ReduceError(f"line {text!r} is not read; needs operator:shape:dtype, as softmax:64x256:float32")
    return Case(operator=operator, shape=parse_shape(shape), dtype=dtype_name(dtype or "float32"))


def find_profiler(given: str | None) -> str:
    """The command of Nsight Compute.

    Raises
    ------
    ReduceError
        It is not there.
    """
    for place in (given,) if given else USUAL_PLACES:
        found = shutil.which(place)
        if found:
            return found
    raise ReduceError(f"no {given or 'ncu'} found; needs Nsight Compute, or its place by --ncu PATH")


def launch(
    spec: Mapping[str, Any], work: Path, profiler: str | None, *, limit_s: float, warm: bool
) -> tuple[list[dict[str, Any]], list[Kernel], str]:
    """Run the launches in another process, under the profiler where there is one: marks, kernels, its text.

    Raises
    ------
    ReduceError
        The process left no marks, or the profiler no counters; the text is the end of what it said.
    """
    told, log, marks = work / "spec.json", work / "ncu.csv", work / "marks.jsonl"
    told.write_text(json.dumps({**spec, "marks": str(marks)}))
    command = [sys.executable, "-m", "tirx_reduce.bench.counters_launch", str(told)]
    if profiler is not None:
        command = [
            profiler, "--profile-from-start", "off", "--clock-control", "none",
            "--cache-control", "none" if warm else "all", "--print-units", "base", "--csv",
            "--log-file", str(log), "--metrics", ",".join(known(METRICS, profiler)), *command,
        ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        said = f"stopped after {limit_s:g} s"
    text = log.read_text() if log.exists() else ""
    found = [json.loads(line) for line in marks.read_text().splitlines()] if marks.exists() else []
    if not found:
        raise ReduceError(f"nothing was launched: {' '.join((said + text).split())[-600:]}")
    kernels = read_csv(text)
    if profiler is not None and not kernels:
        raise ReduceError(f"the profiler counted nothing: {' '.join((text + said).split())[-600:]}")
    return found, kernels, text


def known(metrics: Sequence[str], profiler: str) -> tuple[str, ...]:
    """Those that the profiler knows on this device; all where it does not say."""
    try:
        done = subprocess.run(
            [profiler, "--query-metrics"], capture_output=True, text=True, timeout=60.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return tuple(metrics)
    names = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    if not any(name.startswith("dram__bytes") for name in names):
        return tuple(metrics)
    # What is known of a launch stands in another list.
    kept = tuple(m for m in metrics if m.startswith("launch__") or m in names or m.split(".")[0] in names)
    lost = [m for m in metrics if m not in kept]
    if lost:
        print(f"the profiler does not know {', '.join(lost)}", file=sys.stderr)
    return kept


def read_csv(text: str) -> list[Kernel]:
    """Kernels of the profiler's CSV in the order of their launches: name and metrics, n/a left out."""
    start = text.find('"ID"')
    if start < 0:
        return []
    kernels: dict[str, Kernel] = {}
    for row in csv.DictReader(io.StringIO(text[start:])):
        if not (row.get("ID") or "").isdigit():
            continue
        kernel = kernels.setdefault(row["ID"], {"kernel": row["Kernel Name"], "metrics": {}})
        try:
            kernel["metrics"][row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue
    return [kernels[i] for i in sorted(kernels, key=int)]


def group(
    marks: Sequence[Mapping[str, Any]], kernels: Sequence[Kernel]
) -> dict[tuple[int, str], dict[str, Any]]:
    """What was counted for each contender of each line; each profiled call begins with a kernel that marks it.

    The longest kernel of a call stands for it; the others are named with their times.
    """
    calls: list[list[Kernel]] = []
    for kernel in kernels:
        if MARK in kernel["kernel"]:
            calls.append([])
        elif calls:
            calls[-1].append(kernel)
    found: dict[tuple[int, str], dict[str, Any]] = {}
    waiting = iter(calls)
    for mark in marks:
        entry = found.setdefault((mark["line"], mark["name"]), {"status": "counted", "calls": []})
        if mark.get("reason"):
            entry |= {"status": "failed", "reason": mark["reason"]}
        if mark.get("verified"):
            entry["verified"] = mark["verified"]
        if mark.get("profiled"):
            mine = sorted(next(waiting, []), key=lambda k: -float(k["metrics"].get(DURATION, 0.0)))
            entry["calls"].append(mine)
    for entry in found.values():
        if entry["status"] == "counted" and not any(entry["calls"]):
            entry |= {"status": "failed", "reason": "no kernel of it was profiled"}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m tirx_reduce.bench.counters", description=__doc__)
    parser.add_argument("--lines", nargs="+", required=True, metavar="OP:SHAPE:DTYPE", help="what to launch")
    parser.add_argument("--peers", default="quack,ours", metavar="NAMES", help="default: %(default)s")
    parser.add_argument("--policies", default="ladder", metavar="NAMES", help="default: %(default)s")
    parser.add_argument("--out", required=True, metavar="FILE", help="record file; raw CSV in FILE.csv")
    parser.add_argument("--calls", type=int, default=3, help="profiled calls of each (default: %(default)s)")
    parser.add_argument("--ncu", metavar="PATH", help="of Nsight Compute (default: from PATH)")
    parser.add_argument("--limit-s", type=float, default=480.0, help="of all launches (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="build processes (default: none)")
    parser.add_argument("--scratch", metavar="DIR", help="folder (default: a temporary one)")
    parser.add_argument("--commit", help="of the checkout, where there is no git")
    parser.add_argument("--dirty", action="store_true", help="the checkout has changes beside --commit")
    add_place_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except ReduceError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
