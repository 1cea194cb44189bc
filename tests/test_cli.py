"""The command line as a person meets it: output, exit status, messages, colours, speed of `--help`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.json_schema import check
from tirx_reduce.bench import cli
from tirx_reduce.bench.execute import affordable
from tirx_reduce.bench.schemas import SCHEMAS

ROOT = Path(__file__).resolve().parent.parent
METAL_WORDS = (
    "emitted MSL executed on a CPU model of Metal; not compiled by Apple's compiler, not run on a GPU"
)


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of one command in this process."""
    try:
        status = cli.main(argv)
    except SystemExit as stop:
        status = int(stop.code or 0)
    out = capsys.readouterr()
    return status, out.out, out.err


@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_run_plans_runs_and_verifies(capsys: pytest.CaptureFixture[str], target: str) -> None:
    status, out, err = call(
        capsys, "run", "softmax", "768x6144", "--target", target, "--rows-limit", "2", "--cpu-model"
    )
    assert (status, err) == (0, "")
    assert "plan  W=384 V=4 reload" in out
    assert "price 2592 rounds by policy analytic (local 216, launch 12)" in out
    assert "W=320 V=4 reload            2640     1.019    220      12" in out
    assert "the first 2 of 768 rows (2x6144)" in out
    assert "verified against float64: largest error " in out
    assert (METAL_WORDS in out) == (target == "metal")


