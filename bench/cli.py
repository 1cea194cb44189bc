"""The command `tirx-reduce`: reads arguments, hands them to one module a verb, turns errors into one line.

Exit status: 0 done; 1 a check failed (outputs, audit); 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from tirx_reduce import __version__
from tirx_reduce.bench import cli_arguments, cli_study_arguments
from tirx_reduce.errors import ReduceError

PROG = "tirx-reduce"
BAD_INPUT = 2
INTERRUPTED = 130


class BadArguments(ReduceError):
    """Arguments that no verb takes; knows the program, or verb, whose help lists what it takes."""

    def __init__(self, prog: str, message: str) -> None:
        super().__init__(message)
        self.prog = prog


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; takes no shortened options, which more options could make ambiguous."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Leave the words to `main`, which knows whether JSON was asked for.

        Raises
        ------
        BadArguments
            Always.
        """
        raise BadArguments(self.prog, message)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; imports nothing that takes time."""
    parser = Parser(
        prog=PROG,
        description="Plan, price, emit, run and check row-reduction kernels for Metal and CUDA.",
        epilog=cli_arguments.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{PROG} {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for verb in (*cli_arguments.PLAN_VERBS, *cli_study_arguments.STUDY_VERBS):
        sub = verbs.add_parser(
            verb.name,
            help=verb.summary,
            description=verb.description,
            epilog=verb.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(sub)
        cli_arguments.add_common(sub)
        sub.set_defaults(handler=verb.handler, parser=sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    try:
        args = _parsed(build_parser(), given)
    except BadArguments as error:
        return _refuse(error.prog, "--json" in given, error)
    module, function = args.handler.split(":")
    prog = f"{PROG} {args.verb}"
    try:
        # Imported here, so that `--help` stays quick.
        return int(getattr(import_module(f"tirx_reduce.bench.{module}"), function)(args))
    except ReduceError as error:
        return _refuse(prog, args.json, error)
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`| head`): what is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is None:
            raise
        unusable = f"{str(error.filename)!r}: {error.strerror}; needs a path that can be used so"
        return _refuse(prog, args.json, ReduceError(unusable))


def _parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; what is left over is told by the verb's own parser, whose help lists what it takes."""
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        args.parser.error(f"unknown arguments: {' '.join(unknown)}; needs those of {args.parser.prog} --help")
    return args


def _refuse(prog: str, in_json: bool, error: ReduceError) -> int:
    line = " ".join(str(error).split())
    if in_json:
        print(json.dumps({"error": {"type": type(error).__name__, "message": line}}))
    print(f"{prog}: error: {line}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
