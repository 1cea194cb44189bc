"""Why a plan is what it is, as tables: candidates, terms of the price, refusals by limit."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tirx_reduce.bench.terminal import Style, number, table
from tirx_reduce.describe import explain_program
from tirx_reduce.describe_html import mapping as mapping
from tirx_reduce.describe_html import price_head, price_row, price_text
from tirx_reduce.values import Candidate, CostEstimate, DeviceLimits, Features, GroupPlan, RowFacts


def priced(plan: GroupPlan) -> list[tuple[Candidate, CostEstimate]]:
    """Candidates with a price, the winner first, then from cheap to dear."""
    losers = [(c, v) for c, v in plan.rejected if isinstance(v, CostEstimate)]
    losers.sort(key=lambda pair: pair[1].kernel_score)
    return [(plan.candidate, plan.estimate), *losers]


def refused(plan: GroupPlan) -> list[tuple[Candidate, str]]:
    """Candidates without a price, with the reason."""
    return [(c, v) for c, v in plan.rejected if isinstance(v, str)]


def program_lines(facts: RowFacts) -> list[str]:
    """The row program: inputs, passes, what each computes, what is kept between them."""
    kept = "nothing" if not facts.kept else f"{count(facts.kept, 'value')} a column"
    summary = (
        f"{count(facts.passes, 'pass')}, {count(facts.reductions, 'collective reduction')}, kept: {kept}"
    )
    return [*explain_program(facts.program).splitlines(), f"  {summary}"]


def count(number: int, noun: str) -> str:
    """`1 pass`, `2 passes`."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def plan_lines(plan: GroupPlan, style: Style) -> list[str]:
    """The winner, its launch and its price."""
    f = plan.features
    c = plan.candidate
    launch = f"{c.resident or f.threadgroups} groups × {plan.width * plan.packing} threads"
    vector = count(plan.vector, "element")
    more = ""
    if c.splits > 1:
        more += " in a cluster" if c.splits <= plan.limits.max_cluster else " in launches one after another"
    more += ", groups that stay" if c.resident else ""
    more += f", {c.rows} rows a program" if c.rows > 1 else ""
    more += ", two reductions in one exchange" if c.merged else ""
    lines = [
        style("plan  ", "bold") + style(mapping(plan.candidate), "green", "bold"),
        f"      width {plan.width} lanes a row, packing {plan.packing}, vector {vector}, "
        f"unroll {plan.unroll}, reuse {plan.reuse}, splits {plan.splits}{more}",
        f"      {launch}; {count(f.passes, 'pass')}, {count(f.reductions, 'collective reduction')} a row",
        price_text(plan, number, f" by policy {plan.policy}"),
    ]
    if plan.extrapolated:
        lines.append(style("      extrapolated: the calibration never saw this width", "yellow"))
    for (first, last), variant in plan.variants:
        end = "∞" if last is None else str(last)
        lines.append(f"      rows {first} to {end}: {mapping(variant.candidate)}")
    return lines


def symbolic_lines(facts: RowFacts, plan: GroupPlan) -> list[str]:
    """At which sizes a plan was priced where the function leaves them open."""
    f = plan.features
    lines = []
    if facts.rows is None:
        lines.append(f"      rows are symbolic: the price is that of {f.rows} rows")
    if facts.columns is None:
        lines.append(f"      columns are symbolic: the price is that of {f.columns} columns")
    return lines


def candidate_lines(plan: GroupPlan, style: Style, top: int | None) -> list[str]:
    """The table of prices; the winner is marked, and so is the incumbent."""
    rows = priced(plan)
    shown = rows if top is None else rows[: top + 1]
    if plan.incumbent is not None and all(c != plan.incumbent for c, _ in shown):
        shown = [*shown, *(pair for pair in rows if pair[0] == plan.incumbent)]
    body = [price_row(plan, candidate, estimate, number) for candidate, estimate in shown]
    head = price_head(plan, f"price ({plan.estimate.unit})")
    lines = table(head, body, style=style, mark=lambda i: ("green",) if i == 0 else ())
    if len(rows) > len(shown):
        lines.append(style(f"and {len(rows) - len(shown)} dearer ones", "dim"))
    if plan.incumbent is not None and all(c != plan.incumbent for c, _ in rows):
        lines.append(f"the incumbent, {mapping(plan.incumbent)}, is none of those that {plan.policy} prices")
    return lines


def refusal_lines(plan: GroupPlan, style: Style, everything: bool) -> list[str]:
    """Refusals: one line a reason with its count and an example, or all of them."""
    found = refused(plan)
    if not found:
        return ["no candidate was refused"]
    if everything:
        return table(["refused", "reason"], [[mapping(c), reason] for c, reason in found], style=style)
    # Reasons of one kind differ only in their numbers; the largest example stands for them.
    kinds: dict[str, list[tuple[Candidate, str]]] = {}
    for candidate, reason in found:
        kinds.setdefault(_kind(reason), []).append((candidate, reason))
    counts = Counter({kind: len(pairs) for kind, pairs in kinds.items()})
    rows = [[str(n), kinds[kind][0][1], mapping(kinds[kind][0][0])] for kind, n in counts.most_common()]
    return table(["refused", "because (one example)", "such as"], rows, style=style)


def _kind(reason: str) -> str:
    return re.sub(r"\d+", "#", reason)


