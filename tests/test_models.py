"""Whole models through the `tirx_reduce` Relax pipeline: every row reduction is ours, every function has a
kernel, and
the model computes what the same model built for llvm does, with our kernels executed on the CPU model
inside its VM.
"""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

import tirx_reduce as tr
from tests.launch import TARGETS
from tirx_reduce import emulator
from tirx_reduce.schedules import as_target, build, lower, plan, register
from tirx_reduce.schedules.planning import MAPPING

HIDDEN, HEADS, WIDE = 32, 2, 64
SKIP_RUN = 1
"""What an instrument of Relax's VM returns to say that it has done the call itself."""
REDUCTIONS = re.compile(r"rms_norm|layer_norm|softmax|mean|sum|max|argmax|variance")


class Attention(nn.Module):
    def __init__(self, dtype: str, cap: float = 0.0) -> None:
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False, dtype=dtype)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=dtype)
        self.cap, self.dtype = cap, dtype

    def forward(self, x: nn.Tensor, mask: nn.Tensor | None = None) -> nn.Tensor:
        b, n, _ = x.shape
        parts = op.split(self.qkv(x), 3, axis=-1)
        q, k, v = (
            op.permute_dims(op.reshape(t, (b, n, HEADS, HIDDEN // HEADS)), [0, 2, 1, 3]) for t in parts
        )
        w = op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])) * (1 / 4.0)
        if self.cap:
            w = op.tanh(w / self.cap) * self.cap
        if mask is not None:
            w = w + mask
        w = op.astype(op.softmax(op.astype(w, "float32"), axis=-1), self.dtype)
        return self.out(op.reshape(op.permute_dims(op.matmul(w, v), [0, 2, 1, 3]), (b, n, HIDDEN)))


class Gated(nn.Module):
    def __init__(self, dtype: str, gelu: bool = False) -> None:
        self.gate = nn.Linear(HIDDEN, WIDE, bias=False, dtype=dtype)
        self.up = nn.Linear(HIDDEN, WIDE, bias=False, dtype=dtype)
        self.down = nn.Linear(WIDE, HIDDEN, bias=False, dtype=dtype)
        self.gelu = gelu

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        act = op.gelu(self.gate(x), "tanh") if self.gelu else op.silu(self.gate(x))
        return self.down(act * self.up(x))


class Llama(nn.Module):
    masked, norms = True, 2

    def __init__(self, dtype: str) -> None:
        self.first = nn.RMSNorm(HIDDEN, axes=-1, bias=False, dtype=dtype)
        self.second = nn.RMSNorm(HIDDEN, axes=-1, bias=False, dtype=dtype)
        self.attention, self.mlp = Attention(dtype), Gated(dtype)

    def forward(self, x: nn.Tensor, mask: nn.Tensor) -> nn.Tensor:
        x = x + self.attention(self.first(x), mask)
        return x + self.mlp(self.second(x))


class GemmaNorm(nn.Module):
    """Weights around zero: (1 + w) · x/rms(x)."""

    def __init__(self, dtype: str) -> None:
        self.weight = nn.Parameter((HIDDEN,), dtype=dtype)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return op.rms_norm(x, self.weight + 1.0, axes=[-1], epsilon=1e-6)


class Gemma(nn.Module):
    masked, norms = True, 4

    def __init__(self, dtype: str) -> None:
        self.n1, self.n2, self.n3, self.n4 = (GemmaNorm(dtype) for _ in range(4))
        self.attention, self.mlp = Attention(dtype, cap=5.0), Gated(dtype, gelu=True)

    def forward(self, x: nn.Tensor, mask: nn.Tensor) -> nn.Tensor:
        x = x + self.n2(self.attention(self.n1(x), mask))
        return x + self.n4(self.mlp(self.n3(x)))


class ViT(nn.Module):
    masked, norms = False, 3

    def __init__(self, dtype: str) -> None:
        self.first, self.second, self.last = (nn.LayerNorm(HIDDEN, dtype=dtype) for _ in range(3))
        self.attention = Attention(dtype)
        self.up = nn.Linear(HIDDEN, WIDE, dtype=dtype)
        self.down = nn.Linear(WIDE, HIDDEN, dtype=dtype)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        x = x + self.attention(self.first(x))
        return self.last(x + self.down(op.gelu(self.up(self.second(x)))))


MODELS: dict[str, Any] = {"llama": Llama, "gemma": Gemma, "vit": ViT}
CASES = [
    pytest.param(m, d, s, marks=[] if (m, d, s) in CI else [pytest.mark.slow])
    for CI in [{("llama", "float16", True), ("vit", "float32", False), ("gemma", "float32", True)}]
    for m in MODELS
    for d in ("float16", "float32")
    for s in (False, True)
]


def model(name: str, dtype: str, symbolic: bool, length: int = 5) -> tuple[Any, list[tuple[str, Any]]]:
    """The module and its parameters."""
    n: Any = "s" if symbolic else length
    made = MODELS[name](dtype)
    spec = {"x": nn.spec.Tensor((1, n, HIDDEN), dtype)}
    if made.masked:
        spec["mask"] = nn.spec.Tensor((1, 1, n, n), dtype)
    return made.export_tvm({"forward": spec})


def scheduled(mod: Any, target: Any) -> Any:
    register()
    with as_target(target):
        return relax.get_pipeline("tirx_reduce")(mod)


def device_text(executable: Any) -> str:
    waiting = [executable.mod]
    while waiting:
        at = waiting.pop()
        if str(at.kind) in ("metal", "cuda"):
            return str(at.inspect_source())
        waiting.extend(at.imports)
    raise AssertionError("the executable has no device module")


