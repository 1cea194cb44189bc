"""Builds of planned kernels in parallel processes: jobs in, libraries on disk and their hashes out.

A failed build is a result with its reason, never an exception.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tirx_reduce.errors import ReduceError

Shape = tuple[int, ...]
CUDA_CALLBACK = "tvm_callback_cuda_compile"
Progress = Callable[[int, int, str], None]
"""(done, all, what) after each step."""


def quiet(done: int, total: int, what: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operator at one shape and dtype."""

    operator: str
    shape: Shape
    dtype: str = "float32"

    @property
    def label(self) -> str:
        """For people: `softmax 768x6144`, with the dtype where it is not float32."""
        text = f"{self.operator} {'x'.join(map(str, self.shape))}"
        return text if self.dtype == "float32" else f"{text} {self.dtype}"

    @property
    def rows(self) -> int:
        """Programs of the launch."""
        rows = 1
        for extent in self.shape[:-1]:
            rows *= extent
        return rows

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {"operator": self.operator, "shape": list(self.shape), "dtype": self.dtype}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        """The case that `to_json` wrote."""
        return cls(operator=data["operator"], shape=tuple(data["shape"]), dtype=data["dtype"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One kernel to build."""

    key: str
    """Names the job, and its library."""
    case: Case
    plan: str
    """JSON of the `GroupPlan`."""
    target: str
    """JSON of the TVM target."""
    folder: str
    """Where the library and the compile cache go."""
    stand_in: bool = False
    """Emit the kernel, but build the plain function for the CPU: for trying a study without a GPU."""
    suffix: str = ".so"
    """`.tar` leaves linking to the machine that loads it, which may be of another kind than this one."""
    symbolic_rows: bool = False
    """One kernel for every number of rows: that of the case is not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What came of a job."""

    key: str
    library: str = ""
    entry: str = ""
    source: str = ""
    """Emitted device text."""
    source_sha256: str = ""
    library_sha256: str = ""
    seconds: float = 0.0
    error: str = ""
    """Why there is no library."""

    def hashes(self) -> dict[str, Any]:
        """What a record keeps of it."""
        return {
            "entry": self.entry,
            "source_sha256": self.source_sha256,
            "library_sha256": self.library_sha256,
            "build_s": round(self.seconds, 3),
        }


def build(job: Job) -> Built:
    """Build one job in this process."""
    start = time.perf_counter()
    try:
        return _build(job, start)
    except Exception as error:  # a compiler may raise anything; the study goes on and keeps the reason
        return Built(
            key=job.key, error=f"{type(error).__name__}: {error}", seconds=time.perf_counter() - start
        )


class Workers:
    """Build processes that outlive one call: starting them takes longer than most builds.

    Fresh processes, since a forked one would inherit a CUDA context that it cannot use.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, job: Job) -> Future[Built]:
        """Start a build."""
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, mp_context=context)
        return self._pool.submit(build, job)

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def build_all(jobs: Iterable[Job], *, workers: int | Workers) -> Iterator[Built]:
    """Build jobs in other processes, as they get ready; in this one where `workers` is 0.

    Where a process dies, what it had not built is built here.
    """
    waiting = list(jobs)
    if workers == 0 or not waiting:
        yield from map(build, waiting)
        return
    pool = workers if isinstance(workers, Workers) else Workers(min(workers, len(waiting)))
    done: set[str] = set()
    try:
        for future in as_completed([pool.submit(job) for job in waiting]):
            built = future.result()
            done.add(built.key)
            yield built
    except (BrokenProcessPool, OSError):
        pool.close()
        yield from (build(job) for job in waiting if job.key not in done)
    finally:
        if pool is not workers:
            pool.close()


