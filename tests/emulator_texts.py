"""One kernel in both languages, and the defects that are planted into it.

A standardisation of rows of 252 columns: 64 lanes a row (the last one has no packet), two rows a group, seven
rows, so that the last group has an empty half; two collectives through the same slots, hence three barriers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

ROWS, COLUMNS = 7, 252
GRID, BLOCK = (4, 1, 1), (64, 2, 1)

_BODY = """
  LOCAL float4 xl[1];
  LOCAL float acc[2];
  SHARED float slots[4];
  int row = BX * 2 + TY;
  acc[0] = 0.0f;
  acc[1] = 0.0f;
  if (row < m) {
    if (TX * 4 < n) {
      xl[0] = VEC(x_ptr + (row * n + TX * 4));
      acc[0] = xl[0].x + xl[0].y + xl[0].z + xl[0].w;
    }
  }
  acc[0] = acc[0] + XOR(acc[0], 16);
  acc[0] = acc[0] + XOR(acc[0], 8);
  acc[0] = acc[0] + XOR(acc[0], 4);
  acc[0] = acc[0] + XOR(acc[0], 2);
  acc[0] = acc[0] + XOR(acc[0], 1);
  if ((TX & 31) == 0) {
    slots[TY * 2 + (TX >> 5)] = acc[0];
  }
  BARRIER;
  float mean = (slots[TY * 2] + slots[TY * 2 + 1]) / (float)n;
  if (row < m) {
    if (TX * 4 < n) {
      acc[1] = (xl[0].x - mean) * (xl[0].x - mean) + (xl[0].y - mean) * (xl[0].y - mean)
             + (xl[0].z - mean) * (xl[0].z - mean) + (xl[0].w - mean) * (xl[0].w - mean);
    }
  }
  acc[1] = acc[1] + XOR(acc[1], 16);
  acc[1] = acc[1] + XOR(acc[1], 8);
  acc[1] = acc[1] + XOR(acc[1], 4);
  acc[1] = acc[1] + XOR(acc[1], 2);
  acc[1] = acc[1] + XOR(acc[1], 1);
  BARRIER;
  if ((TX & 31) == 0) {
    slots[TY * 2 + (TX >> 5)] = acc[1];
  }
  BARRIER;
  float scale = RSQRT((slots[TY * 2] + slots[TY * 2 + 1]) / (float)n);
  if (row < m) {
    if (TX * 4 < n) {
      float4 w = VEC(w_ptr + (TX * 4));
      VEC(y_ptr + (row * n + TX * 4)) = MAKE((xl[0].x - mean) * scale * w.x, (xl[0].y - mean) * scale * w.y,
        (xl[0].z - mean) * scale * w.z, (xl[0].w - mean) * scale * w.w);
    }
    if (TX == 0) {
      z_ptr[row] = mean;
    }
  }
"""
_METAL = """#include <metal_stdlib>
using namespace metal;

union __TVMArgUnion {
 int v_int[2];
};

struct rows_kernel_args_t {
  int m[2];
  int n[2];
};

kernel void rows_kernel(  device float* w_ptr [[ buffer(0) ]],
  device float* x_ptr [[ buffer(1) ]],
  device float* y_ptr [[ buffer(2) ]],
  device float* z_ptr [[ buffer(3) ]],
  constant rows_kernel_args_t& arg [[ buffer(4) ]],
  uint2 blockIdx [[threadgroup_position_in_grid]],
  uint2 threadIdx [[thread_position_in_threadgroup]]
) {
  int m = arg.m[0];
  int n = arg.n[0];@BODY@}
"""
_CUDA = """#include <cstdint>
extern "C" __global__ void __launch_bounds__(1024) rows_kernel(float* __restrict__ w_ptr,
    float* __restrict__ x_ptr,
    float* __restrict__ y_ptr, float* __restrict__ z_ptr, int m, int n) {@BODY@}
