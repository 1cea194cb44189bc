"""The tables of the H200 pages are what the records say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"


def evidence() -> Any:
    spec = importlib.util.spec_from_file_location("docs_evidence", DOCS / "evidence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_current() -> None:
    assert evidence().stale() == []


def test_every_held_out_case_is_in_the_page() -> None:
    text = (DOCS / "_generated" / "h200" / "study.md").read_text(encoding="utf-8")
    held = text.partition("## Held-out results")[2].partition("## GPU and end-to-end")[0]
    rows = re.findall(
        r"^\| (softmax|rms_norm|layer_norm) (\S+) \|.*\| (faster|slower|not separable) \|", held, re.M
    )
    assert len(rows) == 12
    assert sum(verdict == "slower" for *_, verdict in rows) == 4


def test_the_sweeps_name_what_was_wrong() -> None:
    module = evidence()
    text = module.swept()
    assert "| 2 | 48 | 701 | 155 | 0.027 |" in text


def test_a_cause_that_was_counted_takes_the_place_of_a_likely_one() -> None:
    module = evidence()
    final = module.rows_of([module.STUDY / "grid.jsonl.xz", module.STUDY / "grid_compile.jsonl.xz"])
    measured = next(r for r in final if "ratio" in r.get("best", {}))
    behind = {"ratio": 0.97, "low": 0.96, "high": 0.98}
    row = {
        **measured,
        "best": {**measured["best"], "ratio": 0.97, "counted": 0.97},
        "peers": {"liger": behind},
    }
    where = (row["dtype"], row["operator"], tuple(row["case"]["shape"]))
    text = module.grid._short([row], module.table, {where: "bytes: 1.30 × the least"})
    (line,) = [t for t in text.splitlines() if "1.30 ×" in t]
    assert line.startswith(f"| {module.grid._name(row)} |")
    assert line.endswith("| counted: bytes: 1.30 × the least |")
    assert "not looked into" in module.grid._short([row], module.table, {})
    assert "No line" in module.grid._short([measured], module.table, {})
