"""The verbs of the command line: names, arguments, examples. Imports nothing but argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

EPILOG = """\
examples:
  tirx-reduce run softmax 768x6144 --target metal
  tirx-reduce plan rms_norm 37x1537 --target cuda --policy analytic --json
  tirx-reduce explain layer_norm 768x6144
  tirx-reduce explain my_kernels.py:my_primfunc --target cuda
  tirx-reduce doctor

Exit status: 0 done, 1 a check failed, 2 bad input, 130 interrupted.
Colours go off with --no-color, with NO_COLOR=1, and where the output is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One command."""

    name: str
    summary: str
    handler: str
    """`module:function` in tirx_reduce.bench; gets the parsed arguments, gives the exit status."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    description: str = ""
    epilog: str = ""


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options that every verb has."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--no-color", action="store_true", help="print without colours")


def _subject(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument(
        "subject",
        nargs="?" if optional else None,
        help="an operator (softmax, rms_norm, …) or FILE.py:NAME of a Workload; "
        "plan, explain and show also take a PrimFunc or an IRModule",
    )
    parser.add_argument("shape", nargs="?", help="extents, the reduced one last: 768x6144, 4x32x128x64")
    parser.add_argument("--dtype", help="of an operator: float32 (the default), float16 or bfloat16")


def _target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        default="metal",
        help="metal, cuda (sm_90 without a GPU), a tag like apple/m1-gpu, or JSON (default: %(default)s)",
    )
    parser.add_argument("--device", help="device name that the calibration must have (default: its own)")


def _policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        default="analytic",
        help="who prices the mappings: analytic (the default), ladder, service, guarded or one of your own",
    )
    parser.add_argument("--calibration", metavar="FILE", help="of the policy (default: the packaged one)")
    limits = parser.add_argument_group("hard limits, where they are to be tighter than the device's")
    limits.add_argument("--max-threads", type=positive, metavar="N", help="threads of a group")
    limits.add_argument("--private-scalars", type=positive, metavar="N", help="values that a lane may keep")
    limits.add_argument("--shared-bytes", type=positive, metavar="N", help="threadgroup memory of a group")


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not read; needs a whole number of 1 or more")
    return value


def seed(text: str) -> int:
    """A whole number of 0 or more."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not read; needs a whole number of 0 or more")
    return value


def plan_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """What every verb that plans takes; `optional`: the subject may be left out."""
    _subject(parser, optional=optional)
    _target(parser)
    _policy(parser)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    plan_arguments(parser)
    parser.add_argument("--rows-limit", type=positive, metavar="N", help="rows the CPU model runs at most")
    parser.add_argument("--seed", type=seed, default=0, help="of the inputs (default: %(default)s)")
    parser.add_argument(
        "--cpu-model", action="store_true", help="run on the CPU model of the GPU even where a GPU exists"
    )
    parser.add_argument(
        "--top",
        type=positive,
        default=5,
        metavar="N",
        help="runners-up printed behind the winner (default: 5)",
    )


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    plan_arguments(parser)
    parser.add_argument(
        "--top",
        type=positive,
        default=12,
        metavar="N",
        help="runners-up printed behind the winner (default: 12)",
    )
    parser.add_argument("--all", action="store_true", help="print every candidate and every refusal")
    parser.add_argument("--source", action="store_true", help="print the emitted text as well, marked")


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    plan_arguments(parser)
    parser.add_argument("--source", action="store_true", help="the emitted Metal or CUDA text (default)")
    parser.add_argument("--tir", action="store_true", help="the scheduled PrimFunc as TVMScript")
    parser.add_argument("--input", action="store_true", help="the PrimFunc as it comes in")
    parser.add_argument("--marked", action="store_true", help="barriers and accesses of the text marked")


def _emulate_arguments(parser: argparse.ArgumentParser) -> None:
    plan_arguments(parser)
    parser.add_argument("--rows-limit", type=positive, metavar="N", help="rows to run at most")
    parser.add_argument("--seed", type=seed, default=0, help="of the inputs (default: %(default)s)")
    parser.add_argument(
        "--orders", default="forward,reverse,random", help="orders of lanes, by commas (default: %(default)s)"
    )
    parser.add_argument(
        "--numerics",
        default="plain",
        choices=("plain", "fma", "fast"),
        help="arithmetic (default: %(default)s)",
    )


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calibration", metavar="FILE", help="what to check (default: the packaged one)")


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="whose completion to print")


def _schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("of", nargs="?", metavar="VERB", help="the verb (default: all of them)")


PLAN_VERBS: tuple[Verb, ...] = (
    Verb(
        name="run",
        summary="plan, build, run and verify one operator",
        description="Plans a row reduction, builds its kernel, runs it on the GPU or on a CPU model of it,\n"
        "compares every output with the float64 reference, and prints plan, price and error.",
        epilog="examples:\n"
        "  tirx-reduce run softmax 768x6144\n"
        "  tirx-reduce run layer_norm 37x1537 --target cuda --dtype float16\n"
        "  tirx-reduce run rms_norm 1024x4096 --rows-limit 4 --seed 7 --json",
        handler="cli_run:run",
        add_arguments=_run_arguments,
    ),
    Verb(
        name="plan",
        summary="choose a mapping, and print it with its price",
        epilog="examples:\n"
        "  tirx-reduce plan softmax 37x1537\n"
        "  tirx-reduce plan softmax 768x6144 --json > plan.json",
        handler="cli_plan:plan",
        add_arguments=plan_arguments,
    ),
    Verb(
        name="explain",
        summary="why this mapping, why others were refused, why a function was declined",
        epilog="examples:\n"
        "  tirx-reduce explain layer_norm 768x6144\n"
        "  tirx-reduce explain softmax 37x1537 --source\n"
        "  tirx-reduce explain my_kernels.py:my_primfunc --target cuda",
        handler="cli_plan:explain",
        add_arguments=_explain_arguments,
    ),
    Verb(
        name="show",
        summary="print the emitted text or the TIR of the planned kernel",
        epilog="examples:\n"
        "  tirx-reduce show softmax 768x6144 --source\n"
        "  tirx-reduce show rms_norm 64x4096 --target cuda --marked\n"
        "  tirx-reduce show rms_norm 64x4096 --tir",
        handler="cli_plan:show",
        add_arguments=_show_arguments,
    ),
    Verb(
        name="emulate",
        summary="run the emitted text on the CPU model of the GPU, every access checked",
        epilog="examples:\n"
        "  tirx-reduce emulate softmax 768x6144 --rows-limit 2\n"
        "  tirx-reduce emulate layer_norm 37x1537 --target cuda --numerics fast",
        handler="cli_run:emulate",
        add_arguments=_emulate_arguments,
    ),
    Verb(
        name="doctor",
        summary="what is installed, which devices run, what is assumed, and what to mend",
        epilog="examples:\n  tirx-reduce doctor\n  tirx-reduce doctor --json",
        handler="doctor:main",
        add_arguments=_doctor_arguments,
    ),
    Verb(
        name="schema",
        summary="print the JSON schema of what a verb prints with --json",
        epilog="examples:\n  tirx-reduce schema run",
        handler="cli_meta:schema",
        add_arguments=_schema_arguments,
    ),
    Verb(
        name="completion",
        summary="print shell completion",
        epilog='examples:\n  eval "$(tirx-reduce completion bash)"',
        handler="cli_meta:completion",
        add_arguments=_completion_arguments,
    ),
)
