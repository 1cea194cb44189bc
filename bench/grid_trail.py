"""What was running when a process ended: a contender that ends it twice at the same line is left out."""

from __future__ import annotations

import json
from pathlib import Path

MOST_ENDS = 2
"""A first end may be a time limit that has nothing to do with the contender."""


class Trail:
    """A small file beside the records; what is named in it had begun and not ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}

    def barred(self, line: str, name: str) -> bool:
        """Whether `name` ended the process too often at `line`."""
        return self._ends.get(f"{line} {name}", 0) >= MOST_ENDS

    def begin(self, line: str, name: str) -> None:
        """`name` is about to run."""
        key = f"{line} {name}"
        self._write({**self._ends, key: self._ends.get(key, 0) + 1})

    def end(self) -> None:
        """What had begun has come to its end."""
        self._write(self._ends)

    def keep(self, line: str, name: str) -> None:
        """`name` took the device along: bar it at `line` at once."""
        self._ends = {**self._ends, f"{line} {name}": MOST_ENDS}
        self._write(self._ends)

    def _write(self, ends: dict[str, int]) -> None:
        scratch = self._path.with_suffix(".new")
        scratch.write_text(json.dumps(ends))
        scratch.replace(self._path)
