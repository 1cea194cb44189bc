"""What the emitter writes for Hopper runs on the CPU model: clusters, resident groups, rows on their way."""

from __future__ import annotations

import re

import pytest
import tvm

import tirx_reduce as tr
from tests.emulator_hopper import ORDERS
from tirx_reduce import emulator
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.emulator.mutate import without_barriers

# With exchanges over the cluster: one for each reduction, one for both where they are merged.
EMITTED = [
    ("softmax", 8192, tr.Candidate(width=64, vector=4, reuse="private", splits=4)),
    ("softmax", 8192, tr.Candidate(width=64, vector=4, reuse="private", splits=4, merged=True)),
    ("softmax", 1537, tr.Candidate(width=32, vector=1, reuse="shared", splits=8)),
    ("layer_norm", 8192, tr.Candidate(width=64, vector=4, reuse="private", splits=4)),
    ("layer_norm", 4099, tr.Candidate(width=96, vector=4, reuse="reload", splits=2)),
    ("layer_norm", 16384, tr.Candidate(width=256, vector=4, reuse="private", splits=16)),
    ("rms_norm", 4096, tr.Candidate(width=32, vector=4, reuse="private", splits=16)),
    ("argmax", 4099, tr.Candidate(width=96, vector=4, reuse="reload", splits=2)),
]


RESIDENT = [
    ("softmax", 2048, tr.Candidate(width=64, vector=4, reuse="private", resident=3)),
    ("rms_norm", 1024, tr.Candidate(width=64, vector=4, reuse="private", resident=2)),
    ("layer_norm", 516, tr.Candidate(width=96, vector=4, reuse="private", resident=2)),
]
# Rows that stay where they came in shared memory, two more on their way; a row a group, and a row a cluster.
SHELVES = [
    ("layer_norm", 1024, tr.Candidate(width=64, vector=4, reuse="shared", resident=2)),
    ("layer_norm", 2048, tr.Candidate(width=64, vector=4, reuse="shared", splits=2, resident=4)),
    ("rms_norm", 2080, tr.Candidate(width=64, vector=4, reuse="shared", splits=4, resident=8)),
    ("softmax", 4096, tr.Candidate(width=64, vector=4, reuse="shared", splits=2, resident=6)),
    # Rows that start anywhere, alike within a group.
    ("layer_norm", 2050, tr.Candidate(width=64, vector=4, reuse="shared", splits=2, resident=8)),
    ("softmax", 1031, tr.Candidate(width=64, vector=4, reuse="shared", resident=8)),
]
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})


def identify(case: tuple[str, int, tr.Candidate]) -> str:
    name, columns, candidate = case
    merged = "-merged" if candidate.merged else ""
    return f"{name}-{columns}-{candidate.reuse}-{candidate.splits}{merged}"


@pytest.mark.parametrize(("name", "columns", "candidate"), EMITTED, ids=[identify(e) for e in EMITTED])
def test_emitted_cluster_is_right_in_every_order(name: str, columns: int, candidate: tr.Candidate) -> None:
    counters = check_emitted(name, (2, columns), candidate)
    assert counters.cluster_barriers == 2
    assert counters.mailbox_waits in (2 * candidate.splits, 2 * 2 * candidate.splits)


FAULTS = (emulator.DataRace, emulator.Uninitialized, emulator.BarrierDivergence)


def with_other_counts(text: str) -> list[str]:
    """One text for each mailbox that expects a value more, or less."""
    calls = list(re.finditer(r"(tirx_reduce_mailbox_open\(\(&.*, )(\d+)\);", text))
    assert calls
    return [
        f"{text[: call.start()]}{call[1]}{int(call[2]) + change});{text[call.end() :]}"
        for call in calls
        for change in (4, -4)
    ]


def without_sends(text: str) -> list[str]:
    """One text for each send of the kernel, which lacks it."""
    calls = list(re.finditer(r"tirx_reduce_mailbox_send_\w+\(\(&.*\);", text))
    assert calls
    return [text[: call.start()] + text[call.end() :] for call in calls]


@pytest.mark.parametrize(("name", "columns", "candidate"), EMITTED, ids=[identify(e) for e in EMITTED])
def test_emitted_cluster_needs_each_of_its_barriers_and_sends(
    name: str, columns: int, candidate: tr.Candidate
) -> None:
    workload, shape = get_workload(name), (2, columns)
    func = workload.func(shape, "float32")
    executable = tr.schedules.build(tr.lower(func, tr.schedules.force(func, candidate, TARGET)), TARGET)
    text = executable.mod.imports[0].inspect_source()
    texts = [m.text for m in without_barriers(text)]
    # At least the one cluster barrier, three ways, and the opening of a mailbox and the wait on it.
    assert len(texts) >= 5
    texts += [*with_other_counts(text), *without_sends(text)]
    names = [p.name for p in func.params]
    groups = shape[0] * candidate.splits
    for number, bad in enumerate(texts):
        arrays = dict(zip(names, (*workload.inputs(shape), *workload.empty(shape)), strict=True))
        with pytest.raises(FAULTS):
            emulator.run_source(
                bad,
                "cuda",
                arrays,
                groups,
                candidate.width,
                cluster=candidate.splits,
                orders=(ORDERS[number % 3],),
            )


