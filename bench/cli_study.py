"""`search`, `fit`, `replay`, `audit`, `ablate`, `compare`, `study`: arguments in, one call, a summary out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tirx_reduce.bench import cli_stand as stands
from tirx_reduce.bench.cli_plan import style_of
from tirx_reduce.bench.report import capacity_lines, coefficient_lines, summary_lines
from tirx_reduce.errors import ReduceError

REPORTED = "a study's folder or the records of a grid"


def existing(text: str, needs: str = "a record or calibration file") -> Path:
    """A file that is there.

    Raises
    ------
    ReduceError
        It is not.
    """
    path = Path(text)
    if not path.is_file():
        raise ReduceError(f"file {text!r} is not there; needs {needs}")
    return path


def search(args: argparse.Namespace) -> int:
    """Measure a grid of candidates; status 1 where no trial was measured."""
    from tirx_reduce.bench.cohorts import FAMILIES, TRAINING_SHAPES, TRAINING_WIDTHS, grid
    from tirx_reduce.bench.measure import SEARCH
    from tirx_reduce.bench.records import read
    from tirx_reduce.bench.search import search as measure_grid
    from tirx_reduce.bench.search import trials

    candidates = grid(widths=args.widths or TRAINING_WIDTHS, families=args.families or FAMILIES)
    cohort = stands.cohort_of(args, TRAINING_SHAPES)
    report = stands.Report(args.json)
    with stands.stand_of(args) as stand, stands.workers_of(args) as workers:
        try:
            out = measure_grid(
                stand,
                Path(args.out),
                cohort=cohort,
                candidates=candidates,
                options=stands.timing_of(args, SEARCH),
                workers=workers,
                winners=not args.no_winners,
                regime=args.regime,
                progress=report,
            )
        finally:
            report.close()
    found = trials(read(out))
    counts = {s: sum(t["status"] == s for t in found) for s in ("measured", "infeasible", "failed")}
    if args.json:
        print(json.dumps({"records": str(out), "trials": len(found), **counts}))
    else:
        print(f"{out}: {len(found)} trials, " + ", ".join(f"{n} {s}" for s, n in counts.items()))
        print(_after_search(out, found))
    return 0 if counts["measured"] else 1


def _after_search(out: Path, found: Sequence[dict[str, Any]]) -> str:
    """The command that comes next, or why there is none."""
    if any(t["status"] == "measured" for t in found):
        return f"next: tirx-reduce fit {out} --out calibration.json"
    reasons = [t["reason"] for t in found if t.get("reason")]
    return f"nothing to fit; the first reason: {reasons[0]}" if reasons else "nothing to fit"


def fit(args: argparse.Namespace) -> int:
    """Fit a profile, and write it where `--out` says."""
    from tirx_reduce.bench import fit as fitting

    profile = fitting.fit(existing(args.records))
    written = None if args.out is None else fitting.write(profile, Path(args.out))
    if args.json:
        out = None if written is None else str(written)
        print(json.dumps({"calibration": out, "profile": profile.to_dict()}))
        return 0
    style = style_of(args)
    print(
        style(f"profile ({profile.label})", "bold")
        + f": {profile.trials} trials, {profile.infeasible} infeasible"
    )
    print("\n".join(coefficient_lines(profile, style)))
    print()
    print("\n".join(capacity_lines(profile, style)))
    print("regret is that of leave-one-shape-out model selection; it is no held-out result")
    if written is not None:
        print(f"written to {written}; test it on shapes it has not seen with: tirx-reduce replay collect")
    return 0


def replay(args: argparse.Namespace) -> int:
    """One phase of a replay."""
    from tirx_reduce.bench import replay as phases
    from tirx_reduce.bench.cohorts import HELD_OUT_SHAPES
    from tirx_reduce.bench.measure import COLLECT, REPLAY

    records = Path(args.records)
    report = stands.Report(args.json)
    frozen: str | None = None
    if args.phase != "collect":
        existing(args.records)
    with stands.stand_of(args) as stand, stands.workers_of(args) as workers:
        try:
            if args.phase == "collect":
                phases.collect(
                    stand,
                    records,
                    policy=args.policy,
                    calibration=args.calibration,
                    cohort=stands.cohort_of(args, HELD_OUT_SHAPES),
                    rounds=args.rounds or phases.ROUNDS,
                    collect_options=stands.timing_of(args, COLLECT),
                    replay_options=stands.timing_of(args, REPLAY),
                    torch=not args.no_torch,
                    workers=workers,
                    history=[existing(h) for h in args.history],
                    progress=report,
                )
            elif args.phase == "freeze":
                frozen = phases.freeze(records, stand).sha256
            else:
                phases.run(stand, records, calibration=args.calibration, workers=workers, progress=report)
        finally:
            report.close()
    summary = _summary(records) if args.phase == "run" else None
    if args.json:
        print(
            json.dumps({"records": str(records), "phase": args.phase, "freeze": frozen, "summary": summary})
        )
        return 0
    after = {"collect": "freeze", "freeze": "run"}.get(args.phase)
    if frozen:
        print(f"frozen: {frozen}")
    if summary:
        print("\n".join(summary_lines(summary, style_of(args))))
    if after:
        print(f"next: tirx-reduce replay {after} {records}{stands.flags_of(args, after == 'run')}")
    return 0


def audit(args: argparse.Namespace) -> int:
    """Check records; status 1 where something does not hold."""
    from tirx_reduce.bench import audit as check

    calibration, records = existing(args.calibration), [existing(r) for r in args.records]
    receipt: list[str] = []
    failure = ""
    try:
        receipt = list(check.audit(calibration, records))
    except check.Failed as failed:
        failure = str(failed)
    except check.Unreadable as error:
        raise ReduceError(f"cannot be read: {error}") from error
    if args.json:
        print(json.dumps({"ok": not failure, "receipt": receipt, "failure": failure or None}))
    else:
        style = style_of(args)
        for line in receipt:
            print(line)
        print(
            style(f"FAIL {failure}", "red", "bold") if failure else style("all of it holds", "green", "bold")
        )
    return 1 if failure else 0


def ablate(args: argparse.Namespace) -> int:
    """The 2×2 of width and reuse on the cases of a replay that are not faster in every pair."""
    from tirx_reduce.bench import ablate as corners
    from tirx_reduce.bench.measure import REPLAY
    from tirx_reduce.bench.replay import ROUNDS

    widths = corners.from_replay(existing(args.replay))
    if not widths:
        raise ReduceError(f"{args.replay} holds no case that regresses with another width; nothing to ablate")
    report = stands.Report(args.json)
    with stands.stand_of(args) as stand, stands.workers_of(args) as workers:
        try:
            out = corners.ablate(
                stand,
                Path(args.out),
                widths,
                rounds=args.rounds or ROUNDS,
                options=stands.timing_of(args, REPLAY),
                workers=workers,
                progress=report,
            )
        finally:
            report.close()
    return _print_summary(args, out)


def compare(args: argparse.Namespace) -> int:
    """Measure the plans of several policies side by side."""
    from tirx_reduce.bench import compare as policies
    from tirx_reduce.bench.cohorts import HELD_OUT_SHAPES
    from tirx_reduce.bench.measure import REPLAY
    from tirx_reduce.bench.replay import ROUNDS
    from tirx_reduce.cost import resolve

    for name in args.policies:
        resolve(name, args.calibration)
    report = stands.Report(args.json)
    with stands.stand_of(args) as stand, stands.workers_of(args) as workers:
        try:
            out = policies.compare_policies(
                stand,
                Path(args.out),
                tuple(args.policies),
                stands.cohort_of(args, HELD_OUT_SHAPES),
                calibration=args.calibration,
                rounds=args.rounds or ROUNDS,
                options=stands.timing_of(args, REPLAY),
                torch=args.torch,
                workers=workers,
                progress=report,
            )
        finally:
            report.close()
    return _print_summary(args, out)


def study(args: argparse.Namespace) -> int:
    """Every step of the study; status 1 where the audit fails."""
    from tirx_reduce.bench import audit as check
    from tirx_reduce.bench import study as whole
    from tirx_reduce.bench.cohorts import HELD_OUT_SHAPES, TRAINING_SHAPES, TRAINING_WIDTHS, cases
    from tirx_reduce.bench.measure import COLLECT, REPLAY, SEARCH
    from tirx_reduce.bench.replay import ROUNDS
    from tirx_reduce.bench.shapes import parse_shape

    operators = stands.operators_of(args)
    training = [parse_shape(s) for s in args.training] if args.training else list(TRAINING_SHAPES)
    held_out = [parse_shape(s) for s in args.held_out] if args.held_out else list(HELD_OUT_SHAPES)
    failure = ""
    with stands.stand_of(args) as stand, stands.workers_of(args) as workers:
        try:
            whole.study(
                stand,
                Path(args.out),
                training=cases(operators=operators, shapes=training),
                held_out=cases(operators=operators, shapes=held_out),
                widths=args.widths or TRAINING_WIDTHS,
                search_options=stands.timing_of(args, SEARCH),
                collect_options=stands.timing_of(args, COLLECT),
                replay_options=stands.timing_of(args, REPLAY),
                rounds=args.rounds or ROUNDS,
                workers=workers,
                steps=args.steps,
                say=lambda line: print(line, file=sys.stderr if args.json else sys.stdout, flush=True),
            )
        except check.Failed as failed:
            failure = str(failed)
    if args.json:
        print(json.dumps({"folder": args.out, "steps": list(args.steps), "failure": failure or None}))
    elif failure:
        print(style_of(args)(f"FAIL {failure}", "red", "bold"))
    return 1 if failure else 0


def report(args: argparse.Namespace) -> int:
    """The tables of a study's folder, or of record files of a grid."""
    from tirx_reduce.bench.grid_tables import tables
    from tirx_reduce.bench.study_report import study_report

    folders = [r for r in args.records if Path(r).is_dir()]
    if folders and len(args.records) > 1:
        raise ReduceError(f"{folders[0]!r} is a folder beside other records; needs one folder, or files")
    text = study_report(Path(folders[0])) if folders else tables([_of_a_grid(r) for r in args.records])
    if args.out is not None:
        Path(args.out).parent.mkdir(parents=True, exist_ok=True)
        Path(args.out).write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps({"file": args.out, "markdown": text}))
    elif args.out is None:
        print(text)
    else:
        print(f"written to {args.out}")
    return 0


