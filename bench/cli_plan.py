"""`plan`, `explain` and `show`: questions that change nothing."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tirx_reduce.bench import explain as text
from tirx_reduce.bench.planning import Request, only, read_request
from tirx_reduce.bench.subjects import Subject
from tirx_reduce.bench.terminal import Style, wants_colour
from tirx_reduce.errors import ReduceError, Unsupported


def style_of(args: argparse.Namespace) -> Style:
    """Colours, where the output takes them."""
    return Style(wants_colour(sys.stdout, args.no_color))


def plan(args: argparse.Namespace) -> int:
    """Print the plan of one function."""
    from tirx_reduce.facts import analyze

    request = read_request(args)
    subject = only(request)
    found = request.plan(subject)
    if args.json:
        print(
            json.dumps(
                {"subject": subject.label, "target": str(request.target), "plan": text.plan_json(found)}
            )
        )
        return 0
    style = style_of(args)
    print(style(subject.label, "bold") + f" on {request.target.kind.name}")
    print("\n".join([*text.plan_lines(found, style), *text.symbolic_lines(analyze(subject.func), found)]))
    print(text.limit_line(found.limits))
    return 0


def explain(args: argparse.Namespace) -> int:
    """Print why: the row program, the candidates, the price, the refusals; or why a function is declined."""
    request = read_request(args)
    pages = [_explain_one(args, request, subject) for subject in request.subjects]
    if args.json:
        print(json.dumps({"target": str(request.target), "functions": [page for page, _ in pages]}))
        return 0
    print("\n\n".join("\n".join(lines) for _, lines in pages))
    return 0


def _explain_one(
    args: argparse.Namespace, request: Request, subject: Subject
) -> tuple[dict[str, Any], list[str]]:
    from tirx_reduce.facts import analyze

    style = style_of(args)
    page: dict[str, Any]
    try:
        facts = analyze(subject.func)
    except Unsupported as declined:
        page = {"subject": subject.label, "declined": str(declined)}
        return page, [style(f"{subject.label}: declined", "yellow", "bold"), f"  {declined}"]
    drawn = text.program_lines(facts)
    try:
        found = request.plan(subject)
    except Unsupported as declined:
        page = {"subject": subject.label, "facts": facts.to_json(), "declined": str(declined)}
        return page, [
            style(subject.label, "bold"),
            *drawn,
            "",
            style("no plan", "yellow", "bold"),
            f"  {declined}",
        ]
    dtype = subject.dtype or "float32"
    coefficients = request.coefficients(dtype)
    terms = text.price_terms(found, coefficients)
    page = {
        "subject": subject.label,
        "facts": facts.to_json(),
        "plan": text.plan_json(found),
        "terms": None if terms is None else [{"term": n, "how": h, "value": v} for n, h, v in terms],
    }
    lines = [
        style(subject.label, "bold") + f" on {request.target.kind.name}",
        *drawn,
        "",
        *text.plan_lines(found, style),
        *text.symbolic_lines(facts, found),
        text.limit_line(found.limits),
        "",
        *text.candidate_lines(found, style, None if args.all else args.top),
        "",
        *text.term_lines(found, coefficients, style),
        "",
        *text.refusal_lines(found, style, args.all),
    ]
    if args.source:
        source = _source(subject, found, request)
        page["source"] = source
        lines += ["", style("emitted text (▮ barrier, · access of device memory)", "bold")]
        lines += text.mark_source(source, style)
    return page, lines


def show(args: argparse.Namespace) -> int:
    """Print the emitted text, the scheduled TIR, or the PrimFunc that came in."""
    request = read_request(args)
    subject = only(request)
    if args.input:
        return _print(args, "input", subject.func.script())
    found = request.plan(subject)
    if args.tir:
        from tirx_reduce.schedules import lower

        return _print(args, "tir", lower(subject.func, found).script())
    source = _source(subject, found, request)
    if args.marked and not args.json:
        print("\n".join(text.mark_source(source, style_of(args))))
        return 0
    return _print(args, "source", source)


def _print(args: argparse.Namespace, kind: str, content: str) -> int:
    print(json.dumps({kind: content}) if args.json else content.rstrip("\n"))
    return 0


def _source(subject: Subject, found: Any, request: Request) -> str:
    from tirx_reduce.bench.sources import device_sources
    from tirx_reduce.schedules import build, lower

    sources = device_sources(build(lower(subject.func, found), request.target))
    if len(sources) != 1:
        raise ReduceError(f"{subject.label} was built into {len(sources)} device modules; needs one")
    return sources[0]
