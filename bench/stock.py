"""Builds of stock dlight: what TVM makes of a workload without us."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tirx_reduce.bench.build import CUDA_CALLBACK, Built, Case, cache_compiles, device_source
from tirx_reduce.bench.records import digest
from tirx_reduce.bench.workloads import get_workload

RULES = ("Reduction", "GeneralReduction", "Fallback")
"""Of `tvm.s_tir.dlight.gpu`, in the order in which they are tried."""
DLIGHT_DTYPES = ("float32",)
"""16-bit sums stay 16 bits wide in stock TVM: another result, and no fair comparison."""


def build_stock(case: Case, target_json: str, folder: Path, *, stand_in: bool = False) -> Built:
    """Schedule with dlight and build; found again in `folder` where it was built before.

    A failed build is a result with its reason.
    """
    key = "dlight-" + digest([case.to_json(), target_json, stand_in])[:16]
    kept = folder / f"{key}.json"
    if kept.exists():
        return Built(**json.loads(kept.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    try:
        built = _build(key, case, target_json, folder, start, stand_in=stand_in)
    except Exception as error:  # a compiler may raise anything; the grid goes on and keeps the reason
        built = Built(key=key, error=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - start)
    scratch = kept.with_suffix(f".{hashlib.sha256(str(start).encode()).hexdigest()[:8]}")
    scratch.write_text(json.dumps(asdict(built)))
    scratch.replace(kept)
    return built


def _build(key: str, case: Case, target_json: str, folder: Path, start: float, *, stand_in: bool) -> Built:
    import tvm
    import tvm_ffi
    from tvm.s_tir import dlight

    func = get_workload(case.operator).func(case.shape, case.dtype)
    entry = str(func.attrs["global_symbol"])
    target = tvm.target.Target(json.loads(target_json))
    on_gpu = target.kind.name == "cuda" and not stand_in
    if on_gpu:
        cache_compiles(folder)
    rules = [getattr(dlight.gpu, name)() for name in RULES]
    with target:
        scheduled = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({entry: func}))
        executable: Any = tvm.compile(scheduled, target)
        source = device_source(executable)
        if on_gpu:
            tvm_ffi.get_global_func(CUDA_CALLBACK)(source)
    if stand_in:
        executable = tvm.compile(func, "llvm")
    library = folder / f"{key}.so"
    executable.export_library(str(library))
    return Built(
        key=key,
        library=str(library),
        entry=entry,
        source=source,
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        library_sha256=hashlib.sha256(library.read_bytes()).hexdigest(),
        seconds=time.perf_counter() - start,
    )
