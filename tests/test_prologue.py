"""What a launch does before the launch before has ended: it reads nothing that one may write, and finds it right."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tvm import tirx

from tests.launch import Kernel, check, wide
from tirx_reduce import emulator
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.schedules import cluster, prologue
from tirx_reduce.schedules.tir import imm
from tirx_reduce.values import Candidate

CUDA = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024}
OLDER = {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024}
ORDERS = ("forward", "reverse", "random")
ONE = (
    ("softmax", (9, 300), "bfloat16", Candidate(width=32, vector=4, reuse="private")),
    ("layer_norm", (9, 301), "bfloat16", Candidate(width=32, vector=8, reuse="shared")),
    ("rms_norm", (9, 64), "float32", Candidate(width=8, packing=4, vector=4, reuse="private")),
    ("layer_norm", (9, 64), "float32", Candidate(width=32, vector=2, reuse="private", rows=2)),
    ("layer_norm", (3, 4096), "float32", Candidate(width=64, vector=4, reuse="private", splits=4)),
    ("add_rms_norm", (5, 1000), "float32", Candidate(width=32, vector=4, reuse="reload")),
)
TWO = (
    ("softmax", (1, 8192), "float32", 4, True),
    ("softmax", (3, 4099), "bfloat16", 4, True),
    ("layer_norm", (1, 8192), "float32", 4, True),
    ("layer_norm", (3, 5000), "float32", 2, True),
    ("layer_norm", (2, 4099), "float32", 2, False),
    ("rms_norm", (1, 8192), "float32", 4, False),
    ("rms_norm", (3, 9001), "bfloat16", 8, False),
    ("add_rms_norm", (2, 4096), "float32", 2, False),
    ("log_softmax", (2, 4096), "float32", 2, True),
)


def built(op: str, shape: tuple[int, ...], dtype: str, candidate: Candidate, target: Any = CUDA) -> Kernel:
    return Kernel(get_workload(op).func(shape, dtype), target, candidate)


def two(op: str, shape: tuple[int, ...], dtype: str, vector: int, merged: bool) -> Kernel:
    candidate = Candidate(width=32, vector=vector, reuse="reload", splits=32, merged=merged)
    return built(op, shape, dtype, candidate)


def checked(kernel: Kernel, op: str, shape: tuple[int, ...], dtype: str, **how: Any) -> None:
    """Run it, and compare with the workload's own formula."""
    workload = get_workload(op)
    inputs = workload.inputs(shape, dtype, seed=5)
    outputs = kernel.run(*inputs, **how)
    for got, want in zip(outputs, workload.expected(inputs), strict=True):
        check(got, wide(want), columns=shape[-1], text=f"{op} {shape} {dtype}")


def kernels(text: str) -> list[str]:
    """The bodies of the device functions, in order."""
    return re.findall(r'extern "C" __global__ void [^;{]*\{(.*?)\n\}', text, re.S)


def loads(text: str) -> list[str]:
    """Accesses to tensors and partial results; addresses are none, and neither are a lane's own arrays."""
    own = set(re.findall(r"alignas\(\d+\) \w+ (\w+_ptr)\[", text))
    rest = re.sub(r"\(&\(\w+_ptr\[.*?\]\)\)", "", text)
    return [name for name in re.findall(r"\b(\w+_ptr)(?:\[| \+)", rest) if name not in own]


@pytest.mark.parametrize(("op", "shape", "dtype", "candidate"), ONE)
def test_one_launch_reads_nothing_before_it_begins(
    op: str, shape: tuple[int, ...], dtype: str, candidate: Candidate
) -> None:
    kernel = built(op, shape, dtype, candidate)
    (body,) = kernels(kernel.source)
    before, _, after = body.partition("tirx_reduce_begin();")
    assert loads(before) == []
    assert loads(after)
    assert "tirx_reduce_offer();" in before
    inputs = {kernel.func.params[t.param].name for t in kernel.tensors if t.role != "out"}
    assert len(re.findall(r"tirx_reduce_reads\(", before)) == len(inputs)
    checked(kernel, op, shape, dtype, orders=ORDERS)


