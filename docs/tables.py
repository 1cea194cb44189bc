"""Writes the tables of _generated/ from the tests: `python docs/tables.py`; `--check` only compares."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent / "_generated"
sys.path.insert(0, str(HERE.parents[1]))

from tests import decisions, faults, zoo  # noqa: E402 - the path comes first

FAULT_TESTS = (
    "test_faults_values",
    "test_faults_shapes",
    "test_faults_compile",
    "test_semantics",
    "test_views",
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def coverage() -> str:
    """The zoo, accepted or declined with the reason."""
    rows = []
    taken = refused = 0
    for entry in zoo.entries():
        declined = dict(entry.declined_on)
        if entry.declined:
            verdict = f"declined: … {entry.declined} …"
        elif declined:
            verdict = "; ".join(f"declined on {t}: … {why} …" for t, why in declined.items())
        else:
            verdict = "accepted"
        if entry.note:
            verdict += f" ({entry.note})"
        if entry.family != "other":
            for _ in entry.dtypes:
                for target in ("metal", "cuda"):
                    lost = bool(entry.declined) or target in declined
                    taken, refused = taken + (not lost), refused + lost
        shapes = ", ".join("×".join(map(str, s)) or "scalar" for s, _ in entry.specs)
        dtypes = ", ".join(entry.dtypes) if any(d == "float" for _, d in entry.specs) else entry.specs[0][1]
        rows.append((entry.name, entry.family, entry.origin, shapes, dtypes, verdict))
    whole, share = taken + refused, 100 * taken / (taken + refused)
    head = f"""## The zoo

Each line is a PrimFunc that people write, built for both targets, executed on the CPU model of the GPU and
compared with its own NumPy formula in float64: *emitted MSL executed on a CPU model of Metal; not compiled by
Apple's compiler, not run on a GPU.* Of the row reductions (family `other` holds near misses that are none),
{taken} of {whole} combinations of form, dtype and target are accepted, {share:.1f} %. What is declined goes to
TVM's own rules.

One combination of each form runs in every test run, all of them under `-m slow`. Written by `docs/tables.py`
from `tests/zoo.py`; do not edit.

"""
    return head + table(("form", "family", "from", "inputs", "dtypes", "verdict"), rows)


def fault_table() -> str:
    """Public cases: kind, verdict, and how the kind is ruled out."""
    for name in FAULT_TESTS:
        importlib.import_module(f"tests.{name}")
    cases: dict[str, list[faults.Fault]] = {}
    for found in faults.REGISTRY:
        cases.setdefault(found.case, []).append(found)
    rows = []
    for case in sorted(cases):
        found = cases[case]
        first = next((f for f in found if "as below" not in f.how and "as above" not in f.how), found[0])
        verdict = next((f.verdict for f in found if f.verdict == "our decision"), first.verdict)
        tests = ", ".join(dict.fromkeys(f"`{f.test}`" for f in found))
        rows.append((case, first.source, first.kind, verdict, first.how, tests))
    head = f"""## Public faults

{len(rows)} faults of row reductions that other projects reported in public, by kind, and how the kind is ruled
out here. Each is a test with its right value, on both targets through the CPU model; long ones have a smaller
case of the same kind beside them and run under `-m slow`. *Our decision* marks cases where implementations
disagree, or where we decide differently from what the report expected: integer sums keep the PrimFunc's dtype
(B56), NaN in a bare maximum or argmax is not promised (B20, B24). Not tried on a GPU by these tests: B44 at its
full 8.6 GB, and B63's chain in one command stream.

Written by `docs/tables.py` from the tests; do not edit.

"""
    return head + table(("case", "source", "kind", "verdict", "how it is ruled out", "tests"), rows)


def semantics() -> str:
    """What decides in doubt."""
    rows = [(d.question, d.decision, ", ".join(f"`{t}`" for t in d.tests)) for d in decisions.DECISIONS]
    head = """## What decides in doubt

Tested over width, packing, vector, reuse, dtype, target and three numeric modes of the CPU model (plain, with
contraction to FMA, with fast math) by a pairwise covering array.

Written by `docs/tables.py` from `tests/decisions.py`; do not edit.

"""
    return head + table(("question", "decision", "tests"), rows)


PAGES = {"coverage.md": coverage, "faults.md": fault_table, "semantics.md": semantics}


def stale() -> list[str]:
    """Pages that differ from what the tests say."""
    return [n for n, make in PAGES.items() if not (HERE / n).exists() or (HERE / n).read_text() != make()]


if __name__ == "__main__":
    if "--check" in sys.argv:
        found = stale()
        print("\n".join(f"{name} is stale: python docs/tables.py" for name in found))
        sys.exit(1 if found else 0)
    HERE.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (HERE / name).write_text(make())
