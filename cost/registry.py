"""Policies by name: the built-in ones, those that are registered, and those of installed packages."""

from __future__ import annotations

import importlib
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tirx_reduce.cost.policy import Policy, as_policy
from tirx_reduce.errors import DuplicatePolicy, UnknownPolicy

GROUP = "tirx_reduce.policies"
"""Entry-point group that installed packages name their policies in."""
BUILT_IN = {
    "analytic": "analytic:Analytic",
    "service": "service:Service",
    "guarded": "guarded:Guarded",
    "ladder": "ladder:Ladder",
}

_registered: dict[str, tuple[Policy, str]] = {}


def register_policy(policy: Any) -> Any:
    """Make `policy` known by its name, and return it.

    Raises
    ------
    DuplicatePolicy
        The name is taken; the text names both origins.
    ReduceError
        The name is not lower-kebab, or the object is no policy.
    """
    wrapped = as_policy(policy)
    name = policy.name
    taken = _origin(name)
    if taken is not None:
        raise DuplicatePolicy(f"policy {name!r} of {_describe(policy)} is already that of {taken}")
    _registered[name] = (wrapped, _describe(policy))
    return policy


def get_policy(name: str) -> Policy:
    """The policy of that exact name.

    Raises
    ------
    UnknownPolicy
        There is none; the text lists the known ones.
    DuplicatePolicy
        Two installed packages claim it.
    """
    if name in _registered:
        return _registered[name][0]
    if name in BUILT_IN:
        module, cls = BUILT_IN[name].split(":")
        policy = as_policy(getattr(importlib.import_module(f"tirx_reduce.cost.{module}"), cls)())
        _registered[name] = (policy, f"tirx_reduce.cost.{module}")
        return policy
    points = _installed().get(name, ())
    if not points:
        raise UnknownPolicy(f"no policy {name!r}; known: {', '.join(policies())}")
    if len(points) > 1:
        raise DuplicatePolicy(f"policy {name!r} is claimed by " + " and by ".join(_point(p) for p in points))
    _registered[name] = (_from_entry_point(points[0]), _point(points[0]))
    return _registered[name][0]


def policies() -> tuple[str, ...]:
    """Names of all known policies, sorted; nothing is imported for it."""
    return tuple(sorted({*BUILT_IN, *_registered, *_installed()}))


def _origin(name: str) -> str | None:
    if name in _registered:
        return _registered[name][1]
    if name in BUILT_IN:
        return f"tirx_reduce.cost.{BUILT_IN[name].split(':')[0]}"
    points = _installed().get(name, ())
    return _point(points[0]) if points else None


def _from_entry_point(point: EntryPoint) -> Policy:
    try:
        found = point.load()
        policy = as_policy(found() if isinstance(found, type) else found)
    except Exception as error:  # a stranger's import may raise anything
        raise UnknownPolicy(f"policy of {_point(point)} failed to load: {error}") from error
    if policy.name != point.name:
        raise UnknownPolicy(f"{_point(point)} names its policy {policy.name!r}; needs {point.name!r}")
    return policy


@lru_cache(maxsize=1)
def _installed() -> dict[str, tuple[EntryPoint, ...]]:
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        if point.name in BUILT_IN:
            raise DuplicatePolicy(
                f"policy {point.name!r} of {_point(point)} is already that of tirx_reduce.cost"
            )
        if not any(p.value == point.value for p in found.get(point.name, ())):
            found[point.name] = (*found.get(point.name, ()), point)
    return found


def _point(point: EntryPoint) -> str:
    dist = f" of {point.dist.name}" if point.dist is not None else ""
    return f"entry point {point.name} = {point.value}{dist}"


def _describe(policy: Any) -> str:
    cls = type(policy)
    return f"{cls.__module__}.{cls.__qualname__}"