@pytest.mark.parametrize(("name", "columns", "candidate"), RESIDENT, ids=[identify(e) for e in RESIDENT])
def test_emitted_resident_groups_are_right_in_every_order(
    name: str, columns: int, candidate: tr.Candidate
) -> None:
    counters = check_emitted(name, (7, columns), candidate)
    assert counters.async_bytes == 7 * columns * 4
    assert counters.cluster_barriers == 0


def check_emitted(name: str, shape: tuple[int, int], candidate: tr.Candidate) -> emulator.Counters:
    workload = get_workload(name)
    func = workload.func(shape, "float32")
    executable = tr.schedules.build(tr.lower(func, tr.schedules.force(func, candidate, TARGET)), TARGET)
    inputs, outputs = workload.inputs(shape), workload.empty(shape)
    done = emulator.emulate(executable, *inputs, *outputs)
    verdict = workload.verify(outputs, inputs)
    assert verdict.ok, verdict
    (counters,) = done.counters.values()
    return counters


@pytest.mark.parametrize(("name", "columns", "candidate"), RESIDENT, ids=[identify(e) for e in RESIDENT])
def test_emitted_resident_groups_need_each_of_their_barriers(
    name: str, columns: int, candidate: tr.Candidate
) -> None:
    workload, shape = get_workload(name), (7, columns)
    func = workload.func(shape, "float32")
    executable = tr.schedules.build(tr.lower(func, tr.schedules.force(func, candidate, TARGET)), TARGET)
    text = executable.mod.imports[0].inspect_source()
    texts = [m.text for m in without_barriers(text)]
    assert len(texts) > 1
    assert "(step & 1)" in text
    if name == "rms_norm":
        # One collective a row: with one set of slots, they are written while the row before is still folded.
        texts.append(text.replace("(step & 1)", "0"))
    names = [p.name for p in func.params]
    for number, bad in enumerate(texts):
        arrays = dict(zip(names, (*workload.inputs(shape), *workload.empty(shape)), strict=True))
        with pytest.raises(FAULTS):
            emulator.run_source(
                bad,
                "cuda",
                arrays,
                candidate.resident,
                candidate.width,
                orders=(ORDERS[number % 3],),
                dynamic_bytes=8 * columns,
            )


@pytest.mark.parametrize("rows", [1, 2, 7, 12])
@pytest.mark.parametrize(("name", "columns", "candidate"), SHELVES, ids=[identify(e) for e in SHELVES])
def test_emitted_rows_on_shelves_are_right_in_every_order(
    name: str, columns: int, candidate: tr.Candidate, rows: int
) -> None:
    """Also with fewer rows than clusters, and fewer a cluster than shelves."""
    counters = check_emitted(name, (rows, columns), candidate)
    # Whole packets from a multiple of 32 bytes on.
    before = [-row * columns % 8 for row in range(rows)]
    assert counters.async_bytes == sum((columns - b) // 4 * 16 for b in before)
    clusters = candidate.resident // candidate.splits
    assert counters.cluster_barriers == (clusters if candidate.splits > 1 else 0)
    # Two reductions share an exchange where all lanes have as many elements.
    exchanges = 2 if columns % 8 else 1
    assert counters.mailbox_waits == (exchanges * rows * candidate.splits if candidate.splits > 1 else 0)


def test_weights_of_resident_groups_are_read_once() -> None:
    name, columns, candidate = SHELVES[1]
    counters = check_emitted(name, (12, columns), candidate)
    clusters = candidate.resident // candidate.splits
    assert counters.load_bytes["device"] == (12 + 2 * clusters) * columns * 4


@pytest.mark.parametrize(("name", "columns", "candidate"), SHELVES, ids=[identify(e) for e in SHELVES])
def test_emitted_rows_on_shelves_need_each_of_their_waits_and_sends(
    name: str, columns: int, candidate: tr.Candidate
) -> None:
    workload, shape = get_workload(name), (max(12, 4 * candidate.resident // candidate.splits), columns)
    func = workload.func(shape, "float32")
    executable = tr.schedules.build(tr.lower(func, tr.schedules.force(func, candidate, TARGET)), TARGET)
    text = executable.mod.imports[0].inspect_source()
    texts = [m.text for m in without_barriers(text)]
    assert sum("tirx_reduce_async_wait_but_2();" not in t for t in texts) == 1
    # With a shelf fewer, a row is copied over one that is still computed.
    assert "(step % 3)" in text
    texts.append(text.replace("(step % 3)", "(step % 2)"))
    if candidate.splits > 1:
        texts += [*with_other_counts(text), *without_sends(text)]
        # With one set of slots, a group that is ahead writes where another still reads.
        texts.append(re.sub(r"(slots\w+\[\(*)\(step \* \d+\)", r"\1(0)", text))
        texts.append(text.replace("mailbox_ptr[step]", "mailbox_ptr[0]"))
    assert len(set(texts)) == len(texts)
    assert text not in texts
    names = [p.name for p in func.params]
    packets = columns // candidate.vector
    per_lane = -(-packets // (candidate.width * candidate.splits)) * candidate.vector
    for number, bad in enumerate(texts):
        arrays = dict(zip(names, (*workload.inputs(shape), *workload.empty(shape)), strict=True))
        with pytest.raises(FAULTS):
            emulator.run_source(
                bad,
                "cuda",
                arrays,
                candidate.resident,
                candidate.width,
                cluster=candidate.splits,
                orders=(ORDERS[number % 3],),
                dynamic_bytes=3 * per_lane * candidate.width * 4,
            )
