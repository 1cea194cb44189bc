"""Builds: what comes of a job, what is compiled once, and what a dead process costs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm.support import nvcc

from tirx_reduce import schedules
from tirx_reduce.bench import build as module
from tirx_reduce.bench.build import (
    CUDA_CALLBACK,
    Built,
    Case,
    Job,
    Workers,
    build,
    build_all,
    cache_compiles,
    device_source,
)
from tirx_reduce.bench.stand import target_json
from tirx_reduce.bench.workloads import get_workload
from tirx_reduce.errors import ReduceError

CASE = Case(operator="softmax", shape=(4, 769))


def job(folder: Path, key: str = "one", target: Any = None, **changes: Any) -> Job:
    found = tvm.target.Target(target or {"kind": "cuda", "arch": "sm_90"})
    func = get_workload(CASE.operator).func(CASE.shape, CASE.dtype)
    given: dict[str, Any] = {
        "key": key,
        "case": CASE,
        "plan": schedules.plan(func, found).to_json(),
        "target": target_json(found),
        "folder": str(folder),
        "stand_in": True,
    }
    return Job(**{**given, **changes})


def test_a_build_gives_a_library_and_its_hashes(tmp_path: Path) -> None:
    built = build(job(tmp_path))
    assert not built.error
    assert Path(built.library).exists()
    assert "__global__" in built.source
    assert set(built.hashes()) == {"entry", "source_sha256", "library_sha256", "build_s"}
    assert build(job(tmp_path)).source_sha256 == built.source_sha256


def test_a_library_for_another_machine_is_an_archive_of_objects(tmp_path: Path) -> None:
    import tarfile

    built = build(job(tmp_path, target="apple/m1-gpu", stand_in=False, suffix=".tar"))
    assert not built.error
    assert "kernel void" in built.source
    with tarfile.open(built.library) as archive:
        heads = [archive.extractfile(m).read(8) for m in archive]  # type: ignore[union-attr]
    # 64-bit Mach-O for arm64, made on whatever this is.
    assert all(head == bytes.fromhex("cffaedfe0c000001") for head in heads)


def test_a_failed_build_is_a_result_with_its_reason(tmp_path: Path) -> None:
    built = build(job(tmp_path, plan="{}"))
    assert built.error.startswith("ReduceError: not a plan")
    assert not built.library


def test_a_plan_of_another_function_is_not_built(tmp_path: Path) -> None:
    other = Case(operator="rms_norm", shape=(4, 769))
    assert "the plan is for" in build(job(tmp_path, case=other)).error


def test_host_code_is_not_taken_for_a_kernel() -> None:
    func = get_workload("softmax").func((4, 64))
    with pytest.raises(ReduceError, match="the executable holds no device kernel"):
        device_source(tvm.compile(func, "llvm"))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    texts: list[str] = []
    before = tvm_ffi.get_global_func(CUDA_CALLBACK)

    def compile_text(code: str) -> bytearray:
        texts.append(code)
        return bytearray(b"binary of " + code.encode())

    monkeypatch.setattr(nvcc, "tvm_callback_cuda_compile", compile_text)
    yield texts
    tvm_ffi.register_global_func(CUDA_CALLBACK, before, override=True)


def test_each_text_is_compiled_once_in_a_folder(tmp_path: Path, compiler: list[str]) -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    cache_compiles(tmp_path)
    ask = tvm_ffi.get_global_func(CUDA_CALLBACK)
    with target:
        assert bytes(ask("a")) == b"binary of a"
        assert bytes(ask("a")) == b"binary of a"
        ask("b")
    # The process that measures has no current target, and still finds what workers made.
    assert bytes(ask("a")) == b"binary of a"
    assert compiler == ["a", "b"]
    cache_compiles(tmp_path / "another round")
    ask = tvm_ffi.get_global_func(CUDA_CALLBACK)
    ask("a")
    assert compiler == ["a", "b", "a"]


def test_other_processes_build_the_same_text(tmp_path: Path) -> None:
    here = build(job(tmp_path))
    with Workers(1) as pool:
        found = list(build_all([job(tmp_path, "first"), job(tmp_path, "second")], workers=pool))
    assert sorted(b.key for b in found) == ["first", "second"]
    assert {b.source_sha256 for b in found} == {here.source_sha256}


def test_what_a_dead_process_had_not_built_is_built_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(asked: Job) -> Built:
        return Built(key=asked.key, source="here")

    class Dying(Workers):
        def submit(self, asked: Job) -> Future[Built]:
            future: Future[Built] = Future()
            if asked.key == "0":
                future.set_result(Built(key="0", source="there"))
            else:
                future.set_exception(BrokenProcessPool("killed"))
            return future

    monkeypatch.setattr(module, "build", made)
    jobs = [job(tmp_path, str(i), plan="") for i in range(3)]
    found = {b.key: b.source for b in build_all(jobs, workers=Dying(2))}
    assert set(found) == {"0", "1", "2"}
    assert found["1"] == found["2"] == "here"


def test_labels() -> None:
    assert CASE.label == "softmax 4x769"
    assert Case(operator="sum", shape=(2, 3, 4), dtype="float16").label == "sum 2x3x4 float16"
    assert Case(operator="sum", shape=(2, 3, 4)).rows == 6
    assert Case.from_json(CASE.to_json()) == CASE
