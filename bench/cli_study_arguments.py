"""Arguments of the verbs that measure, fit, compare and check. Imports nothing but argparse."""

from __future__ import annotations

import argparse

from tirx_reduce.bench.cli_arguments import Verb, plan_arguments, positive, seed
from tirx_reduce.bench.grid_arguments import add_grid_arguments

STEPS = ("search", "fit", "collect", "freeze", "replay", "ablate", "audit")


def _positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not read; needs a finite number above 0")
    return value


def _stand(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("where kernels run")
    where.add_argument("--target", help="metal, cuda, a tag or JSON (default: what is here)")
    where.add_argument(
        "--rpc", metavar="HOST:PORT", help="TVM RPC tracker of the device (default: this machine)"
    )
    where.add_argument("--key", help="of the server at the tracker")
    where.add_argument("--device-name", help="name of a device behind RPC, as its calibration will have it")
    where.add_argument(
        "--stand-in", action="store_true", help="emit kernels, run plain code on the CPU: a trial"
    )
    where.add_argument("--workers", type=seed, default=0, metavar="N", help="build processes (default: none)")
    where.add_argument("--scratch", metavar="DIR", help="folder for builds (default: a temporary one)")
    where.add_argument("--commit", help="of the checkout, where there is no git")
    where.add_argument("--dirty", action="store_true", help="the checkout has changes beside --commit")


def _cohort(parser: argparse.ArgumentParser, kind: str) -> None:
    cohort = parser.add_argument_group(f"cohort (default: the published {kind} one)")
    cohort.add_argument("--operators", nargs="+", metavar="OP", help="operators")
    cohort.add_argument("--shapes", nargs="+", metavar="SHAPE", help="shapes, such as 768x6144")
    cohort.add_argument("--dtypes", nargs="+", metavar="DTYPE", default=["float32"], help="default: float32")


def _timing(parser: argparse.ArgumentParser) -> None:
    timing = parser.add_argument_group("timing (default: as published)")
    timing.add_argument("--samples", type=positive, metavar="N", help="samples of a phase")
    timing.add_argument("--batch-ms", type=_positive_float, metavar="MS", help="length of a sample")
    timing.add_argument(
        "--warmup-ms", type=_positive_float, metavar="MS", help="warm-up before the first one"
    )


def _search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="record file; an interrupted one goes on"
    )
    _cohort(parser, "training")
    grid = parser.add_argument_group("candidates (default: the published grid)")
    grid.add_argument("--widths", nargs="+", type=positive, metavar="W", help="lanes of a row")
    grid.add_argument("--families", nargs="+", metavar="REUSE", help="reload, private")
    grid.add_argument("--no-winners", action="store_true", help="do not time the winners of the search again")
    grid.add_argument("--regime", choices=("warm", "cold"), default="warm", help="default: %(default)s")
    _timing(parser)
    _stand(parser)


def _fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", help="of a search")
    parser.add_argument(
        "--out", metavar="FILE", help="calibration file to put the profile into (default: print it only)"
    )


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "phase", choices=("collect", "freeze", "run"), help="in this order; `run` refuses what was not frozen"
    )
    parser.add_argument("records", help="record file of this replay")
    parser.add_argument("--calibration", metavar="FILE", help="whose profile is put to the test")
    parser.add_argument("--policy", default="service", help="default: %(default)s")
    parser.add_argument("--rounds", type=positive, metavar="N", help="independently compiled rounds")
    parser.add_argument(
        "--history", nargs="+", default=[], metavar="FILE", help="earlier replays: spent cohorts"
    )
    parser.add_argument("--no-torch", action="store_true", help="without Torch beside it")
    _cohort(parser, "held-out")
    _timing(parser)
    _stand(parser)


def _audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("calibration", help="calibration file")
    parser.add_argument("records", nargs="+", help="search and replay files, plain or .gz")


