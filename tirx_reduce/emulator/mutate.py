"""Takes single barriers out of a device text: whoever checks kernels must notice each of them missing."""

from __future__ import annotations

from dataclasses import dataclass

from .tokens import Text

_BARRIERS = frozenset(
    {
        "threadgroup_barrier",
        "simdgroup_barrier",
        "__syncthreads",
        "__syncwarp",
        "tirx_reduce_cluster_arrive",
        "tirx_reduce_cluster_wait",
        "tirx_reduce_async_wait",
    }
)


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
    mutants: list[Mutant] = []
    for number in range(len(_calls(Text(text)))):
        t = Text(text)
        at = _calls(t)[number]
        end = t.close(at + 1)
        lost = t.text[t.tokens[at].start : t.tokens[end].end]
        t.edit(at, end, "")
        mutants.append(Mutant(t.line(at), lost, t.edited()))
    return tuple(mutants)


def _calls(t: Text) -> list[int]:
    """Where barriers are called; a definition in the prelude is no call."""
    return [
        i
        for i, token in enumerate(t.tokens[:-2])
        if token.text in _BARRIERS
        and t.tokens[i + 1].text == "("
        and t.tokens[t.close(i + 1) + 1].text == ";"
    ]
