"""Scheduled PrimFuncs for the CPU model of the GPU."""
# mypy: ignore-errors
# ruff: noqa: SIM117

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T  # noqa: N812


def two_kernels() -> Any:
    """Row sums of symbolic rows, in two launches with a workspace between them, under a host branch."""

    @T.prim_func(s_tir=True)
    def sums(xh: T.handle, yh: T.handle, s: T.float32):
        T.func_attr({"global_symbol": "sums", "tirx.is_scheduled": True, "tirx.noalias": True})
        m = T.int64()
        x = T.match_buffer(xh, (m, 100), "float32")
        y = T.match_buffer(yh, (m,), "float32")
        if m > T.int64(0):
            ws = T.alloc_buffer((m, 2), "float32", scope="global")
            with T.launch_thread("threadIdx.x", 2) as tx, T.launch_thread("blockIdx.x", m) as bx:
                acc = T.alloc_buffer((1,), "float32", scope="local")
                acc[0] = T.float32(0)
                for i in range(50):
                    acc[0] = acc[0] + x[bx, tx * 50 + i]
                ws[bx, tx] = acc[0] * s
            with T.launch_thread("blockIdx.x", (m + 31) // 32) as bx1:
                with T.launch_thread("threadIdx.x", 32) as tx1:
                    if bx1 * 32 + tx1 < m:
                        y[bx1 * 32 + tx1] = ws[bx1 * 32 + tx1, 0] + ws[bx1 * 32 + tx1, 1]

    return sums


def copy_rows(dtype: str, extra: int = 0) -> Any:
    """A copy of 8 × 64 elements in packets of four; `extra` shifts the last store."""

    @T.prim_func(s_tir=True)
    def copy(x: T.Buffer((8, 64), dtype), y: T.Buffer((8, 64), dtype)):
        T.func_attr({"global_symbol": "copy", "tirx.is_scheduled": True, "tirx.noalias": True})
        with T.launch_thread("blockIdx.x", 8) as bx, T.launch_thread("threadIdx.x", 16) as tx:
            for v in T.vectorized(4):
                y[bx + extra, tx * 4 + v] = x[bx, tx * 4 + v]

    return copy


def host_only() -> Any:
    """A function that no rule has scheduled."""

    @T.prim_func(s_tir=True)
    def plain(x: T.Buffer((8,), "float32")):
        T.func_attr({"global_symbol": "plain"})
        for i in range(8):
            x[i] = T.float32(1)

    return plain
