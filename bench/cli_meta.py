"""`schema` and `completion`: the command line about itself."""

from __future__ import annotations

import argparse
import json

from tirx_reduce.errors import ReduceError


def schema(args: argparse.Namespace) -> int:
    """Print the JSON schema of one verb, or of all."""
    from tirx_reduce.bench.schemas import SCHEMAS

    if args.of is None:
        print(json.dumps(SCHEMAS, indent=2, ensure_ascii=False))
        return 0
    if args.of not in SCHEMAS:
        raise ReduceError(f"no schema of {args.of!r} (known: {', '.join(SCHEMAS)})")
    print(json.dumps(SCHEMAS[args.of], indent=2, ensure_ascii=False))
    return 0


def completion(args: argparse.Namespace) -> int:
    """Print what a shell has to source."""
    import shtab

    from tirx_reduce.bench.cli import PROG, build_parser

    print(shtab.complete(build_parser(), args.shell).replace("python -m tirx_reduce.bench", PROG))
    return 0