@pytest.mark.parametrize("target", TARGETS)
def test_the_pipeline_over_a_model_without_matmuls(target: str) -> None:
    """Stock dlight's matmul rule imports what takes TVM 50 s to parse; this one is quick."""

    class Norms(nn.Module):
        def __init__(self) -> None:
            self.first, self.second = GemmaNorm("float16"), nn.LayerNorm(HIDDEN, dtype="float16")

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return op.softmax(op.silu(self.second(self.first(x))), axis=-1)

    mod, _ = Norms().export_tvm({"forward": {"x": nn.spec.Tensor((1, "s", HIDDEN), "float16")}})
    every_function(mod, target, 3)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "dtype", "symbolic"), CASES)
def test_every_row_reduction_is_ours_and_every_function_has_a_kernel(
    name: str, dtype: str, symbolic: bool, target: str
) -> None:
    every_function(model(name, dtype, symbolic)[0], target, 2)  # equal norms share one function


def every_function(mod: Any, target: str, least: int) -> None:
    """Row reductions are ours, nothing else is, and the device module has a kernel for each."""
    out = scheduled(mod, target)
    calls: dict[str, int] = {}
    for var, func in out.functions_items():
        if not isinstance(func, tirx.PrimFunc) or not func.attrs.get("tirx.is_scheduled"):
            continue
        mine = MAPPING in func.attrs
        assert mine == bool(REDUCTIONS.search(var.name_hint)), var.name_hint
        calls[var.name_hint] = mine
    assert sum(calls.values()) >= least
    executable = tvm.compile(mod, as_target(target), relax_pipeline="tirx_reduce", tir_pipeline="tirx_reduce")
    text = device_text(executable)
    for function in calls:
        assert re.search(rf"\b{function}_kernel(_\d+)?\(", text), f"{function} has no kernel"


def fused(mod: Any, target: Any) -> Any:
    """What the pipeline hands to its scheduling, for the llvm build of the same functions."""
    with target:
        passes = [*relax.pipeline.library_dispatch_passes(target), *relax.pipeline.legalize_passes(target)]
        kept = [p for p in passes if p.info.name != "ApplyDefaultSchedule"]
        return tvm.transform.Sequential(kept)(mod)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "dtype", "symbolic"), CASES)
def test_the_model_with_our_kernels_in_it(name: str, dtype: str, symbolic: bool, target: str) -> None:
    mod, named = model(name, dtype, symbolic)
    functions = fused(mod, as_target(target))
    kernels: dict[str, Any] = {}
    for var, func in functions.functions_items():
        if isinstance(func, tirx.PrimFunc) and REDUCTIONS.search(var.name_hint):
            bare = func.without_attr("target") if func.attrs and "target" in func.attrs else func
            kernels[var.name_hint] = build(lower(bare, plan(bare, target)), target)
    rng = np.random.default_rng(0)
    host = tvm.cpu()
    weights = [
        tvm.runtime.tensor((rng.standard_normal([int(s) for s in p.shape]) * 0.3).astype(str(p.dtype)), host)
        for _, p in named
    ]
    inputs = [rng.standard_normal((1, 5, HIDDEN)).astype(dtype)]
    if MODELS[name].masked:
        inputs.append(np.triu(np.full((1, 1, 5, 5), -10000.0), 1).astype(dtype))
    given = [tvm.runtime.tensor(v, host) for v in inputs] + weights
    llvm = tvm.target.Target("llvm")
    vm = relax.VirtualMachine(tvm.compile(fused(mod, llvm), llvm), host)
    want = vm["forward"](*given).numpy()
    seen: list[str] = []

    def instead(_: Any, called: str, before: bool, __: Any, *arguments: Any) -> int:
        if called not in kernels or not before:
            return 0
        values = [a.numpy() if hasattr(a, "numpy") else a for a in arguments]
        arrays = [np.ascontiguousarray(v) for v in values]
        emulator.emulate(kernels[called], *arrays, target=target, orders=("forward",))
        arguments[-1].copyfrom(arrays[-1])
        seen.append(called)
        return SKIP_RUN

    vm.set_instrument(instead)
    got = vm["forward"](*given).numpy()
    assert set(seen) == set(kernels)
    assert len(seen) == MODELS[name].norms + 1
    scale = np.abs(want.astype(np.float64)).max()
    np.testing.assert_allclose(
        got.astype(np.float64),
        want.astype(np.float64),
        atol=float(scale) * (2e-5 if dtype == "float32" else 2**-8),
        rtol=0,
    )


class Stack(nn.Module):
    """Many layers, each with weights of its own."""

    def __init__(self, dtype: str, layers: int) -> None:
        self.layers = nn.ModuleList([Llama(dtype) for _ in range(layers)])

    def forward(self, x: nn.Tensor, mask: nn.Tensor) -> nn.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


def test_scheduling_32_layers_adds_less_than_three_seconds() -> None:
    spec = {
        "x": nn.spec.Tensor((1, "s", HIDDEN), "float16"),
        "mask": nn.spec.Tensor((1, 1, "s", "s"), "float16"),
    }
    mod, _ = Stack("float16", 32).export_tvm({"forward": spec})
    target = as_target("metal")
    before = fused(mod, target)
    begin = time.process_time()
    with target:
        schedule: Any = tr.ScheduleReductions()
        out = schedule(before)
    took = time.process_time() - begin
    assert sum(MAPPING in f.attrs for _, f in out.functions_items() if isinstance(f, tirx.PrimFunc)) >= 2
    assert took < 3, took
