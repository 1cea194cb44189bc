"""Row programs as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tvm import relax

from tests.functions import fused, legalized
from tests.test_facts import CASES, Case
from tirx_reduce import facts
from tirx_reduce.describe import digest, explain_program

LAYER_NORM = """\
for each row of 2 × 3, over 24 columns:
  in  a0: float16[2, 3, 24]
  in  a1: float16[24]
  in  a2: float16[24]
  out T_layer_norm: float16[2, 3, 24]
  pass 1:
    t0 = a0[row, col]
    s0 = sum over columns of t0  (float32)
    serves later passes too: a0[row, col]
  pass 2:
    t1 = (t0 - (s0 / 24))
    s1 = sum over columns of (t1 * t1)  (float32)
  pass 3:
    T_layer_norm[row, col] (float16) = \
((float32(float16((t1 * rsqrt(((s1 / 24) + 1e-05))))) * a1[col]) + a2[col])"""


def _layer_norm() -> Any:
    return legalized(
        lambda _, x, w, b: relax.op.nn.layer_norm(x, w, b, axes=[-1]),
        ((2, 3, 24), "float16"),
        ((24,), "float16"),
        ((24,), "float16"),
    )


def test_text() -> None:
    assert explain_program(facts.analyze(_layer_norm()).program) == LAYER_NORM


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_json_is_plain_and_in_order(case: Case) -> None:
    read = facts.analyze(case.func())
    told = json.loads(json.dumps(read.to_json(), allow_nan=False))
    assert (told["rows"], told["columns"], told["kept"]) == (case.rows, case.columns, case.kept)
    for at, node in enumerate(told["nodes"]):
        assert all(n < at for n in node.get("args", ()))
    numbers = [n for r in told["program"]["reductions"] for n in r["elements"]]
    numbers += [o["value"] for o in told["program"]["outputs"]]
    assert all(0 <= n < len(told["nodes"]) for n in numbers)
    text = explain_program(read.program)
    assert all(t.name in text for t in read.program.tensors)


def test_digest_tells_programs_apart() -> None:
    digests = [digest(facts.analyze(c.func()).program) for c in CASES]
    assert len(set(digests)) == len({repr(facts.analyze(c.func()).program) for c in CASES})
    assert digest(facts.analyze(CASES[0].func()).program) == digests[0]


def test_shared_values_stand_once() -> None:
    """A chain in which each value is used twice has as many nodes as links."""

    def build(bb: Any, x: Any) -> Any:
        for _ in range(40):
            x = bb.emit(relax.op.add(x, x))
        return relax.op.sum(x, -1)

    (func,) = fused(build, ((4, 8), "float32"))
    read = facts.analyze(func)
    assert len(read.to_json()["nodes"]) < 60
    assert len(digest(read.program)) == 64
    assert explain_program(read.program).count("\n") < 60