@pytest.mark.parametrize(
    "argv",
    [
        ("run", "layer_norm", "37x1537", "--rows-limit", "2", "--cpu-model"),
        (
            "emulate",
            "rms_norm",
            "5x769",
            "--orders",
            "forward,reverse",
            "--numerics",
            "fma",
            "--target",
            "cuda",
        ),
        ("plan", "softmax", "37x1537", "--dtype", "bf16"),
        ("explain", "layer_norm", "64x768", "--source"),
        ("show", "softmax", "4x64", "--source"),
        ("show", "softmax", "4x64", "--tir"),
        ("show", "softmax", "4x64", "--input"),
        ("doctor",),
    ],
    ids=lambda argv: "-".join(argv[:2]) + argv[-1],
)
def test_json_is_what_its_schema_says(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> None:
    status, out, _ = call(capsys, *argv, "--json")
    assert status == 0
    assert check(json.loads(out), SCHEMAS[argv[0]]) == []


def test_a_wrong_output_is_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirx_reduce import emulator

    real = emulator.emulate

    def damaged(executable: Any, *arrays: Any, **options: Any) -> Any:
        done = real(executable, *arrays, **options)
        arrays[-1][0, 3] += 0.5
        return done

    monkeypatch.setattr(emulator, "emulate", damaged)
    status, out, _ = call(capsys, "run", "softmax", "3x70", "--cpu-model")
    assert status == 1
    assert "WRONG against float64" in out
    assert "at y[0, 3]" in out


BAD = [
    (
        ("run", "sofmax", "4x8"),
        "tirx-reduce run: error: unknown operator 'sofmax'; did you mean 'softmax'? (known: add_rms_norm, ",
    ),
    (
        ("plan", "softmax", "0x5"),
        "tirx-reduce plan: error: shape '0x5' has the extent 0; every extent must be 1 or more\n",
    ),
    (
        ("plan", "softmax"),
        "tirx-reduce plan: error: operator 'softmax' has no shape; needs one such as 768x6144\n",
    ),
    (
        ("plan", "softmax", "4x8", "--target", "llvm"),
        "tirx-reduce plan: error: target 'llvm' is of kind 'llvm'; needs metal or cuda\n",
    ),
    (
        ("plan", "softmax", "4x8", "--target", "gpu9"),
        "tirx-reduce plan: error: target 'gpu9' is not known to TVM (",
    ),
    (
        ("plan", "softmax", "4x8", "--policy", "nope"),
        "tirx-reduce plan: error: no policy 'nope'; known: analytic, guarded, ladder, service\n",
    ),
    (
        ("plan", "softmax", "4x8", "--policy", "service", "--calibration", "/nowhere.json"),
        "tirx-reduce plan: error: calibration '/nowhere.json' cannot be read: No such file or directory\n",
    ),
    (
        ("plan", "softmax", "4x8", "--dtype", "f8"),
        "tirx-reduce plan: error: unknown dtype 'f8' (known: float32, float16, bfloat16, ",
    ),
    (
        ("run", "softmax", "4x8", "--rows-limit", "0"),
        "tirx-reduce run: error: argument --rows-limit: '0' is not read; needs a whole number of 1 or more\n",
    ),
    (
        ("run", "softmax", "1x2147483647", "--cpu-model"),
        "tirx-reduce run: error: 1 rows of 2147483647 columns on the CPU model; needs at most 16777216 elements, ",
    ),
    (
        ("emulate", "softmax", "4x8", "--orders", "sideways"),
        "tirx-reduce emulate: error: order 'sideways' is not known; needs some of forward, reverse, random\n",
    ),
    (
        ("explain", "nowhere.py:f"),
        "tirx-reduce explain: error: file 'nowhere.py' of 'nowhere.py:f' is not there; needs FILE.py:NAME\n",
    ),
    (("schema", "jump"), "tirx-reduce schema: error: no schema of 'jump' (known: run, "),
    (
        ("doctor", "--calibration", "gone.json"),
        "tirx-reduce doctor: error: calibration 'gone.json' is not there; ",
    ),
    (
        ("plan", "softmax", "4x8", "--top", "3"),
        "tirx-reduce plan: error: unknown arguments: --top 3; needs those of tirx-reduce plan --help\n",
    ),
    (
        ("plan", "softmax", "4x100000", "--max-threads", "5000"),
        "tirx-reduce plan: error: --max-threads 5000 is wider than the device's 1024; needs that or less\n",
    ),
    (
        ("plan", "softmax", "4x8", "--shared-bytes", "100000000", "--target", "cuda"),
        "tirx-reduce plan: error: --shared-bytes 100000000 is wider than the device's 49152; needs that or less\n",
    ),
    (
        ("plan", "softmax", "4x8", "--private-scalars", "100000"),
        "tirx-reduce plan: error: --private-scalars 100000 is wider than the device's 64; needs that or less\n",
    ),
    (("jump",), "tirx-reduce: error: argument VERB: invalid choice: 'jump' (choose from "),
    ((), "tirx-reduce: error: the following arguments are required: VERB\n"),
]


@pytest.mark.parametrize(("argv", "message"), BAD, ids=lambda v: v[0] if isinstance(v, tuple) and v else "")
def test_bad_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    status, out, err = call(capsys, *argv)
    assert (status, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_broken_calibration_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    broken = tmp_path / "calibration.json"
    broken.write_text("{", encoding="utf-8")
    status, _, err = call(
        capsys, "run", "softmax", "4x8", "--policy", "service", "--calibration", str(broken)
    )
    assert status == 2
    assert err.startswith(f"tirx-reduce run: error: calibration {str(broken)!r} is not JSON: ")
    assert err.count("\n") == 1


def test_errors_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, "plan", "softmax", "0x5", "--json")
    assert status == 2
    assert check(json.loads(out), SCHEMAS["error"]) == []
    assert json.loads(out)["error"]["message"] in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("plan", "softmax", "4x8", "--nope"),
            "unknown arguments: --nope; needs those of tirx-reduce plan --help",
        ),
        (
            ("run", "softmax", "4x8", "--top", "x"),
            "argument --top: 'x' is not read; needs a whole number of 1 or more",
        ),
        (("plan",), "the following arguments are required: subject"),
        (("jump",), "argument VERB: invalid choice: 'jump' (choose from "),
        ((), "the following arguments are required: VERB"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_errors_of_arguments_are_json_too(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    status, out, err = call(capsys, *argv, "--json")
    assert status == 2
    assert check(json.loads(out), SCHEMAS["error"]) == []
    found = json.loads(out)["error"]
    assert (found["type"], found["message"][: len(message)]) == ("BadArguments", message)
    assert err.endswith(f": error: {found['message']}\n")
    assert err.count("\n") == 1


MINE = """
import tvm
from tirx_reduce.bench.workloads import get_workload

rows = get_workload("softmax").func((6, 40))
both = tvm.IRModule({"b": rows, "a": get_workload("sum").func((3, 5))})

def made():
    return rows

workload = get_workload("mean")
number = 3
"""


def test_files_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    for name, rows in (
        ("rows", "for each row of 6, over 40 columns:"),
        ("made", "for each row of 6, over 40"),
    ):
        status, out, _ = call(capsys, "explain", f"{file}:{name}")
        assert status == 0
        assert rows in out
    status, out, _ = call(capsys, "explain", f"{file}:both", "--json")
    assert [f["subject"] for f in json.loads(out)["functions"]] == [f"{file}:both.a", f"{file}:both.b"]
    status, out, _ = call(capsys, "run", f"{file}:workload", "4x100", "--cpu-model")
    assert (status, "verified" in out) == (0, True)
    for argv, message in (
        (
            ("run", f"{file}:rows"),
            "is a PrimFunc without inputs and reference; needs an operator or a Workload to run (docs/extend.md",
        ),
        (
            ("explain", f"{file}:rows", "--dtype", "float16"),
            "has its dtypes in the PrimFunc; needs no --dtype float16",
        ),
        (("plan", f"{file}:both"), "2 PrimFuncs ("),
        (
            ("plan", f"{file}:number"),
            "is of type int; needs a PrimFunc, an IRModule, a Workload, or a function",
        ),
        (
            ("plan", f"{file}:none"),
            "holds no 'none' (it holds: both, get_workload, made, number, rows, tvm, workload)",
        ),
        (("plan", f"{file}:rows", "3x4"), "has its shape in the PrimFunc; needs no shape '3x4'"),
    ):
        status, _, err = call(capsys, *argv)
        assert status == 2
        assert message in err


def test_what_is_declined_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "matmul.py"
    file.write_text(
        "from tvm import te, topi\n"
        "a, b = te.placeholder((8, 16), name='a'), te.placeholder((16, 8), name='b')\n"
        "f = te.create_prim_func([a, b, topi.matmul(a, b)])\n",
        encoding="utf-8",
    )
    status, out, _ = call(capsys, "explain", f"{file}:f")
    assert status == 0
    assert out.splitlines()[0] == f"{file}:f: declined"
    status, _, err = call(capsys, "plan", f"{file}:f")
    assert status == 2
    assert out.splitlines()[1].strip() in err


def test_symbolic_sizes_say_what_was_priced(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "symbolic.py"
    file.write_text(
        "from tvm import te, tirx, topi\n"
        "m, n = tirx.Var('m', 'int64'), tirx.Var('n', 'int64')\n"
        "x, y = te.placeholder((m, 4096), name='x'), te.placeholder((m, n), name='y')\n"
        "rows = te.create_prim_func([x, topi.nn.softmax(x, axis=-1)])\n"
        "both = te.create_prim_func([y, topi.nn.softmax(y, axis=-1)])\n",
        encoding="utf-8",
    )
    status, out, _ = call(capsys, "explain", f"{file}:rows")
    assert status == 0
    assert "for each row of m, over 4096 columns:" in out
    for verb in ("explain", "plan"):
        status, out, _ = call(capsys, verb, f"{file}:rows")
        assert status == 0
        assert "rows are symbolic: the price is that of 1048576 rows" in out
        assert "columns are symbolic" not in out
        status, out, _ = call(capsys, verb, f"{file}:both")
        assert status == 0
        assert "rows are symbolic: the price is that of 1048576 rows" in out
        assert "columns are symbolic: the price is that of 4096 columns" in out
    assert "symbolic" not in call(capsys, "plan", "softmax", "4x8")[1]


def test_limits_are_tightened(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "plan", "softmax", "768x6144", "--max-threads", "256")
    assert status == 0
    assert "W=256 V=4 reload" in out
    assert "256 threads, 32768 bytes shared" in out
    status, out, _ = call(capsys, "plan", "softmax", "8x640", "--target", "cuda", "--shared-bytes", "1000")
    assert status == 0
    assert "1024 threads, 1000 bytes shared, 64 private" in out


def test_a_rung_is_a_place_and_no_price(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("explain", "layer_norm", "1000x50257", "--dtype", "bfloat16", "--target", "cuda")
    status, out, _ = call(capsys, *asked, "--policy", "ladder")
    assert status == 0
    assert "rung  1 by policy ladder" in out
    assert "× winner" not in out
    assert "fixed rules" in out
    status, out, _ = call(capsys, *asked)
    assert "× winner" in out
    assert "rounds by policy analytic" in out


def test_groups_that_stay_take_a_second_row_on_the_cpu_model(capsys: pytest.CaptureFixture[str]) -> None:
    """So few rows as the model goes through otherwise would leave out what such a kernel is about."""
    asked = ("emulate", "layer_norm", "1000x10241", "--dtype", "bfloat16", "--target", "cuda")
    status, out, _ = call(capsys, *asked, "--policy", "ladder", "--orders", "forward", "--rows-limit", "5")
    assert status == 0
    assert "R=256" in out
    assert "the first 5 of 1000 rows" in out
    assert "no group took a second row" in out
    assert affordable((1000, 10241), None, 256) == (513, 10241)
    assert affordable((1000, 50257), None, 64) == (129, 50257)
    assert affordable((1000, 50257), 5, 64) == (5, 50257)
    assert affordable((1000, 50257), None) == (5, 50257)


def test_source_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "show", "softmax", "768x6144", "--marked")
    assert status == 0
    barriers = [line for line in out.splitlines() if "▮" in line]
    assert len(barriers) == 2
    assert all("threadgroup_barrier" in line for line in barriers)
    accesses = [line for line in out.splitlines() if " · " in line]
    assert accesses
    assert all("_ptr" in line for line in accesses)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_every_verb(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    status, out, _ = call(capsys, "completion", shell)
    assert status == 0
    for verb in ("run", "explain", "doctor"):
        assert verb in out
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=out, text=True, check=True)


def test_schemas_print(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "schema")
    assert json.loads(out) == SCHEMAS
    _, out, _ = call(capsys, "schema", "run")
    assert json.loads(out) == SCHEMAS["run"]


def test_help_is_quick_and_has_examples() -> None:
    command = [sys.executable, "-m", "tirx_reduce.bench", "--help"]
    best = 9.0
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        best = min(best, time.perf_counter() - start)
    assert "examples:\n  tirx-reduce run softmax 768x6144 --target metal" in done.stdout
    assert best < 0.3


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from tirx_reduce.bench import cli\n"
        "try: cli.main(['run', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'tvm', 'numpy', 'scipy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_and_no_colour_are_quiet() -> None:
    done = subprocess.run(
        f"{sys.executable} -m tirx_reduce.bench schema | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_interrupted_is_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tirx_reduce.bench import cli_meta

    def stop(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_meta, "schema", stop)
    status, _, err = call(capsys, "schema")
    assert (status, err) == (130, "tirx-reduce schema: interrupted\n")
