"""A whole study on a device that does not exist: real plans, made-up times, everything else as it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tirx_reduce.bench import replay, rounds, search
from tirx_reduce.bench.build import Built, Case
from tirx_reduce.bench.measure import Options, Phase, Timing
from tirx_reduce.bench.records import canonical, digest

ENVIRONMENT = {
    "device": "Made-up GPU",
    "driver": "1.0",
    "target_kind": "cuda",
    "cache_bytes": 0,
    "tvm": "0.27.0",
    "libraries": {"numpy": "2"},
    "library_sha256": {"libtvm.so": "0" * 64},
    "python": "3.11",
    "system": "Linux x86_64",
    "package_sha256": "1" * 64,
    "tvm_ffi": "0.1",
    "commit": "2" * 40,
    "dirty": False,
    "date": "2026-01-02T03:04:05Z",
}
QUICK = Options(samples=3, batch_ms=1.0, warmup_ms=1.0)


class MadeUpStand:
    """Plans are real; nothing runs."""

    stand_in = True
    kind = "cuda"
    device = None

    def __init__(self, folder: Path, **changes: Any) -> None:
        import tvm

        self.target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
        self.folder = folder
        self.changes = changes

    def environment(self) -> dict[str, Any]:
        return {**ENVIRONMENT, "tvm": _tvm_version(), **self.changes}


def _tvm_version() -> str:
    import tvm

    return str(tvm.__version__)


def jitter(*what: Any) -> float:
    """A factor of 0.95 to 1.05 that is the same every time."""
    return 0.95 + 0.1 * int(digest([str(w) for w in what])[:8], 16) / 0xFFFFFFFF


def made_up_us(case: Case, plan: Mapping[str, Any], salt: Any = "") -> float:
    """A device that likes whole subgroups busy and reads memory at a finite speed."""
    f, c = plan["features"], plan["candidate"]
    waves = max(1.0, f["threadgroups"] * f["subgroups_per_program"] / 500)
    local = 0.02 * f["scalar_rounds"] + 0.04 * f["reductions"] * f["subgroups_per_program"]
    memory = f["programs"] * f["program_global_access_bytes"] * 4e-7
    return (2.0 + local * waves + memory) * jitter(case.label, c["width"], c["reuse"], salt)


def timing(us: float, samples: int) -> dict[str, Any]:
    """Raw samples round a time."""
    around = tuple(us * (1 + 0.001 * i) for i in range(samples))
    phases = {
        name: Phase(count=10, samples_us=tuple(s * factor for s in around))
        for name, factor in (
            ("gpu_batch", 1.0),
            ("end_to_end_batch", 1.2),
            ("gpu_single", 1.5),
            ("end_to_end_single", 9.0),
            ("instrumented", 0.9),
        )
    }
    return json.loads(json.dumps(Timing(phases=phases, warmup_us=(us,), floor_us=0.0).to_json()))


VERIFIED = {"ok": True, "max_abs": 0.0, "max_rel": 0.0, "share": 0.0, "where": "y[0, 0]", "allowed": "all"}


def made_up(monkeypatch: pytest.MonkeyPatch, time_of: Callable[..., float] = made_up_us) -> None:
    """Replace builds and runs, and nothing else."""
    counter = {"runs": 0}

    def build_plans(stand: Any, plans: Any, folder: Path, **_: Any) -> dict[str, Built]:
        return {key: _built(key, case, plan) for key, (case, plan) in plans.items()}

    def try_out(stand: Any, case: Case, built: Built, options: Options, **_: Any) -> dict[str, Any]:
        counter["runs"] += 1
        us = time_of(case, json.loads(built.library), counter["runs"])
        return {
            "status": "measured",
            "regime": "warm",
            "sets": 1,
            **built.hashes(),
            "verified": VERIFIED,
            "timing": timing(us, options.samples),
        }

    def try_torch(case: Case, options: Options, kind: str, **_: Any) -> dict[str, Any]:
        us = 20.0 * jitter(case.label, "torch", counter["runs"])
        return {"status": "measured", "verified": VERIFIED, "timing": timing(us, options.samples)}

    for module in (search, replay, rounds):
        monkeypatch.setattr(module, "build_plans", build_plans)
        monkeypatch.setattr(module, "try_out", try_out)
    monkeypatch.setattr(rounds, "try_torch", try_torch)


def _built(key: str, case: Case, plan: Any) -> Built:
    text = f"// {case.label} {plan.candidate}"
    return Built(
        key=key,
        # The plan travels where a library's path would: the made-up run reads it there.
        library=plan.to_json(),
        entry=case.operator,
        source=text,
        source_sha256=hashlib.sha256(text.encode()).hexdigest(),
        library_sha256="3" * 64,
    )


def edit(path: Path, change: Callable[[list[dict[str, Any]]], object], *, reseal: bool = True) -> None:
    """Change the records of a file; with `reseal`, every hash and the chain are made right again."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    change(records)
    chain, lines = "0" * 64, []
    for record in records:
        if reseal:
            record.pop("sha256", None)
            record["chain"] = chain
            record["sha256"] = chain = digest(record)
        lines.append(canonical(record))
    path.write_text("\n".join(lines) + "\n")