def _of_a_grid(text: str) -> Path:
    from tirx_reduce.bench import grid_dispatch, grid_report
    from tirx_reduce.bench.records import content
    from tirx_reduce.bench.replay import COLLECTED
    from tirx_reduce.bench.rounds import MEASUREMENT
    from tirx_reduce.bench.search import TRIAL

    path = existing(text, REPORTED)
    lines = content(path)
    if any(_marks(kind) in lines for kind in (grid_report.SETTINGS, grid_dispatch.SETTINGS)):
        return path
    others = {TRIAL: "a search", COLLECTED: "a replay", MEASUREMENT: "a comparison or an ablation"}
    what = next((words for kind, words in others.items() if _marks(kind) in lines), "none of these")
    raise ReduceError(f"{text!r} is {what}; needs {REPORTED}")


def _marks(kind: str) -> bytes:
    return f'"kind":"{kind}"'.encode()


def _print_summary(args: argparse.Namespace, out: Path) -> int:
    summary = _summary(out)
    if args.json:
        print(json.dumps({"records": str(out), "summary": summary}))
    else:
        print("\n".join(summary_lines(summary, style_of(args))))
        print(f"records: {out}")
    return 0


def _summary(path: Path) -> dict[str, Any]:
    from tirx_reduce.bench.records import of_kind, read
    from tirx_reduce.bench.summary import SUMMARY

    found: Sequence[dict[str, Any]] = ()
    with suppress(IndexError):
        found = of_kind(read(path), SUMMARY)
    if not found:
        raise ReduceError(f"{path} holds no summary; it was not finished (the same command goes on with it)")
    return dict(found[-1])
