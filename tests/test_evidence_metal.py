"""The Metal table: never more bytes and never more barriers than dlight and MLX's rules."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.grid_lines import lines

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

import evidence_metal as metal  # type: ignore[import-not-found]

STALE = "what is emitted has changed; write the page again: python docs/evidence_metal.py"
FEW = (
    Case(operator="softmax", shape=(37, 1537)),
    Case(operator="rms_norm", shape=(32768, 256), dtype="bfloat16"),
    Case(operator="layer_norm", shape=(1, 131072)),
    Case(operator="masked_softmax", shape=(8, 16, 256, 256), dtype="bfloat16"),
)


def stored(case: Case) -> Any:
    return next(entry for entry in metal.stored() if entry["case"] == case.to_json())


def test_never_more_bytes_nor_barriers() -> None:
    assert metal.violations(metal.stored()) == []


def test_every_line_is_counted_and_right() -> None:
    assert [entry["case"] for entry in metal.stored()] == [case.to_json() for case in lines()]
    assert all(entry["ours"]["right"] for entry in metal.stored())


def test_the_page_is_what_was_counted() -> None:
    assert metal.PAGE.read_text() == metal.page(metal.stored()), STALE


def test_every_line_is_planned_as_it_was_counted() -> None:
    assert [metal.planned(case)[1] for case in lines()] == [e["ours"]["mapping"] for e in metal.stored()], (
        STALE
    )


@pytest.mark.parametrize("case", FEW, ids=lambda c: c.label.replace(" ", "-"))
def test_a_few_lines_count_the_same_again(case: Case) -> None:
    assert metal.count_case(case) == stored(case), STALE


@pytest.mark.slow
def test_all_lines_count_the_same_again() -> None:
    assert metal.count_all(lines()) == metal.stored(), STALE


@pytest.mark.parametrize(
    ("operator", "columns", "moved", "barriers"),
    [
        ("softmax", 4096, 2, 5),
        ("softmax", 4097, 3, 2),
        ("rms_norm", 4096, 3, 3),
        ("rms_norm", 4097, 4, 3),
        ("layer_norm", 6656, 4, 5),
        ("layer_norm", 6657, 6, 5),
    ],
)
def test_mlx_by_hand(operator: str, columns: int, moved: int, barriers: int) -> None:
    found = metal.mlx(Case(operator=operator, shape=(3, columns)))
    assert found["bytes"] == 4 * moved * columns
    assert found["accesses"] == moved * -(-columns // 4)
    assert found["barriers"] == barriers
    assert (
        metal.mlx(Case(operator=operator, shape=(3, columns), dtype="bfloat16"))["bytes"]
        == 2 * moved * columns
    )


def entry(ours: dict[str, int], other: dict[str, int]) -> dict[str, Any]:
    return {"case": FEW[0].to_json(), "ours": ours, "dlight": other}


@pytest.mark.parametrize(
    ("ours", "other", "found"),
    [
        ({"bytes": 8, "barriers": 1, "launches": 1}, {"bytes": 8, "barriers": 1, "launches": 1}, []),
        ({"bytes": 9, "barriers": 1, "launches": 1}, {"bytes": 8, "barriers": 1, "launches": 1}, ["bytes"]),
        (
            {"bytes": 8, "barriers": 1, "launches": 2},
            {"bytes": 8, "barriers": 1, "launches": 1},
            ["barriers"],
        ),
        ({"bytes": 8, "barriers": 2, "launches": 1}, {"bytes": 8, "barriers": 0, "launches": 3}, []),
    ],
)
def test_more_is_found(ours: dict[str, int], other: dict[str, int], found: list[str]) -> None:
    assert [what for _, what, _ in metal.violations([entry(ours, other)])] == found
