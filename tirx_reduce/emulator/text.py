"""Reads an emitted device text: its kernels, their parameters and arrays; and makes it compile for the CPU.

Every change keeps the lines where they are, so that faults name lines of the original.
"""

from __future__ import annotations

import re
from itertools import count

from .declarations import SPACES, arrays, attributes, name_of, parameter, smallest_cast, stores
from .errors import UnsupportedSource
from .kernels import Kernel, Parameter, Source
from .tokens import Text

_REGISTERS = {
    "cluster_ctarank": "emu_cluster_rank()",
    "cluster_ctaid.x": "emu_cluster_rank()",
    "cluster_nctarank": "emu_cluster_size()",
    "cluster_nctaid.x": "emu_cluster_size()",
}
_READS_REGISTER = re.compile(
    r'\w+\s+(?:volatile|__volatile__)\s*\(\s*"mov\.u32 %0, %%([\w.]+);"\s*:\s*"=r"\((\w+)\)\s*:?\s*\)'
)


def read(text: str, kind: str) -> Source:
    """Reads a device text.

    Parameters
    ----------
    text : Metal or CUDA source with one or more kernels, as TVM emits it.
    kind : `metal` or `cuda`.

    Raises
    ------
    UnsupportedSource
        The text holds what the model does not know.
    """
    if kind not in ("metal", "cuda"):
        raise UnsupportedSource(f"kind is {kind!r}; needs 'metal' or 'cuda'")
    t = Text(text)
    kernels: list[Kernel] = []
    granule = smallest_cast(t)
    i = 0
    while i < len(t.tokens):
        _refuse_unknown(t, i, kind)
        if t.tokens[i].text == ("kernel" if kind == "metal" else "__global__"):
            i = _read_kernel(t, i, kind, granule, kernels)
        i += 1
    if not kernels:
        raise UnsupportedSource("no kernel in the text")
    _finish(t, kind)
    body = _METAL_LIBRARY.sub("", t.edited())
    # TVM prints one text per Metal kernel, each with the same unions: each gets a namespace of its own.
    starts = (
        [m.start() for m in _SEPARATOR.finditer(text) if text[: m.start()].strip()] if kind == "metal" else []
    )
    number = count(1)
    body = _SEPARATOR.sub(
        lambda m: f"}} namespace emu_text_{next(number)} {{ //" if body[: m.start()].strip() else "//", body
    )
    head, foot = ("namespace emu_text_0 {", "}") if kind == "metal" else ("", "")
    program = [
        f'#include "emu_{kind}.h"\n{head}\n#line 1 "kernel.{kind}"\n{body}\n{foot}\n#line 1 "entries"\n'
    ]
    for index, kernel in enumerate(kernels):
        entry = _entry(index, kernel)
        if kind == "metal":
            space = sum(text.count("\n", 0, at) < kernel.line for at in starts)
            entry = f"namespace emu_text_{space} {{\n{entry}}}\n"
        program.append(entry)
    return Source(kind=kind, text=text, kernels=tuple(kernels), program="".join(program) + _RANGE)


_METAL_LIBRARY = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<metal_(stdlib|math|simdgroup)>", re.MULTILINE)
_SEPARATOR = re.compile(r"^// Function:", re.MULTILINE)
_RANGE = """
#if defined(__linux__)
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[], _end[];
extern "C" EMU_VISIBLE void emu_range(emu_u64* r) { r[0] = (emu_u64)__ehdr_start; r[1] = (emu_u64)_end; }
#else
extern "C" EMU_VISIBLE void emu_range(emu_u64* r) { r[0] = 0; r[1] = 0; }
#endif
"""


def _refuse_unknown(t: Text, i: int, kind: str) -> None:
    token = t.tokens[i]
    if token.kind != "name":
        return
    if token.text in ("asm", "__asm__", "__asm"):
        # A prelude may define functions that no kernel calls; calling one is an error of the compiler.
        end = i + 1
        while t.tokens[end].text != "(":
            end += 1
        end = t.close(end)
        t.edit(i, end, _register(t.text[token.start : t.tokens[end].end]) or "emu_assembly()")
    if kind == "metal" and token.text.startswith(("sampler", "texture", "atomic_")):
        raise t.refuse(i, f"{token.text} is not modelled")


