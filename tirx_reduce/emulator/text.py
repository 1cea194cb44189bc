"""Reads an emitted device text: its kernels, their parameters and arrays; and makes it compile for the CPU.

Every change keeps the lines where they are, so that faults name lines of the original.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count

from .errors import UnsupportedSource
from .tokens import Text

# Metal attributes of a kernel parameter, and how the runtime is asked for each.
_POSITIONS = {
    "thread_position_in_threadgroup": "emu_position<{t}>(0)",
    "threadgroup_position_in_grid": "emu_position<{t}>(1)",
    "threads_per_threadgroup": "emu_position<{t}>(2)",
    "threadgroups_per_grid": "emu_position<{t}>(3)",
    "thread_position_in_grid": "emu_grid_position<{t}>()",
    "thread_index_in_threadgroup": "{t}(emu_subgroup() * 32 + emu_lane())",
    "thread_index_in_simdgroup": "{t}(emu_lane())",
    "simdgroup_index_in_threadgroup": "{t}(emu_subgroup())",
    "threads_per_simdgroup": "{t}(32)",
}
_SPACES = frozenset({"device", "constant", "threadgroup", "thread"})
_QUALIFIERS = _SPACES | frozenset({"const", "volatile", "__restrict__", "restrict", "__restrict"})
_NOT_TYPES = frozenset(
    "return goto case else delete new using typedef struct union class enum throw break continue if for "
    "while do switch namespace template operator static_assert extern static".split()
)
# Clusters stretch along x only.
_REGISTERS = {
    "cluster_ctarank": "emu_cluster_rank()",
    "cluster_ctaid.x": "emu_cluster_rank()",
    "cluster_nctarank": "emu_cluster_size()",
    "cluster_nctaid.x": "emu_cluster_size()",
}
_READS_REGISTER = re.compile(
    r'\w+\s+(?:volatile|__volatile__)\s*\(\s*"mov\.u32 %0, %%([\w.]+);"\s*:\s*"=r"\((\w+)\)\s*:?\s*\)'
)
_ASSIGN = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="})


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a Metal argument struct; each takes 8 bytes."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument of a kernel."""

    name: str
    type: str
    """The type without qualifiers; of a pointer or reference, what it points to."""
    kind: str
    """`pointer`, `reference` (a Metal constant struct) or `value`."""
    constant: bool
    """Points to what the kernel may not write."""
    granule: int
    """Bytes of the smallest element that the text stores or loads through it."""
    stored: bool
    """The text stores through it."""
    aliased: bool
    """The text takes a pointer of it that it may store through."""
    fields: tuple[Field, ...] = ()
    """Members of the struct that a reference refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """One array of a kernel, in threadgroup or thread memory."""

    name: str
    type: str
    dims: str
    """`[4][2]`; empty for a scalar, `[]` where the launch gives the size."""
    align: int
    granule: int
    line: int
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel of a text."""

    name: str
    parameters: tuple[Parameter, ...]
    arrays: tuple[Array, ...]
    max_threads: int | None
    """What the text itself promises (`__launch_bounds__`)."""
    line: int
    call: tuple[str, ...]
    """The C++ arguments of a call, from the array `a` of pointers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A text that has been read."""

    kind: str
    text: str
    kernels: tuple[Kernel, ...]
    program: str
    """The C++ to compile."""

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name."""
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        known = ", ".join(k.name for k in self.kernels)
        raise UnsupportedSource(f"no kernel {name!r} in the text; it has {known}")


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
    granule = _smallest_cast(t)
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


def _attributes(t: Text, first: int, last: int) -> tuple[list[tuple[str, str, int]], list[int]]:
    """Attributes (name, argument, index) between two tokens, and the indices of all other tokens."""
    found: list[tuple[str, str, int]] = []
    rest: list[int] = []
    i = first
    while i <= last:
        if not t.is_attribute(i):
            rest.append(i)
            i += 1
            continue
        end = t.close(i)
        for start, stop in t.split(i + 2, end - 2):
            argument = "".join(x.text for x in t.tokens[start + 2 : stop]) if stop > start else ""
            found.append((t.tokens[start].text, argument, start))
        t.edit(i, end, "")
        i = end + 1
    return found, rest


def _scalar_bytes(type_name: str) -> int:
    """Bytes of an element of a type or vector type, 4 for all wider ones."""
    name = (
        re.sub(r"(?<=[a-z0-9])x?[2348]$", "", type_name)
        if not type_name.endswith(("8_t", "16_t"))
        else type_name
    )
    if re.fullmatch(r"(un)?signed char|u?char\d?|bool\d?|u?int8_t|__nv_fp8\w*|fp8\w*", name):
        return 1
    if re.fullmatch(r"u?short\d?|unsigned short|u?int16_t|_*half\d*|(__)?nv_bfloat16\d*", name):
        return 2
    return 4


def _smallest_cast(t: Text) -> int:
    """Bytes of the smallest element that a pointer cast of the text names."""
    smallest = 4
    for i, token in enumerate(t.tokens):
        if token.text not in "(<" or (i and t.tokens[i - 1].kind == "name" and token.text == "("):
            continue
        j = i + 1
        names = []
        while j < len(t.tokens) and t.tokens[j].kind == "name":
            if t.tokens[j].text not in _QUALIFIERS:
                names.append(t.tokens[j].text)
            j += 1
        casts = j + 1 < len(t.tokens) and t.tokens[j].text == "*" and t.tokens[j + 1].text in ")>"
        # Bytes of a register's own value are no bytes of an array.
        if names and casts and not _takes_address(t, j + 2):
            smallest = min(smallest, _scalar_bytes(" ".join(names)))
    return smallest


def _takes_address(t: Text, at: int) -> bool:
    while at < len(t.tokens) and t.tokens[at].text == "(":
        at += 1
    return at < len(t.tokens) and t.tokens[at].text == "&"


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
            for attribute, argument, where in _attributes(t, first, at - 1)[0]:
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
    stored, aliased = _stores(t, body, body_end, {_name_of(t, p) for p in pieces})
    parameters: list[Parameter] = []
    call: list[str] = []
    for piece in pieces:
        parameter, argument = _parameter(t, piece, kind, granule, len(parameters), stored, aliased)
        call.append(argument)
        if parameter is not None:
            parameters.append(parameter)
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
            arrays=_arrays(t, body, body_end, granule),
            max_threads=max_threads,
            line=t.line(name_at),
            call=tuple(call),
        )
    )
    return body_end


def _name_of(t: Text, piece: tuple[int, int]) -> str:
    name = ""
    for i in range(piece[0], piece[1] + 1):
        if t.tokens[i].text == "[":
            break
        if t.tokens[i].kind == "name":
            name = t.tokens[i].text
    return name


def _parameter(
    t: Text,
    piece: tuple[int, int],
    kind: str,
    granule: int,
    number: int,
    stored: set[str],
    aliased: set[str],
) -> tuple[Parameter | None, str]:
    """One parameter of a kernel and the C++ that fetches it; None for a position of Metal."""
    found, rest = _attributes(t, *piece)
    words = [t.tokens[i].text for i in rest]
    name = words[-1]
    type_name = " ".join(w for w in words[:-1] if w not in _QUALIFIERS and w not in "*&")
    if not type_name or not name.isidentifier():
        raise t.refuse(piece[0], f"parameter {' '.join(words)!r} is not understood")
    for attribute, _, where in found:
        if attribute in _POSITIONS and kind == "metal":
            return None, _POSITIONS[attribute].format(t=type_name)
        if attribute != "buffer" or kind != "metal":
            raise t.refuse(where, f"attribute [[{attribute}]] is not known")
    if kind == "metal" and not found:
        raise t.refuse(piece[0], f"parameter {name} has no attribute that says what it is")
    shape = "pointer" if "*" in words else "reference" if "&" in words else "value"
    if words.count("*") > 1 or ((shape == "value") == (kind == "metal") and shape != "pointer"):
        raise t.refuse(piece[0], f"parameter {name} is no buffer, struct or value")
    space = [w for w in words if w in _SPACES]
    if kind == "metal" and space not in (["device"], ["constant"]):
        raise t.refuse(
            piece[0], f"parameter {name} lies in {' '.join(space) or 'no'} memory; needs device or constant"
        )
    parameter = Parameter(
        name=name,
        type=type_name,
        kind=shape,
        constant="const" in words or "constant" in words,
        granule=min(granule, _scalar_bytes(type_name)) if shape == "pointer" else 4,
        stored=name in stored,
        aliased=name in aliased,
        fields=_fields(t, type_name, piece[0]) if shape == "reference" else (),
    )
    cast = f"{type_name} const*" if parameter.constant else f"{type_name}*"
    fetch = {
        "pointer": f"*({cast}*)a[{number}]",
        "reference": f"**({cast}*)a[{number}]",
        "value": f"*({cast})a[{number}]",
    }
    return parameter, fetch[shape]


def _fields(t: Text, struct: str, before: int) -> tuple[Field, ...]:
    """The members of the last struct of that name before a token."""
    for i in range(before - 1, 0, -1):
        if t.tokens[i].text == struct and t.tokens[i - 1].text == "struct":
            break
    else:
        raise t.refuse(before, f"the struct {struct} is not declared before")
    fields: list[Field] = []
    at, end = i + 2, t.close(i + 1)
    while at < end:
        stop = at
        while t.tokens[stop].text != ";":
            stop += 1
        words = [x.text for x in t.tokens[at:stop] if x.kind == "name"]
        fields.append(Field(words[-1], " ".join(words[:-1])))
        at = stop + 1
    return tuple(fields)


def _stores(t: Text, first: int, last: int, names: set[str]) -> tuple[set[str], set[str]]:
    """The parameters that the body stores through, and those that it makes other pointers from."""
    stored: set[str] = set()
    aliased: set[str] = set()
    for i in range(first, last):
        if t.tokens[i].text == "tirx_reduce_store_streaming":
            begin, end = t.split(i + 2, t.close(i + 1) - 1)[0]
            stored |= names & {x.text for x in t.tokens[begin : end + 1]}
        if t.tokens[i].text not in _ASSIGN and t.tokens[i].text not in ("++", "--"):
            continue
        j = i - 1
        while j > first and t.tokens[j].text not in (";", "{", "}"):
            j -= 1
        left = t.tokens[j + 1 : i]
        # A member of the same name (`threadIdx.x`) is none of them.
        bases = [
            x.text
            for x, before in zip(left, (t.tokens[j], *left), strict=False)
            if x.text in names and before.text not in (".", "->")
        ]
        if len(left) > 2 and left[-1].kind == "name" and left[-2].text in ("*", "&", "__restrict__", "const"):
            k = i
            while t.tokens[k].text != ";":
                if t.tokens[k].text in names:
                    aliased.add(t.tokens[k].text)
                k += 1
        elif bases:
            stored.add(bases[0])
    return stored, aliased


def _arrays(t: Text, first: int, last: int, granule: int) -> tuple[Array, ...]:
    """The arrays that the body declares; each declaration becomes a reference to memory of the runtime."""
    arrays: list[Array] = []
    counts = {True: 0, False: 0}
    for i in range(first, last):
        if t.tokens[i].text not in (";", "{", "}"):
            continue
        found = _array(t, i + 1, last, granule)
        if found is None:
            continue
        array, end = found
        number = counts[array.shared]
        counts[array.shared] += 1
        arrays.append(array)
        get = "emu_shared" if array.shared else "emu_local"
        if array.dims == "[]":
            new = f"{array.type}* {array.name} = static_cast<{array.type}*>(emu_shared({number}));"
        else:
            held = f"(&{array.name}){array.dims}" if array.dims else f"&{array.name}"
            new = f"{array.type} {held} = {get}_array<{array.type}{array.dims}>({number});"
        t.edit(i + 1, end, new)
    return tuple(arrays)


def _array(t: Text, at: int, last: int, granule: int) -> tuple[Array, int] | None:
    """The array declared by the statement at `at`, and the index of its semicolon."""
    align, shared, i = 0, False, at
    words: list[str] = []
    while i < last:
        token = t.tokens[i]
        if token.text in ("alignas", "__align__"):
            end = t.close(i + 1)
            if not t.tokens[i + 2].text.isdigit():
                raise t.refuse(i, "an alignment that is no number")
            align = int(t.tokens[i + 2].text)
            i = end
        elif token.text in ("threadgroup", "__shared__"):
            shared = True
        elif token.text in ("thread", "volatile", "const", "extern") or token.text == '"C"':
            pass
        elif token.kind == "name" and token.text not in _NOT_TYPES:
            words.append(token.text)
        else:
            break
        i += 1
    if len(words) < 2:
        return None
    name, type_name = words[-1], " ".join(words[:-1])
    dims = ""
    while t.tokens[i].text == "[":
        end = t.close(i)
        inner = t.text[t.tokens[i].end : t.tokens[end].start].strip()
        dims += f"[({inner})]" if inner else "[]"
        i = end + 1
    if t.tokens[i].text != ";":
        if shared and t.tokens[i].text != "*":
            raise t.refuse(at, f"the threadgroup array {name} has an initial value")
        return None
    if not shared and not dims:
        return None
    array = Array(
        name=name,
        type=type_name,
        dims=dims,
        align=align,
        granule=min(granule, _scalar_bytes(type_name)),
        line=t.line(at),
        shared=shared,
    )
    return array, i


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
        elif token.text in _SPACES:
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
