"""Writes the tables of the H200 pages from the records: `python docs/evidence.py`; `--check` only compares."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import evidence_grid as grid  # noqa: E402 - the paths come first
import evidence_mail as mail  # noqa: E402
import evidence_prologue as prologue  # noqa: E402
import evidence_sweeps as sweeps  # noqa: E402
import evidence_unseen as unseen  # noqa: E402

from tirx_reduce.bench import counters_report  # noqa: E402
from tirx_reduce.bench.fit import fit_rows, row_of  # noqa: E402
from tirx_reduce.bench.grid_report import markdown, rows_of  # noqa: E402
from tirx_reduce.bench.grid_tables import tables  # noqa: E402
from tirx_reduce.bench.records import of_kind, read  # noqa: E402
from tirx_reduce.bench.study_report import study_report  # noqa: E402
from tirx_reduce.bench.summary import SUMMARY  # noqa: E402
from tirx_reduce.bench.trial import label_us  # noqa: E402

STUDY = HERE / "studies" / "h200-2026-11"
OUT = HERE / "_generated" / "h200"
GPU = "gpu_batch"

# GPU gains of the report that this project starts from: M1 Max, four rounds, same shapes and protocol.
SEED = {
    ("softmax", (37, 1537)): "0.904 [0.846, 0.932]",
    ("rms_norm", (37, 1537)): "0.987 [0.894, 1.043]",
    ("layer_norm", (37, 1537)): "0.876 [0.818, 0.928]",
    ("softmax", (256, 3072)): "1.075 [1.037, 1.112]",
    ("rms_norm", (256, 3072)): "1.089 [1.059, 1.146]",
    ("layer_norm", (256, 3072)): "1.147 [1.118, 1.163]",
    ("softmax", (768, 6144)): "1.360 [1.353, 1.364]",
    ("rms_norm", (768, 6144)): "1.287 [1.279, 1.289]",
    ("layer_norm", (768, 6144)): "1.231 [1.218, 1.243]",
    ("softmax", (64, 12289)): "1.152 [1.149, 1.172]",
    ("rms_norm", (64, 12289)): "1.089 [1.074, 1.122]",
    ("layer_norm", (64, 12289)): "1.224 [1.187, 1.243]",
}
SEED_VERDICTS = {
    "gpu_batch": "9 / 2 / 1",
    "end_to_end_batch": "10 / 2 / 0",
    "end_to_end_single": "1 faster; the rest not stated",
}
SEED_CV = {64: (6.51, 29.68, 16.28), 128: (7.28, 29.68, 16.61), 256: (7.28, 29.68, 17.08),
           512: (4.81, 22.60, 17.58), 1024: (4.81, 22.60, 17.82), 2048: (6.51, 29.68, 18.14)}  # fmt: skip


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, numbers to the right."""
    ruler = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows)) + "\n"


def study() -> str:
    """The report of the study's own command, and the regret of every training case."""
    return study_report(STUDY) + "\n" + _regrets()


def _regrets() -> str:
    trials = [t for t in of_kind(read(STUDY / "search.jsonl.gz"), "trial") if t["status"] == "measured"]
    fitted = fit_rows([row_of(t) for t in trials])
    rows = []
    for (operator, shape), regret in fitted.regrets:
        labels = sorted(
            label_us(t)
            for t in trials
            if (t["case"]["operator"], tuple(t["case"]["shape"])) == (operator, shape)
        )
        near = sum(v <= 1.05 * labels[0] for v in labels)
        rows.append([f"{operator} {shape[0]}x{shape[1]}", f"{100 * regret:.2f} %", f"{near} of {len(labels)}",
                     f"{labels[-1] / labels[0]:.2f}×"])  # fmt: skip
    head = ["left-out case", "regret of the pick", "trials within 5 % of the best", "worst ÷ best"]
    capacity = fitted.coefficients.capacity
    return (
        f"## Regret by case\n\nAt capacity {capacity:g}, coefficients without the case's shape.\n\n"
        + table(head, rows)
    )


