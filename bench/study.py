"""The whole study in one go: search, fit, plan collection, freeze, replay, ablation, audit.

Each step is skipped where its file is finished, so that an interrupted study goes on.

    python -m tirx_reduce.bench.study --out records --target cuda --workers 16 --commit HASH
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tirx_reduce.bench import ablate, audit, fit, replay
from tirx_reduce.bench.build import Case, Workers
from tirx_reduce.bench.cohorts import HELD_OUT_SHAPES, OPERATORS, TRAINING_SHAPES, cases, grid
from tirx_reduce.bench.measure import COLLECT, REPLAY, SEARCH, Options
from tirx_reduce.bench.records import compress, finished, read
from tirx_reduce.bench.search import search
from tirx_reduce.bench.shapes import parse_shape
from tirx_reduce.bench.stand import LocalStand, local_stand
from tirx_reduce.errors import ReduceError

STEPS = ("search", "fit", "collect", "freeze", "replay", "ablate", "audit")


def study(
    stand: LocalStand,
    out: Path,
    *,
    training: Sequence[Case],
    held_out: Sequence[Case],
    widths: Sequence[int],
    search_options: Options = SEARCH,
    collect_options: Options = COLLECT,
    replay_options: Options = REPLAY,
    rounds: int = replay.ROUNDS,
    workers: int | Workers = 0,
    steps: Sequence[str] = STEPS,
    say: Callable[[str], None] = print,
) -> Path:
    """Run the steps in order, and return the folder with the records.

    Parameters
    ----------
    stand
        Where kernels run.
    out
        Folder of records and calibration.
    training, held_out
        Cohorts of the search and of the replay.
    widths
        Of the search.
    search_options, collect_options, replay_options, rounds, workers
        Of the measurements.
    steps
        Those to run, of `STEPS`.
    say
        Told of every step and its time.
    """
    out.mkdir(parents=True, exist_ok=True)
    calibration = out / "calibration.json"
    files = {name: out / f"{name}.jsonl" for name in ("search", "replay", "ablate")}

    def progress(done: int, total: int, what: str) -> None:
        if done == total or done % 10 == 0 or "measured" not in what:
            say(f"  [{done}/{total}] {what}")

    def do_search() -> None:
        search(
            stand,
            files["search"],
            cohort=training,
            candidates=grid(widths=widths),
            options=search_options,
            workers=workers,
            progress=progress,
        )

    def do_fit() -> None:
        profile = fit.fit(files["search"])
        fit.write(profile, calibration)
        say(f"  capacity {profile.coefficients.capacity:g}, regret mean {profile.mean_regret:.2%}, ")
        say(f"  maximum {profile.max_regret:.2%}, {profile.trials} trials, {profile.infeasible} infeasible")

    def do_collect() -> None:
        replay.collect(
            stand,
            files["replay"],
            calibration=calibration,
            cohort=held_out,
            rounds=rounds,
            collect_options=collect_options,
            replay_options=replay_options,
            workers=workers,
            progress=progress,
        )

    def do_freeze() -> None:
        say(f"  {replay.freeze(files['replay'], stand).sha256}")

    def do_replay() -> None:
        replay.run(stand, files["replay"], calibration=calibration, workers=workers, progress=progress)

    def do_ablate() -> None:
        widths_of = ablate.from_replay(files["replay"])
        if not widths_of:
            say("  no case regresses with another width")
            return
        ablate.ablate(
            stand,
            files["ablate"],
            widths_of,
            rounds=rounds,
            options=replace(replay_options, phases=("gpu_batch", "end_to_end_batch")),
            workers=workers,
            progress=progress,
        )

    def do_audit() -> None:
        for line in audit.audit(calibration, [files["search"], files["replay"]]):
            say(f"  {line}")
        for path in files.values():
            if path.exists():
                compress(path)

    made = {
        "search": do_search,
        "fit": do_fit,
        "collect": do_collect,
        "freeze": do_freeze,
        "replay": do_replay,
        "ablate": do_ablate,
        "audit": do_audit,
    }
    for step in STEPS:
        if step not in steps:
            continue
        start = time.perf_counter()
        path = files.get("replay" if step in ("collect", "freeze") else step)
        if path is not None and path.exists() and finished(_whole(path)):
            say(f"{step}: finished before")
            continue
        say(f"{step}:")
        made[step]()
        say(f"{step}: {time.perf_counter() - start:.1f} s")
    return out


def _whole(path: Path) -> Sequence[Any]:
    """Records of a file, none where a kill cut its last line: its writer takes care of that."""
    try:
        return read(path)
    except ReduceError:
        return ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study from the command line."""
    parser = argparse.ArgumentParser(prog="study", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of records and calibration.json")
    parser.add_argument("--target", default="cuda", help="kind, tag or JSON (cuda)")
    parser.add_argument("--workers", type=int, default=0, help="build processes; 0 builds in this one")
    parser.add_argument("--commit", help="of the checkout, where there is no git")
    parser.add_argument("--dirty", action="store_true", help="the checkout has changes beside the commit")
    parser.add_argument("--stand-in", action="store_true", help="emit kernels, run plain code on the CPU")
    parser.add_argument("--scratch", type=Path, help="folder for builds (a temporary one)")
    parser.add_argument("--training", nargs="+", type=parse_shape, default=TRAINING_SHAPES, metavar="SHAPE")
    parser.add_argument("--held-out", nargs="+", type=parse_shape, default=HELD_OUT_SHAPES, metavar="SHAPE")
    parser.add_argument("--operators", nargs="+", default=OPERATORS)
    parser.add_argument("--widths", nargs="+", type=int, default=(64, 128, 256, 512, 1024))
    parser.add_argument("--rounds", type=int, default=replay.ROUNDS)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--diagnostic", action="store_true", help="instrumented timing in the replay too")
    parser.add_argument(
        "--quick", action="store_true", help="three samples of 1 ms: for a trial, no evidence"
    )
    try:
        given = parser.parse_args(arguments)
        options = (SEARCH, COLLECT, REPLAY)
        if given.quick:
            options = (Options(samples=3, batch_ms=1.0, warmup_ms=2.0),) * 3
        with tempfile.TemporaryDirectory() as scratch, Workers(given.workers) as pool:
            stand = local_stand(
                _target(given.target, given.stand_in),
                given.scratch or Path(scratch),
                stand_in=given.stand_in,
                commit=given.commit,
                # A commit that is named is clean unless it is said to be dirty.
                dirty=given.dirty if given.commit else None,
            )
            study(
                stand,
                given.out,
                training=cases(operators=given.operators, shapes=given.training),
                held_out=cases(operators=given.operators, shapes=given.held_out),
                widths=given.widths,
                search_options=options[0],
                collect_options=options[1],
                replay_options=replace(options[2], diagnostic=given.diagnostic),
                rounds=given.rounds,
                workers=pool if given.workers else 0,
                steps=given.steps,
                say=lambda line: print(line, flush=True),
            )
    except (ReduceError, audit.Failed) as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    return 0


def _target(text: str, stand_in: bool) -> Any:
    if text.lstrip().startswith("{"):
        return json.loads(text)
    return {"kind": "cuda", "arch": "sm_90"} if stand_in and text == "cuda" else text


if __name__ == "__main__":
    sys.exit(main())