@pytest.mark.parametrize(("op", "shape", "dtype", "vector", "merged"), TWO)
def test_the_second_launch_loads_before_the_first_has_ended(
    op: str, shape: tuple[int, ...], dtype: str, vector: int, merged: bool
) -> None:
    kernel = two(op, shape, dtype, vector, merged)
    bodies = kernels(kernel.source)
    assert len(bodies) == 2
    for number, body in enumerate(bodies):
        before, _, after = body.partition("tirx_reduce_begin();")
        last = number == len(bodies) - 1
        assert ("tirx_reduce_offer();" in before) is last
        assert ("tirx_reduce_offer();" in after) is not last
        assert ("tirx_reduce_follow();" in before) is (number > 0)
        assert "part" not in "".join(loads(before))
        assert bool(loads(before)) is (number > 0)
    checked(kernel, op, shape, dtype, orders=ORDERS)


def test_rows_of_two_launches_may_be_overwritten() -> None:
    """What a group of the second launch writes no other group reads, and the first launch wrote none of it."""
    kernel = two("softmax", (2, 8192), "float32", 4, True)
    x = get_workload("softmax").inputs((2, 8192), "float32")[0]
    want = get_workload("softmax").expected((x.copy(),))[0]
    emulator.emulate(kernel.executable, x, x, orders=ORDERS)
    check(x, wide(want), columns=8192)


def test_a_launch_must_not_follow_one_that_offers_early(monkeypatch: pytest.MonkeyPatch) -> None:
    right = prologue.open_launch
    monkeypatch.setattr(prologue, "open_launch", lambda k, followed=False: right(k))
    kernel = two(*TWO[0])
    with pytest.raises(emulator.DataRace, match="offered its place before"):
        checked(kernel, *TWO[0][:3])


def test_partial_results_are_read_behind_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_lane_waits(k: Any, walks: Any, followed: bool) -> None:
        cluster.follow(k.block)
        with k.block.when(tirx.EQ(k.lane, imm(31))) as one:
            cluster.begin(one)

    monkeypatch.setattr(prologue, "follow", one_lane_waits)
    kernel = two(*TWO[0])
    with pytest.raises(emulator.DataRace, match="before tirx_reduce_begin"):
        checked(kernel, *TWO[0][:3])


def test_a_prefetch_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cluster.prefetch
    monkeypatch.setattr(cluster, "prefetch", lambda block, start, size: right(block, start, size * 3))
    kernel = built(*ONE[0])
    with pytest.raises(emulator.OutOfBounds, match="prefetch"):
        checked(kernel, *ONE[0][:3])


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize(
    "candidate",
    [
        Candidate(width=64, vector=4, reuse="private", resident=8),
        Candidate(width=16, packing=4, vector=4, reuse="private"),
        Candidate(width=64, vector=4, reuse="private", rows=2),
        Candidate(width=64, vector=4, reuse="private", splits=2),
        Candidate(width=64, vector=4, reuse="private"),
    ],
    ids=["resident", "packing", "rows", "splits", "plain"],
)
def test_symbolic_rows_are_asked_for_where_there_are_any(candidate: Candidate, rows: int) -> None:
    """Groups that stay are as many as they are, others as many as their rows."""
    func = get_workload("rms_norm").func((8, 512), "float32", symbolic_rows=True)
    checked(Kernel(func, CUDA, candidate), "rms_norm", (rows, 512), "float32")


@pytest.mark.parametrize("splits", [1, 4])
def test_one_row_and_eight_ask_for_all_weights(splits: int) -> None:
    """Where rows are symbolic the weights are dealt to the groups that few rows start; one row has its own kernel."""
    func = get_workload("rms_norm").func((1, 4096), "float32", symbolic_rows=True)
    kernel = Kernel(func, CUDA, Candidate(width=64, vector=4, reuse="private", splits=splits))
    for rows in (1, 8):
        checked(kernel, "rms_norm", (rows, 4096), "float32")
        (name,) = kernel.emulation.kernels
        text = kernel.source[kernel.source.rindex(f" {name}(") :].split("\n}")[0]
        (size,) = re.findall(r"prefetch\(\(&\(weight_ptr.*, (\d+)\);", text)
        groups = min(prologue.SHARES, rows * splits)
        assert int(size) * groups == 4096 * 4


def test_older_devices_have_no_prologue() -> None:
    text = built(*ONE[0], target=OLDER).source
    assert "tirx_reduce_begin" not in text
    assert "tirx_reduce_prefetch" not in text


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bf16_is_widened_by_words(dtype: str) -> None:
    text = built("softmax", (9, 300), dtype, ONE[0][3]).source
    assert ("tirx_reduce_widen(" in text) is (dtype == "bfloat16")
