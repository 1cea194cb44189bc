"""One module of symbolic rows beside the static plan of each row count, interleaved; one record file.

Run as `python -m tirx_reduce.bench.grid_dispatch --out FILE`, or through `bench --grid dispatch`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Built, Case, Job, build_all
from tirx_reduce.bench.grid import LOST, check_settings, load_build, open_stand
from tirx_reduce.bench.grid_arguments import add_grid_arguments, add_place_arguments
from tirx_reduce.bench.grid_clock import Clock, GraphClock, HostClock
from tirx_reduce.bench.grid_lines import OPERATORS
from tirx_reduce.bench.grid_measure import DeviceLost, Method, measure_line, the_build, the_copy
from tirx_reduce.bench.records import Writer, check_identity, digest, of_kind, read
from tirx_reduce.bench.shapes import Shape, parse_shape, shape_text
from tirx_reduce.bench.stand import BANDWIDTH, LocalStand, target_json
from tirx_reduce.bench.statistics import median, paired
from tirx_reduce.bench.trial import COLD, keep_source
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError
from tirx_reduce.values import Candidate, GroupPlan, Interval

LINE, SETTINGS = "dispatch line", "dispatch settings"
"""Kinds of record."""
STATIC, SYMBOLIC, COPY = "static", "symbolic", "copy"
ROWS = (1, 8, 64, 512, 4096, 32768)
COLUMNS = (1024, 4096)
SHAPES: tuple[Shape, ...] = tuple((rows, columns) for columns in COLUMNS for rows in ROWS)
AIM = 1.03
"""Symbolic ÷ static, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The two plans of one line."""

    static: GroupPlan
    symbolic: GroupPlan
    """Of every row count, so the same for all lines of an operator, its columns and dtype."""

    def taken(self, rows: int) -> tuple[Candidate, Interval]:
        """The mapping that the symbolic module takes for `rows`, and the row counts that it is taken for."""
        for (low, high), plan in self.symbolic.variants:
            if low <= rows and (high is None or rows <= high):
                return plan.candidate, (low, high)
        return self.symbolic.candidate, (1, None)


def run(args: argparse.Namespace) -> int:
    """Measure, and print the table; 4: device lost (the same command goes on in a new process)."""
    if not args.out:
        raise ReduceError("the grid keeps every sample; needs --out FILE")
    policy = args.policies.split(",")[0]
    shapes = tuple(parse_shape(s) for s in args.shapes) or SHAPES
    cases = tuple(
        Case(operator=operator, shape=shape, dtype=dtype)
        for operator in args.operators or OPERATORS
        for dtype in args.dtypes or ("float32",)
        for shape in shapes
    )[: args.lines]
    with ExitStack() as stack:
        stand = open_stand(args, stack)
        environment = stand.environment()
        method = Method(
            rounds=args.rounds,
            regime=args.regime or COLD,
            cold_bytes=args.cold_mb * 1e6,
            gigabytes_per_second=BANDWIDTH.get(str(environment["device"]), 0.0),
        )
        writer = stack.enter_context(Writer(args.out, environment))
        clock = HostClock() if args.stand_in else GraphClock()
        try:
            measure_dispatch(cases, policy, method, stand, clock, writer, workers=args.workers, say=_say)
        except DeviceLost as error:
            _say(f"{' '.join(str(error).split())}; the same command goes on in a new process")
            return LOST
    rows = rows_of([args.out])
    print(json.dumps({"rows": rows}, ensure_ascii=False) if args.json else markdown(rows))
    return 0


def measure_dispatch(
    cases: Sequence[Case],
    policy: str,
    method: Method,
    stand: LocalStand,
    clock: Clock,
    writer: Writer,
    *,
    workers: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Plan, build and measure every line that the file does not hold."""
    began = time.monotonic()
    wanted = {
        "policy": policy,
        "regime": method.regime,
        "rounds": method.rounds,
        "cold_bytes": method.cold_bytes,
    }
    check_settings(writer, SETTINGS, wanted)
    have = {digest(r["case"]) for r in writer.of_kind(LINE)}
    todo = tuple(c for c in cases if digest(c.to_json()) not in have)
    pairs = {case: plan_pair(case, policy, stand) for case in todo}
    jobs = {job.key: job for case, pair in pairs.items() for job in _jobs(case, pair, stand).values()}
    built = {b.key: b for b in build_all(jobs.values(), workers=workers)}
    say(f"{len(todo)} lines planned, {len(built)} modules built, {time.monotonic() - began:.0f} s")
    for position, case in enumerate(todo):
        mine = {name: built[job.key] for name, job in _jobs(case, pairs[case], stand).items()}
        load = partial(load_build, stand)
        # What stands in for our kernel is TVM's plain one, which rounds after every operation.
        slack = 64.0 if stand.stand_in else 1.0
        contenders = [
            the_build(name, partial(mine.__getitem__, name), load, slack) for name in (STATIC, SYMBOLIC)
        ]
        line = measure_line(case, [the_copy(case), *contenders], clock, method, position=position)
        writer.append(LINE, {**line, "plans": _plans(case, pairs[case], mine)})
        for one in mine.values():
            keep_source(writer, one.source, one.source_sha256)
        clock.release()
        say(f"{position + 1}/{len(todo)} {case.label}, {time.monotonic() - began:.0f} s")


