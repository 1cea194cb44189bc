"""Declarations of a kernel: its parameters and where it stores, its arrays and where they come to lie."""

from __future__ import annotations

import re

from .kernels import Array, Field, Parameter
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
SPACES = frozenset({"device", "constant", "threadgroup", "thread"})
_QUALIFIERS = SPACES | frozenset({"const", "volatile", "__restrict__", "restrict", "__restrict"})
_NOT_TYPES = frozenset(
    "return goto case else delete new using typedef struct union class enum throw break continue if for "
    "while do switch namespace template operator static_assert extern static".split()
)
# Clusters stretch along x only.
_ASSIGN = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="})


def attributes(t: Text, first: int, last: int) -> tuple[list[tuple[str, str, int]], list[int]]:
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


def smallest_cast(t: Text) -> int:
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


def name_of(t: Text, piece: tuple[int, int]) -> str:
    """The name that a parameter declares: the last word before its attributes."""
    name = ""
    for i in range(piece[0], piece[1] + 1):
        if t.tokens[i].text == "[":
            break
        if t.tokens[i].kind == "name":
            name = t.tokens[i].text
    return name


def parameter(
    t: Text,
    piece: tuple[int, int],
    kind: str,
    granule: int,
    number: int,
    stored: set[str],
    aliased: set[str],
) -> tuple[Parameter | None, str]:
    """One parameter of a kernel and the C++ that fetches it; None for a position of Metal."""
    found, rest = attributes(t, *piece)
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
    space = [w for w in words if w in SPACES]
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


def stores(t: Text, first: int, last: int, names: set[str]) -> tuple[set[str], set[str]]:
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


def arrays(t: Text, first: int, last: int, granule: int) -> tuple[Array, ...]:
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
