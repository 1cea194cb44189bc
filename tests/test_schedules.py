"""The emitter and its hooks: barriers, arrays, the report's matrix of mappings, the rule, the pass, the pipelines."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx
from tvm.s_tir import dlight as dl

import tirx_reduce as tr
from tests.functions import topi_func
from tests.launch import run
from tirx_reduce import emulator
from tirx_reduce.bench.build import device_source
from tirx_reduce.bench.cohorts import HELD_OUT_SHAPES, TRAINING_SHAPES
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.candidates import private_scalars
from tirx_reduce.errors import ReduceError, UnknownPolicy, Unsupported
from tirx_reduce.schedules import as_target, build, force
from tirx_reduce.values import Candidate

OPERATORS = ("softmax", "rms_norm", "layer_norm")
SHAPES = (*TRAINING_SHAPES, *HELD_OUT_SHAPES)
LONG = ((128, 2048), (1024, 4096))
"""Aligned as others are, and of more elements."""
CUDA = {"kind": "cuda", "arch": "sm_90"}
TARGETS = {"metal": "metal", "cuda": CUDA}
WRONG: Any = 5
WIDTHS = (64, 96, 256, 416, 1024)
MOST_PRIVATE = 64


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_private_has_one_barrier_a_collective_and_no_larger_array_than_its_state(
    operator: str, kind: str
) -> None:
    for shape in SHAPES:
        width = next(w for w in range(64, 1025, 32) if private_scalars(_at(w), 1, shape[1]) <= MOST_PRIVATE)
        func = get_workload(operator).func(shape)
        plan = force(func, _at(width), as_target(TARGETS[kind]))
        text = device_source(build(tr.lower(func, plan), as_target(TARGETS[kind])))
        barriers = len(re.findall(r"threadgroup_barrier\(|__syncthreads\(\)", text))
        assert barriers == plan.features.reductions, (shape, text)
        arrays = [
            int(n)
            for line in text.splitlines()
            if re.match(r"\s*(thread|alignas\(\d+\)) ", line)
            for n in re.findall(r"\[(\d+)\]", line)
        ]
        lanes = [4 * n if "float4" in line else n for n, line in zip(arrays, _array_lines(text), strict=True)]
        # A row that starts unaligned may touch one packet more.
        assert max(lanes) <= private_scalars(_at(width), 1, shape[1]) + 4, (shape, lanes)


def _array_lines(text: str) -> list[str]:
    found = []
    for line in text.splitlines():
        if re.match(r"\s*(thread|alignas\(\d+\)) ", line):
            found += [line] * len(re.findall(r"\[(\d+)\]", line))
    return found


def _at(width: int, reuse: str = "private") -> Candidate:
    return Candidate(width=width, vector=4, reuse=reuse)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, id=f"{s[0]}x{s[1]}", marks=[pytest.mark.slow] if s in LONG else []) for s in SHAPES],
)
def test_every_width_and_reuse_is_right(shape: tuple[int, int], operator: str, kind: str) -> None:
    workload, target = get_workload(operator), as_target(TARGETS[kind])
    small = (2, shape[1])
    inputs = workload.inputs(small)
    for width in WIDTHS:
        for reuse in ("reload", "private"):
            func = workload.func(shape)
            if reuse == "private" and private_scalars(_at(width), 1, shape[1]) > MOST_PRIVATE:
                with pytest.raises(Unsupported, match=r"private: \d+ scalars a lane; limit 64"):
                    force(func, _at(width), target)
                continue
            plan = force(func, _at(width, reuse), target)
            # The mapping of the whole launch on two of its rows.
            executable = build(tr.lower(workload.func(small), replace(plan, subject="")), target)
            outputs = workload.empty(small)
            emulator.emulate(executable, *inputs, *outputs, orders=("random",))
            verdict = workload.verify(outputs, inputs)
            assert verdict.ok, (width, reuse, verdict)


def _legalized(columns: int = 768) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, columns), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.add(x, x))
            z = builder.emit_output(relax.op.nn.softmax(y, axis=-1))
        builder.emit_func_output(z)
    mod: tvm.IRModule = relax.transform.LegalizeOps()(builder.get())
    return mod


@pytest.mark.parametrize("kind", TARGETS)
def test_the_rule_takes_reductions_and_declines_the_rest_with_a_reason(kind: str) -> None:
    mod, rule = _legalized(), tr.RowReduction()
    with as_target(TARGETS[kind]):
        copy = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
        done = dl.ApplyDefaultSchedule(rule, dl.gpu.Fallback())(copy)
    funcs = {str(v.name_hint): f for v, f in done.functions_items() if isinstance(f, tvm.tirx.PrimFunc)}
    assert "tirx_reduce.mapping" in funcs["softmax"].attrs
    assert "tirx_reduce.mapping" not in funcs["add"].attrs
    assert funcs["add"].attrs["tirx.is_scheduled"]
    assert any("reduction" in reason for _, reason in rule.declined)


def test_the_rule_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    func = get_workload("softmax").func((4, 64))
    rule = tr.RowReduction()

    def broken(*_: Any) -> Any:
        raise KeyError("a fault of ours")

    monkeypatch.setattr("tirx_reduce.schedules.rule.plan_with", broken)
    assert rule.apply(func, as_target("metal"), False) is None
    assert rule.declined == [("softmax", "internal: KeyError: 'a fault of ours'")]


class Broken:
    """A policy that returns a number where an estimate is asked for."""

    name = "broken"

    def reduction_cost(self, *_: Any) -> Any:
        return 1.0


def test_what_went_wrong_is_a_warning_and_a_decline_is_none(caplog: pytest.LogCaptureFixture) -> None:
    mod = _legalized()
    with as_target("metal"), caplog.at_level("INFO", logger="tirx_reduce"):
        scheduling: Any = tr.ScheduleReductions(policy=Broken())
        scheduling(mod)
    said = {r.getMessage(): r.levelname for r in caplog.records}
    wrong = next(text for text in said if text.startswith("softmax is left to TVM"))
    assert "planning by policy 'broken' failed: policy 'broken' returned 1.0; needs a CostEstimate" in wrong
    assert said[wrong] == "WARNING"
    assert [level for text, level in said.items() if text.startswith("add is left to TVM")] == ["INFO"]


def test_a_pass_without_a_target_says_so_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    mod = _legalized()
    scheduling: Any = tr.ScheduleReductions()
    done = scheduling(mod)
    tvm.ir.assert_structural_equal(done, mod)
    why = "no target; needs tvm.target.Target(...) around the pass or on the function"
    assert sorted(scheduling.declined) == [("add", why), ("softmax", why)]
    said = {r.getMessage(): r.levelname for r in caplog.records}
    assert said == {f"{name} is left as it is: {why}": "WARNING" for name in ("add", "softmax")}
    # One target on a function is enough for it; one of the host is none of ours, and nothing is said of it.
    scheduling.declined.clear()
    caplog.clear()
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            kind = "metal" if var.name_hint == "softmax" else "llvm"
            mod[var] = func.with_attr("target", as_target(kind))
    assert "tirx_reduce.mapping" in scheduling(mod)["softmax"].attrs
    assert (scheduling.declined, caplog.records) == ([], [])


def test_for_the_cpu_the_relax_pipeline_is_tvms_own() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.nn.softmax(x, axis=-1))
        builder.emit_func_output(y)
    built = tvm.compile(builder.get(), "llvm", relax_pipeline="tirx_reduce", tir_pipeline="tirx_reduce")
    given = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    machine = relax.VirtualMachine(built, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(given)).numpy()
    raised = np.exp(given - given.max(-1, keepdims=True))
    np.testing.assert_allclose(got, raised / raised.sum(-1, keepdims=True), rtol=1e-5)
    pipeline = relax.get_pipeline("tirx_reduce")
    with as_target("llvm") as target:
        tvm.ir.assert_structural_equal(
            pipeline(builder.get()), relax.get_default_pipeline(target)(builder.get())
        )


def test_a_failed_compile_says_what_was_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        raise ValueError("TVM's own rules do not take it")

    monkeypatch.setattr("tirx_reduce.schedules.building.stock_rules", fails)
    func = next(f for v, f in _legalized().functions_items() if v.name_hint == "add")
    with pytest.raises(ValueError, match="TVM's own rules") as failed:
        tr.compile(func.with_attr("global_symbol", "add"), "metal")
    (note,) = failed.value.__notes__
    assert re.match(r"tirx-reduce had declined add: .+ without a reduction.*; needs ", note)


def test_a_kernel_is_built_for_its_own_target_kind_only() -> None:
    func = get_workload("softmax").func((4, 64))
    lowered = tr.lower(func, tr.plan(func, "cuda"))
    wrong = "softmax was lowered for cuda, the target is metal; needs target cuda"
    with pytest.raises(ReduceError, match=wrong):
        tr.compile(lowered, "metal")
    x = np.zeros((4, 64), "float32")
    with pytest.raises(ReduceError, match=wrong):
        tr.emulate(lowered, x, x.copy(), target="metal")
    tr.compile(lowered, CUDA)


@pytest.mark.parametrize("fallback", [True, False])
def test_a_function_with_a_target_of_its_own_is_built_for_that(fallback: bool) -> None:
    func = get_workload("softmax").func((4, 64))
    own = func.with_attr("target", tvm.target.Target("metal")).with_attr("global_symbol", "own")
    lowered = tr.lower(own, tr.plan(own, "metal")).with_attr("global_symbol", "lowered")
    mod = tvm.IRModule({"own": own, "lowered": lowered, "other": func.with_attr("global_symbol", "other")})
    built = tr.compile(mod, "cuda", fallback=fallback)
    assert {str(m.kind) for m in built.mod.imports} == {"cuda", "metal"}


@pytest.mark.parametrize("nothing", [None, "softmax"])
def test_only_functions_and_modules_compile(nothing: Any) -> None:
    with pytest.raises(ReduceError, match=r"is of type \w+; needs a PrimFunc or an IRModule"):
        tr.compile(nothing, "cuda")


@pytest.mark.parametrize("kind", TARGETS)
def test_the_pass_leaves_its_input_alone(kind: str) -> None:
    mod = _legalized()
    before = tvm.ir.save_json(mod)
    with as_target(TARGETS[kind]):
        scheduling: Any = tr.ScheduleReductions()  # TVM's decorator makes a pass of it, which no checker sees
        done = scheduling(mod)
    assert tvm.ir.save_json(mod) == before
    assert "tirx_reduce.mapping" in done["softmax"].attrs
    assert not done["add"].attrs or "tirx.is_scheduled" not in done["add"].attrs


@pytest.mark.parametrize("kind", TARGETS)
def test_a_program_that_knows_only_the_pipeline_names(kind: str) -> None:
    target = as_target(TARGETS[kind])
    executable = tvm.compile(_legalized(), target, relax_pipeline="tirx_reduce", tir_pipeline="tirx_reduce")
    text = device_source(executable)
    assert "softmax_kernel" in text
    assert "add_kernel" in text
    func = get_workload("rms_norm").func((8, 768))
    alone = tvm.compile(tvm.IRModule({"rms_norm": func}), target, tir_pipeline="tirx_reduce")
    assert "rms_norm_kernel" in device_source(alone)


def test_autoload_whatever_the_import_order() -> None:
    for order in ("import tvm, tirx_reduce", "import tirx_reduce, tvm", "import tvm"):
        code = (
            f"{order}\nimport tvm\nfrom tvm.tirx import compilation_pipeline as p\n"
            "from tvm import relax\nassert 'tirx_reduce' in p.PIPELINE_MAP\nrelax.get_pipeline('tirx_reduce')"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_mistakes_show_where_they_are_made() -> None:
    func = get_workload("softmax").func((4, 64))
    with pytest.raises(UnknownPolicy, match="no policy 'fastest'"):
        tr.RowReduction(policy="fastest")
    with pytest.raises(UnknownPolicy, match="no policy 'fastest'"):
        tr.ScheduleReductions(policy="fastest")
    with pytest.raises(UnknownPolicy, match="no policy 'fastest'"), tr.use(policy="fastest"):
        pass
    with pytest.raises(ReduceError, match="states no limits of a GPU; needs metal or cuda"):
        tr.plan(func, "llvm")
    with pytest.raises(ReduceError, match="needs one that TVM knows"):
        tr.plan(func, "no-such-target")
    plan = tr.plan(func, "metal")
    seen = (
        r"^the plan is for 4 rows of 64 columns \(\w+\), the function has 4 rows of 65 \(\w+\); needs its own"
    )
    with pytest.raises(ReduceError, match=seen):
        tr.lower(get_workload("softmax").func((4, 65)), plan)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda f: tr.plan(f, "cuda", limits=WRONG), "limits is of type int; needs a DeviceLimits"),
        (lambda f: tr.use(limits=WRONG).__enter__(), "limits is of type int; needs a DeviceLimits"),
        (
            lambda f: tr.plan(f, "cuda", device=WRONG),
            "device is of type int; needs a name or a tvm.runtime.Device",
        ),
        (lambda f: tr.lower(f, WRONG), "plan is of type int; needs a GroupPlan, as tr.plan gives it"),
    ],
)
def test_arguments_of_another_type(call: Any, text: str) -> None:
    with pytest.raises(ReduceError, match=f"^{re.escape(text)}$"):
        call(get_workload("softmax").func((4, 64)))


def test_without_fallback_the_first_declined_function_raises() -> None:
    func = next(f for v, f in _legalized().functions_items() if v.name_hint == "add")
    mod = tvm.IRModule({"add": func.with_attr("global_symbol", "add")})
    with pytest.raises(Unsupported, match="without a reduction"):
        tr.compile(mod, "metal", fallback=False)
    tr.compile(mod, "metal")


def test_use_decides_what_the_pipelines_plan_with() -> None:
    func = get_workload("softmax").func((8, 4096))
    target = as_target(CUDA)
    with tr.use(policy="ladder"):
        inside = device_source(
            tvm.compile(tvm.IRModule({"softmax": func}), target, tir_pipeline="tirx_reduce")
        )
    outside = device_source(tvm.compile(tvm.IRModule({"softmax": func}), target, tir_pipeline="tirx_reduce"))
    assert inside != outside
    wanted = tr.plan(func, target, policy="ladder").width
    assert f"__launch_bounds__({wanted})" in inside


@pytest.mark.parametrize("target", ["metal", "cuda"])
@pytest.mark.parametrize("factor", [1.0 / 3072, 0.1234567891, 3.4028234e38, 1.2345678e-30])
def test_constants_keep_their_last_bit(factor: float, target: str) -> None:
    """TVM prints seven digits of a literal; these need nine."""

    def scaled(x: Any) -> Any:
        k = te.reduce_axis((0, x.shape[1]), "k")
        return te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * tirx.const(factor, "float32"), axis=k))

    x = np.zeros((2, 64), "float32")
    x[:, 5] = 1.0
    (found,) = run(topi_func(scaled, ((2, 64), "float32")), target, x)
    np.testing.assert_array_equal(found, np.full(2, factor, "float32"))
