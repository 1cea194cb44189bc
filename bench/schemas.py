"""JSON schemas of what every verb prints with `--json`; the tests hold the output to them."""

from __future__ import annotations

from typing import Any

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


CANDIDATE = _object(
    {
        "width": INTEGER,
        "packing": INTEGER,
        "vector": INTEGER,
        "unroll": INTEGER,
        "reuse": {"enum": ["reload", "private", "shared"]},
        "splits": INTEGER,
    }
)
ESTIMATE = _object({"local": NUMBER, "launch": NUMBER, "kernel_score": NUMBER, "unit": STRING})
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
RUN = {"subject": STRING, "target": STRING, "plan": PLAN, "ran": RAN, "verified": VERIFIED}

SCHEMAS: dict[str, Schema] = {
    "run": _object(RUN),
    "emulate": _object({**RUN, "orders": _list(STRING), "numerics": STRING}),
    "plan": _object({"subject": STRING, "target": STRING, "plan": PLAN}),
    "explain": _object({"target": STRING, "functions": _list(FUNCTION)}),
    "show": _object({}, {"source": STRING, "tir": STRING, "input": STRING}),
    "doctor": _object({"findings": _list(FINDING)}),
    "error": _object({"error": _object({"type": STRING, "message": STRING})}),
}
