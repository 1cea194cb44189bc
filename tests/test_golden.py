"""Lowered functions as TVMScript, against files under tests/golden; `--update-golden` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tirx_reduce as tr
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.schedules import as_target, force
from tirx_reduce.values import Candidate

GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "softmax_private_metal": (
        "softmax",
        (768, 6144),
        "metal",
        Candidate(width=192, vector=4, reuse="private"),
    ),
    "softmax_reload_cuda": ("softmax", (768, 6144), "cuda", Candidate(width=384, vector=4, reuse="reload")),
    "rms_norm_private_cuda": (
        "rms_norm",
        (256, 3072),
        "cuda",
        Candidate(width=256, vector=4, reuse="private"),
    ),
    "rms_norm_ragged_metal": (
        "rms_norm",
        (37, 1537),
        "metal",
        Candidate(width=192, vector=4, reuse="reload"),
    ),
    "layer_norm_packed_metal": (
        "layer_norm",
        (23, 64),
        "metal",
        Candidate(width=8, packing=4, vector=4, reuse="private"),
    ),
    "softmax_mixed_metal": ("softmax", (8, 384), "metal", Candidate(width=32, vector=4, reuse="mixed")),
    "layer_norm_cluster_cuda": (
        "layer_norm",
        (8, 8192),
        "cuda",
        Candidate(width=256, vector=4, reuse="private", splits=4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lowered_function(name: str, request: pytest.FixtureRequest) -> None:
    operator, shape, kind, candidate = CASES[name]
    target = as_target("metal" if kind == "metal" else {"kind": "cuda", "arch": "sm_90"})
    func = get_workload(operator).func(shape)
    text = tr.lower(func, force(func, candidate, target)).script(show_meta=False)
    # Colours and trailing blanks are the printer's.
    text = re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip() + "\n"
    path = GOLDEN / f"{name}.py.txt"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} differs; --update-golden writes it anew"