def plan_pair(case: Case, policy: str, stand: LocalStand) -> Pair:
    """The plan of a case, and that of the same function with symbolic rows."""
    from tirx_reduce import schedules

    # Without a device in the question, a stand-in would look for the calibration of one.
    device = None if stand.stand_in else stand.device
    workload = get_workload(case.operator)
    static, symbolic = (
        schedules.plan(
            workload.func(case.shape, case.dtype, symbolic_rows=symbolic),
            stand.target,
            policy=policy,
            device=device,
        )
        for symbolic in (False, True)
    )
    return Pair(static=static, symbolic=symbolic)


def _jobs(case: Case, pair: Pair, stand: LocalStand) -> dict[str, Job]:
    jobs = {}
    for name, plan in ((STATIC, pair.static), (SYMBOLIC, pair.symbolic)):
        shape = list(case.shape) if name == STATIC else ["rows", *case.shape[1:]]
        key = f"{name}-" + digest([case.operator, case.dtype, shape, plan.key])[:16]
        jobs[name] = Job(
            key=key,
            case=case,
            plan=plan.to_json(),
            target=target_json(stand.target),
            folder=str(stand.folder),
            stand_in=stand.stand_in,
            symbolic_rows=name == SYMBOLIC,
        )
    return jobs


def _plans(case: Case, pair: Pair, built: Mapping[str, Built]) -> dict[str, Any]:
    candidate, interval = pair.taken(case.rows)
    return {
        STATIC: {"candidate": asdict(pair.static.candidate), **built[STATIC].hashes()},
        SYMBOLIC: {
            "candidate": asdict(candidate),
            "interval": list(interval),
            "variants": max(1, len(pair.symbolic.variants)),
            **built[SYMBOLIC].hashes(),
        },
    }


def rows_of(paths: Iterable[Path | str]) -> list[dict[str, Any]]:
    """One row a line: medians (µs), symbolic ÷ static over the rounds with its range, both mappings.

    Raises
    ------
    BadRecords
        A file is bad, or two are of different machines.
    """
    rows = []
    first: tuple[str, Mapping[str, Any]] | None = None
    for path in paths:
        records = read(path)
        first = first or (str(path), records[0].data)
        check_identity(first[1], records[0].data, f"{first[0]} and {path}")
        device = records[0].data["device"]
        rows += [{**_row(line), "device": device} for line in of_kind(records, LINE)]
    return rows


