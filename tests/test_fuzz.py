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
