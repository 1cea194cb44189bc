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
