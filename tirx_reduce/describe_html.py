"""A plan as HTML for notebooks: winner, price, the other candidates, the refusals. Plain values in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from html import escape

from .describe import explain_program
from .values import Candidate, CostEstimate, GroupPlan, RowFacts

SHOWN = 12
"""Priced candidates in the open part of the table; the rest folds away."""

_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_CELL = "padding:2px 10px;text-align:{align};border-bottom:1px solid rgba(128,128,128,.35)"


def plan_to_html(plan: GroupPlan) -> str:
    """`plan` as a fragment of HTML that needs no script and reads in light and dark.

    Parameters
    ----------
    plan : GroupPlan
        Of any policy; what the policy priced or refused is taken from it.
    """
    features, limits = plan.features, plan.limits
    head = (
        f"<b>{escape(mapping(plan.candidate))}</b> by policy <code>{escape(plan.policy)}</code> "
        f"on {escape(limits.kind)}: {features.rows} rows × {features.columns} columns, "
        f"{plan.candidate.resident or features.threadgroups} groups × {plan.width * plan.packing} threads"
    )
    price = price_text(plan, _number)
    notes = []
    if plan.extrapolated:
        notes.append("extrapolated: the calibration never saw this width")
    if plan.incumbent is not None and plan.incumbent != plan.candidate:
        notes.append(f"the incumbent would take {escape(mapping(plan.incumbent))}")
    for (first, last), variant in plan.variants:
        end = "∞" if last is None else str(last)
        notes.append(f"rows {first} to {end}: {escape(mapping(variant.candidate))}")
    parts = [f"<div>{head}</div>", f"<div>{escape(price)}</div>", *(f"<div>{note}</div>" for note in notes)]
    parts.append(_prices(plan))
    parts.append(_refusals(plan))
    hard = (
        f"limits: subgroup {limits.subgroup_size}, {limits.max_threads} threads, "
        f"{limits.shared_bytes} bytes shared, {limits.private_scalars} private values a lane"
    )
    parts.append(f"<div><small>{hard}</small></div>")
    return f'<div class="tirx-reduce-plan">{"".join(parts)}</div>'


def facts_to_html(facts: RowFacts) -> str:
    """The row program as a small diagram: inputs, a box a pass, outputs, what is kept on the way.

    Parameters
    ----------
    facts : RowFacts
        Of any function that `analyze` accepts.
    """
    head, *rest = explain_program(facts.program).splitlines()
    boxes: list[tuple[str, list[str]]] = []
    signature: list[str] = []
    for line in rest:
        text = line.strip()
        if text.startswith("pass ") and text.endswith(":"):
            boxes.append((text[:-1], []))
        elif line.startswith("    ") and boxes:
            boxes[-1][1].append(text)
        elif boxes:
            # What is written once a row, after the pass that it needs.
            boxes.append(("row", [text]))
        else:
            signature.append(text)
    kept = (
        f"kept: {facts.kept} value{'s' if facts.kept != 1 else ''} a column" if facts.kept else "nothing kept"
    )
    between = f'<div style="text-align:center">↓ <small>{kept}</small></div>'
    parts = [_box(title, lines) for title, lines in boxes]
    inputs = [line for line in signature if not line.startswith("out ")]
    outputs = [line for line in signature if line.startswith("out ")]
    flow = between.join(parts)
    return (
        f'<div class="tirx-reduce-facts" style="display:inline-block"><div><b>{escape(head)}</b></div>'
        f"{_box('in', [line.removeprefix('in').strip() for line in inputs])}"
        f'<div style="text-align:center">↓</div>{flow}<div style="text-align:center">↓</div>'
        f"{_box('out', [line.removeprefix('out').strip() for line in outputs])}</div>"
    )


def _box(title: str, lines: Sequence[str]) -> str:
    body = "<br>".join(escape(line) for line in lines)
    return (
        '<div style="border:1px solid rgba(128,128,128,.6);border-radius:4px;padding:2px 10px">'
        f"<small>{escape(title)}</small><br><code>{body}</code></div>"
    )


def _prices(plan: GroupPlan) -> str:
    losers = [(c, v) for c, v in plan.rejected if isinstance(v, CostEstimate)]
    losers.sort(key=lambda pair: pair[1].kernel_score)
    rows = [price_row(plan, c, e, _number) for c, e in [(plan.candidate, plan.estimate), *losers]]
    head = price_head(plan, plan.estimate.unit)
    table = _table(head, rows[:SHOWN])
    if len(rows) > SHOWN:
        rest = _table(head, rows[SHOWN:])
        table += f"<details><summary>{len(rows) - SHOWN} dearer candidates</summary>{rest}</details>"
    return table


def price_text(plan: GroupPlan, number: Callable[[float], str], whose: str = "") -> str:
    """The winner's price, or its rung, and `whose` it is."""
    price = plan.estimate
    if price.ordinal:
        return (
            f"rung  {number(price.kernel_score)}{whose} (1 is what its rules want; the first legal one wins)"
        )
    parts = f"local {number(price.local)}, launch {number(price.launch)}"
    return f"price {number(price.kernel_score)} {price.unit}{whose} ({parts})"


