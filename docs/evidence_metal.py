"""Counts of the grid's Metal kernels beside stock dlight's and MLX's rules: `python docs/evidence_metal.py`.

Emitted MSL is executed on the CPU model, which counts bytes, accesses and barriers. `--check` compares without
writing. MLX's column is counted by hand from its sources, for the rules below.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from tirx_reduce.bench.build import Case  # noqa: E402 - the paths come first
from tirx_reduce.bench.grid_lines import lines  # noqa: E402
from tirx_reduce.bench.shapes import shape_text  # noqa: E402
from tirx_reduce.bench.stock import RULES  # noqa: E402
from tirx_reduce.bench.workloads import get_workload  # noqa: E402

COUNTS, PAGE = HERE / "_generated" / "metal.json", HERE / "_generated" / "metal.md"
OURS, DLIGHT, MLX = "ours", "dlight", "mlx"
WHAT = ("bytes", "accesses", "barriers")

# From MLX at commit 16f20dbb (softmax.h), 0189ab6a (softmax.cpp), 0017d3c3 (rms_norm.metal, normalization.cpp),
# and the layer_norm.metal that normalization.cpp's limits belong to: (columns up to which a row is read once,
# walks beyond that, the last of which writes; barriers of a group up to there, and beyond).
MLX_RULES = {"softmax": (4096, 2, 5, 2), "rms_norm": (4096, 2, 3, 3), "layer_norm": (6656, 3, 5, 5)}
MLX_READS = 4
"""Elements that a lane reads next to each other; one access each here, in MLX's favour."""
VECTORS = {"softmax": 0, "rms_norm": 1, "layer_norm": 2}
"""Weights and biases, read once a row."""


def small(case: Case, rows: int) -> tuple[int, ...]:
    """The shape with that many rows: rows are alike, so counts a row do not change."""
    return (*(1 for _ in case.shape[:-2]), rows, case.shape[-1])


def count_case(case: Case) -> dict[str, Any]:
    """Counts of one line, a row, of all that have a kernel for it."""
    ours = _ours(case)
    return {
        "case": case.to_json(),
        OURS: ours,
        DLIGHT: _dlight(case, int(ours["rows"])),
        **({MLX: mlx(case)} if case.operator in MLX_RULES else {}),
    }


def mlx(case: Case) -> dict[str, float]:
    """MLX's rules: one row a group, everything of a row through device memory at each walk."""
    limit, walks, once, looped = MLX_RULES[case.operator]
    columns, size = case.shape[-1], 4 if case.dtype == "float32" else 2
    reads = 1 if columns <= limit else walks
    moved = reads + 1 + VECTORS[case.operator]
    return {
        "bytes": moved * columns * size,
        "accesses": moved * math.ceil(columns / MLX_READS),
        "barriers": once if columns <= limit else looped,
        "launches": 1,
    }


def planned(case: Case) -> tuple[Any, str]:
    """The ladder's plan of a line, and its mapping in words."""
    from tirx_reduce import schedules

    func = get_workload(case.operator).func(case.shape, case.dtype)
    plan = schedules.plan(func, "metal", policy="ladder")
    c = plan.candidate
    text = f"W={c.width} P={c.packing} V={c.vector} S={c.splits} {c.reuse}"
    return plan, text + (" merged" if c.merged else "")


def _ours(case: Case) -> dict[str, Any]:
    import tvm

    from tirx_reduce import schedules

    target = tvm.target.Target("metal")
    workload = get_workload(case.operator)
    plan, text = planned(case)
    mapping = plan.candidate
    shape = small(case, mapping.packing)
    func = schedules.lower(workload.func(shape, case.dtype), replace(plan, subject=""))
    built = schedules.build(func, target)
    # One group of a row, or several; every launch of a split row has as many.
    counted = _run(built, case, shape, groups=mapping.splits)
    return {**counted, "mapping": text, "rows": mapping.packing}


def _dlight(case: Case, rows: int) -> dict[str, Any]:
    import tvm
    from tvm.s_tir import dlight

    target = tvm.target.Target("metal")
    shape = small(case, rows)
    func = get_workload(case.operator).func(shape, case.dtype)
    rules = [getattr(dlight.gpu, name)() for name in RULES]
    with target:
        scheduled = dlight.ApplyDefaultSchedule(*rules)(
            tvm.IRModule({str(func.attrs["global_symbol"]): func})
        )
        built = tvm.compile(scheduled, target)
    # Barriers are a row's, as if each had a group: what its groups are depends on the kernel.
    return _run(built, case, shape, groups=rows)


