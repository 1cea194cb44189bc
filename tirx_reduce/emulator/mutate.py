"""Takes single barriers out of a device text: whoever checks kernels must notice each of them missing."""

from __future__ import annotations

from dataclasses import dataclass

from .tokens import Text

_BARRIERS = frozenset({"threadgroup_barrier", "__syncthreads", "simdgroup_barrier", "__syncwarp"})


@dataclass(frozen=True, slots=True)
class Mutant:
    """A text with one thing less."""

    line: int
    """The line that lost it."""
    lost: str
    text: str


def without_barriers(text: str) -> tuple[Mutant, ...]:
    r"""One text for each barrier of `text`, which lacks it.

    >>> [m.line for m in without_barriers("a();\\n__syncthreads();\\nb();\\n")]
    [2]
    """
    count = sum(token.text in _BARRIERS for token in Text(text).tokens)
    mutants: list[Mutant] = []
    for number in range(count):
        t = Text(text)
        at = [i for i, token in enumerate(t.tokens) if token.text in _BARRIERS][number]
        end = t.close(at + 1)
        lost = t.text[t.tokens[at].start : t.tokens[end].end]
        t.edit(at, end, "")
        mutants.append(Mutant(t.line(at), lost, t.edited()))
    return tuple(mutants)