def _ablate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("replay", help="replay whose cases are not faster in every pair")
    parser.add_argument("--out", required=True, metavar="FILE", help="record file")
    parser.add_argument("--rounds", type=positive, metavar="N", help="independently compiled rounds")
    _timing(parser)
    _stand(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("policies", nargs="+", help="two or more; ratios are taken against the first")
    parser.add_argument("--out", required=True, metavar="FILE", help="record file")
    parser.add_argument("--calibration", metavar="FILE", help="for policies that need one")
    parser.add_argument("--rounds", type=positive, metavar="N", help="independently compiled rounds")
    parser.add_argument("--torch", action="store_true", help="with Torch beside it")
    _cohort(parser, "held-out")
    _timing(parser)
    _stand(parser)


def _study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of records and calibration.json")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="default: all")
    parser.add_argument("--operators", nargs="+", metavar="OP", help="operators")
    parser.add_argument("--training", nargs="+", metavar="SHAPE", help="training shapes")
    parser.add_argument("--held-out", nargs="+", metavar="SHAPE", help="held-out shapes")
    parser.add_argument("--widths", nargs="+", type=positive, metavar="W", help="widths of the search")
    parser.add_argument("--rounds", type=positive, metavar="N", help="independently compiled rounds")
    _timing(parser)
    _stand(parser)


def _bench(parser: argparse.ArgumentParser) -> None:
    plan_arguments(parser, optional=True)
    parser.add_argument("--samples", type=positive, metavar="N", help="samples of a phase")
    parser.add_argument("--batch-ms", type=_positive_float, metavar="MS", help="length of a sample")
    parser.add_argument(
        "--warmup-ms", type=_positive_float, metavar="MS", help="warm-up before the first one"
    )
    parser.add_argument("--regime", choices=("warm", "cold"), help="default: warm; of the grid, cold")
    parser.add_argument("--stand-in", action="store_true", help="run plain code on the CPU: a trial")
    parser.add_argument(
        "--grid",
        choices=("peers", "dispatch"),
        help="a whole grid: beside torch, Liger, quack and dlight; or one module of symbolic rows beside static plans",
    )
    add_grid_arguments(parser)


def _plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("surface", "regret", "gains", "roofline"), help="what to draw")
    parser.add_argument(
        "records",
        nargs="+",
        help="surface, regret: a search; gains: a replay or a comparison; roofline: the peers' grid",
    )
    parser.add_argument("--calibration", metavar="FILE", help="prices for surface and regret")
    parser.add_argument("--case", metavar="'OP SHAPE'", help="surface: which case (default: the first)")
    parser.add_argument("--out", required=True, metavar="FILE", help="FILE.png or FILE.svg")


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", help="folder of a study, or record files of the peers' grid")
    parser.add_argument("--out", metavar="FILE", help="Markdown file (default: print)")


STUDY_VERBS: tuple[Verb, ...] = (
    Verb(
        name="bench",
        summary="time one planned kernel on the device",
        epilog="examples:\n  tirx-reduce bench softmax 768x6144 --target metal\n"
        "  tirx-reduce bench rms_norm 4096x4096 --target cuda --dtype bf16 --regime cold\n"
        "  tirx-reduce bench --grid peers --target cuda --workers 16 --out grid.jsonl\n"
        "  tirx-reduce bench --grid dispatch --target cuda --workers 16 --out dispatch.jsonl",
        handler="cli_bench:bench",
        add_arguments=_bench,
    ),
    Verb(
        name="search",
        summary="measure every candidate of a grid over a cohort",
        epilog="examples:\n  tirx-reduce search --target metal --out search.jsonl\n"
        "  tirx-reduce search --target cuda --workers 16 --out search.jsonl\n"
        "  tirx-reduce search --target metal --rpc mac:9190 --key m2 --device-name 'Apple M2' --out m2.jsonl",
        handler="cli_study:search",
        add_arguments=_search,
    ),
    Verb(
        name="fit",
        summary="six coefficients and a capacity from the records of a search",
        epilog="examples:\n  tirx-reduce fit search.jsonl --out calibration.json",
        handler="cli_study:fit",
        add_arguments=_fit,
    ),
    Verb(
        name="replay",
        summary="put a profile to the test on a cohort it has not seen",
        epilog="examples:\n"
        "  tirx-reduce replay collect replay.jsonl --calibration calibration.json --target metal\n"
        "  tirx-reduce replay freeze replay.jsonl --target metal\n"
        "  tirx-reduce replay run replay.jsonl --calibration calibration.json --target metal",
        handler="cli_study:replay",
        add_arguments=_replay,
    ),
    Verb(
        name="audit",
        summary="check records without the code that made them",
        epilog="examples:\n  tirx-reduce audit calibration.json search.jsonl replay.jsonl",
        handler="cli_study:audit",
        add_arguments=_audit,
    ),
    Verb(
        name="ablate",
        summary="width × reuse, 2×2, on the cases that regress",
        epilog="examples:\n  tirx-reduce ablate replay.jsonl --out ablate.jsonl --target metal",
        handler="cli_study:ablate",
        add_arguments=_ablate,
    ),
    Verb(
        name="compare",
        summary="the plans of any policies side by side over a cohort",
        epilog="examples:\n  tirx-reduce compare analytic ladder --shapes 37x1537 --out compare.jsonl",
        handler="cli_study:compare",
        add_arguments=_compare,
    ),
    Verb(
        name="study",
        summary="search, fit, replay, ablation and audit in one go; an interrupted one goes on",
        epilog="examples:\n  tirx-reduce study --target metal --out study\n"
        "  tirx-reduce study --target cuda --workers 16 --out study",
        handler="cli_study:study",
        add_arguments=_study,
    ),
    Verb(
        name="report",
        summary="the records of a study or of the peers' grid as Markdown tables",
        epilog="examples:\n  tirx-reduce report study --out study.md\n  tirx-reduce report grid.jsonl",
        handler="cli_study:report",
        add_arguments=_report,
    ),
    Verb(
        name="plot",
        summary="draw records: price surface, predicted against measured, gains, roofline",
        epilog="examples:\n  tirx-reduce plot gains replay.jsonl --out gains.svg\n"
        "  tirx-reduce plot surface search.jsonl --calibration calibration.json --out surface.png",
        handler="plot:main",
        add_arguments=_plot,
    ),
)
