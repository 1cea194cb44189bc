"""What the headers of the model make of the two languages: conversions, exchanges, functions, memory."""

from __future__ import annotations

import platform
import shutil
import subprocess
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tirx_reduce import emulator

CUDA_16 = {"float16": ("cuda_fp16.h", "half"), "bfloat16": ("cuda_bf16.h", "nv_bfloat16")}
CUDA_8 = {"float8_e4m3fn": "__nv_fp8_e4m3", "float8_e5m2": "__nv_fp8_e5m2"}


def cuda(body: str, parameters: str, include: str = "") -> str:
    head = f"#include <{include}>\n" if include else ""
    index = "  int i = blockIdx.x * blockDim.x + threadIdx.x;"
    return f'{head}extern "C" __global__ void k({parameters}) {{\n{index}\n{body}\n}}\n'


def metal(body: str, parameters: str) -> str:
    return (
        "#include <metal_stdlib>\nusing namespace metal;\n"
        f"kernel void k({parameters}, uint i [[thread_position_in_grid]],\n"
        "  uint lane [[thread_index_in_simdgroup]]) {\n"
        f"{body}\n}}\n"
    )


def hard_floats() -> Any:
    """Floats round every border of the 16-bit types, and random bits."""
    r = np.random.default_rng(0)
    bits = r.integers(0, 2**32, 60000, dtype=np.uint32)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    near = np.concatenate(
        [np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
    )
    middle = ((halves[:-1].astype(np.float64) + halves[1:]) / 2).astype(np.float32)
    out = np.concatenate([bits.view(np.float32), halves, near, middle])
    return out[~np.isnan(out)][: 65536 * 3].copy()  # a multiple of 64


@pytest.mark.parametrize("dtype", CUDA_16)
def test_16_bit_floats_convert_as_numpy_does(dtype: str) -> None:
    include, name = CUDA_16[dtype]
    x = hard_floats()
    to = np.dtype(getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    y, z = np.zeros(x.size, np.uint16), np.zeros(x.size, np.float32)
    text = cuda(f"  y[i] = ({name})x[i];\n  z[i] = (float)y[i];", f"float* x, {name}* y, float* z", include)
    emulator.run_source(text, "cuda", [x, y, z], x.size // 64, 64, orders=("forward",))
    with np.errstate(over="ignore"):
        want = x.astype(to)
    assert np.array_equal(y, want.view(np.uint16))
    assert np.array_equal(z, want.astype(np.float32))


@pytest.mark.parametrize("dtype", CUDA_8)
def test_8_bit_floats_convert_as_cuda_does(dtype: str) -> None:
    name, to = CUDA_8[dtype], np.dtype(getattr(ml_dtypes, dtype))
    every = np.arange(256, dtype=np.uint8).view(to).astype(np.float32)
    finite = np.sort(every[np.isfinite(every)])
    middle = (finite[:-1] + finite[1:]) / 2
    r = np.random.default_rng(0)
    x = np.concatenate(
        [finite, middle, np.nextafter(middle, np.float32(np.inf)), r.normal(scale=90, size=4096)]
    )
    x = np.resize(x, (x.size + 63) // 64 * 64).astype(np.float32)
    y, z = np.zeros(x.size, np.uint8), np.zeros(x.size, np.float32)
    text = cuda(
        f"  y[i] = ({name})x[i];\n  z[i] = (float)y[i];", f"float* x, {name}* y, float* z", "cuda_fp8.h"
    )
    emulator.run_source(text, "cuda", [x, y, z], x.size // 64, 64, orders=("forward",))
    top = finite[-1]
    want = np.clip(x, -top, top).astype(to)
    assert np.array_equal(y, want.view(np.uint8))
    assert np.array_equal(z, want.astype(np.float32))


def test_half_of_metal_rounds_each_operation() -> None:
    r = np.random.default_rng(1)
    a, b = (r.normal(size=64).astype(np.float16) for _ in range(2))
    y = np.zeros(64, np.float16)
    text = metal(
        "  y[i] = a[i] * b[i] + a[i] / b[i];",
        "device half* a [[buffer(0)]], device half* b [[buffer(1)]], device half* y [[buffer(2)]]",
    )
    emulator.run_source(text, "metal", [a, b, y], 1, 64)
    assert np.array_equal(y, a * b + a / b)


SHUFFLES = {
    "__shfl_sync(0xffffffffu, x[i], 5, 32)": lambda x, i: x[i // 32 * 32 + 5],
    "__shfl_sync(0xffffffffu, x[i], i + 3, 8)": lambda x, i: x[i // 8 * 8 + (i + 3) % 8],
    "__shfl_xor_sync(0xffffffffu, x[i], 9)": lambda x, i: x[i ^ 9],
    "__shfl_down_sync(0xffffffffu, x[i], 4)": lambda x, i: x[i + 4] if i % 32 < 28 else x[i],
    "__shfl_down_sync(0xffffffffu, x[i], 3, 8)": lambda x, i: x[i + 3] if i % 8 < 5 else x[i],
    "__shfl_up_sync(0xffffffffu, x[i], 2)": lambda x, i: x[i - 2] if i % 32 >= 2 else x[i],
    "__shfl_xor_sync(0x0000ffffu << (i & 16), x[i], 3)": lambda x, i: x[i ^ 3],
}


@pytest.mark.parametrize("call", SHUFFLES)
def test_shuffles_of_cuda(call: str) -> None:
    x, y = np.arange(64, dtype=np.int32) * 7, np.zeros(64, np.int32)
    emulator.run_source(cuda(f"  y[i] = {call};", "int* x, int* y"), "cuda", [x, y], 1, 64)
    assert y.tolist() == [SHUFFLES[call](x, i) for i in range(64)]


EXCHANGES = {
    "simd_shuffle_xor(x[i], (ushort)6)": lambda x, i: x[i ^ 6],
    "simd_shuffle_down(x[i], 5)": lambda x, i: x[i + 5] if i % 32 < 27 else x[i],
    "simd_shuffle_up(x[i], 5)": lambda x, i: x[i - 5] if i % 32 >= 5 else x[i],
    "simd_shuffle(x[i], (ushort)(31 - lane))": lambda x, i: x[i // 32 * 32 + 31 - i % 32],
    "simd_broadcast(x[i], 3)": lambda x, i: x[i // 32 * 32 + 3],
    "simd_sum(x[i])": lambda x, i: x[i // 32 * 32 : i // 32 * 32 + 32].sum(),
    "simd_max(x[i])": lambda x, i: x[i // 32 * 32 : i // 32 * 32 + 32].max(),
    "simd_min(x[i])": lambda x, i: x[i // 32 * 32 : i // 32 * 32 + 32].min(),
}


@pytest.mark.parametrize("call", EXCHANGES)
def test_exchanges_of_metal(call: str) -> None:
    x, y = np.arange(64, dtype=np.int32) * 7, np.zeros(64, np.int32)
    text = metal(f"  y[i] = {call};", "device int* x [[buffer(0)]], device int* y [[buffer(1)]]")
    emulator.run_source(text, "metal", [x, y], 1, 64)
    assert y.tolist() == [EXCHANGES[call](x, i) for i in range(64)]


def test_shuffle_from_a_lane_beyond_the_group_is_poison() -> None:
    """TVM's stock reductions shuffle such values and do not use them; who uses one is found."""
    x, y = np.arange(48, dtype=np.float32), np.zeros(48, np.float32)
    parameters = "device float* x [[buffer(0)]], device float* y [[buffer(1)]]"
    unused = metal("  float t = simd_shuffle_down(x[i], 8);\n  y[i] = i < 8 ? t : x[i];", parameters)
    emulator.run_source(unused, "metal", [x, y], 1, 48)
    assert y[:8].tolist() == x[8:16].tolist()
    with pytest.raises(emulator.Uninitialized, match="nobody wrote"):
        emulator.run_source(metal("  y[i] = simd_shuffle_down(x[i], 8);", parameters), "metal", [x, y], 1, 48)


def test_dynamic_shared_memory_is_bounded_by_the_launch() -> None:
    text = cuda(
        "  extern __shared__ alignas(64) unsigned char buf[];\n"
        "  ((float*)buf)[threadIdx.x] = x[i];\n  __syncthreads();\n  y[i] = ((float*)buf)[63 - threadIdx.x];",
        "float* x, float* y",
    )
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    emulator.run_source(text, "cuda", [x, y], 1, 64, dynamic_bytes=256)
    assert np.array_equal(y, x[::-1])
    with pytest.raises(emulator.OutOfBounds) as caught:
        emulator.run_source(text, "cuda", [x, y], 1, 64, dynamic_bytes=252)
    assert caught.value.buffer == "buf"
    with pytest.raises(emulator.LimitExceeded, match="threadgroup memory"):
        emulator.run_source(text, "cuda", [x, y], 1, 64, dynamic_bytes=300000)


def test_subgroup_barrier_orders_its_own_lanes() -> None:
    body = (
        "  __shared__ float s[64];\n  s[threadIdx.x] = x[i];\n  __syncwarp();\n"
        "  y[i] = s[threadIdx.x {step}];"
    )
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    emulator.run_source(cuda(body.format(step="^ 16"), "float* x, float* y"), "cuda", [x, y], 1, 64)
    assert y[:16].tolist() == x[16:32].tolist()
    with pytest.raises((emulator.DataRace, emulator.Uninitialized)):
        emulator.run_source(cuda(body.format(step="^ 32"), "float* x, float* y"), "cuda", [x, y], 1, 64)


def test_warp_synchronous_code_is_a_race() -> None:
    body = (
        "  __shared__ float s[32];\n  s[threadIdx.x] = x[i];\n"
        "  ((volatile float*)s)[threadIdx.x] = ((volatile float*)s)[threadIdx.x ^ 1];\n"
        "  y[i] = s[threadIdx.x];"
    )
    x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    with pytest.raises((emulator.DataRace, emulator.Uninitialized)):
        emulator.run_source(cuda(body, "float* x, float* y"), "cuda", [x, y], 1, 32)


def test_numerics_differ_where_they_should() -> None:
    """A product that cancels: rounded first, or not."""
    a = np.full(32, 1 + 2.0**-12, np.float32)
    c = -np.float32(a[0] * a[0])
    results = {}
    for numerics in ("plain", "fma"):
        y = np.zeros(32, np.float32)
        text = cuda("  y[i] = a[i] * a[i] + c;", "float* a, float* y, float c")
        emulator.run_source(text, "cuda", {"a": a, "y": y, "c": float(c)}, 1, 32, numerics=numerics)
        results[numerics] = y[0]
    assert results["plain"] == 0
    assert results["fma"] == np.float32(float(a[0]) ** 2 + float(c)) != 0


def test_fast_math_flushes_denormals_and_leaves_the_process_as_it_was() -> None:
    x = np.full(32, 1e-39, np.float32)
    for numerics, want in (("plain", 2e-39), ("fast", 0.0)):
        y = np.ones(32, np.float32)
        emulator.run_source(
            cuda("  y[i] = x[i] + x[i];", "float* x, float* y"), "cuda", [x, y], 1, 32, numerics=numerics
        )
        assert y[0] == np.float32(want)
        assert (x + x)[0] == np.float32(2e-39)


def test_thread_array_of_a_loop_is_new_in_each_round() -> None:
    body = (
        "  float sum = 0.0f;\n  for (int c = 0; c < 2; ++c) {\n    float part[2];\n"
        "    if (c == 0) part[1] = x[i];\n    sum = sum + part[1];\n  }\n  y[i] = sum;"
    )
    x, y = np.ones(32, np.float32), np.zeros(32, np.float32)
    with pytest.raises(emulator.Uninitialized):
        emulator.run_source(cuda(body, "float* x, float* y"), "cuda", [x, y], 1, 32)
    emulator.run_source(cuda(body.replace("if (c == 0) ", ""), "float* x, float* y"), "cuda", [x, y], 1, 32)
    assert (y == 2).all()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors wrap")
def test_division_that_the_processor_refuses_is_an_error_of_its_line() -> None:
    text = cuda("  y[i] = x[i] / d;", "int* x, int* y, int d")
    x, y = np.full(32, -(2**31), np.int32), np.zeros(32, np.int32)
    with pytest.raises(emulator.Undefined, match="integer division") as caught:
        emulator.run_source(text, "cuda", [x, y, -1], 1, 32)
    assert "/ d" in text.split("\n")[caught.value.line - 1]


def test_order_dependence_is_an_error() -> None:
    """Lanes that see each other's device writes under `once=False` differ from order to order, or race."""
    x, y = np.arange(64, dtype=np.float32), np.zeros(1, np.float32)
    with pytest.raises((emulator.DataRace, emulator.OrderDependent)):
        emulator.run_source(cuda("  y[0] = x[i];", "float* x, float* y"), "cuda", [x, y], 1, 64, once=False)


def test_arguments_are_checked_by_name() -> None:
    text = cuda("  y[i] = x[i];", "float* x, float* y")
    x, y = np.zeros(32, np.float32), np.zeros(32, np.float32)
    with pytest.raises(emulator.EmulatorError, match="z unknown, y missing"):
        emulator.run_source(text, "cuda", {"x": x, "z": y}, 1, 32)
    with pytest.raises(emulator.EmulatorError, match="needs a NumPy array"):
        emulator.run_source(text, "cuda", {"x": x, "y": 3}, 1, 32)
    with pytest.raises(emulator.EmulatorError, match="order is 'sideways'"):
        emulator.run_source(text, "cuda", [x, y], 1, 32, orders=("sideways",))
    with pytest.raises(emulator.UnsupportedSource, match="numerics is 'odd'"):
        emulator.run_source(text, "cuda", [x, y], 1, 32, numerics="odd")


def test_compiled_kernels_are_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tirx_reduce.emulator import machine

    text = cuda("  y[i] = x[i] + 12345.0f;", "float* x, float* y")
    x, y = np.zeros(32, np.float32), np.zeros(32, np.float32)
    emulator.run_source(text, "cuda", [x, y], 1, 32, cache_dir=tmp_path)
    kept = {p.name for p in tmp_path.glob("*.so")}
    assert len(kept) == 2
    machine.machine(tmp_path).libraries.clear()

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("compiled again")

    monkeypatch.setattr(subprocess, "run", refuse)
    emulator.run_source(text, "cuda", [x, y], 1, 32, cache_dir=tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == kept
    assert y[0] == 12345


def test_metal_takes_31_arguments() -> None:
    def text(count: int) -> str:
        buffers = ", ".join(f"device float* p{n} [[buffer({n})]]" for n in range(count))
        return metal("  " + " ".join(f"p{n}[i] = 1.0f;" for n in range(count)), buffers)

    arrays = [np.zeros(32, np.float32) for _ in range(32)]
    emulator.run_source(text(31), "metal", arrays[:31], 1, 32, orders=("forward",))
    assert all(a.all() for a in arrays[:31])
    with pytest.raises(emulator.LimitExceeded, match="32 arguments; 31 are allowed"):
        emulator.run_source(text(32), "metal", arrays, 1, 32)


def test_texts_of_several_kernels_need_a_name() -> None:
    one = cuda("  y[i] = 1.0f;", "float* y")
    text = one + one.replace("void k(", "void other(").replace("1.0f", "2.0f")
    y = np.zeros(32, np.float32)
    with pytest.raises(emulator.UnsupportedSource, match="k, other; name one"):
        emulator.run_source(text, "cuda", [y], 1, 32)
    emulator.run_source(text, "cuda", [y], 1, 32, kernel="other")
    assert (y == 2).all()
    with pytest.raises(emulator.UnsupportedSource, match="no kernel 'third'"):
        emulator.run_source(text, "cuda", [y], 1, 32, kernel="third")


@pytest.mark.skipif(shutil.which("clang++") is None, reason="clang++ is not installed")
def test_clang_finds_and_counts_the_same(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.emulator_texts import BLOCK, GRID, PLANTS, arrays, render
    from tirx_reduce.emulator import toolchain

    shown = subprocess.run(["clang++", "--version"], capture_output=True, text=True, check=True).stdout
    by_gcc = emulator.run_source(render("cuda"), "cuda", arrays(), GRID, BLOCK).counters["rows_kernel"]
    clang = toolchain.Compiler(shutil.which("clang++") or "", shown.splitlines()[0], False)
    monkeypatch.setattr(toolchain, "compiler", lambda: clang)
    done = emulator.run_source(render("cuda"), "cuda", arrays(), GRID, BLOCK, cache_dir=tmp_path)
    by_clang = done.counters["rows_kernel"]
    assert (by_clang.loads["device"], by_clang.stores["device"]) == (
        by_gcc.loads["device"],
        by_gcc.stores["device"],
    )
    for plant in [
        p for p in PLANTS if p.name in ("misaligned load", "slot that nobody wrote", "endless loop")
    ]:
        with pytest.raises(tuple(getattr(emulator, n) for n in plant.faults.split())):
            emulator.run_source(
                render("cuda", plant.edits),
                "cuda",
                arrays(),
                GRID,
                BLOCK,
                cache_dir=tmp_path,
                limits=emulator.Limits(max_accesses=100000),
            )
