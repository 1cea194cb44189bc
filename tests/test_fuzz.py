"""Random row programs against the float64 interpreter of the same text; what failed once is kept and stays
right.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import fuzz
from tests.launch import TARGETS
from tirx_reduce.values import Candidate

BATCHES = 8
EACH = 25
# Of each batch, as many are also run on the CPU model under a random mapping, on either target in turn.
RUN = 3
KEPT = Path(__file__).parent / "fuzz_kept.jsonl"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int) -> None:
    declined = 0
    for number in range(EACH):
        seed = batch * EACH + number
        target = TARGETS[(batch + number) % 2] if number < RUN else None
        said = fuzz.check(fuzz.generate(seed), seed, target)
        declined += said != "right"
    assert declined <= EACH // 4


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(100))
def test_ten_thousand_random_programs(batch: int) -> None:
    """All analysed and interpreted, every tenth run."""
    for number in range(100):
        seed = 10000 + batch * 100 + number
        fuzz.check(fuzz.generate(seed), seed, TARGETS[number // 10 % 2] if number % 10 == 0 else None)


def _in_place(seeds: range) -> int:
    """Rows of several rounds of real loops: of what is unrolled, compilers keep what they have read."""
    runs = 0
    for seed in seeds:
        drawn = fuzz.generate(seed)
        matrix = next((i for i, (kind, _) in enumerate(drawn.inputs) if kind == "matrix"), None)
        reduced = [i for i, (kind, _) in enumerate(drawn.stages) if kind in ("sum", "max", "min")]
        if matrix is None or not reduced:
            continue
        inputs = tuple((k, "float32" if k == "matrix" else d) for k, d in drawn.inputs)
        outputs = tuple((t, "float32" if fuzz.by_column(drawn, t) else d) for t, d in drawn.outputs)
        # One output that could be written before the input is read for the last time.
        early: fuzz.Tree = ["mul", ["in", matrix], ["const", 0.5]]
        late: fuzz.Tree = ["sub", ["in", matrix], ["red", reduced[0]]]
        outputs = (*outputs, (early, "float32"), (late, "float32"))
        program = replace(drawn, columns=600, inputs=inputs, outputs=outputs)
        mapping = (
            Candidate(width=32, splits=2, reuse="reload"),
            Candidate(width=16, packing=4, reuse="reload"),
            Candidate(width=64, packing=2, vector=4, reuse="private"),
        )[seed // 2 % 3]
        runs += fuzz.check_in_place(program, TARGETS[seed % 2], mapping, seed)
    return runs


def test_random_programs_in_place() -> None:
    assert _in_place(range(12)) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(20))
def test_many_random_programs_in_place(batch: int) -> None:
    _in_place(range(1000 + 20 * batch, 1020 + 20 * batch))


@pytest.mark.parametrize("line", KEPT.read_text().splitlines() if KEPT.exists() else [])
def test_what_failed_once(line: str) -> None:
    for target in TARGETS:
        for seed in range(2):
            fuzz.check(fuzz.Program.from_json(line), seed, target)


def test_programs_survive_json() -> None:
    for seed in range(20):
        program = fuzz.generate(seed)
        assert fuzz.Program.from_json(program.to_json()).to_json() == program.to_json()


def test_a_failing_program_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fault planted in the reference, what is left still holds it and little else."""
    monkeypatch.setitem(fuzz._NUMPY, "tanh", lambda a: a + 10.0)
    for seed in range(50):
        program = fuzz.generate(seed)
        if fuzz.fails(program, seed, None):
            break
    small = fuzz.shrink(program, seed, None)
    assert "tanh" in small.to_json()
    assert len(small.to_json()) <= len(program.to_json())
    assert len(small.outputs) == 1
    assert small.columns <= program.columns


def test_a_wrong_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduction that drops the last column is called wrong by both comparisons."""
    real = fuzz.evaluate

    def less(program: fuzz.Program, inputs: list[Any]) -> Any:
        cut = [v[..., :-1] if v.shape[-1:] == (program.columns,) else v for v in inputs]
        outs, largest = real(replace(program, columns=program.columns - 1), cut)
        return outs, largest

    program = fuzz.Program(
        rows=(3,),
        columns=33,
        inputs=(("matrix", "float32"),),
        stages=(("sum", ["in", 0]),),
        outputs=((["red", 0], "float32"),),
    )
    assert fuzz.check(program, 0, "metal") == "right"
    monkeypatch.setattr(fuzz, "evaluate", less)
    with pytest.raises(fuzz.Wrong, match="row program: output 0"):
        fuzz.check(program, 0, "metal")
