"""Checks a device text without running it: through real compilers where they are installed, and by rules."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import EmulatorError, UnsupportedSource
from .tokens import Text
from .toolchain import INCLUDE


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a text."""

    line: int
    text: str
    by: str
    """`rule`, or the compiler that says so."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.text} ({self.by})"


def lint(text: str, kind: str) -> tuple[Finding, ...]:
    """What is wrong with a device text; empty where nothing is.

    Parameters
    ----------
    text : Metal or CUDA source, as TVM emits it.
    kind : `metal` or `cuda`.

    Notes
    -----
    Metal goes through clang as C++ for OpenCL, which knows address spaces as Metal does, and through textual
    rules; CUDA through nvcc. A compiler that is not installed is passed over; `checkers` lists those at hand.
    """
    if kind == "metal":
        return (*_metal_rules(text), *_clang(text))
    if kind == "cuda":
        return (*_common_rules(text), *_nvcc(text))
    raise UnsupportedSource(f"kind is {kind!r}; needs 'metal' or 'cuda'")


def checkers(kind: str) -> tuple[str, ...]:
    """The compilers that `lint` can ask on this machine."""
    return tuple(name for name in ({"metal": ("clang",), "cuda": ("nvcc",)}[kind]) if _find(name))


def _find(name: str) -> str | None:
    found = shutil.which(name)
    if found is None and name == "nvcc" and Path("/usr/local/cuda/bin/nvcc").exists():
        return "/usr/local/cuda/bin/nvcc"
    return found


# Metal has none of these; a C++ compiler takes them.
_LACKING = {
    "double": "Metal has no double",
    "bfloat16": "Metal before 3.1 has no bfloat",
    "bfloat": "Metal before 3.1 has no bfloat",
    "erf": "Metal has no erf",
    "erff": "Metal has no erf",
    "nearbyint": "Metal has no nearbyint (rint is there)",
    "printf": "Metal has no printf",
    "new": "Metal has no new",
    "goto": "Metal has no goto",
    "long long": "Metal has no long long",
}
_SHUFFLES = re.compile(r"simd_(shuffle\w*|sum|product|max|min|broadcast\w*|and|or|xor|prefix\w*)$")
_WIDE = frozenset({"long", "ulong", "int64_t", "uint64_t", "size_t"})


def _common_rules(text: str) -> tuple[Finding, ...]:
    try:
        Text(text)
    except EmulatorError as error:
        return (Finding(error.line, error.text, "rule"),)
    return ()


def _metal_rules(text: str) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    try:
        t = Text(text)
    except EmulatorError as error:
        return (Finding(error.line, error.text, "rule"),)
    depth_of_kernel: int | None = None
    depth = 0
    for i, token in enumerate(t.tokens):
        if token.text == "{":
            depth += 1
        elif token.text == "}":
            depth -= 1
            if depth_of_kernel is not None and depth < depth_of_kernel:
                depth_of_kernel = None
        elif token.text == "kernel":
            depth_of_kernel = depth + 1
        elif token.kind == "name" and token.text in _LACKING:
            findings.append(Finding(t.line(i), _LACKING[token.text], "rule"))
        elif (
            token.kind == "number"
            and re.search(r"\d[lL]{2}$|[dD]$", token.text)
            and not token.text.startswith("0x")
        ):
            findings.append(
                Finding(t.line(i), f"the literal {token.text} is of a type that Metal lacks", "rule")
            )
        elif token.text == "threadgroup" and t.tokens[i - 1].text in ";{}" and depth_of_kernel is not None:
            if depth > depth_of_kernel:
                findings.append(
                    Finding(t.line(i), "a threadgroup array is declared inside a branch or loop", "rule")
                )
        elif _SHUFFLES.fullmatch(token.text) and i + 1 < len(t.tokens) and t.tokens[i + 1].text == "(":
            end = t.close(i + 1)
            if t.tokens[i + 2].text == "(" and t.tokens[i + 3].text in _WIDE and t.tokens[i + 4].text == ")":
                findings.append(Finding(t.line(i), f"{token.text} of a 64-bit value; Metal has none", "rule"))
            first = t.split(i + 2, end - 1)
            if first and _declared_wide(t, i, first[0]):
                findings.append(Finding(t.line(i), f"{token.text} of a 64-bit value; Metal has none", "rule"))
    return tuple(findings)


def _declared_wide(t: Text, at: int, piece: tuple[int, int]) -> bool:
    """Whether a plain variable or array element was declared with a 64-bit type."""
    if t.tokens[piece[0]].kind != "name" or (piece[1] > piece[0] and t.tokens[piece[0] + 1].text != "["):
        return False
    name = t.tokens[piece[0]].text
    return any(t.tokens[k].text == name and t.tokens[k - 1].text in _WIDE for k in range(1, at))


def _clang(text: str) -> tuple[Finding, ...]:
    """The untouched text as C++ for OpenCL: the address spaces of the two languages are the same."""
    clang = _find("clang")
    if clang is None:
        return ()
    findings: list[Finding] = []
    rows = text.split("\n")
    for first, part in _parts(text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.metal"
            path.write_text(part, encoding="utf-8")
            (Path(folder) / "metal_stdlib").write_text("", encoding="utf-8")
            command = [
                clang,
                "-x",
                "cl",
                "-cl-std=clc++2021",
                "-fsyntax-only",
                "-ferror-limit=20",
                "-Wno-everything",
            ]
            command += [
                f"-I{folder}",
                "-include",
                str(INCLUDE / "lint" / "metal_as_opencl.h"),
                str(path),
            ]
            shown = subprocess.run(command, capture_output=True, text=True, check=False).stderr
        shown_rows = shown.splitlines()
        for number, row in enumerate(shown_rows):
            found = re.match(r".*?(\S+):(\d+):\d+: (?:fatal )?error: (.*)", row)
            if found is None:
                continue
            line = _line_in_text(shown_rows[number:]) + first
            source = rows[line - 1].strip() if first < line <= len(rows) else ""
            findings.append(Finding(line, f"{found[3]}: {source}" if source else found[3], "clang"))
    return tuple(findings)


def _line_in_text(shown: list[str]) -> int:
    """The first line of the text that a message and its notes name; 0 where there is none."""
    for number, row in enumerate(shown):
        found = re.match(r".*?kernel\.metal:(\d+):\d+: ", row)
        if found is not None:
            return int(found[1])
        if number and " error: " in row:
            break
    return 0


def _parts(text: str) -> list[tuple[int, str]]:
    """The texts of single kernels that TVM prints one after another, and the lines before each."""
    starts = [m.start() for m in re.finditer(r"^// Function:", text, re.MULTILINE)]
    if not starts or text[: starts[0]].strip():
        starts.insert(0, 0)
    ends = [*starts[1:], len(text)]
    return [(text.count("\n", 0, a), text[a:b]) for a, b in zip(starts, ends, strict=True)]


def _nvcc(text: str) -> tuple[Finding, ...]:
    nvcc = _find("nvcc")
    if nvcc is None:
        return ()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(text, encoding="utf-8")
        command = [
            nvcc,
            "-ptx",
            "-arch=sm_90",
            "--use_fast_math",
            "-o",
            str(Path(folder) / "kernel.ptx"),
            str(path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ()
    findings = [
        Finding(int(m[1]), m[2], "nvcc")
        for m in re.finditer(r"kernel\.cu\((\d+)\): error: (.*)", done.stderr)
    ]
    return tuple(findings) or (Finding(0, done.stderr.strip()[:400], "nvcc"),)
