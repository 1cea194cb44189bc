"""FILE.py:NAME: every verb finds it, in every process, and what fails in it is one line that names it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.json_schema import check
from tests.test_cli import call
from tests.test_cli_study import QUICK, STAND
from tirx_reduce.bench import files
from tirx_reduce.bench.schemas import SCHEMAS
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError

MINE = """
import numpy as np
from tirx_reduce.bench.workloads import Operand, Workload, normal

def boom(*args, **named):
    raise KeyError("boom")

def sum_of(relax, x):
    return relax.op.sum(relax.op.abs(x), axis=-1)

def summed(x, cast):
    return (np.sum(np.abs(x), axis=-1),)

def make(name, express=sum_of, reference=summed, draw=normal):
    return Workload(
        name=name, summary="Σ |x|", scale="sum", express=express, reference=reference,
        operands=(Operand(name="x", draw=draw),), results=(Operand(name="y", axes="rows"),),
    )

good = make("abs_sum")
no_express = make("no_express", express=boom)
number = make("number", express=lambda relax, x: 3)
no_reference = make("no_reference", reference=boom)
bare = make("bare", reference=lambda x, cast: np.sum(np.abs(x), axis=-1))
two = make("two", reference=lambda x, cast: summed(x, cast) * 2)
no_draw = make("no_draw", draw=boom)

def fails():
    raise ValueError("no")
"""

FORGOT = """
from tvm.script import tirx as T

@T.prim_func
def row_sum(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (8, 64), "float32")
    B = T.match_buffer(b, (8,), "float32")
    for i, k in T.grid(8, 64):
        with T.sblock("s"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vk]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file in the working folder, by a name that holds in that folder alone."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return "mine.py"


def test_it_is_searched_compared_and_timed(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{mine}:good"
    where = f"{tmp_path.resolve() / mine}:good"
    status, out, _ = call(capsys, "bench", name, "4x96", *STAND, *QUICK, "--json")
    assert (status, json.loads(out)["status"]) == (0, "measured")
    cohort = ("--operators", name, "softmax", "--shapes", "4x96")
    argv = ("search", "--out", "search.jsonl", *STAND, *QUICK, *cohort, "--widths", "32", "--no-winners")
    status, out, _ = call(capsys, *argv, "--workers", "1", "--json")
    assert (status, json.loads(out)["failed"]) == (0, 0)
    compared = ("compare", "analytic", "ladder", "--out", "compare.jsonl", "--rounds", "1")
    status, out, _ = call(capsys, *compared, *STAND, *QUICK, *cohort, "--json")
    assert status == 0
    assert [c["case"]["operator"] for c in json.loads(out)["summary"]["cases"]] == [where, "softmax"]
    # A search goes on from any folder: its records hold the whole path.
    monkeypatch.chdir("/")
    there = [str(tmp_path / a) if a.endswith(".jsonl") else where if a == name else a for a in argv]
    before = (tmp_path / "search.jsonl").read_bytes()
    assert call(capsys, *there, "--json")[0] == 0
    assert (tmp_path / "search.jsonl").read_bytes() == before


def test_a_file_runs_once_until_it_is_changed(mine: str, tmp_path: Path) -> None:
    found = get_workload(f"{mine}:good")
    assert get_workload(f"{tmp_path / mine}:good") is found
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / mine).write_text(MINE.replace("Σ |x|", "another"), encoding="utf-8")
    assert get_workload(f"other/{mine}:good").summary == "another"
    (tmp_path / mine).write_text(MINE.replace("Σ |x|", "changed"), encoding="utf-8")
    os.utime(tmp_path / mine, ns=(1, 1))
    assert get_workload(f"{mine}:good").summary == "changed"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("plan", "no_express"), "workload 'no_express': its express fails with KeyError: 'boom'"),
        (
            ("plan", "number"),
            "what the express of workload 'number' gives is of type int; needs a Relax expression, or a tuple of them",
        ),
        (("run", "no_reference"), "workload 'no_reference': its reference fails with KeyError: 'boom'"),
        (
            ("run", "bare"),
            "what the reference of workload 'bare' gives is of type ndarray; needs a tuple of 1 array, one a result",
        ),
        (
            ("run", "two"),
            "the reference of workload 'two' gives 2 arrays; needs a tuple of 1 array, one a result",
        ),
        (("emulate", "no_draw"), "workload 'no_draw': its draw of 'x' fails with KeyError: 'boom'"),
        (("explain", "fails", "no shape"), "mine.py:fails fails with ValueError: no"),
    ],
    ids=lambda v: v[1] if isinstance(v, tuple) else "",
)
def test_what_fails_in_it_is_one_line(
    mine: str, capfd: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    # Of the file descriptors: TVM's own warnings do not go through sys.stderr.
    shape = () if argv[2:] else ("4x8",)
    status, out, err = call(capfd, argv[0], f"{mine}:{argv[1]}", *shape, "--json")
    assert status == 2
    assert err == f"tirx-reduce {argv[0]}: error: {message}\n"
    assert check(json.loads(out), SCHEMAS["error"]) == []
    assert json.loads(out)["error"]["message"] == message


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("search", "--operators", "mine.py:none"), "holds no 'none' (it holds: "),
        (("search", "--operators", "gone.py:good"), "gone.py' of "),
        (
            ("compare", "analytic", "ladder", "--operators", "mine.py:fails"),
            "mine.py:fails is of type function; needs a Workload, which has inputs and a reference",
        ),
    ],
)
def test_a_cohort_of_what_is_not_there_is_refused(
    mine: str, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    status, out, err = call(capsys, *argv, "--out", "x.jsonl", *STAND)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_forgotten_s_tir_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "forgot.py").write_text(FORGOT, encoding="utf-8")
    status, _, err = call(capsys, "plan", f"{tmp_path / 'forgot.py'}:row_sum")
    assert status == 2
    assert "TIR verifier does not support statement s_tir.SBlockRealize" in err
    assert err.endswith("; a PrimFunc written by hand is @T.prim_func(s_tir=True) in TVM 0.27\n")
    (tmp_path / "right.py").write_text(FORGOT.replace("prim_func", "prim_func(s_tir=True)"), encoding="utf-8")
    assert call(capsys, "plan", f"{tmp_path / 'right.py'}:row_sum")[0] == 0


def test_names_of_operators_are_no_files() -> None:
    assert files.absolute("softmax") == "softmax"
    number: Any = 3
    with pytest.raises(
        ReduceError, match=r"^the name of a workload is of type int; needs a str, such as 'softmax'$"
    ):
        get_workload(number)
