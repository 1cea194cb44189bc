"""Builds of stock dlight without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tirx_reduce.bench import stock
from tirx_reduce.bench.build import Case
from tirx_reduce.bench.stock import build_stock

TARGET = '{"kind": "cuda", "arch": "sm_90"}'


def test_dlight_emits_a_kernel_and_the_build_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(operator="rms_norm", shape=(4, 64))
    built = build_stock(case, TARGET, tmp_path, stand_in=True)
    assert not built.error
    assert "__global__" in built.source
    assert Path(built.library).exists()
    monkeypatch.setattr(stock, "_build", lambda *args, **options: pytest.fail("built twice"))
    assert build_stock(case, TARGET, tmp_path, stand_in=True) == built


def test_a_failed_build_is_a_result(tmp_path: Path) -> None:
    built = build_stock(Case(operator="softmax", shape=(4, 64)), '{"kind": "nothing"}', tmp_path)
    assert built.error
    assert not built.library
