"""The tables of the documentation are what the tests say, and name tests that exist."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import Any

from tests import decisions, faults

TABLES = Path(__file__).parents[1] / "docs" / "tables.py"


def tables() -> Any:
    spec = importlib.util.spec_from_file_location("docs_tables", TABLES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_current() -> None:
    assert tables().stale() == []


def test_every_named_test_exists() -> None:
    tables().fault_table()
    named = {t for d in decisions.DECISIONS for t in d.tests} | {f.test for f in faults.REGISTRY}
    for name in named:
        module, function = name.split("::")
        assert inspect.isfunction(getattr(importlib.import_module(f"tests.{module}"), function, None)), name


def test_all_sixty_cases_have_a_test() -> None:
    tables().fault_table()
    assert len({f.case for f in faults.REGISTRY}) == 60