def seed() -> str:
    """Held-out gains and capacity table beside the first report's."""
    entries = of_kind(read(STUDY / "replay.jsonl.gz"), SUMMARY)[0]["cases"]
    rows, ours, theirs = [], [], []
    for e in entries:
        first = SEED[(e["case"]["operator"], tuple(e["case"]["shape"]))]
        gain = e["gain"]["candidate"][GPU]
        shape = "×".join(map(str, e["case"]["shape"]))
        ours.append(gain["median"])
        theirs.append(float(first.split()[0]))
        rows.append([f"{e['case']['operator']} {shape}", first,
                     f"{gain['median']:.3f} [{gain['low']:.3f}, {gain['high']:.3f}]", gain["verdict"]])  # fmt: skip
    for values in (theirs, ours):
        values.append(math.prod(values) ** (1 / len(values)))
    rows.append(["geometric mean", f"{theirs[-1]:.3f}", f"{ours[-1]:.3f}", ""])
    head = ["case", "M1 Max GPU gain", "H200 GPU gain", "H200 verdict"]
    profile = of_kind(read(STUDY / "replay.jsonl.gz"), "profile")[0]
    capacities = []
    for row in profile["capacities"]:
        mean, most, rmse = SEED_CV[int(row["capacity"])]
        capacities.append([f"{row['capacity']:g}", f"{mean:.2f} / {most:.2f} / {rmse:.2f}",
                           f"{100 * row['mean_regret']:.2f} / {100 * row['max_regret']:.2f} / "
                           f"{100 * row['relative_rmse']:.2f}"])  # fmt: skip
    again = ["capacity prior", "M1 Max: CV mean / CV maximum / relative RMSE, %", "H200: the same"]
    return table(head, rows) + "\n" + _verdicts(entries) + "\n" + table(again, capacities)


def _verdicts(entries: Sequence[Mapping[str, Any]]) -> str:
    """How many cases are faster or slower in every pair, against the old planner and against Torch."""
    rows = []
    for phase in ("gpu_batch", "end_to_end_batch", "gpu_single", "end_to_end_single"):
        cells = []
        for found in (lambda e: e["gain"]["candidate"], lambda e: e["torch_over_native"]["candidate"]):
            verdicts = [found(e)[phase]["verdict"] for e in entries]
            cells.append(" / ".join(str(verdicts.count(v)) for v in ("faster", "slower", "not separable")))
        rows.append([phase.replace("_", " "), *cells, SEED_VERDICTS.get(phase, "not stated")])
    head = ["of twelve cases: faster / slower in every pair / neither", "H200 over the old planner",
            "H200 over eager Torch", "M1 Max over the old planner"]  # fmt: skip
    return table(head, rows)


def peers() -> str:
    """Both runs in one table, a column for each peer."""
    rows = rows_of([STUDY / "grid.jsonl.xz", STUDY / "grid_compile.jsonl.xz"])
    return "\n".join(_cut(line) for line in markdown(rows, wide=True).splitlines()) + "\n"


def _cut(line: str) -> str:
    """A reason without terminal colours."""
    return re.sub(r"\x1b?\[\d+m", "", line)


def counts() -> str:
    """What the peers' table says in numbers."""
    final = rows_of([STUDY / "grid.jsonl.xz", STUDY / "grid_compile.jsonl.xz"])
    beside = rows_of([STUDY / "grid_neighbour.jsonl.xz"])
    lines = json.loads((STUDY / "before_prologue.json").read_text())["lines"]
    before = {(dtype, operator, shape): share for dtype, operator, shape, share in lines}
    return grid.counts(final, before, table, counters_report.readings(counted()), beside)


def swept() -> str:
    """What the sweeps say in numbers."""
    return sweeps.tables(STUDY / "sweeps.json", table)


