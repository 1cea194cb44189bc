"""Arguments of the peers' grid. Imports nothing but argparse."""

from __future__ import annotations

import argparse


def add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    """What the grid alone has."""
    grid = parser.add_argument_group("grid")
    grid.add_argument("--out", metavar="FILE", help="record file; an unfinished one goes on")
    grid.add_argument(
        "--peers",
        default="copy,eager,liger,quack,dlight,ours",
        metavar="NAMES",
        help="of copy, eager, compile, liger, quack, dlight, ours (default: %(default)s)",
    )
    grid.add_argument(
        "--policies",
        default="ladder,analytic,service",
        metavar="NAMES",
        help="whose plans are measured; the first stands against the peers (default: %(default)s)",
    )
    grid.add_argument("--groups", default="table,odd,fused", help="parts of the grid (default: %(default)s)")
    grid.add_argument("--operators", nargs="+", default=[], metavar="OP", help="only these")
    grid.add_argument("--shapes", nargs="+", default=[], metavar="SHAPE", help="only these, or others")
    grid.add_argument("--dtypes", nargs="+", default=[], metavar="DTYPE", help="only these")
    grid.add_argument("--lines", type=int, metavar="N", help="only the first N")
    grid.add_argument("--rounds", type=int, default=11, help="of interleaved replays (default: %(default)s)")
    grid.add_argument("--budget-s", type=float, metavar="S", help="begin no line after this many seconds")
    grid.add_argument("--cold-mb", type=float, default=300.0, help="input that a cold run rotates over")

    build = parser.add_argument_group("builds of the grid")
    build.add_argument("--workers", type=int, default=0, metavar="N", help="processes (default: none)")
    build.add_argument("--scratch", metavar="DIR", help="folder (default: a temporary one)")
    build.add_argument("--commit", help="of the checkout, where there is no git")
    build.add_argument("--dirty", action="store_true", help="the checkout has changes beside --commit")


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    """What the verb `bench` has without the grid, for running the grid by itself."""
    parser.add_argument("--target", default="cuda", help="default: %(default)s")
    parser.add_argument("--calibration", metavar="FILE", help="for policies that need one")
    parser.add_argument("--regime", choices=("warm", "cold"), help="default: cold")
    parser.add_argument("--stand-in", action="store_true", help="run plain code on the CPU: a trial")
    parser.add_argument("--json", action="store_true", help="print JSON rows instead of a table")
