"""Compiles texts into libraries, and keeps them by the hash of everything that goes in."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .errors import UnsupportedSource

INCLUDE = Path(__file__).parent / "include"

_COMMON = (
    "-std=c++20",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
)
# What the model counts and checks is what the text says: no access may be merged, split, moved or dropped.
_FAITHFUL = (
    "-fno-tree-fre -fno-tree-pre -fno-tree-dse -fno-tree-sra -fno-tree-loop-im -fno-tree-sink -fno-gcse "
    "-fno-tree-vectorize -fno-ipa-sra -fno-code-hoisting"
).split()
_CHECKS = (
    "-fsanitize=thread,bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=none",
)
NUMERICS = ("plain", "fma", "fast")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler of this machine."""

    path: str
    version: str
    gcc: bool


@functools.cache
def compiler() -> Compiler:
    """The compiler for kernels: g++ where there is one, since it checks the alignment of vectors best.

    Raises
    ------
    UnsupportedSource
        No C++ compiler is installed.
    """
    for name in ("g++", "g++-14", "g++-13", "g++-12", "c++", "clang++"):
        path = shutil.which(name)
        if path is None:
            continue
        shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if shown.returncode == 0:
            first = shown.stdout.splitlines()[0]
            return Compiler(path, first, "clang" not in shown.stdout.lower())
    raise UnsupportedSource("no C++ compiler was found; the CPU model needs g++ (12 or later)")


@functools.cache
def _has_fma() -> bool:
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    try:
        return " fma " in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return False


@functools.cache
def _has_f16c() -> bool:
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    try:
        return " f16c " in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return False


def _numerics_flags(numerics: str) -> list[str]:
    if numerics not in NUMERICS:
        raise UnsupportedSource(f"numerics is {numerics!r}; needs one of {', '.join(NUMERICS)}")
    machine = ["-mf16c"] if _has_f16c() else []
    if numerics == "plain":
        return [*machine, "-ffp-contract=off"]
    if not _has_fma():
        raise UnsupportedSource(f"numerics={numerics!r} needs a processor with fused multiply-add")
    if platform.machine() in ("x86_64", "AMD64"):
        machine.append("-mfma")
    # g++ contracts only among its expensive optimisations.
    machine += ["-fexpensive-optimizations"] if compiler().gcc else []
    return [*machine, "-ffp-contract=fast", *(["-ffast-math"] if numerics == "fast" else [])]


def cache_folder(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where compiled kernels are kept: `cache_dir`, or the user's cache folder."""
    if cache_dir is not None:
        folder = Path(cache_dir)
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Caches" / "tirx-reduce"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tirx-reduce"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"tirx-reduce-{os.getuid()}"
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def _headers_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(INCLUDE.rglob("*")):
        if path.is_file():
            digest.update(str(path.relative_to(INCLUDE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _build(folder: Path, stem: str, parts: list[str], source: str, arguments: list[str]) -> Path:
    """The library for `source`, compiled unless it is kept already; safe among processes."""
    digest = hashlib.sha256("\0".join([*parts, *arguments, source]).encode()).hexdigest()[:32]
    target = folder / f"{stem}-{digest}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as work:
        source_path, made = Path(work) / "kernel.cc", Path(work) / "made.so"
        source_path.write_text(source, encoding="utf-8")
        command = [
            compiler().path,
            *arguments[:-1],
            "-o",
            str(made),
            str(source_path),
            *arguments[-1].split(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(done.stderr)
        os.replace(made, target)
    return target


class CompileError(Exception):
    """The compiler refused; the text is its own."""


def build_runtime(folder: Path) -> Path:
    """The library of the model itself."""
    source = f'#include "{INCLUDE / "runtime.cc"}"\n'
    arguments = [*_COMMON, "-O2", "-shared", f"-I{INCLUDE}", ""]
    return _build(folder, "runtime", [_headers_hash(), compiler().version], source, arguments)


def build_kernel(program: str, kind: str, numerics: str, folder: Path, runtime: Path) -> Path:
    """The library of one text."""
    c = compiler()
    arguments = [
        *_COMMON,
        # clang looks at accesses only after it has merged, moved and dropped some.
        "-O1" if c.gcc else "-O0",
        "-g1",
        *(_FAITHFUL if c.gcc else ()),
        _CHECKS[0],
        "-fsanitize-recover=all",
        "-Werror=attributes",
        "-Werror=uninitialized",
        # A lane has 64 KiB of stack.
        "-Werror=frame-larger-than=32768",
        *_numerics_flags(numerics),
        "-shared",
        "-nostdlib",
        "-fno-plt",
        f"-I{INCLUDE}",
        *([f"-I{INCLUDE / kind}"] if kind == "cuda" else ()),
        # Without the start files of fast math, which would switch off denormals in the whole process.
        f"{runtime} -lm -lc -lgcc" if sys.platform != "darwin" else f"{runtime} -lSystem",
    ]
    return _build(folder, kind, [_headers_hash(), c.version], program, arguments)


def link_host(compiled: bytes, folder: Path) -> Path:
    """A shared library made of one object file."""
    digest = hashlib.sha256(compiled).hexdigest()[:32]
    target = folder / f"host-{digest}.so"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as work:
        object_path, made = Path(work) / "host.o", Path(work) / "made.so"
        object_path.write_bytes(compiled)
        command = [compiler().path, "-shared", "-o", str(made), str(object_path)]
        if sys.platform == "darwin":
            command += ["-undefined", "dynamic_lookup"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnsupportedSource(f"the host function cannot be linked: {done.stderr.strip()[:400]}")
        os.replace(made, target)
    return target


def line_of(library: Path, offset: int, kind: str) -> int:
    """The line of the text that an address of its library belongs to, 0 where it is not known."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None or offset <= 0:
        return 0
    command = [tool, "-i", "-e", str(library), hex(offset - 1)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    lines = [row.rsplit(":", 1) for row in shown.splitlines()]
    for row in lines:
        if row[0].endswith(f"kernel.{kind}") and row[-1].split(" ")[0].isdigit():
            return int(row[-1].split(" ")[0])
    return 0