def swept_since() -> str:
    """What the sweeps after the exchange by mail say."""
    return mail.tables(STUDY / "sweeps_mail.json.gz", table)


def swept_last() -> str:
    """What the sweeps with prologues say, and the ladder that came of them."""
    return prologue.tables(STUDY / "sweeps_prologue.json.gz", rows_of([STUDY / "grid.jsonl.xz"]), table)


def swept_elsewhere() -> str:
    """What sweeps over other shapes than the grid's say of the ladder."""
    return unseen.tables(STUDY / "sweeps_unseen.json.gz", table)


def swept_decode() -> str:
    """What a sweep over few rows says of the ladder."""
    return unseen.decode(STUDY / "sweeps_decode.json.gz", table)


def swept_models() -> str:
    """What sweeps round the shapes of models say of the ladder, and what came of it."""
    return unseen.models(STUDY / "sweeps_models.json.gz", table)


def swept_odd() -> str:
    """What sweeps over rows that start anywhere say of the ladder, and what came of it."""
    return unseen.models(STUDY / "sweeps_odd.json.gz", table)


MODELS = (
    "models_norm",
    "models_norm_compile",
    "models_softmax",
    "models_softmax_compile",
    "models_fused",
    "half",
)


def models() -> str:
    """Shapes that models have, and the table in float16, at first sight."""
    rows = rows_of([STUDY / f"{name}.jsonl.xz" for name in MODELS])
    return grid.at_first_sight(rows, table) + "\n" + _cut(markdown(rows)) + "\n"


def warm() -> str:
    """The peers' grid over operands that stay in the cache."""
    return tables([STUDY / "grid_warm.jsonl.xz"]) + "\n"


def dispatch() -> str:
    """One module of symbolic rows beside static plans."""
    return tables([STUDY / "dispatch.jsonl.xz"]) + "\n"


def dispatch_elsewhere() -> str:
    """The same at columns that are odd, and at some more that are not."""
    return (
        tables([STUDY / "dispatch_odd.jsonl.xz"]) + "\n\n" + tables([STUDY / "dispatch_more.jsonl.xz"]) + "\n"
    )


def counters() -> str:
    """Hardware counters of some lines."""
    return _cut(counters_report.markdown(counted())) + "\n"


def counted() -> Any:
    """Hardware counters; the second record has the lines that are short of the copy's rate."""
    return counters_report.rows_of([STUDY / f"{n}.jsonl.xz" for n in ("counters", "counters_more")])


# Runs that may not be there: their pages are written once their records are.
LATER: Mapping[str, tuple[str, Callable[[], str]]] = {
    "warm.md": ("grid_warm.jsonl.xz", warm),
    "dispatch.md": ("dispatch.jsonl.xz", dispatch),
    "dispatch_elsewhere.md": ("dispatch_more.jsonl.xz", dispatch_elsewhere),
    "counters.md": ("counters.jsonl.xz", counters),
}
PAGES: Mapping[str, Callable[[], str]] = {
    "study.md": study,
    "seed.md": seed,
    "peers.md": peers,
    "counts.md": counts,
    "sweeps.md": swept,
    "mail.md": swept_since,
    "prologue.md": swept_last,
    "unseen.md": swept_elsewhere,
    "decode.md": swept_decode,
    "swept_models.md": swept_models,
    "swept_odd.md": swept_odd,
    "models.md": models,
    **{page: make for page, (records, make) in LATER.items() if (STUDY / records).exists()},
}


def stale() -> list[str]:
    """Pages that differ from what the records say."""
    return [n for n, make in PAGES.items() if not (OUT / n).exists() or (OUT / n).read_text() != make()]


def main() -> Any:
    """Write, or compare."""
    if "--check" in sys.argv:
        found = stale()
        print("\n".join(f"{name} is stale: python docs/evidence.py" for name in found))
        return 1 if found else 0
    for name, make in PAGES.items():
        (OUT / name).write_text(make())
    return 0


if __name__ == "__main__":
    sys.exit(main())