def build_plans(
    stand: Any,
    plans: Mapping[str, tuple[Case, Any]],
    folder: Path,
    *,
    workers: int | Workers,
    progress: Progress = quiet,
) -> dict[str, Built]:
    """Build each (case, plan) for a stand into `folder`, in parallel; results by the same keys."""
    from tirx_reduce.bench.stand import target_json

    target = target_json(stand.target)
    jobs = [
        Job(
            key=key,
            case=case,
            plan=plan.to_json(),
            target=target,
            folder=str(folder),
            stand_in=stand.stand_in,
            suffix=stand.suffix,
        )
        for key, (case, plan) in plans.items()
    ]
    built: dict[str, Built] = {}
    for one in build_all(jobs, workers=workers):
        built[one.key] = one
        progress(len(built), len(jobs), "built")
    return built


def _build(job: Job, start: float) -> Built:
    import tvm

    from tirx_reduce import schedules
    from tirx_reduce.bench.workloads import get_workload
    from tirx_reduce.values import GroupPlan

    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    workload = get_workload(job.case.operator)
    func = workload.func(job.case.shape, job.case.dtype, symbolic_rows=job.symbolic_rows)
    entry = str(func.attrs["global_symbol"])
    target = tvm.target.Target(json.loads(job.target))
    if target.kind.name == "cuda" and not job.stand_in:
        cache_compiles(folder)
    scheduled = schedules.lower(func, GroupPlan.from_json(job.plan))
    with target:
        # Where a CUDA runtime is, TVM compiles the text here, for the arch of the current target.
        executable: Any = schedules.build(scheduled, target)
    source = device_source(executable)
    if job.stand_in:
        executable = tvm.compile(func, "llvm")
    elif target.kind.name == "cuda":
        _compile_now(source, target)
    library = folder / f"{job.key}{job.suffix}"
    executable.export_library(str(library))
    return Built(
        key=job.key,
        library=str(library),
        entry=entry,
        source=source,
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        library_sha256=hashlib.sha256(library.read_bytes()).hexdigest(),
        seconds=time.perf_counter() - start,
    )


def device_source(executable: Any) -> str:
    """The device text inside an executable.

    Raises
    ------
    ReduceError
        There is none: TVM makes host code of a GPU function that nothing scheduled, and says nothing.
    """
    waiting = [executable.mod]
    while waiting:
        module = waiting.pop()
        if module.kind in ("cuda", "metal"):
            return str(module.inspect_source())
        waiting += list(module.imports)
    raise ReduceError("the executable holds no device kernel; needs one of cuda or metal")


def cache_compiles(folder: Path) -> None:
    """Keep what CUDA's compiler makes of a text in `folder`, by its hash, for every process that asks.

    TVM compiles CUDA text when a module is first used, more than a second a kernel; so workers compile
    beforehand, and the process that measures finds it here.
    """
    import tvm
    import tvm_ffi
    from tvm.support import nvcc

    cache = folder / "compiled"
    cache.mkdir(parents=True, exist_ok=True)

    def compile_cached(code: str) -> Any:
        target = tvm.target.Target.current(allow_none=True)
        arch = str(target.attrs.get("arch", "")) if target is not None else ""
        path = cache / hashlib.sha256(f"{arch or 'device'}\n{code}".encode()).hexdigest()
        any_arch = cache / hashlib.sha256(f"device\n{code}".encode()).hexdigest()
        for known in (path, any_arch):
            if known.exists():
                return known.read_bytes()
        made = bytes(nvcc.tvm_callback_cuda_compile(code))
        # One folder serves one device, so what was compiled for its arch is what the device asks for.
        for name in {path, any_arch}:
            scratch = name.with_suffix(f".{multiprocessing.current_process().pid}")
            scratch.write_bytes(made)
            scratch.replace(name)
        return made

    tvm_ffi.register_global_func(CUDA_CALLBACK, compile_cached, override=True)


def _compile_now(source: str, target: Any) -> None:
    import tvm_ffi

    with target:
        tvm_ffi.get_global_func(CUDA_CALLBACK)(source)
