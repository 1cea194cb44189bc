"""Device texts with one defect, which whoever checks kernels must notice: a barrier less, a looser guard."""

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
        "tirx_reduce_async_wait_but_2",
        "tirx_reduce_mailbox_open",
        "tirx_reduce_mailbox_wait",
    }
)
# The two halves of a barrier, which may also be lost together.
_HALVES = ("tirx_reduce_cluster_arrive", "tirx_reduce_cluster_wait")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A text with one thing less."""

    line: int
    """The line that lost it."""
    lost: str
    text: str


def without_barriers(text: str) -> tuple[Mutant, ...]:
    r"""One text for each barrier of `text`, which lacks it.

    Waits on mailboxes and their openings count as barriers. A cluster barrier loses its arrival, its wait, and both.

    >>> [m.line for m in without_barriers("a();\\n__syncthreads();\\nb();\\n")]
    [2]
    """
    whole = Text(text)
    calls = _calls(whole)
    halves = ([n for n, at in enumerate(calls) if whole.tokens[at].text == half] for half in _HALVES)
    both = list(zip(*halves, strict=False))
    return tuple(_without(text, numbers) for numbers in (*((n,) for n in range(len(calls))), *both))


def _without(text: str, numbers: tuple[int, ...]) -> Mutant:
    t = Text(text)
    calls = _calls(t)
    lost: list[str] = []
    for number in numbers:
        at = calls[number]
        end = t.close(at + 1)
        lost.append(t.text[t.tokens[at].start : t.tokens[end].end])
        t.edit(at, end, "")
    return Mutant(t.line(calls[numbers[0]]), "; ".join(lost), t.edited())


# What a guard becomes when its border is off by one, or when it asks for less.
_LOOSER = {"<": "<=", "==": "<=", "&&": "||"}


def with_looser_guards(text: str) -> tuple[Mutant, ...]:
    """One text for each comparison of the last kernel of `text` that lets more pass than it did.

    A change that makes no difference (`i % 32 <= 0`) is among them.
    """
    whole = Text(text)
    begins = [i for i, token in enumerate(whole.tokens) if token.text in ("kernel", "__global__")]
    mutants: list[Mutant] = []
    for i in range(begins[-1] if begins else 0, len(whole.tokens)):
        old = whole.tokens[i].text
        # The bracket of a template is no comparison.
        if old not in _LOOSER or (old == "<" and whole.tokens[i - 1].text in ("as_type", "reinterpret_cast")):
            continue
        t = Text(text)
        t.edit(i, i, _LOOSER[old])
        mutants.append(Mutant(whole.line(i), old, t.edited()))
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