def _run(built: Any, case: Case, shape: tuple[int, ...], *, groups: int) -> dict[str, Any]:
    from tirx_reduce import emulator

    workload = get_workload(case.operator)
    inputs, outputs = workload.inputs(shape, case.dtype), workload.empty(shape, case.dtype)
    done = emulator.emulate(built, *inputs, *outputs, orders=("forward",))
    verdict = workload.verify(outputs, inputs)
    rows = math.prod(shape[:-1])
    kernels = list(done.counters.values())
    return {
        "bytes": sum(k.load_bytes["device"] + k.store_bytes["device"] for k in kernels) / rows,
        "accesses": sum(k.loads["device"] + k.stores["device"] for k in kernels) / rows,
        "barriers": sum(k.barriers for k in kernels) / groups,
        "launches": sum(k.launches for k in kernels),
        "right": bool(verdict.ok),
        "source_sha256": hashlib.sha256(done.source.encode()).hexdigest(),
    }


def violations(counts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """(line, what, whose is less) where ours moves more bytes or passes more barriers; a launch is a barrier too."""
    found = []
    for entry in counts:
        ours = entry[OURS]
        for other in (n for n in (DLIGHT, MLX) if n in entry):
            theirs = entry[other]
            if ours["bytes"] > theirs["bytes"]:
                found.append((name_of(entry), "bytes", other))
            if ours["barriers"] + ours["launches"] > theirs["barriers"] + theirs["launches"]:
                found.append((name_of(entry), "barriers", other))
    return found


def name_of(entry: Mapping[str, Any]) -> str:
    """`float32 softmax 37x1536`."""
    case = Case.from_json(entry["case"])
    return f"{case.dtype} {case.operator} {shape_text(case.shape)}"


def page(counts: Sequence[Mapping[str, Any]]) -> str:
    """Markdown of all lines, and of those where ours is not least."""
    head = ["line", "ours", "KiB a row", "accesses a row", "barriers"]
    out = [f"| {' | '.join(head)} |", "|---|---|---:|---:|---:|"]
    for entry in counts:
        cells = [_shown(name_of(entry)), entry[OURS]["mapping"]]
        cells += [" / ".join(_cell(entry.get(who), what) for who in (OURS, DLIGHT, MLX)) for what in WHAT]
        out.append(f"| {' | '.join(cells)} |")
    told = "Each cell: ours / dlight / MLX."
    return "\n".join([*_verdicts(counts), "", told, "", *out]) + "\n"


def _verdicts(counts: Sequence[Mapping[str, Any]]) -> list[str]:
    found = violations(counts)
    lines_ = []
    for what in ("bytes", "barriers"):
        for other, shown in ((DLIGHT, "stock dlight"), (MLX, "MLX's rules")):
            mine = [entry for entry in counts if other in entry]
            more = [line for line, w, o in found if (w, o) == (what, other)]
            text = f"- {what.capitalize()}: never more than {shown} on {len(mine) - len(more)} of {len(mine)} lines"
            lines_.append(text + (f"; more on {', '.join(map(_shown, more))}." if more else "."))
    wrong = [name_of(e) for e in counts if not e[DLIGHT]["right"]]
    if wrong:
        lines_.append(f"- dlight's result is outside the tolerance on {', '.join(map(_shown, wrong))}.")
    return lines_


def _cell(counted: Mapping[str, Any] | None, what: str) -> str:
    if counted is None:
        return "−"
    if what == "bytes":
        return f"{counted[what] / 1024:.1f}"
    if what == "accesses":
        return f"{counted[what]:.0f}"
    more = int(counted["launches"]) - 1
    return f"{counted[what]:g}" + (f"+{more}L" if more else "")


def _shown(name: str) -> str:
    head, _, shape = name.rpartition(" ")
    return f"{head} {shape.replace('x', '×')}"


def count_all(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Every line, in order; about a second each."""
    return [count_case(case) for case in cases]


def stored() -> list[dict[str, Any]]:
    """What was counted when the page was written."""
    found: list[dict[str, Any]] = json.loads(COUNTS.read_text())
    return found


def main() -> int:
    """Count all, and write or compare."""
    counts = count_all(lines())
    text = json.dumps(counts, indent=1, sort_keys=True) + "\n"
    if "--check" in sys.argv:
        same = COUNTS.exists() and COUNTS.read_text() == text and PAGE.read_text() == page(counts)
        print("as written" if same else "metal.json or metal.md is stale: python docs/evidence_metal.py")
        return 0 if same else 1
    COUNTS.write_text(text)
    PAGE.write_text(page(counts))
    for line, what, other in violations(counts):
        print(f"{line}: more {what} than {other}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
