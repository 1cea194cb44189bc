"""Tokens of a C++ device text, and edits of it that keep every line where it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import UnsupportedSource

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/|\#(?:[^\n\\]|\\.|\\\n)*)
    |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<number>0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?\w*|\.?\d(?:[eE][+-]|[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<mark>->|<<=|>>=|<<|>>|[-+*/%&|^=!<>]=|&&|\|\||\+\+|--|::|.)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token; blanks, comments and preprocessor lines are none."""

    text: str
    start: int
    end: int
    kind: str
    """`name`, `number`, `string` or `mark`."""


class Text:
    """The tokens of a text, and the edits that are to be made to it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [
            Token(m.group(), m.start(), m.end(), str(m.lastgroup))
            for m in _TOKEN.finditer(text)
            if m.lastgroup != "space"
        ]
        self._edits: list[tuple[int, int, str]] = []
        self._close: dict[int, int] = {}
        self._lines = text.split("\n")
        stack: list[int] = []
        for i, token in enumerate(self.tokens):
            if token.text in _CLOSING:
                stack.append(i)
            elif token.text in _CLOSING.values() and token.kind == "mark":
                if not stack or _CLOSING[self.tokens[stack[-1]].text] != token.text:
                    raise self.refuse(i, f"{token.text!r} closes nothing")
                self._close[stack.pop()] = i
        if stack:
            raise self.refuse(stack[-1], f"{self.tokens[stack[-1]].text!r} is never closed")

    def line(self, index: int) -> int:
        """The line of a token, from 1."""
        return self.text.count("\n", 0, self.tokens[index].start) + 1

    def refuse(self, index: int, what: str) -> UnsupportedSource:
        """The error that names a token's line."""
        line = self.line(index)
        return UnsupportedSource(what, line=line, source=self._lines[line - 1])

    def close(self, index: int) -> int:
        """The index of the bracket that closes the one at `index`."""
        if index not in self._close:
            raise self.refuse(index, f"{self.tokens[index].text!r} where a bracket is needed")
        return self._close[index]

    def is_attribute(self, index: int) -> bool:
        """Whether `[[` stands at `index`."""
        return self.tokens[index].text == "[" and self.text.startswith("[[", self.tokens[index].start)

    def split(self, first: int, last: int) -> list[tuple[int, int]]:
        """The tokens first..last, cut at the commas outside brackets."""
        pieces, start, i = [], first, first
        while i <= last:
            if self.tokens[i].text in _CLOSING:
                i = self.close(i)
            elif self.tokens[i].text == ",":
                pieces.append((start, i - 1))
                start = i + 1
            i += 1
        if start <= last:
            pieces.append((start, last))
        return pieces

    def edit(self, first: int, last: int, new: str) -> None:
        """Puts `new` in place of the tokens first..last."""
        start, end = self.tokens[first].start, self.tokens[last].end
        self._edits.append((start, end, new + "\n" * self.text.count("\n", start, end)))

    def insert_after(self, index: int, new: str) -> None:
        """Puts `new` behind a token."""
        end = self.tokens[index].end
        self._edits.append((end, end, new))

    def edited(self) -> str:
        """The text with all edits made; of two that overlap, the earlier and longer one."""
        out, at = [], 0
        for start, end, new in sorted(self._edits, key=lambda e: (e[0], -e[1])):
            if start < at:
                continue
            out += [self.text[at:start], new]
            at = end
        return "".join([*out, self.text[at:]])