"""
_SPELLING: dict[str, list[tuple[str, str]]] = {
    "metal": [
        (r"\bXOR\((.*?), (\S+?)\);", r"simd_shuffle_xor(\1, (ushort)\2);"),
        (r"\bBARRIER\b", "threadgroup_barrier(mem_flags::mem_threadgroup)"),
        (r"\bSYNC_SUBGROUP\b", "simdgroup_barrier(mem_flags::mem_threadgroup)"),
        (r"\bVEC\(", "*(device float4*)("),
        (r"\bLOCAL\b", "thread"),
        (r"\bSHARED\b", "threadgroup"),
        (r"\bMAKE\(", "float4("),
        (r"\bRSQRT\b", "rsqrt"),
        (r"\bSHAREDPTR\b", "threadgroup float*"),
        (r"\bDEVICEPTR\b", "device float*"),
    ],
    "cuda": [
        (r"\bXOR\((.*?), (\S+?)\);", r"__shfl_xor_sync((unsigned int)4294967295, \1, \2, 32);"),
        (r"\bBARRIER\b", "__syncthreads()"),
        (r"\bSYNC_SUBGROUP\b", "__syncwarp()"),
        (r"\bVEC\(", "*(float4*)("),
        (r"\bLOCAL\b", "alignas(64)"),
        (r"\bSHARED\b", "__shared__ alignas(64)"),
        (r"\bMAKE\(", "make_float4("),
        (r"\bRSQRT\b", "rsqrtf"),
        (r"\bSHAREDPTR\b", "float*"),
        (r"\bDEVICEPTR\b", "float*"),
    ],
}


def render(
    kind: str, edits: tuple[tuple[str, str], ...] = (), after: tuple[tuple[str, str], ...] = ()
) -> str:
    """The text of one language, with `edits` made to the common body and `after` to the finished text."""
    body = _BODY
    for old, new in edits:
        assert old in body, old
        body = body.replace(old, new, 1)
    body = re.sub(
        r"\b([TB])([XY])\b",
        lambda m: f"((int){'thread' if m[1] == 'T' else 'block'}Idx.{m[2].lower()})",
        body,
    )
    for pattern, new in _SPELLING[kind]:
        body = re.sub(pattern, new, body)
    text = (_METAL if kind == "metal" else _CUDA).replace("@BODY@", body)
    for old, new in after:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def arrays(seed: int = 0) -> dict[str, npt.NDArray[np.float32] | int]:
    """Fresh arguments by name."""
    r = np.random.default_rng(seed)
    return {
        "x_ptr": r.normal(size=(ROWS, COLUMNS)).astype(np.float32),
        "w_ptr": r.normal(size=COLUMNS).astype(np.float32),
        "y_ptr": np.full((ROWS, COLUMNS), -7, np.float32),
        "z_ptr": np.full(ROWS, -7, np.float32),
        "m": ROWS,
        "n": COLUMNS,
    }


def expected(
    a: dict[str, npt.NDArray[np.float32] | int],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The float64 results y and z."""
    x, w = np.asarray(a["x_ptr"], np.float64), np.asarray(a["w_ptr"], np.float64)
    mean = x.mean(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=1, keepdims=True)) * w, mean[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One defect: what is changed, and which fault must be raised."""

    name: str
    faults: str
    """Names of the errors of which one must come, apart by blanks."""
    edits: tuple[tuple[str, str], ...] = ()
    after: tuple[tuple[str, str], ...] = ()
    kinds: str = "metal cuda"
    line: str = ""
    """What the line that is named must hold; empty: any."""
    buffer: str = ""
    """The buffer that is named; empty: any."""
    block: tuple[int, int, int] = BLOCK
    outputs: tuple[str, ...] | None = None
    max_accesses: int | None = None


_STORE = "    slots[TY * 2 + (TX >> 5)] = acc[0];"
_LOAD = "VEC(x_ptr + (row * n + TX * 4))"
_OUT = "VEC(y_ptr + (row * n + TX * 4)) ="
_MEAN = "  float mean ="
_FIRST = "  }\n  BARRIER;\n  float mean"

PLANTS: tuple[Plant, ...] = (
    Plant(
        name="load a packet on",
        faults="OutOfBounds",
        edits=((_LOAD, "VEC(x_ptr + (row * n + TX * 4 + 4))"),),
        line="TX * 4 + 4",
        buffer="x_ptr",
    ),
    Plant(
        name="load before the buffer",
        faults="OutOfBounds",
        edits=((_LOAD, "VEC(x_ptr + (row * n + TX * 4 - 4))"),),
        buffer="x_ptr",
    ),
    Plant(
        name="store a row on",
        faults="OutOfBounds",
        edits=((_OUT, "VEC(y_ptr + (row * n + n + TX * 4)) ="),),
        buffer="y_ptr",
    ),
    Plant(
        name="scalar store one on",
        faults="OutOfBounds",
        edits=(("z_ptr[row] =", "z_ptr[row + 1] ="),),
        buffer="z_ptr",
    ),
    Plant(
        name="far away",
        faults="OutOfBounds",
        edits=(("z_ptr[row] =", "z_ptr[row + 100000000] ="),),
    ),
    Plant(
        name="null pointer",
        faults="OutOfBounds",
        edits=(("z_ptr[row] = mean", "z_ptr[row] = mean; *(z_ptr - (z_ptr - (DEVICEPTR)0)) = mean"),),
    ),
    Plant(
        name="tail reads a packet on",
        faults="OutOfBounds",
        edits=(("if (TX * 4 < n)", "if (TX * 4 <= n)"),),
        buffer="x_ptr",
    ),
    Plant(
        name="row guard off by one",
        faults="OutOfBounds",
        edits=(("if (row < m)", "if (row <= m)"),),
        buffer="x_ptr",
    ),
    Plant(
        name="row guard missing at the store",
        faults="OutOfBounds",
        edits=(("    }\n    if (TX == 0) {", "    }\n  }\n  {\n    if (TX == 0) {"),),
        buffer="z_ptr",
    ),
    Plant(
        name="threadgroup index",
        faults="OutOfBounds",
        edits=((_STORE, "    slots[TY * 2 + (TX >> 5) + 1] = acc[0];"),),
        buffer="slots",
        line="+ 1] = acc[0]",
    ),
    Plant(
        name="threadgroup pointer",
        faults="OutOfBounds",
        edits=((_STORE, "    SHAREDPTR sp = slots;\n    *(sp + TY * 2 + (TX >> 5) - 1) = acc[0];"),),
        buffer="slots",
    ),
    Plant(
        name="thread index",
        faults="OutOfBounds",
        edits=(("acc[1] = 0.0f;", "for (int i = 1; i < 3; ++i) acc[i] = 0.0f;"),),
        buffer="acc",
    ),
    Plant(
        name="thread vector past its array",
        faults="OutOfBounds",
        edits=(("xl[0] = VEC", "int q = TX * 4 < n ? 1 : 0; *(xl + q) = VEC"),),
        buffer="xl",
    ),
    Plant(
        name="barrier after the first slots",
        faults="Uninitialized DataRace",
        edits=(("  BARRIER;\n" + _MEAN, _MEAN),),
    ),
    Plant(
        name="barrier before the slots are reused",
        faults="DataRace",
        edits=(
            (
                "  BARRIER;\n  if ((TX & 31) == 0) {\n    slots[TY * 2 + (TX >> 5)] = acc[1]",
                "  if ((TX & 31) == 0) {\n    slots[TY * 2 + (TX >> 5)] = acc[1]",
            ),
        ),
        buffer="slots",
    ),
    Plant(
        name="barrier after the second slots",
        faults="DataRace",
        edits=(("  BARRIER;\n  float scale", "  float scale"),),
        buffer="slots",
    ),
    Plant(
        name="subgroup barrier for a group barrier",
        faults="Uninitialized DataRace",
        edits=(("  BARRIER;\n" + _MEAN, "  SYNC_SUBGROUP;\n" + _MEAN),),
    ),
    Plant(
        name="barrier in one half of the group",
        faults="BarrierDivergence DataRace Uninitialized",
        edits=(("  BARRIER;\n" + _MEAN, "  if (TY == 0) {\n    BARRIER;\n  }\n" + _MEAN),),
    ),
    Plant(
        name="barrier inside the row guard",
        faults="BarrierDivergence",
        edits=(
            (
                "  BARRIER;\n  float scale",
                "  if (row < m) {\n    BARRIER;\n  } else {\n    return;\n  }\n  float scale",
            ),
        ),
    ),
    Plant(
        name="two barriers for the two halves",
        faults="BarrierDivergence",
        edits=(
            (
                "  BARRIER;\n" + _MEAN,
                "  if (TY == 0) {\n    BARRIER;\n  } else {\n    BARRIER;\n  }\n" + _MEAN,
            ),
        ),
    ),
    Plant(
        name="early return",
        faults="BarrierDivergence",
        edits=(("  acc[0] = 0.0f;", "  if (row >= m) return;\n  acc[0] = 0.0f;"),),
    ),
    Plant(
        name="early return of a lane",
        faults="BarrierDivergence",
        edits=(("  acc[0] = 0.0f;", "  if (TX * 4 >= n) return;\n  acc[0] = 0.0f;"),),
    ),
    Plant(
        name="shuffle in a branch",
        faults="BarrierDivergence",
        edits=(
            (
                "  acc[0] = acc[0] + XOR(acc[0], 16);",
                "  if (TX < 16) {\n    acc[0] = acc[0] + XOR(acc[0], 8);\n  }",
            ),
        ),
    ),
    Plant(
        name="shuffles at different places",
        faults="BarrierDivergence",
        edits=(
            (
                "  acc[0] = acc[0] + XOR(acc[0], 1);",
                "  if ((TX & 1) == 0) {\n    acc[0] = acc[0] + XOR(acc[0], 1);\n  } else {\n"
                "    acc[0] = acc[0] + XOR(acc[0], 1);\n  }",
            ),
        ),
    ),
    Plant(
        name="shuffle beyond the subgroup",
        faults="BarrierDivergence",
        edits=(("XOR(acc[0], 16)", "XOR(acc[0], 32)"),),
        kinds="metal",
    ),
    Plant(
        name="shuffle of a lane that is absent",
        faults="BarrierDivergence",
        block=(60, 2, 1),
    ),
    Plant(
        name="delta differs from lane to lane",
        faults="BarrierDivergence",
        edits=(("XOR(acc[0], 16)", "XOR(acc[0], (TX&1?16:8))"),),
    ),
    Plant(
        name="misaligned load",
        faults="Misaligned",
        edits=((_LOAD, "VEC(x_ptr + (row * n + TX * 4 + 1))"),),
        buffer="x_ptr",
        line="+ 1))",
    ),
    Plant(
        name="misaligned store",
        faults="Misaligned",
        edits=((_OUT, "VEC(y_ptr + (row * n + TX * 4 + 2)) ="),),
        buffer="y_ptr",
    ),
    Plant(
        name="slot that nobody wrote",
        faults="Uninitialized",
        edits=(("if ((TX & 31) == 0) {\n" + _STORE, "if (TX == 0) {\n" + _STORE),),
        buffer="slots",
    ),
    Plant(
        name="accumulator that nobody wrote",
        faults="Uninitialized",
        edits=(("  acc[0] = 0.0f;\n", ""), ("      acc[0] = xl[0].x +", "      acc[0] = acc[0] + xl[0].x +")),
    ),
    Plant(
        name="lane outside the row enters the second pass",
        faults="Uninitialized",
        edits=(("    if (TX * 4 < n) {\n      acc[1]", "    {\n      acc[1]"),),
    ),
    Plant(
        name="scalar that nobody wrote",
        faults="Uninitialized",
        edits=(("z_ptr[row] = mean", "float u; z_ptr[row] = u"),),
    ),
    Plant(
        name="stored twice",
        faults="WrittenTwice",
        edits=(("z_ptr[row] = mean;", "z_ptr[row] = 0.0f; z_ptr[row] = mean;"),),
        buffer="z_ptr",
    ),
    Plant(
        name="stored by every lane",
        faults="WrittenTwice",
        edits=(("    if (TX == 0) {\n      z_ptr", "    {\n      z_ptr"),),
        buffer="z_ptr",
    ),
    Plant(
        name="every group writes the first row",
        faults="WrittenTwice",
        edits=(("z_ptr[row] =", "z_ptr[TY] ="),),
        buffer="z_ptr",
    ),
    Plant(
        name="an input is stored",
        faults="WrittenTwice",
        edits=(("z_ptr[row] = mean;", "z_ptr[row] = mean; w_ptr[row] = mean;"),),
        buffer="w_ptr",
        outputs=("y_ptr", "z_ptr"),
    ),
    Plant(
        name="last row is left out",
        faults="NotWritten",
        edits=(("    if (TX == 0) {\n      z_ptr", "    if (TX == 0 && row < m - 1) {\n      z_ptr"),),
        buffer="z_ptr",
    ),
    Plant(
        name="last packet is left out",
        faults="NotWritten",
        edits=(("    if (TX * 4 < n) {\n      float4 w", "    if (TX * 4 + 4 < n) {\n      float4 w"),),
        buffer="y_ptr",
    ),
    Plant(
        name="output that is never stored",
        faults="NotWritten",
        edits=(("      z_ptr[row] = mean;\n", ""),),
        buffer="z_ptr",
        outputs=("y_ptr", "z_ptr"),
    ),
    Plant(
        name="neighbour's result is read",
        faults="DataRace",
        edits=(("z_ptr[row] = mean;", "z_ptr[row] = mean + 0.0f * y_ptr[row * n + 4 * 40];"),),
        buffer="y_ptr",
    ),
    Plant(
        name="result of another group is read",
        faults="DataRace",
        edits=(("z_ptr[row] = mean;", "z_ptr[row] = mean + 0.0f * z_ptr[(row + 2) % m];"),),
        buffer="z_ptr",
    ),
    Plant(name="too many threads", faults="LimitExceeded", block=(64, 32, 1)),
    Plant(
        name="too much threadgroup memory",
        faults="LimitExceeded",
        edits=(("  SHARED float slots[4];", "  SHARED float slots[4];\n  SHARED float big[16384];"),),
    ),
    Plant(
        name="endless loop",
        faults="LimitExceeded",
        edits=(("  acc[1] = 0.0f;", "  acc[1] = 0.0f;\n  while (acc[1] < 1.0f) { acc[0] = 0.0f; }"),),
        max_accesses=100000,
    ),
    Plant(
        name="integer division by zero",
        faults="Undefined",
        edits=(("z_ptr[row] = mean;", "z_ptr[row] = mean + (float)(n / (TX + TY * 0));"),),
        line="n / ",
    ),
    Plant(
        name="unknown function",
        faults="UnsupportedSource",
        edits=(("z_ptr[row] = mean;", "z_ptr[row] = frobnicate(mean);"),),
        line="frobnicate",
    ),
    Plant(
        name="mixed overload",
        faults="UnsupportedSource",
        edits=(("z_ptr[row] = mean;", "z_ptr[row] = max(mean, 3u);"),),
        kinds="metal",
        line="max(mean",
    ),
    Plant(
        name="wrong memory flag",
        faults="DataRace Uninitialized",
        after=(
            ("threadgroup_barrier(mem_flags::mem_threadgroup)", "threadgroup_barrier(mem_flags::mem_device)"),
        ),
        kinds="metal",
    ),
    Plant(
        name="no memory flag",
        faults="DataRace Uninitialized",
        after=(
            ("threadgroup_barrier(mem_flags::mem_threadgroup)", "threadgroup_barrier(mem_flags::mem_none)"),
        ),
        kinds="metal",
    ),
    Plant(
        name="64-bit shuffle",
        faults="UnsupportedSource",
        edits=(("z_ptr[row] = mean;", "z_ptr[row] = mean; }\n    { long wide = 1; wide = XOR(wide, 1);"),),
        kinds="metal",
    ),
    Plant(
        name="unknown attribute",
        faults="UnsupportedSource",
        after=(("[[thread_position_in_threadgroup]]", "[[thread_position_in_spacetime]]"),),
        kinds="metal",
        line="spacetime",
    ),
    Plant(
        name="double",
        faults="UnsupportedSource",
        edits=(("float scale", "double scale"),),
        kinds="metal",
        line="double",
    ),
    Plant(
        name="inline assembly",
        faults="UnsupportedSource",
        edits=(("z_ptr[row] = mean;", 'z_ptr[row] = mean; asm volatile ("nop;");'),),
        kinds="cuda",
        line="asm",
    ),
    Plant(
        name="mask without its caller",
        faults="BarrierDivergence",
        after=(("(unsigned int)4294967295", "(unsigned int)65535"),),
        kinds="cuda",
    ),
    Plant(
        name="mask with lanes that do not come",
        faults="BarrierDivergence",
        edits=(
            (
                "  acc[0] = acc[0] + XOR(acc[0], 16);",
                "  if ((TX & 31) < 16) {\n    acc[0] = acc[0] + XOR(acc[0], 8);\n  }",
            ),
        ),
        kinds="cuda",
    ),
    Plant(
        name="launch bounds exceeded",
        faults="LimitExceeded",
        after=(("__launch_bounds__(1024)", "__launch_bounds__(64)"),),
        kinds="cuda",
    ),
)
