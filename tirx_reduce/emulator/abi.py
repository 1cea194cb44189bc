"""Structures that the runtime and Python share."""

from __future__ import annotations

import ctypes

_U32, _U64, _I32, _I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64


class Fault(ctypes.Structure):
    """What the runtime knows of a fault."""

    _fields_ = [
        ("kind", _I32),
        ("space", _I32),
        ("line", _I32),
        ("site", _I32),
        ("lane", _I32 * 3),
        ("block", _I32 * 3),
        ("other_lane", _I32),
        ("other_rank", _I32),
        ("region", _I32),
        ("write", _I32),
        ("bytes", _I32),
        ("offset", _I64),
        ("pc", ctypes.c_void_p),
        ("text", ctypes.c_char * 160),
    ]


class RawCounters(ctypes.Structure):
    """Counts of one launch."""

    _fields_ = [
        ("loads", _U64 * 4),
        ("stores", _U64 * 4),
        ("load_bytes", _U64 * 4),
        ("store_bytes", _U64 * 4),
        ("barriers", _U64),
        ("collectives", _U64),
        ("subgroup_barriers", _U64),
        ("cluster_barriers", _U64),
        ("async_copies", _U64),
        ("async_bytes", _U64),
        ("mailbox_waits", _U64),
    ]


class Launch(ctypes.Structure):
    """One launch: what to run, and what came of it."""

    _fields_ = [
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("locals", ctypes.c_void_p),
        ("shareds", ctypes.c_void_p),
        ("n_locals", _U32),
        ("n_shareds", _U32),
        ("grid", _U32 * 3),
        ("block", _U32 * 3),
        ("order", _U32),
        ("dynamic_bytes", _U32),
        ("cluster", _U32),
        ("dependent", _U32),
        ("flush", _U32),
        ("seed", _U64),
        ("max_accesses", _U64),
        ("module_lo", _U64),
        ("module_hi", _U64),
        ("watch", _I64),
        ("fault", Fault),
        ("watched", Fault),
        ("counters", RawCounters),
    ]


class ArrayRow(ctypes.Structure):
    """One array of a kernel, as its library lists it."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("bytes", _U32),
        ("align", _U32),
        ("granule", _U32),
        ("line", _U32),
    ]