def term_lines(plan: GroupPlan, coefficients: Mapping[str, float] | None, style: Style) -> list[str]:
    """How the winner's price comes about, term by term, for the policies whose formula is published."""
    terms = price_terms(plan, coefficients)
    if terms is None and plan.estimate.ordinal:
        return [
            f"{plan.policy} follows fixed rules of rows, columns, bytes and where rows start: cost/rungs.py and",
            "cost/unaligned.py; what they come from is in docs/kernels.md",
        ]
    if terms is None:
        return [f"{plan.policy} prices as it likes: local {number(plan.estimate.local)}"]
    rows = [[name, formula, number(value)] for name, formula, value in terms]
    return table(["term", "how", plan.estimate.unit], rows, style=style)


def price_terms(
    plan: GroupPlan, coefficients: Mapping[str, float] | None
) -> list[tuple[str, str, float]] | None:
    """(name, formula, value) of each term of the winner's price; None for a policy of another formula."""
    f, c = plan.features, plan.candidate
    if plan.policy == "analytic":
        packets = max(1, -(-(f.columns // c.vector) // c.width))
        rounds = f.passes * packets * c.vector
        groups = -(-f.programs // 64)
        return [
            ("scalar rounds", f"2 · {f.passes} passes · {packets} packets · {c.vector}", 2.0 * rounds),
            (
                "collectives",
                f"5 · {f.reductions} · {f.subgroups_per_program} subgroups",
                5.0 * f.reductions * f.subgroups_per_program,
            ),
            ("launch", f"× ceil({f.programs} programs / 64)", float(groups)),
        ]
    if plan.policy in ("service", "guarded") and coefficients is not None:
        return _service_terms(f, c, coefficients)
    return None


def _service_terms(f: Features, c: Candidate, k: Mapping[str, float]) -> list[tuple[str, str, float]]:
    demand = f.threadgroups * f.subgroups_per_program * c.packing
    waves = max(1.0, demand / k["capacity"])
    return [
        ("D", "fixed price of a launch", k["D"]),
        ("waves", f"max(1, {demand} subgroups / {number(k['capacity'])})", waves),
        ("R", f"{f.scalar_rounds} scalar rounds · R · waves", f.scalar_rounds * k["R"] * waves),
        (
            "K",
            f"{f.reductions} reductions · {f.subgroups_per_program} subgroups · K · waves",
            f.reductions * f.subgroups_per_program * k["K"] * waves,
        ),
        (
            "P",
            f"{f.worker_private_access_bytes} private bytes a lane · P · waves",
            f.worker_private_access_bytes * k["P"] * waves,
        ),
        (
            "G",
            f"{f.programs} programs · {f.program_global_access_bytes} bytes · G",
            f.programs * f.program_global_access_bytes * k["G"],
        ),
        ("W", f"{f.worker_global_access_bytes} bytes a lane · W", f.worker_global_access_bytes * k["W"]),
    ]


def limit_line(limits: DeviceLimits) -> str:
    """The hard limits that held."""
    cores = f", {limits.cores} cores{' (assumed)' if limits.cores_assumed else ''}" if limits.cores else ""
    asked = limits.opt_in_shared_bytes
    more = f" ({asked} where a kernel asks)" if asked > limits.shared_bytes else ""
    return (
        f"limits ({limits.kind}): subgroup {limits.subgroup_size}, {limits.max_threads} threads, "
        f"{limits.shared_bytes} bytes shared{more}, {limits.private_scalars} private values a lane, "
        f"{limits.max_arguments} arguments{cores}"
    )


KERNEL = re.compile(r"__global__|kernel void|struct \w+_args_t")


def mark_source(text: str, style: Style) -> list[str]:
    """The emitted text with line numbers, `▮` at barriers and `·` at accesses of device memory."""
    lines = []
    names = _device_pointers(text)
    every = text.splitlines()
    # TVM's preamble is the same for every kernel; the reader came for the rest.
    start = next((i for i, line in enumerate(every) if KERNEL.search(line)), 0)
    if start:
        lines.append(f"     (the {start} lines before are TVM's preamble)")
    for i, line in enumerate(every[start:], start + 1):
        if _is_barrier(line):
            sign, marks = "▮", ["red", "bold"]
        elif _touches(line, names):
            sign, marks = "·", ["cyan"]
        else:
            sign, marks = " ", []
        lines.append(f"{i:4} {style(sign, *marks)} {style(line, *marks)}".rstrip())
    return lines


def _is_barrier(line: str) -> bool:
    return any(word in line for word in ("threadgroup_barrier(", "__syncthreads(", "__syncwarp("))


def _device_pointers(text: str) -> Sequence[str]:
    metal = re.findall(r"device\s+[\w\s]*\*\s*(?:__restrict__\s+)?(\w+)", text)
    cuda = re.findall(r"\*\s*__restrict__\s+(\w+)", text)
    return tuple(dict.fromkeys([*metal, *cuda]))


def _touches(line: str, names: Sequence[str]) -> bool:
    if KERNEL.search(line) or "__restrict__" in line or re.match(r"\s*device .*\[\[", line):
        return False
    return any(re.search(rf"\b{re.escape(name)}\b", line) for name in names)


def plan_json(plan: GroupPlan) -> dict[str, Any]:
    """The plan as a JSON object."""
    found: dict[str, Any] = json.loads(plan.to_json())
    return found