def price_head(plan: GroupPlan, title: str) -> list[str]:
    """What stands above the columns of `price_row`."""
    return ["mapping", *(["rung"] if plan.estimate.ordinal else [title, "× winner", "local", "launch"]), ""]


def price_row(
    plan: GroupPlan, candidate: Candidate, estimate: CostEstimate, number: Callable[[float], str]
) -> list[str]:
    """A candidate beside the winner, and whether it is the winner or the incumbent."""
    notes = [
        word
        for word, is_it in (
            ("winner", candidate == plan.candidate),
            ("incumbent", candidate == plan.incumbent),
        )
        if is_it
    ]
    ratio = f"{estimate.kernel_score / plan.estimate.kernel_score:.3f}"
    parts = [] if plan.estimate.ordinal else [ratio, number(estimate.local), number(estimate.launch)]
    return [mapping(candidate), number(estimate.kernel_score), *parts, ", ".join(notes)]


def _refusals(plan: GroupPlan) -> str:
    refused = [(c, v) for c, v in plan.rejected if isinstance(v, str)]
    if not refused:
        return ""
    # Reasons of one kind differ only in their numbers.
    kinds: dict[str, list[tuple[Candidate, str]]] = {}
    for candidate, reason in refused:
        kinds.setdefault(re.sub(r"\d+", "#", reason), []).append((candidate, reason))
    rows = [[str(len(found)), found[0][1], mapping(found[0][0])] for found in kinds.values()]
    rows.sort(key=lambda row: -int(row[0]))
    table = _table(["refused", "because (one example)", "such as"], rows)
    return f"<details><summary>{len(refused)} refused candidates</summary>{table}</details>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [list(row) for row in rows]
    aligns = [
        "right" if body and all(_is_number(row[i]) for row in body) else "left" for i in range(len(head))
    ]
    top = "".join(_cell("th", text, align) for text, align in zip(head, aligns, strict=True))
    lines = [
        "<tr>" + "".join(_cell("td", text, align) for text, align in zip(row, aligns, strict=True)) + "</tr>"
        for row in body
    ]
    return f'<table style="{_TABLE}"><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _cell(tag: str, text: str, align: str) -> str:
    return f'<{tag} style="{_CELL.format(align=align)}">{escape(text)}</{tag}>'


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d[\d.e+-]*", text))


def mapping(candidate: Candidate) -> str:
    """`W=384 V=4 reload`, and what is not the usual beside it."""
    extra = [
        f"{letter}={value}"
        for letter, value, usual in (
            ("P", candidate.packing, 1),
            ("U", candidate.unroll, 1),
            ("S", candidate.splits, 1),
            ("R", candidate.resident, 0),
            ("rows", candidate.rows, 1),
        )
        if value != usual
    ]
    merged = ["merged"] if candidate.merged else []
    return " ".join([f"W={candidate.width}", f"V={candidate.vector}", *extra, candidate.reuse, *merged])


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e9 else f"{value:.4g}"