def _register(assembly: str) -> str:
    """C++ for an instruction that only reads a register of the cluster, as in TVM's prelude; else empty."""
    found = _READS_REGISTER.fullmatch(assembly)
    return f"{found[2]} = {_REGISTERS[found[1]]}" if found and found[1] in _REGISTERS else ""


def _read_kernel(t: Text, at: int, kind: str, granule: int, kernels: list[Kernel]) -> int:
    """Reads the kernel whose keyword is at `at`; returns the index where it ends."""
    i = at + 1
    max_threads: int | None = None
    while t.tokens[i].text != "(":
        if t.tokens[i].text == "__launch_bounds__":
            end = t.close(i + 1)
            bound = t.tokens[i + 2].text
            max_threads = int(bound) if bound.isdigit() else None
            i = end
        i += 1
    name_at, open_at = i - 1, i
    close_at = t.close(open_at)
    if kind == "metal":
        t.edit(at, at, "static __attribute__((noinline))")
        if at and t.tokens[at - 1].text == "]":
            first = next(k for k in range(at - 1, -1, -1) if t.is_attribute(k))
            for attribute, argument, where in attributes(t, first, at - 1)[0]:
                if attribute != "max_total_threads_per_threadgroup":
                    raise t.refuse(where, f"attribute [[{attribute}]] is not known")
                max_threads = int(argument)
    if t.tokens[close_at + 1].text != "{":  # a declaration
        return close_at + 1
    body, body_end = close_at + 1, t.close(close_at + 1)
    for k in range(body, body_end):
        if t.tokens[k].text in ("asm", "__asm__", "__asm"):
            raise t.refuse(k, "inline assembly; the model executes C++ only")
    pieces = t.split(open_at + 1, close_at - 1)
    stored, aliased = stores(t, body, body_end, {name_of(t, p) for p in pieces})
    parameters: list[Parameter] = []
    call: list[str] = []
    for piece in pieces:
        found, argument = parameter(t, piece, kind, granule, len(parameters), stored, aliased)
        call.append(argument)
        if found is not None:
            parameters.append(found)
    if kind == "cuda":
        t.insert_after(
            body,
            " [[maybe_unused]] const emu_index threadIdx = emu_index_of(0), blockIdx = emu_index_of(1),"
            " blockDim = emu_index_of(2), gridDim = emu_index_of(3);",
        )
    kernels.append(
        Kernel(
            name=t.tokens[name_at].text,
            parameters=tuple(parameters),
            arrays=arrays(t, body, body_end, granule),
            max_threads=max_threads,
            line=t.line(name_at),
            call=tuple(call),
        )
    )
    return body_end


def _finish(t: Text, kind: str) -> None:
    """Edits outside declarations: literals, address spaces, restrict."""
    for i, token in enumerate(t.tokens):
        if token.text in ("__restrict__", "__restrict"):
            t.edit(i, i, "")
        elif kind != "metal":
            continue
        elif token.kind == "number" and token.text[-1] in "hH" and not token.text.lower().startswith("0x"):
            t.edit(
                i,
                i,
                f"half({token.text[:-1]}f)"
                if re.search(r"[.eE]", token.text)
                else f"half({token.text[:-1]})",
            )
        elif token.text in SPACES:
            t.edit(i, i, "const" if token.text == "constant" else "")


def _entry(number: int, kernel: Kernel) -> str:
    """C++ that calls a kernel with arguments from memory, and the tables of its arrays."""
    lines = []
    for shared in (False, True):
        rows = [
            f'  {{"{a.name}", {0 if a.dims == "[]" else f"sizeof({a.type}{a.dims})"}, '
            f"{a.align or f'alignof({a.type})'}, {a.granule}, {a.line}}},"
            for a in kernel.arrays
            if a.shared == shared
        ]
        label = "shareds" if shared else "locals"
        body = "\n".join(rows) or '  {"", 0, 1, 1, 0},'
        lines.append(f'extern "C" EMU_VISIBLE const emu_array emu_{label}_{number}[] = {{\n{body}\n}};')
    lines.append(
        f'extern "C" EMU_VISIBLE EMU_RAW void emu_entry_{number}(void** a) {{ (void)a; '
        f"{kernel.name}({', '.join(kernel.call)}); }}\n"
    )
    return "\n".join(lines)
