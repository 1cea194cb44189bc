"""The part of JSON Schema that `bench.schemas` uses, checked."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def check(value: Any, schema: dict[str, Any], where: str = "$") -> list[str]:
    """Every way in which `value` is not what `schema` says."""
    if "anyOf" in schema:
        tries = [check(value, s, where) for s in schema["anyOf"]]
        return [] if any(not t for t in tries) else min(tries, key=len)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{where}: {value!r} is none of {schema['enum']}"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    allowed = tuple(t for k in kinds for t in _TYPES[k])
    if not isinstance(value, allowed) or (isinstance(value, bool) and "boolean" not in kinds):
        return [f"{where}: {type(value).__name__} is no {' or '.join(kinds)}"]
    faults: list[str] = []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        faults += [f"{where}: lacks {k}" for k in schema.get("required", ()) if k not in value]
        if schema.get("additionalProperties") is False:
            faults += [f"{where}: unknown {k}" for k in value if k not in known]
        for k, v in value.items():
            if k in known:
                faults += check(v, known[k], f"{where}.{k}")
    if isinstance(value, list) and "items" in schema:
        for i, v in enumerate(value):
            faults += check(v, schema["items"], f"{where}[{i}]")
    return faults
