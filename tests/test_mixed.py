"""Rows that are kept partly in registers and partly in threadgroup memory, against float64 and in numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx, topi

from tests.covering import Row, label, long_sweep, pairwise
from tests.functions import symbol, topi_func
from tests.launch import TARGETS, Kernel, check, verified
from tirx_reduce import cost, emulator, facts
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.candidates import default_scope, full_scope, private_rounds, refusal
from tirx_reduce.cost.service import Service
from tirx_reduce.emulator.mutate import without_barriers
from tirx_reduce.errors import Uncalibrated, Unsupported
from tirx_reduce.schedules import as_target, elements, force, packets
from tirx_reduce.schedules.planning import describe
from tirx_reduce.values import Candidate, DeviceLimits, GroupPlan

OPS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "add_rms_norm", "masked_softmax")
MAPPINGS: dict[str, dict[str, Any]] = {
    "subgroup": {"width": 32},
    "packed": {"width": 8, "packing": 4},
    "two of two subgroups": {"width": 64, "packing": 2},
    "merged": {"width": 96, "merged": True},
    "split": {"width": 32, "splits": 2},
    "split merged": {"width": 64, "splits": 4, "merged": True},
}
# Rounds beyond those that registers take whole, or that many in all where fewer are left to them.
ROUNDS: dict[str, Callable[[int], int]] = {
    "2": lambda _: 2,
    "3": lambda _: 3,
    "full and 1": lambda vector: 32 // vector + 1,
    "full and 2": lambda vector: 32 // vector + 2,
}
FACTORS: dict[str, Any] = {
    "op": OPS,
    "mapping": tuple(MAPPINGS),
    "rounds": tuple(ROUNDS),
    "tail": ("whole", "odd", "prime", "little"),
    "dtype": ("float32", "float16", "bfloat16"),
    "vector": (2, 4, 8),
    "target": TARGETS,
}
FEWER: dict[str, Any] = {
    "op": ("softmax", "log_softmax", "layer_norm", "rms_norm", "add_rms_norm"),
    "mapping": ("packed", "two of two subgroups", "merged", "split", "split merged"),
    "tail": ("whole", "prime", "little"),
}
ROWS = 5


def candidate(row: Row) -> Candidate:
    return Candidate(vector=row["vector"], reuse="mixed", **MAPPINGS[row["mapping"]])


def columns(row: Row) -> int:
    """Columns of so many rounds, the last one more or less full."""
    c = candidate(row)
    vector, step = c.vector, c.width * c.splits * c.vector
    whole = ROUNDS[row["rounds"]](vector) * step
    if row["tail"] == "prime":
        return next(n for n in range(whole, 0, -1) if all(n % d for d in range(2, math.isqrt(n) + 1)))
    return {
        "whole": whole,
        "odd": whole - 1,
        "little": whole - step + vector + 1,
    }[row["tail"]]


def legal(row: Row) -> bool:
    """Roughly what the planner finds legal: no more, or building raises."""
    if row["vector"] > (4 if row["target"] == "metal" or row["dtype"] == "float32" else 8):
        return False
    return not (candidate(row).splits > 1 and row["target"] == "metal")


def right(row: Row, orders: tuple[str, ...] = ("random",)) -> None:
    verified(row, (ROWS, columns(row)), candidate(row), orders)


def quick(row: Row) -> bool:
    """Those of short texts."""
    return legal(row) and columns(row) <= 600


@pytest.mark.parametrize("row", pairwise({**FACTORS, **FEWER}, quick), ids=label)
def test_every_pair_of_round_count_and_mapping(row: Row) -> None:
    right(row)


@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
def test_a_cluster_of_four_with_full_registers(op: str) -> None:
    for mapping, tail, dtype, vector in (
        ("split", "odd", "float32", 4),
        ("split merged", "prime", "bfloat16", 8),
    ):
        row = {"op": op, "mapping": mapping, "rounds": "full and 2", "tail": tail, "dtype": dtype}
        right({**row, "vector": vector, "target": "cuda"})


test_more_of_them = long_sweep(FACTORS, legal, right)


def _kernel(op: str, shape: tuple[int, ...], dtype: str, target: str, **how: Any) -> tuple[Kernel, Any]:
    workload = get_workload(op)
    kernel = Kernel(workload.func(shape, dtype), target, Candidate(reuse="mixed", **how))
    inputs = workload.inputs(shape, dtype)

    def run(**more: Any) -> Any:
        return workload.verify(tuple(kernel.run(*inputs, **more)), inputs)

    return kernel, run


def _kept(kernel: Kernel, number: int = 0) -> list[tuple[str, int]]:
    """Dtype and scalars of the arrays of a kept value, those of dynamic shared memory left out."""
    found = re.findall(rf"(nv_bfloat16|float|int)([24]?) kept{number}\w*\[(\d+)\];", kernel.source)
    return [(dtype, int(lanes or 1) * int(extent)) for dtype, lanes, extent in found]


def test_a_long_row_takes_dynamic_shared_memory() -> None:
    """Above 32 KB, and a loop over its rounds that is not unrolled."""
    kernel, run = _kernel("layer_norm", (2, 33 * 1024 + 7), "bfloat16", "cuda", width=128, vector=8)
    assert run().ok
    rounds = (33 * 1024 + 7) // 8 // 128 + 1
    assert _kept(kernel) == [("nv_bfloat16", 4 * 8 + 2)]
    assert "extern __shared__" in kernel.source
    assert (rounds - 4) * 8 * 128 * 2 > 32 * 1024
    assert "for (int c = 0;" in kernel.source


@pytest.mark.parametrize("target", TARGETS)
def test_an_integer_row_keeps_its_integers(target: str) -> None:
    """Its exponential does not take their place: the two arrays are theirs."""

    def build(x: Any) -> Any:
        m, n = x.shape
        k, j = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "j")
        most = te.compute((m,), lambda i: te.max(x[i, k].astype("float32"), axis=k))

        def power(i: Any, c: Any) -> Any:
            return tirx.exp(x[i, c].astype("float32") - most[i])

        total = te.compute((m,), lambda i: te.sum(power(i, j), axis=j))
        return te.compute((m, n), lambda i, c: power(i, c) / total[i])

    kernel = Kernel(
        topi_func(build, ((3, 301), "int32")), target, Candidate(width=32, vector=4, reuse="mixed")
    )
    x = np.random.default_rng(3).integers(-6, 6, (3, 301)).astype("int32")
    power = np.exp((x - x.max(-1, keepdims=True)).astype("float64"))
    (got,) = kernel.run(x)
    check(got, power / power.sum(-1, keepdims=True), columns=301)
    assert [dtype for dtype, _ in _kept(kernel)] == ["int", "int"]


@pytest.mark.parametrize(
    ("how", "size", "private", "shared"),
    [
        # One round of two; as many as fill 32 scalars; all but the last.
        ({"width": 32, "vector": 4}, 256, 4, 4 * 32),
        ({"width": 32, "vector": 2}, 2048, 32, 32 * 32),
        ({"width": 32, "vector": 4}, 1024, 28, 4 * 32),
        # Two rows, and what is left at the ends of an odd row: up to 6 elements over 32 lanes, room for a pair in each.
        ({"width": 32, "vector": 4, "packing": 2}, 1027, 28 + 2, 2 * 4 * 32),
    ],
)
def test_where_the_row_is_cut(how: dict[str, Any], size: int, private: int, shared: int) -> None:
    kernel, run = _kernel("softmax", (2, size), "float32", "metal", **how)
    assert _kept(kernel) == [("float", private), ("float", shared)]
    assert run().ok
    (counters,) = kernel.emulation.counters.values()
    assert counters.loads["threadgroup"] > 0


CUDA = DeviceLimits(kind="cuda", shared_bytes=49152, opt_in_shared_bytes=232448, max_cluster=8)
METAL = DeviceLimits()


@pytest.mark.parametrize(
    ("op", "size", "limits", "how", "reason"),
    [
        ("argmax", 2048, CUDA, {}, "mixed: no pass reads again what an earlier one read"),
        (
            "softmax",
            128,
            CUDA,
            {},
            "mixed: 1 round of packets; needs 2 or more, the last for threadgroup memory",
        ),
        ("softmax", 2048, CUDA, {"rows": 2}, "rows: 2 a program; needs a row in one group"),
        ("softmax", 2048, CUDA, {"resident": 4}, "resident: mixed with packing 1; needs private"),
        ("softmax", 2048, METAL, {"splits": 2}, "splits: mixed values do not outlive their group"),
        ("softmax", 2048, replace(METAL, private_scalars=31), {}, "mixed: 32 scalars a lane; limit 31"),
        ("softmax", 12288, METAL, {}, "mixed: 45056 bytes of threadgroup memory; limit 32768"),
        ("softmax", 61440, CUDA, {}, "mixed: 241664 bytes of threadgroup memory; limit 232448"),
    ],
)
def test_refusals(op: str, size: int, limits: DeviceLimits, how: dict[str, Any], reason: str) -> None:
    read = facts.analyze(get_workload(op).func((8, size)))
    c = Candidate(**{"width": 32, "vector": 4, "reuse": "mixed", **how})
    assert str(refusal(c, read, limits)).startswith(reason)


def test_two_values_share_static_memory() -> None:
    """Only one array can be in memory that a kernel asks for at its launch."""
    read = facts.analyze(_two_values(16384))
    assert read.kept == 2
    c = Candidate(width=128, vector=4, reuse="mixed")
    assert refusal(c, read, CUDA) == "mixed: 114704 bytes of threadgroup memory; limit 49152"
    assert (
        refusal(replace(c, width=512), read, CUDA) == "mixed: 65600 bytes of threadgroup memory; limit 49152"
    )
    assert refusal(replace(c, width=512), facts.analyze(_two_values(8192)), CUDA) is None


def _two_values(size: int) -> Any:
    """A sum over a·b, by which both are divided."""

    def build(a: Any, b: Any) -> Any:
        m, n = a.shape
        k = te.reduce_axis((0, n), "k")
        total = te.compute((m,), lambda i: te.sum(a[i, k] * b[i, k], axis=k))
        return [
            te.compute((m, n), lambda i, j: a[i, j] - total[i]),
            te.compute((m, n), lambda i, j: b[i, j] - total[i]),
        ]

    return topi_func(build, *[((5, size), "float32")] * 2)


@pytest.mark.parametrize("target", TARGETS)
def test_two_values_are_kept_side_by_side(target: str) -> None:
    size = 1019
    kernel = Kernel(_two_values(size), target, Candidate(width=64, vector=2, reuse="mixed"))
    a, b = np.random.default_rng(5).standard_normal((2, 5, size)).astype("float32")
    total = (a.astype("float64") * b).sum(-1, keepdims=True)
    for got, want in zip(kernel.run(a, b, orders=("reverse",)), (a - total, b - total), strict=True):
        check(got, want, columns=size)
    assert [len(_kept(kernel, i)) for i in range(3)] == [2, 2, 0]


def test_symbolic_columns_are_refused() -> None:
    func = topi_func(lambda x: topi.nn.softmax(x, -1), ((4, symbol("n")), "float32"))
    with pytest.raises(Unsupported, match="mixed: the number of columns is symbolic; needs a fixed one"):
        force(func, Candidate(width=32, reuse="mixed"), "cuda")


# --- what plans and policies say of it


def test_every_policy_prices_it_or_says_why_not() -> None:
    func, target = get_workload("layer_norm").func((64, 16384)), as_target({"kind": "cuda", "arch": "sm_90"})
    c = Candidate(width=256, vector=4, reuse="mixed")
    plan = force(func, c, target)
    # Eight of sixteen rounds in registers, touched by each of three walks and once more.
    assert private_rounds(c, 1, 16384) == 8
    assert plan.features.worker_private_access_bytes == 8 * 4 * 4 * (1 + 3)
    assert plan.features.program_global_access_bytes == (
        force(func, replace(c, reuse="shared"), target).features.program_global_access_bytes
    )
    for name in ("analytic", "ladder"):
        policy = cost.get_policy(name)
        assert policy.reduction_cost(c, plan.features, plan.limits).kernel_score > 0
    bare = cost.Bare(cost.Coefficients(**dict.fromkeys((*"DRKPGW", "capacity"), 1.0)))
    with pytest.raises(Uncalibrated, match="mixed reuse; the calibration was fitted on reload, private"):
        Service(bare).reduction_cost(c, plan.features, plan.limits)
    assert GroupPlan.from_json(plan.to_json()) == plan
    assert describe(plan.candidate) == "W=256 P=1 V=4 U=1 S=1 mixed"


def test_only_the_full_scope_looks_at_it() -> None:
    read = facts.analyze(get_workload("softmax").func((8, 4096)))
    assert {c.reuse for c in default_scope(read, CUDA)} == {"reload", "private"}
    mixed = [c for c in full_scope(read, CUDA) if c.reuse == "mixed"]
    assert any(refusal(c, read, CUDA) is None for c in mixed)


# --- a defect is noticed


def _one_round_early(row: Any, part: Any, turn: Any, *rest: Any) -> Any:
    return _SLOT(row, part, turn + tirx.IntImm("int32", 1) if part.shared else turn, *rest)


def _one_round_late(row: Any, part: Any, turn: Any, *rest: Any) -> Any:
    return _SLOT(row, part, turn - tirx.IntImm("int32", 1) if part.shared else turn, *rest)


def _not_moved(row: Any, part: Any, turn: Any, *rest: Any) -> Any:
    return _SLOT(row, replace(part, shared=False), turn, *rest)


_SLOT = packets.Row.kept_slot


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("slot", [_one_round_early, _one_round_late, _not_moved])
def test_a_place_of_another_round_is_found(slot: Any, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets.Row, "kept_slot", slot)
    _, run = _kernel("softmax", (3, 512), "float32", target, width=32, vector=4)
    with pytest.raises(emulator.OutOfBounds):
        run()


@pytest.mark.parametrize("target", TARGETS)
def test_ends_that_lie_on_a_round_are_found(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slot(row: Any, part: Any, turn: Any, *rest: Any) -> Any:
        return turn if part.ends else _SLOT(row, part, turn, *rest)

    monkeypatch.setattr(packets.Row, "kept_slot", slot)
    _, run = _kernel("softmax", (3, 511), "float32", target, width=32, vector=4)
    assert not run().ok


@pytest.mark.parametrize("target", TARGETS)
def test_a_packet_of_another_lane_is_found(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    move = elements._move_shared

    def moved(k: Any, *rest: Any, store: bool) -> None:
        mine = k.lane
        k.lane = mine if store else tirx.bitwise_xor(mine, tirx.IntImm("int32", 1))
        move(k, *rest, store=store)
        k.lane = mine

    monkeypatch.setattr(elements, "_move_shared", moved)
    _, run = _kernel("softmax", (3, 512), "float32", target, width=32, vector=4)
    with pytest.raises(emulator.DataRace):
        run()


@pytest.mark.parametrize("target", TARGETS)
def test_any_one_barrier_less_is_found(target: str) -> None:
    workload, shape = get_workload("layer_norm"), (3, 1023)
    kernel, run = _kernel("layer_norm", shape, "float32", target, width=96, vector=4)
    assert run().ok
    mutants = without_barriers(kernel.source)
    assert mutants
    for mutant in mutants:
        names = [p.name for p in kernel.func.params]
        arrays = dict(zip(names, (*workload.inputs(shape), *workload.empty(shape)), strict=True))
        with pytest.raises((emulator.DataRace, emulator.Uninitialized)):
            emulator.run_source(mutant.text, target, arrays, shape[0], 96, orders=("random",))
