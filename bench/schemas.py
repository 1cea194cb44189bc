"""JSON schemas of what every verb prints with `--json`; the tests hold the output to them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tirx_reduce.values import REUSES, Candidate, CostEstimate

Schema = dict[str, Any]


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "required": sorted(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}


def _or_null(kind: str) -> Schema:
    return {"type": [kind, "null"]}


_OF_TYPE = {"int": INTEGER, "float": NUMBER, "str": STRING, "bool": BOOLEAN}


def _dataclass(kind: type) -> Schema:
    # Annotations are texts, and the values are flat: what a class gains its schema gains.
    return _object({f.name: _OF_TYPE[str(f.type)] for f in fields(kind)})


CANDIDATE = _dataclass(Candidate)
CANDIDATE["properties"]["reuse"] = {"enum": list(REUSES)}
ESTIMATE = _dataclass(CostEstimate)
PLAN: Schema = {
    "type": "object",
    "required": ["candidate", "estimate", "features", "format", "limits", "policy", "rejected"],
    "properties": {
        "format": INTEGER,
        "candidate": CANDIDATE,
        "estimate": ESTIMATE,
        "policy": STRING,
        "features": ANY_OBJECT,
        "limits": ANY_OBJECT,
        "rejected": _list({"type": "array", "description": "[candidate, estimate or reason of the refusal]"}),
        "incumbent": {"anyOf": [CANDIDATE, {"type": "null"}]},
        "extrapolated": BOOLEAN,
        "variants": _list({"type": "array", "description": "[[first row count, last or null], plan]"}),
        "subject": STRING,
    },
}
RAN = _object(
    {
        "where": STRING,
        "on_gpu": BOOLEAN,
        "shape": STRING,
        "rows": INTEGER,
        "of_rows": INTEGER,
        "wall_s": NUMBER,
        "counters": ANY_OBJECT,
    }
)
VERIFIED = _object(
    {
        "ok": BOOLEAN,
        "max_abs": _or_null("number"),
        "max_rel": _or_null("number"),
        "share_of_allowed": _or_null("number"),
        "where": STRING,
        "allowed": STRING,
    }
)
TERM = _object({"term": STRING, "how": STRING, "value": NUMBER})
FUNCTION = _object(
    {"subject": STRING},
    {
        "declined": STRING,
        "facts": ANY_OBJECT,
        "plan": PLAN,
        "terms": {"anyOf": [_list(TERM), {"type": "null"}]},
        "source": STRING,
    },
)
FINDING = _object(
    {"what": STRING, "state": {"enum": ["ok", "note", "fault"]}, "seen": STRING, "mend": STRING}
)
SUMMARY: Schema = {
    "type": "object",
    "required": ["reference", "cases"],
    "properties": {"reference": STRING, "cases": _list(ANY_OBJECT)},
}
CASE = _object({"operator": STRING, "shape": _list(INTEGER), "dtype": STRING})
PEERS_ROW = _object(
    {
        "case": CASE,
        "dtype": STRING,
        "operator": STRING,
        "shape": STRING,
        "group": {"enum": ["table", "odd", "fused", "other"]},
        "policy": STRING,
        "regime": {"enum": ["warm", "cold"]},
        "copied_bytes": INTEGER,
        "device": STRING,
        "peers": ANY_OBJECT,
        "ours": ANY_OBJECT,
        "failures": ANY_OBJECT,
    },
    {"best": ANY_OBJECT},
)
DISPATCH_ROW = _object(
    {
        "case": CASE,
        "device": STRING,
        "regime": {"enum": ["warm", "cold"]},
        "us": ANY_OBJECT,
        "failures": ANY_OBJECT,
        "static": CANDIDATE,
        "symbolic": CANDIDATE,
        "interval": _list({"anyOf": [INTEGER, {"type": "null"}]}),
        "same_mapping": BOOLEAN,
    },
    {"ratio": NUMBER, "low": NUMBER, "high": NUMBER, "within": BOOLEAN},
)
RUN = {"subject": STRING, "target": STRING, "plan": PLAN, "ran": RAN, "verified": VERIFIED}

SCHEMAS: dict[str, Schema] = {
    "run": _object(RUN),
    "emulate": _object({**RUN, "orders": _list(STRING), "numerics": STRING}),
    "plan": _object({"subject": STRING, "target": STRING, "plan": PLAN}),
    "explain": _object({"target": STRING, "functions": _list(FUNCTION)}),
    "show": _object({}, {"source": STRING, "tir": STRING, "input": STRING}),
    "doctor": _object({"findings": _list(FINDING)}),
    "bench": _object(
        {
            "subject": STRING,
            "device": STRING,
            "plan": PLAN,
            "status": {"enum": ["measured", "failed"]},
            "reason": _or_null("string"),
            "bytes_moved": INTEGER,
            "median_us": _or_null("object"),
        }
    ),
    "bench-peers": _object({"summary": ANY_OBJECT, "rows": _list(PEERS_ROW)}),
    "bench-dispatch": _object({"rows": _list(DISPATCH_ROW)}),
    "search": _object(
        {"records": STRING, "trials": INTEGER, "measured": INTEGER, "infeasible": INTEGER, "failed": INTEGER}
    ),
    "fit": _object({"calibration": _or_null("string"), "profile": ANY_OBJECT}),
    "replay": _object(
        {
            "records": STRING,
            "phase": {"enum": ["collect", "freeze", "run"]},
            "freeze": _or_null("string"),
            "summary": {"anyOf": [SUMMARY, {"type": "null"}]},
        }
    ),
    "audit": _object({"ok": BOOLEAN, "receipt": _list(STRING), "failure": _or_null("string")}),
    "ablate": _object({"records": STRING, "summary": SUMMARY}),
    "compare": _object({"records": STRING, "summary": SUMMARY}),
    "study": _object({"folder": STRING, "steps": _list(STRING), "failure": _or_null("string")}),
    "report": _object({"file": _or_null("string"), "markdown": STRING}),
    "plot": _object({"files": _list(STRING), "points": INTEGER}),
    "error": _object({"error": _object({"type": STRING, "message": STRING})}),
}