def _row(line: Mapping[str, Any]) -> dict[str, Any]:
    case = Case.from_json(line["case"])
    plans, found = line["plans"], line["contenders"]
    row: dict[str, Any] = {
        "case": case.to_json(),
        "regime": line["regime"],
        "us": {},
        "failures": {n: c.get("reason", "") for n, c in found.items() if c["status"] != "measured"},
        "static": plans[STATIC]["candidate"],
        "symbolic": plans[SYMBOLIC]["candidate"],
        "interval": plans[SYMBOLIC]["interval"],
        "same_mapping": plans[STATIC]["candidate"] == plans[SYMBOLIC]["candidate"],
    }
    for name, contender in found.items():
        times = [float(s) for s in contender.get("samples_us", ()) if s is not None]
        if times:
            row["us"][name] = median(times)
    if STATIC in row["us"] and SYMBOLIC in row["us"]:
        both = [
            (a, b)
            for a, b in zip(found[SYMBOLIC]["samples_us"], found[STATIC]["samples_us"], strict=True)
            if a is not None and b is not None
        ]
        if both:
            ratios = paired([a for a, _ in both], [b for _, b in both])
            row |= {"ratio": ratios.median, "low": ratios.low, "high": ratios.high}
            # As everywhere in the grid, a range that includes 1.00 counts as 1.00.
            row["within"] = ratios.low <= 1.0 <= ratios.high or ratios.median <= AIM
    return row


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, how many lines are within the aim, and what failed."""
    if not rows:
        raise ReduceError("no line of row-count dispatch in these records; needs bench --grid dispatch")
    head = [
        "line",
        "copy",
        STATIC,
        SYMBOLIC,
        "symbolic ÷ static [range]",
        "within 3 %",
        "mapping of symbolic",
    ]
    out = [f"**dispatch** on {rows[0]['device']}, {rows[0]['regime']}, median µs of one launch", ""]
    out += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        ratio = f"{row['ratio']:.3f} [{row['low']:.3f}–{row['high']:.3f}]" if "ratio" in row else "−"
        mapping = "same" if row["same_mapping"] else f"{_told(row['symbolic'])}, not {_told(row['static'])}"
        times = [f"{row['us'][n]:.2f}" if n in row["us"] else "−" for n in (COPY, STATIC, SYMBOLIC)]
        within = {True: "yes", False: "no", None: "−"}[row.get("within")]
        out.append(f"| {' | '.join([_where(row), *times, ratio, within, mapping])} |")
    rated = [r for r in rows if "ratio" in r]
    if rated:
        worst = max(rated, key=lambda r: float(r["ratio"]))
        out += [
            "",
            f"Within {100 * (AIM - 1):.0f} % of the static plan on {sum(r['within'] for r in rated)} of "
            f"{len(rated)} lines; worst {worst['ratio']:.3f} ({_where(worst)}).",
        ]
    failures = [
        f"- {name}: {reason[:200]} ({_where(r)})" for r in rows for name, reason in r["failures"].items()
    ]
    return "\n".join([*out, *(["", "Not measured:", "", *failures] if failures else [])])


def _where(row: Mapping[str, Any]) -> str:
    case = Case.from_json(row["case"])
    return f"{case.dtype} {case.operator} {shape_text(case.shape).replace('x', '×')}"


def _told(candidate: Mapping[str, Any]) -> str:
    text = f"W={candidate['width']} P={candidate['packing']} V={candidate['vector']} {candidate['reuse']}"
    text += f" S={candidate['splits']}" if candidate["splits"] > 1 else ""
    return text + (" merged" if candidate["merged"] else "")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it by itself."""
    parser = argparse.ArgumentParser(prog="python -m tirx_reduce.bench.grid_dispatch", description=__doc__)
    add_grid_arguments(parser)
    add_place_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except ReduceError as error:
        _say(f"error: {' '.join(str(error).split())}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
