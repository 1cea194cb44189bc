"""From parsed arguments to the place where kernels run, and to cohorts and timing options."""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import Case, Workers
from tirx_reduce.bench.cohorts import OPERATORS, cases
from tirx_reduce.bench.files import absolute
from tirx_reduce.bench.measure import Options
from tirx_reduce.bench.shapes import Shape, parse_shape
from tirx_reduce.bench.targets import device_of, read_target
from tirx_reduce.bench.terminal import Progress
from tirx_reduce.bench.workloads import dtype_name, get_workload
from tirx_reduce.errors import ReduceError


def find_target(args: argparse.Namespace) -> Any:
    """The target that was named, or that of the device that is here.

    Raises
    ------
    ReduceError
        None was named and no device answers.
    """
    if args.target is not None:
        return read_target(args.target)
    for kind in ("metal", "cuda"):
        if device_of(kind) is not None:
            return read_target(kind)
    if args.stand_in or args.rpc:
        raise ReduceError("no target was named; --stand-in and --rpc need --target metal or --target cuda")
    raise ReduceError("no Metal or CUDA device answers here; needs one, or --rpc, or --stand-in for a trial")


def flags_of(args: argparse.Namespace, calibrated: bool) -> str:
    """The options that name the stand, and the calibration where it counts: the next command needs them again."""
    names = ["target", "rpc", "key", "device_name", "commit"] + ["calibration"] * calibrated
    given = {name: getattr(args, name) for name in names}
    words = [w for name, value in given.items() if value is not None for w in (_flag(name), str(value))]
    words += [_flag(name) for name in ("stand_in", "dirty") if getattr(args, name)]
    return "".join(f" {shlex.quote(word)}" for word in words)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def stand_of(args: argparse.Namespace) -> Iterator[Any]:
    """The stand that the arguments name; its builds are thrown away unless `--scratch` names a folder.

    Raises
    ------
    ReduceError
        There is no such device.
    """
    from tirx_reduce.bench.stand import local_stand

    target = find_target(args)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(args.scratch or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        # A commit that is named is clean unless it is said to be dirty.
        dirty = args.dirty if args.commit else None
        if args.rpc is None:
            yield local_stand(target, folder, stand_in=args.stand_in, commit=args.commit, dirty=dirty)
        else:
            yield _remote(args, folder, dirty)


def _remote(args: argparse.Namespace, folder: Path, dirty: bool | None) -> Any:
    from tirx_reduce.bench.remote import rpc_stand

    for name in ("key", "device_name"):
        if getattr(args, name) is None:
            raise ReduceError(f"--rpc without {_flag(name)}; needs both --key and --device-name")
    # As it was named: a tag's own host is the far side's, and its host code is built for that.
    named = json.loads(args.target) if args.target.lstrip().startswith("{") else args.target
    return rpc_stand(
        args.rpc,
        args.key,
        args.device_name,
        named,
        folder,
        stand_in=args.stand_in,
        commit=args.commit,
        dirty=dirty,
    )


def operators_of(args: argparse.Namespace) -> list[str]:
    """The operators that were named, else the published ones; files by their whole path, as records keep them."""
    return [absolute(name) for name in args.operators or OPERATORS]


def cohort_of(args: argparse.Namespace, shapes: Sequence[Shape]) -> tuple[Case, ...]:
    """The cases that were named, with the published ones in place of what was not.

    Raises
    ------
    ReduceError
        An operator, shape or dtype is not known.
    """
    named = [parse_shape(s) for s in args.shapes] if args.shapes else list(shapes)
    operators = operators_of(args)
    dtypes = [dtype_name(d) for d in args.dtypes]
    for operator in operators:
        for dtype in dtypes:
            get_workload(operator).check_dtype(dtype)
    return cases(operators=operators, shapes=named, dtypes=dtypes)


def timing_of(args: argparse.Namespace, published: Options) -> Options:
    """The published timing with what was named in its place."""
    given: dict[str, Any] = {
        name: getattr(args, name)
        for name in ("samples", "batch_ms", "warmup_ms")
        if getattr(args, name) is not None
    }
    return replace(published, **given)


@contextmanager
def workers_of(args: argparse.Namespace) -> Iterator[Any]:
    """Build processes, or 0 for none."""
    if not args.workers:
        yield 0
        return
    with Workers(args.workers) as pool:
        yield pool


class Report:
    """Progress on standard error: one line with the time left on a terminal, else a line now and then."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.bar: Progress | None = None

    def __call__(self, done: int, total: int, what: str) -> None:
        """`done` of `total`, and what that was."""
        if self.quiet or not total:
            return
        if self.bar is None or self.bar.total != total:
            self.bar = Progress(total, "done")
            self.bar.already = done
        self.bar.done = done
        if self.bar.shown:
            self.bar.show(what)
        elif done == total or done % 10 == 0:
            self.bar.stream.write(f"{self.bar.text(what)}\n")
            self.bar.stream.flush()

    def close(self) -> None:
        """Take the line away."""
        if self.bar is not None:
            self.bar.close()
