"""Public faults of texts, limits, barriers, empty extents, and of stores of tuned results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm import te, tirx, topi

import tirx_reduce as tr
from tests import test_measure
from tests.faults import (
    add_layer_norm,
    fault,
    func,
    layer_norm,
    np_layer_norm,
    np_rms_norm,
    np_softmax,
    rms_norm,
    softmax,
)
from tests.functions import topi_func
from tests.launch import TARGETS, Kernel, check, narrow, run, wide
from tirx_reduce.bench.measure import PHASES, NoValidTiming, measure
from tirx_reduce.schedules import build, force, lower, plan
from tirx_reduce.values import Candidate, DeviceLimits

BOTH = pytest.mark.parametrize("target", TARGETS)
SHARED_LIMIT = {"metal": 32768, "cuda": 49152}
_BYTES = {
    "float": 4,
    "int": 4,
    "uint": 4,
    "half": 2,
    "ushort": 2,
    "char": 1,
    "long": 8,
    "int64_t": 8,
    "double": 8,
}


def shared_bytes(source: str) -> int:
    """Threadgroup arrays of fixed size in a text, added up (those of all its kernels)."""
    arrays = re.findall(
        r"(?:threadgroup|__shared__)\s+(?:alignas\(\d+\)\s+|__align__\(\d+\)\s+)?"
        r"(int64_t|[a-z]+)([234]?)\s+\w+\[(\d+)\]",
        source,
    )
    return sum(_BYTES[kind] * int(lanes or 1) * int(size) for kind, lanes, size in arrays)


def threads(text: str) -> list[int]:
    """Threads of a group in a scheduled function, a kernel each."""
    x = [int(n) for n in re.findall(r'"threadIdx\.x", (\d+)', text)]
    y = [int(n) for n in re.findall(r'"threadIdx\.y", (\d+)', text)] or [1] * len(x)
    return [a * b for a, b in zip(x, y, strict=True)]


COLUMNS = [4096, 8191, 8193, 12288, 32768]


@BOTH
@fault(
    "B45",
    "mlc-llm#2598",
    "scratch limit",
    "threadgroup bytes are counted before a candidate is offered; shared reuse that does not fit is "
    "refused, and reload needs none",
)
def test_threadgroup_memory_stays_below_the_limit(target: str) -> None:
    for n in COLUMNS:
        x = te.placeholder((3, n), "float32", name="x")
        for f in (
            te.create_prim_func([x, softmax(x)]),
            topi_func(add_layer_norm(1e-5), *[((3, n), "float32")] * 2, *[((n,), "float32")] * 2),
        ):
            for c in (
                None,
                Candidate(width=256, vector=4, reuse="shared"),
                Candidate(width=256, vector=1, reuse="private"),
            ):
                try:
                    p = plan(f, target) if c is None else force(f, c, target)
                except tr.Unsupported as refused:
                    if c is None or "limit" not in str(refused):
                        raise
                    continue
                source = str(build(lower(f, p), target).mod.imports[0].inspect_source())
                assert shared_bytes(source) <= SHARED_LIMIT[target], (n, c)


@BOTH
@fault(
    "B46",
    "mlx-vlm PR 1799",
    "thread limit",
    "threads of a group are a hard limit of the device, stated by the target or the caller; packing counts",
    "right or refused",
)
def test_threads_stay_below_the_limit(target: str) -> None:
    functions = [
        topi_func(softmax, ((64, 6144), "float32")),
        topi_func(layer_norm(1e-5, False, False), ((64, 6144), "float32")),
        topi_func(add_layer_norm(1e-5), *[((64, 6144), "float32")] * 2, *[((6144,), "float32")] * 2),
    ]
    for limit in (32, 256, 512, 896, 1024):
        for f in functions:
            p = plan(f, target, limits=DeviceLimits(max_threads=limit))
            (seen,) = threads(lower(f, p).script())
            assert seen <= limit
    packed = Candidate(width=64, packing=16, vector=4)
    with pytest.raises(tr.Unsupported, match="group: 1024 threads; limit 896"):
        force(functions[0], packed, target, DeviceLimits(max_threads=896))
    with pytest.raises(tr.Unsupported, match=r"no candidate|limit"):
        plan(functions[0], target, limits=DeviceLimits(max_threads=1))


def limited(target: str, threads_: int) -> dict[str, Any]:
    key = "max_threads_per_block" if target == "metal" else "max_num_threads"
    return {"kind": target, key: threads_, **({"arch": "sm_90"} if target == "cuda" else {})}


@BOTH
@fault("B46", "mlx-vlm PR 1799", "thread limit", "as above, stated by the target")
def test_threads_of_the_target(target: str) -> None:
    f = topi_func(softmax, ((64, 6144), "float32"))
    for limit in (512, 896):
        (seen,) = threads(lower(f, plan(f, limited(target, limit))).script())
        assert seen <= limit


@BOTH
@fault(
    "B47",
    "tvm#19578",
    "empty extents",
    "no rows launch nothing; no columns are declined and left to TVM",
    "right or refused",
)
def test_empty_extents(target: str) -> None:
    for shape in ((0, 64), (2, 0, 8)):
        f = topi_func(softmax, (shape, "float32"))
        scheduled = lower(f, plan(f, target))
        assert "launch_thread" not in scheduled.script()
        assert "thread_extent" not in scheduled.script()
        build(scheduled, target)
    for shape in ((4, 0), (0, 0)):
        for b in (softmax, lambda v: topi.max(v, -1), lambda v: topi.sum(v, -1)):
            with pytest.raises(tr.Unsupported, match=r"0 columns; needs 1 or more"):
                plan(topi_func(b, (shape, "float32")), target)
    # An index over no columns is not even an argmax.
    with pytest.raises(tr.Unsupported, match="; needs "):
        plan(topi_func(lambda v: topi.argmax(v, -1), ((4, 0), "float32")), target)


@pytest.mark.parametrize("vector", [1, 2, 4])
@fault(
    "B60",
    "tvm PR 18627",
    "bf16 on Metal",
    "bf16 is 16 bits in memory and float32 in every register; no literal, shuffle or array of it exists",
)
def test_bfloat16_on_metal(vector: int) -> None:
    cases = (
        (softmax, (3, 1000), np_softmax),
        (rms_norm(1e-5, False), (7, 513), lambda v: np_rms_norm(v, 1e-5)),
        (lambda v: topi.max(v, -1), (5, 97), lambda v: v.max(-1)),
    )
    for b, shape, want in cases:
        x = narrow(np.random.default_rng(1).standard_normal(shape), "bfloat16")
        kernel = Kernel(func(b, x), "metal", Candidate(width=64, vector=vector))
        check(kernel.run(x)[0], want(wide(x)), columns=shape[1])
        body = kernel.source
        assert "bfloat" not in body
        assert not re.search(r"\d(\.\d*)?h\b", body)
        assert not re.search(r"simd_shuffle\w*\(\(?ushort", body)


def _masked(v: Any, keep: Any) -> Any:
    low = tirx.const(float("-inf"), "float32")
    masked = te.compute(
        v.shape, lambda i, j: tirx.Select(keep[i, j] != 0, v[i, j].astype("float32"), low), name="masked"
    )
    return topi.nn.softmax(masked, -1)


@BOTH
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@fault(
    "B61",
    "tvm PR 8054",
    "infinities in a text",
    "infinities and NaN are written as bit patterns; extrema are taken in float32",
)
def test_infinities_are_never_printed(dtype: str, target: str) -> None:
    x = narrow(np.random.default_rng(1).standard_normal((3, 77)), dtype)
    keep = np.random.default_rng(2).random((3, 77)) < 0.5
    for mask in (keep, keep.astype(np.int8)):

        def b(v: Any, m: Any) -> Any:
            low = tirx.const(float("-inf"), "float32")

            def there(i: Any, j: Any) -> Any:
                return m[i, j] if m.dtype == "bool" else m[i, j] != 0

            return topi.nn.softmax(
                te.compute(
                    v.shape,
                    lambda i, j: tirx.Select(there(i, j), v[i, j].astype("float32"), low),
                    name="masked",
                ),
                -1,
            )

        kernel = Kernel(func(b, x, mask), target)
        check(kernel.run(x, mask)[0], np_softmax(np.where(keep, wide(x), -np.inf)), columns=77)
        kernels = kernel.source[kernel.source.index("kernel void" if target == "metal" else 'extern "C"') :]
        assert not re.search(r"(?<![\w.])(inf|nan|INFINITY|NAN|HUGE_VALF)\b", kernels)

    def least(v: Any) -> Any:
        return topi.max(
            te.compute(v.shape, lambda i, j: tirx.max(v[i, j].astype("float32"), 0.5), name="m"), -1
        )

    (y,) = run(func(least, x), target, x)
    np.testing.assert_allclose(y, np.maximum(wide(x), 0.5).max(-1))


@BOTH
@pytest.mark.parametrize(
    "width", [32, 512, *[pytest.param(w, marks=pytest.mark.slow) for w in (64, 128, 256, 1024)]]
)
@fault(
    "B62",
    "llama.cpp PR 3057",
    "missing barrier",
    "the CPU model calls every two accesses of one place in one barrier epoch by different lanes a "
    "race, whatever the order; three orders must agree bit by bit",
)
def test_no_race_at_any_width(width: int, target: str) -> None:
    x = np.random.default_rng(1).standard_normal((2, 4544)).astype(np.float32)
    kernel = Kernel(func(layer_norm(1e-5, False, False), x), target, Candidate(width=width, vector=4))
    check(
        kernel.run(x, orders=("forward", "reverse", "random"))[0], np_layer_norm(wide(x), 1e-5), columns=4544
    )
    half = x.astype(np.float16)
    kernel = Kernel(func(softmax, half), target, Candidate(width=width, vector=4))
    check(kernel.run(half, orders=("forward", "reverse", "random"))[0], np_softmax(wide(half)), columns=4544)


@BOTH
@fault("B62", "llama.cpp PR 3057", "missing barrier", "as above for a sum by 8 threads")
def test_sum_of_eight_by_eight_lanes(target: str) -> None:
    for dtype in ("int16", "float16", "bfloat16"):
        x = narrow(np.arange(1, 9)[None], dtype)
        (y,) = run(func(lambda v: topi.sum(v, -1), x), target, x, candidate=Candidate(width=8, packing=4))
        assert wide(y)[0] == 36


@BOTH
@fault(
    "B63",
    "tvm#20157",
    "long chains of launches",
    "the fault was the runtime's; here a chain of 24 norms is run on the CPU model, each on the "
    "output of the one before",
)
def test_a_chain_of_norms(target: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32)
    c = np.zeros(256, np.float32)

    def b(v: Any, shift: Any) -> Any:
        return layer_norm(1e-5, False, False)(
            te.compute(v.shape, lambda i, j: v[i, j] + shift[j], name="shifted")
        )

    kernel = Kernel(func(b, x, c), target)
    got, want = x, wide(x)
    for step in range(24):
        shift = (np.arange(256) % (step + 2) / 7).astype(np.float32)
        (got,) = kernel.run(got, shift)
        want = np_layer_norm(want + wide(shift), 1e-5)
    np.testing.assert_allclose(got, want, atol=1e-4)


# --- stores of tuned results


@fault(
    "B65",
    "tvm#15549",
    "records served across devices",
    "plans are looked up by function, target, limits, device and policy; calibrations by kind, "
    "device, dtype and version; none is served for another",
)
def test_a_plan_is_for_one_target_and_one_dtype() -> None:
    f = topi_func(softmax, ((1024, 1024), "float32"))
    half = topi_func(softmax, ((1024, 1024), "float16"))
    first = plan(f, "metal", limits=DeviceLimits(max_threads=1024))
    small = plan(f, "metal", limits=DeviceLimits(max_threads=64))
    cuda = plan(f, "cuda")
    assert small.width <= 64 < first.width
    assert (first.target_kind, cuda.target_kind) == ("metal", "cuda")
    assert plan(half, "metal").subject != first.subject
    with pytest.raises(tr.ReduceError, match="needs its own plan"):
        lower(half, first)
    again = tr.GroupPlan.from_json(first.to_json())
    assert again == first
    assert again.key == first.key


@fault(
    "B66",
    "triton PR 1242",
    "cache key",
    "compiled texts are kept by the hash of the whole text and of every flag",
)
def test_two_mappings_are_two_texts() -> None:
    x = np.random.default_rng(1).standard_normal((2, 2048)).astype(np.float32)
    for widths in ((64, 512), (512, 64)):
        kernels = [Kernel(func(softmax, x), "metal", Candidate(width=w)) for w in widths]
        for kernel, w in zip(kernels, widths, strict=True):
            assert threads(kernel.scheduled.script()) == [w]
            (y,) = kernel.run(x)
            check(y, np_softmax(wide(x)), columns=2048)
            (counters,) = kernel.emulation.counters.values()
            assert counters is not None
        assert kernels[0].source != kernels[1].source


@fault(
    "B68",
    "tvm#2227",
    "asynchronous timing",
    "a sample faster than the bytes allow is thrown out and said so; batches grow until they last; "
    "every phase is kept apart",
)
def test_a_timer_that_returns_at_once_is_noticed() -> None:
    session = test_measure.FakeSession(us=0.4)
    with pytest.raises(NoValidTiming, match=r"below 100 us"):
        measure(session, test_measure.OPTIONS, floor_us=100.0)
    for us in (100.0, 6400.0):
        found = measure(test_measure.FakeSession(us=us), test_measure.OPTIONS).phases["gpu_batch"]
        assert found.median_us == pytest.approx(us)


@fault(
    "B69",
    "helion PR 2626",
    "noisy winner",
    "medians of rounds decide, interleaved; one lucky sample moves no median, one sleep none either",
)
def test_one_odd_sample_changes_no_median() -> None:
    after = test_measure.warm_ups(test_measure.FakeSession())
    for odd in (3.0, 30000.0):
        session = test_measure.FakeSession(us=10.0, script=(odd,), after=after)
        found = measure(session, test_measure.OPTIONS).phases[PHASES[0]]
        assert found.median_us == pytest.approx(10.0)
