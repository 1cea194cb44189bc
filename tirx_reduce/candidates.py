"""Every mapping of a row onto a device, and why some are refused: facts and hard limits in, candidates out.

Legality never asks a cost policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from .ends import most_before, most_left, start_unit
from .facts_keep import Walks
from .program import Access, Load, RowIndex, item_bytes, walk
from .values import REUSES, Candidate, DeviceLimits, RowFacts

VECTORS = (1, 2, 4, 8)
VECTOR_BYTES = 16
"""Bytes of the widest access of both backends."""
METAL_LANES = 4
"""Elements of the widest vector type of Metal."""
WIDEST_DEFAULT_VECTOR = 4
"""Vector of the default scope; the published policies fix it."""
SPLITS = (1, 2, 4, 8, 16, 32, 64)
SHELVES = 3
"""Rows of a resident group that are in threadgroup memory at once: one that it computes, two on their way."""
MOST_ROWS = 16
"""Rows of one program: each is written out after the other, and TVM takes minutes over a thousand."""
MAILBOX_BYTES = 8
MIXED_SCALARS = 32
"""Values that a lane keeps of its row in registers under mixed reuse, about; the rest is in threadgroup memory."""

CUDA_REGISTERS = 65536
"""Of a multiprocessor, of 32 bits each; all threads of a group share them (CUDA C++ Programming Guide)."""
SPARE_REGISTERS = 24
"""What a lane needs beside the values that it keeps. On an H200 kernels with 16 to spare spilled, with 52 none did."""

Scope: TypeAlias = Callable[[RowFacts, DeviceLimits, "int | None", "int | None"], Iterable[Candidate]]
"""(facts, limits, rows, columns) to the candidates that are looked at."""


def enumerate_candidates(
    facts: RowFacts,
    limits: DeviceLimits,
    *,
    rows: int | None = None,
    columns: int | None = None,
    scope: Scope | None = None,
) -> tuple[tuple[Candidate, str | None], ...]:
    """The candidates of a scope, each with the reason of its refusal, or None where it is legal.

    Parameters
    ----------
    facts
        What is proved of the function.
    limits
        Hard limits of the device.
    rows, columns
        Sizes to assume where the function leaves them open.
    scope
        Which candidates to look at; `default_scope` where it is None, `full_scope` for all of them.
    """
    looked_at = (scope or default_scope)(facts, limits, rows, columns)
    needs, n = _needs(facts), _columns(facts, columns)
    return tuple((c, _refusal(c, facts, needs, limits, n)) for c in looked_at)


def default_scope(
    facts: RowFacts, limits: DeviceLimits, rows: int | None = None, columns: int | None = None
) -> Iterator[Candidate]:
    """Whole-subgroup widths × {reload, private}, the widest legal vector up to 4; all else 1."""
    vector = widest_vector(facts, limits, columns=columns)
    for width in range(limits.subgroup_size, limits.max_threads + 1, limits.subgroup_size):
        for reuse in ("reload", "private"):
            yield Candidate(width=width, vector=vector, reuse=reuse)


def full_scope(
    facts: RowFacts, limits: DeviceLimits, rows: int | None = None, columns: int | None = None
) -> Iterator[Candidate]:
    """Every width, packing, vector, reuse and split, impossible ones included: thousands, so lazy."""
    for width in widths(limits):
        for packing in _powers(limits.max_threads // width):
            for vector in VECTORS:
                for reuse in REUSES:
                    for splits in SPLITS if packing == 1 else (1,):
                        yield Candidate(
                            width=width, packing=packing, vector=vector, reuse=reuse, splits=splits
                        )


def widths(limits: DeviceLimits) -> tuple[int, ...]:
    """Powers of two below the subgroup size, then its multiples up to the limit."""
    short = _powers(limits.subgroup_size // 2)
    return short + tuple(range(limits.subgroup_size, limits.max_threads + 1, limits.subgroup_size))


def widest_vector(
    facts: RowFacts, limits: DeviceLimits, *, columns: int | None = None, up_to: int = WIDEST_DEFAULT_VECTOR
) -> int:
    """The widest legal vector of up to `up_to` elements."""
    needs, n = _needs(facts), _columns(facts, columns)
    return max(v for v in VECTORS if v <= up_to and _vector_refusal(v, needs, limits, n) is None)


def refusal(
    candidate: Candidate,
    facts: RowFacts,
    limits: DeviceLimits,
    *,
    rows: int | None = None,
    columns: int | None = None,
) -> str | None:
    """Why `candidate` is illegal for the function on the device, in words; None where it is legal."""
    return _refusal(candidate, facts, _needs(facts), limits, _columns(facts, columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """What legality needs of a row program, looked up once for all candidates."""

    narrowest: int
    """Bytes of the narrowest element along the columns: a packet of wider ones takes several accesses."""
    loose: tuple[tuple[str, int], ...]
    """Matrices whose rows are not dense: name, and what their starts are multiples of."""
    slot_bytes: int
    """Bytes that one subgroup hands to the others in a collective."""
    kept_bytes: int
    """Bytes of what is kept of one column, as it stands in memory."""
    kept_as_read: bool
    """Whether that is one element of a dense matrix, as it was read."""
    dense: tuple[str, ...]
    """Dtypes of the dense matrices that the first walk may read."""
    exchanges: int
    """Walks that end in a collective, at most."""


def _needs(facts: RowFacts) -> _Needs:
    program = facts.program
    names = {t.param: t.name for t in program.tensors}
    accesses: list[tuple[int, str, Access]] = [(o.param, o.dtype, o.index) for o in program.outputs]
    roots = [o.value for o in program.outputs] + [e for r in program.reductions for e in r.elements]
    accesses += [(e.param, e.dtype, e.index) for e in walk(*roots) if isinstance(e, Load)]
    along = [(p, d, a) for p, d, a in accesses if a.stride == 1]
    # A vector over the columns alone is read in two packets, or in scalars, where a ragged row shifts it: no limit.
    matrices = [(p, a) for p, _, a in along if any(isinstance(e, RowIndex) for e in walk(a.row))]
    walks = Walks(program)
    kept, first = walks.kept(), walks.roots[0] if walks.roots else ()
    return _Needs(
        narrowest=min((item_bytes(dtype) for _, dtype, _ in along), default=1),
        loose=tuple((names.get(p, f"parameter {p}"), a.align) for p, a in matrices if not a.dense),
        slot_bytes=sum(item_bytes(d) for r in program.reductions for d in r.dtypes),
        kept_bytes=sum(item_bytes(v.dtype) for v in kept),
        kept_as_read=len(kept) == 1 and isinstance(kept[0], Load) and kept[0].index.dense,
        dense=tuple(e.dtype for e in dict.fromkeys(walk(*first)) if isinstance(e, Load) and e.index.dense),
        exchanges=program.depth,
    )


def _refusal(
    candidate: Candidate, facts: RowFacts, needs: _Needs, limits: DeviceLimits, columns: int | None
) -> str | None:
    return (
        _group_refusal(candidate, limits)
        or _count_refusal(candidate, facts.rows)
        or _argument_refusal(facts, limits)
        or _dtype_refusal(facts, limits)
        or _vector_refusal(candidate.vector, needs, limits, columns)
        or _split_refusal(candidate, limits, columns)
        or _reuse_refusal(candidate, facts, needs, limits)
        or _resident_refusal(candidate, facts, needs, limits)
        or _rows_refusal(candidate)
    )


def private_scalars(candidate: Candidate, kept: int, columns: int) -> int:
    """Values that one lane keeps of its row under private reuse."""
    lanes = candidate.width * candidate.splits
    return kept * math.ceil(columns / (lanes * candidate.vector)) * candidate.vector


def private_rounds(candidate: Candidate, kept: int, columns: int) -> int:
    """Rounds over packets that a lane keeps in registers under mixed reuse: at least one, and not the last.

    >>> private_rounds(Candidate(width=256, vector=8, reuse="mixed"), 1, 16384)
    4
    """
    return max(1, min(MIXED_SCALARS // (kept * candidate.vector), _rounds(candidate, columns) - 1))


def _rounds(candidate: Candidate, columns: int) -> int:
    """Packets of the busiest lane."""
    return math.ceil(columns // candidate.vector / (candidate.width * candidate.splits))


def _columns(facts: RowFacts, columns: int | None) -> int | None:
    return facts.columns if facts.columns is not None else columns


def _group_refusal(candidate: Candidate, limits: DeviceLimits) -> str | None:
    width, subgroup = candidate.width, limits.subgroup_size
    if candidate.threads > limits.max_threads:
        return f"group: {candidate.threads} threads; limit {limits.max_threads}"
    if width > subgroup and width % subgroup:
        return f"width: {width} lanes; needs a multiple of the subgroup's {subgroup}"
    if width < subgroup and width & (width - 1):
        return f"width: {width} lanes; needs a power of two below the subgroup's {subgroup}"
    if candidate.packing & (candidate.packing - 1):
        return f"packing: {candidate.packing} programs; needs a power of two"
    if candidate.threads % subgroup:
        return f"group: {candidate.threads} threads; needs whole subgroups of {subgroup}"
    if candidate.unroll != 1:
        return f"unroll: {candidate.unroll} packets; only 1 is emitted"
    return None


def _count_refusal(candidate: Candidate, rows: int | None) -> str | None:
    """Groups are counted in 32 bits, as rows are, those included that the last group has and the tensor has not."""
    each, groups = candidate.rows_a_group, candidate.groups(rows or 0)
    if groups // candidate.splits * each > 2**31:
        return f"rows: {rows} in groups of {each}; needs no more than 2^31 when the last one is full"
    return f"groups: {groups}; needs fewer than 2^31" if groups >= 2**31 else None


def _dtype_refusal(facts: RowFacts, limits: DeviceLimits) -> str | None:
    narrow = [d for d in facts.storage if "float8" in d]
    if limits.kind == "metal" and narrow:
        return f"dtype: {narrow[0]} on metal; needs a dtype that Metal has, such as float16 or int8"
    return None


def _argument_refusal(facts: RowFacts, limits: DeviceLimits) -> str | None:
    if facts.arguments > limits.max_arguments:
        return f"arguments: {facts.arguments} of the kernel; limit {limits.max_arguments}"
    return None


def _vector_refusal(vector: int, needs: _Needs, limits: DeviceLimits, columns: int | None) -> str | None:
    if vector == 1:
        return None
    if vector not in VECTORS:
        return f"vector: {vector} elements; needs one of {', '.join(map(str, VECTORS))}"
    if columns is not None and vector > columns:
        return f"vector: {vector} elements; the row has {columns}"
    if limits.kind == "metal" and vector > METAL_LANES:
        return f"vector: {vector} elements; limit {METAL_LANES} on metal"
    if vector * needs.narrowest > VECTOR_BYTES:
        return f"vector: {vector * needs.narrowest} bytes an access; limit {VECTOR_BYTES}"
    for name, align in needs.loose:
        if align % vector:
            return (
                f"vector: rows of {name} start at multiples of {align}; "
                f"needs multiples of {vector}, or dense rows"
            )
    return None


@lru_cache(maxsize=64)
def _split_refusal(candidate: Candidate, limits: DeviceLimits, columns: int | None) -> str | None:
    splits = candidate.splits
    if splits == 1:
        return None
    if splits & (splits - 1):
        return f"splits: {splits} groups; needs a power of two"
    if candidate.packing > 1:
        return f"splits: {splits} with packing {candidate.packing}; needs one of them 1"
    if splits > limits.max_cluster and candidate.reuse != "reload":
        return f"splits: {candidate.reuse} values do not outlive their group; needs reload"
    if candidate.width < limits.subgroup_size:
        return f"splits: {splits} groups of {candidate.width} lanes; needs whole subgroups"
    least = splits * candidate.width * candidate.vector
    if columns is not None and least > columns:
        return f"splits: {splits} groups take {least} columns a step; the row has {columns}"
    return None


def _reuse_refusal(candidate: Candidate, facts: RowFacts, needs: _Needs, limits: DeviceLimits) -> str | None:
    reuse = candidate.reuse
    slots = _slot_bytes(candidate, needs, limits)
    if reuse == "reload":
        return _shared_refusal(reuse, slots, limits.shared_bytes)
    if facts.kept == 0:
        return f"{reuse}: no pass reads again what an earlier one read"
    if facts.columns is None:
        return f"{reuse}: the number of columns is symbolic; needs a fixed one"
    if reuse == "private":
        scalars = private_scalars(candidate, facts.kept, facts.columns) * candidate.rows
        if scalars > limits.private_scalars:
            return f"private: {scalars} scalars a lane; limit {limits.private_scalars}"
        room = _registers(candidate, limits)
        if scalars > room:
            return f"private: {scalars} scalars a lane of {candidate.threads}; registers hold {room}"
        return _shared_refusal(reuse, slots, limits.shared_bytes)
    if reuse == "mixed":
        return _mixed_refusal(candidate, facts.kept, facts.columns, needs, slots, limits)
    needed = needs.kept_bytes * _lane_slots(candidate, facts.columns) + slots
    return _shared_refusal(reuse, needed, _shared_room(facts.kept, limits))


def _registers(candidate: Candidate, limits: DeviceLimits) -> float:
    """Values that a lane can keep without spilling; what Apple's GPUs have is not published."""
    if limits.kind != "cuda":
        return math.inf
    return max(0, CUDA_REGISTERS // candidate.threads // 8 * 8 - SPARE_REGISTERS)


def _slot_bytes(candidate: Candidate, needs: _Needs, limits: DeviceLimits) -> int:
    """The subgroups of a group exchange partial results, where there are several to a program."""
    subgroups = candidate.threads // limits.subgroup_size if candidate.width > limits.subgroup_size else 0
    return needs.slot_bytes * subgroups


def _mixed_refusal(
    candidate: Candidate, kept: int, columns: int, needs: _Needs, slots: int, limits: DeviceLimits
) -> str | None:
    vector, rounds = candidate.vector, _rounds(candidate, columns)
    if rounds < 2:
        return f"mixed: {rounds} round of packets; needs 2 or more, the last for threadgroup memory"
    near = private_rounds(candidate, kept, columns)
    scalars = kept * (near * vector + _left(candidate, columns))
    if scalars > limits.private_scalars:
        return f"mixed: {scalars} scalars a lane; limit {limits.private_scalars}"
    far = (rounds - near) * vector * candidate.threads
    return _shared_refusal("mixed", needs.kept_bytes * far + slots, _shared_room(kept, limits))


def _shared_room(kept: int, limits: DeviceLimits) -> int:
    """Bytes of threadgroup memory: only one array can be in what a kernel asks for at its launch."""
    return limits.shared_bytes if kept > 1 else max(limits.shared_bytes, limits.opt_in_shared_bytes)


def _lane_slots(candidate: Candidate, columns: int) -> int:
    """Elements that the lanes of a group have room for: whole packets, and what is left at the ends of a row."""
    each = _rounds(candidate, columns) * candidate.vector + _left(candidate, columns)
    return each * candidate.threads


def _left(candidate: Candidate, columns: int) -> int:
    """Elements that the busiest lane takes at the ends of a row."""
    left = most_left(columns, candidate.vector, most_before(columns, start_unit(candidate)))
    return math.ceil(left / (candidate.width * candidate.splits))


def _resident_refusal(
    candidate: Candidate, facts: RowFacts, needs: _Needs, limits: DeviceLimits
) -> str | None:
    if not candidate.resident:
        return None
    if limits.kind != "cuda" or limits.opt_in_shared_bytes == 0:
        return f"resident: asynchronous copies on {limits.kind}; needs CUDA, sm_80 or later"
    if candidate.reuse not in ("private", "shared") or candidate.packing > 1:
        return f"resident: {candidate.reuse} with packing {candidate.packing}; needs private or shared, and packing 1"
    if facts.columns is None:
        return "resident: rows of symbolic columns; needs fixed ones"
    if facts.columns % candidate.vector and candidate.reuse == "private":
        return f"resident: rows of {facts.columns} columns in registers; needs a multiple of the vector"
    # What is loaded once for all rows of a group stands beside all of them alike.
    apart, unit = candidate.resident // candidate.splits, start_unit(candidate)
    if apart * facts.columns % unit:
        return (
            f"resident: rows of {facts.columns} columns, {apart} from one to the next of a group; "
            f"needs a multiple of {unit} elements from start to start"
        )
    if apart * facts.columns >= 2**31:
        return f"resident: {apart * facts.columns} elements from a row of a group to its next; needs fewer than 2^31"
    # What is left at the ends of a row stays in registers.
    slots = _rounds(candidate, facts.columns) * candidate.vector * candidate.threads
    if candidate.reuse == "shared":
        return _shelves_refusal(candidate, facts.rows, needs.kept_bytes * slots, needs, limits)
    if candidate.splits > 1:
        return f"resident: private rows over {candidate.splits} groups; needs shared, or a row in one group"
    # Copied ahead are the matrices of one dtype whose packets are one copy each.
    copied = [needs.dense.count(d) for d in needs.dense if item_bytes(d) * candidate.vector == VECTOR_BYTES]
    if not copied:
        return f"resident: no dense matrix with packets of {VECTOR_BYTES} bytes; copies take that many each"
    row_bytes = max(copied) * VECTOR_BYTES // candidate.vector * slots
    needed = row_bytes + 2 * _slot_bytes(candidate, needs, limits)
    return _shared_refusal("resident", needed, limits.opt_in_shared_bytes)


def _shelves_refusal(
    candidate: Candidate, rows: int | None, row_bytes: int, needs: _Needs, limits: DeviceLimits
) -> str | None:
    """Of resident groups whose rows stay in threadgroup memory, several on their way."""
    if not needs.kept_as_read:
        return "resident: what is kept is computed; needs private, or rows kept as they are read"
    if needs.kept_bytes * candidate.vector != VECTOR_BYTES:
        return f"resident: packets of {needs.kept_bytes * candidate.vector} bytes; copies take {VECTOR_BYTES} each"
    if rows is None:
        return "resident: the number of rows is symbolic; needs a fixed one, or private"
    if candidate.resident % candidate.splits:
        return (
            f"resident: {candidate.resident} groups in clusters of {candidate.splits}; needs whole clusters"
        )
    # In a cluster every row has slots and mailboxes of its own, one an exchange, which a lane opens.
    parts = candidate.threads // limits.subgroup_size * candidate.splits
    turns = 2 if candidate.splits == 1 else math.ceil(rows / (candidate.resident // candidate.splits))
    if turns > candidate.width:
        return f"resident: {turns} rows a cluster; needs as many lanes, which have {candidate.width}"
    slots = turns * (parts * needs.slot_bytes + needs.exchanges * MAILBOX_BYTES)
    if slots > limits.shared_bytes:
        return f"resident: {slots} bytes for the exchanges of {turns} rows; limit {limits.shared_bytes}"
    return _shared_refusal("resident", SHELVES * row_bytes + slots, limits.opt_in_shared_bytes)


def _rows_refusal(candidate: Candidate) -> str | None:
    shared = candidate.reuse in ("shared", "mixed")
    if candidate.rows > 1 and (shared or candidate.splits > 1 or candidate.resident):
        return (
            f"rows: {candidate.rows} a program; needs a row in one group, its values in registers or reloaded"
        )
    if candidate.rows > MOST_ROWS:
        return f"rows: {candidate.rows} a program, written out one after another; limit {MOST_ROWS}"
    return None


def _shared_refusal(reuse: str, needed: int, room: int) -> str | None:
    return f"{reuse}: {needed} bytes of threadgroup memory; limit {room}" if needed > room else None


def _powers(limit: int) -> tuple[int, ...]:
    return tuple(1 << k for k in range(max(0, limit).bit_length()))
