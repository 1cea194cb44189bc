"""A PrimFunc as one writes it by hand, `T.alloc_buffer` for what lies between its blocks, on both targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm.script import tirx as T  # noqa: N812

import tirx_reduce as tr

# mypy cannot read TVMScript.
# mypy: ignore-errors


@T.prim_func(s_tir=True)
def by_largest(x: T.Buffer((6, 1000), "float32"), y: T.Buffer((6, 1000), "float32")):
    m = T.alloc_buffer((6,), "float32")
    for i, k in T.grid(6, 1000):
        with T.sblock("largest"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                m[vi] = T.float32(0)
            m[vi] = T.max(m[vi], T.abs(x[vi, vk]))
    for i, k in T.grid(6, 1000):
        with T.sblock("scale"):
            vi, vk = T.axis.remap("SS", [i, k])
            y[vi, vk] = x[vi, vk] / (m[vi] + T.float32(1e-6))


@pytest.mark.parametrize("target", ["metal", {"kind": "cuda", "arch": "sm_90"}], ids=["metal", "cuda"])
@pytest.mark.parametrize("policy", ["analytic", "ladder"])
def test_it_is_planned_and_right(target: Any, policy: str) -> None:
    assert tr.analyze(by_largest).passes == 2
    library = tr.compile(by_largest, target, policy=policy, fallback=False)
    x = np.random.default_rng(0).standard_normal((6, 1000)).astype(np.float32)
    y = np.full_like(x, np.nan)
    tr.emulate(library, x, y, orders=("random",))
    wanted = x.astype(np.float64) / (np.abs(x).max(axis=1, keepdims=True).astype(np.float64) + 1e-6)
    assert np.abs(y - wanted).max() < 1e-6
