"""What a person sees: colours that switch off, tables, and progress with the time left."""

from __future__ import annotations

import math
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


@dataclass(frozen=True, slots=True)
class Style:
    """Marks text, or leaves it alone."""

    colour: bool = False

    def __call__(self, text: str, *marks: str) -> str:
        """`text` with ANSI marks where colours are on."""
        if not self.colour or not marks:
            return text
        return f"\033[{';'.join(_CODES[m] for m in marks)}m{text}\033[0m"


def wants_colour(stream: TextIO, switched_off: bool) -> bool:
    """Whether `stream` is a terminal that takes colours, and nobody switched them off (`NO_COLOR`)."""
    if switched_off or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def cells(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    style: Style | None = None,
    mark: Callable[[int], Sequence[str]] = lambda row: (),
) -> list[str]:
    """Lines of a table; a column whose cells all start with a digit, a sign or a dash stands to the right.

    Parameters
    ----------
    head
        Titles.
    rows
        Cells as text.
    style
        Marks the head, and the rows that `mark` names.
    mark
        From the number of a row to the marks of its text.
    """
    body = [list(row) for row in rows]
    paint = style or Style()
    widths = [max([cells(h), *(cells(row[i]) for row in body)]) for i, h in enumerate(head)]
    right = [bool(body) and all(_numeric(row[i]) for row in body) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        out = []
        for text, width, flush in zip(row, widths, right, strict=True):
            gap = " " * (width - cells(text))
            out.append(gap + text if flush else text + gap)
        return "  ".join(out).rstrip()

    return [paint(line(head), "bold"), *(paint(line(row), *mark(i)) for i, row in enumerate(body))]


def _numeric(text: str) -> bool:
    return not text or text[0].isdigit() or (text[0] in "+-−–·" and len(text) < 12)


def number(value: float) -> str:
    """A price or a time as people read it: four significant digits, no exponent where it can be helped."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 3 - math.floor(math.log10(abs(value))))
        return f"{value:.{digits}f}"
    return f"{value:.3e}"


def duration(seconds: float) -> str:
    """`1:05` or `2:00:03`."""
    whole = int(max(0.0, seconds) + 0.5)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """One line on a terminal that says what is done and how long the rest takes; silent elsewhere."""

    def __init__(
        self,
        total: int,
        what: str,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        shown: bool | None = None,
    ) -> None:
        self.total, self.what, self.done = total, what, 0
        self.already = 0
        """Done before the clock started, as in a run that is resumed."""
        self.stream = sys.stderr if stream is None else stream
        self.clock = clock
        self.shown = self.stream.isatty() if shown is None else shown
        self.start = clock()

    def step(self, note: str = "") -> None:
        """One more is done."""
        self.done += 1
        self.show(note)

    def text(self, note: str = "") -> str:
        """The line."""
        left = ""
        here = self.done - self.already
        if here > 0 and self.done < self.total:
            spent = self.clock() - self.start
            left = f", {duration(spent / here * (self.total - self.done))} left"
        return f"{self.what} {self.done}/{self.total}{left}{'  ' + note if note else ''}"

    def show(self, note: str = "") -> None:
        """Write the line over the last one."""
        if self.shown:
            self.stream.write("\r\033[K" + self.text(note))
            self.stream.flush()

    def close(self) -> None:
        """Take the line away."""
        if self.shown:
            self.stream.write("\r\033[K")
            self.stream.flush()


@contextmanager
def progress(total: int, what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """A `Progress` on standard error that is taken away at the end, whatever happens."""
    bar = Progress(total, what, shown=False if quiet else None)
    bar.show()
    try:
        yield bar
    finally:
        bar.close()
