"""Runs a bare device text in several orders of lanes, and demands the same bits of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tirx_reduce.errors import check_type
from tirx_reduce.values import DeviceLimits

from .errors import EmulatorError, LimitExceeded, NotWritten, OrderDependent, Uninitialized, UnsupportedSource
from .kernels import Kernel, Parameter
from .machine import machine, poisoned
from .scalars import FLOATS, c_scalar, pack
from .session import INPUT, ORDERS, Counters, Library, Limits, Region, Session, limits_of

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """What an execution on the CPU model did; its results are in the caller's arrays."""

    counters: dict[str, Counters]
    """By kernel, of one order of lanes (all orders did the same)."""
    kernels: tuple[str, ...]
    """Kernels that were launched, in order of their first launch."""
    orders: tuple[str, ...]
    numerics: str
    source: str = field(repr=False)
    """The device text."""


@dataclass(frozen=True, slots=True)
class Held:
    """An array of the caller."""

    name: str
    array: Array
    granule: int
    role: str = ""
    """`in`, `out`, or "" where it is not known."""
    dtype: str = ""
    """What its elements are, where the array holds their bits; empty: the array's own dtype."""


def check_array(name: str, array: Array, role: str) -> None:
    """Refuses what has no plain row-major memory, and an output that cannot be written."""
    if role == "out" and not array.flags.writeable:
        raise _read_only(name)
    if not array.flags.c_contiguous:
        raise EmulatorError(f"{name} is not contiguous (strides {array.strides}); needs a row-major array")
    check_dtype(name, array)


def check_dtype(name: str, array: Array) -> None:
    """Refuses what are no numbers, and numbers whose bytes stand in the other order."""
    if array.dtype.hasobject or array.dtype.kind in "SU":
        raise EmulatorError(f"{name} has dtype {array.dtype}; needs numbers")
    # The memory of the model is this machine's: it would read other numbers.
    if not array.dtype.isnative:
        native = array.dtype.newbyteorder("=")
        raise EmulatorError(f"{name} has dtype {array.dtype.str}, bytes in the other order; needs {native}")


def _read_only(name: str) -> EmulatorError:
    return EmulatorError(f"{name} is read-only, and an output; needs an array that can be written")


def execute(
    held: Sequence[Held],
    orders: Sequence[str] | str,
    numerics: str,
    open_session: Callable[[str], Session],
    body: Callable[[Session, list[Region]], None],
    kind: str,
    source: str,
) -> Emulation:
    """Runs `body` once per order on fresh memory, compares the orders, and writes results back."""
    orders = _orders(orders)
    for a in held:
        check_array(a.name, a.array, a.role)
    groups = _shared_memory(held)
    first: list[bytes] | None = None
    counters: dict[str, Counters] = {}
    for order in orders:
        results, session = _once(held, groups, order, open_session, body, kind)
        if first is None:
            first, counters = results, session.counters
            continue
        for a, old, new in zip(held, first, results, strict=True):
            if old != new:
                raise _order_dependent(a, old, new, orders[0], order)
    _write_back(held, first or [])
    return Emulation(
        counters=counters, kernels=tuple(counters), orders=orders, numerics=numerics, source=source
    )


def _write_back(held: Sequence[Held], results: Sequence[bytes]) -> None:
    changed = [(a, data) for a, data in zip(held, results, strict=True) if data != a.array.tobytes()]
    # Before the first is written: which ones are outputs may not have been known until here.
    for a, _ in changed:
        if not a.array.flags.writeable:
            raise _read_only(a.name)
    for a, data in changed:
        a.array.reshape(-1).view(np.uint8)[...] = np.frombuffer(data, dtype=np.uint8)


def _shared_memory(held: Sequence[Held]) -> list[int]:
    """For each array, the number of the first one with the same memory."""
    out: list[int] = []
    for i, a in enumerate(held):
        same = i
        for j, b in enumerate(held[:i]):
            if not (a.array.size and b.array.size and np.may_share_memory(a.array, b.array)):
                continue
            if a.array.ctypes.data != b.array.ctypes.data or a.array.nbytes != b.array.nbytes:
                raise EmulatorError(
                    f"{a.name} and {b.name} overlap in memory in part; needs the same or none"
                )
            same = out[j]
            break
        out.append(same)
    return out


def _orders(given: Sequence[str] | str) -> tuple[str, ...]:
    """The orders to run; a single one may come by itself."""
    check_type("orders", given, Iterable, f"some of {', '.join(ORDERS)}", EmulatorError)
    orders = (given,) if isinstance(given, str) else tuple(given)
    if not orders:
        raise EmulatorError("no order of lanes is given; needs one of " + ", ".join(ORDERS))
    for order in orders:
        if order not in ORDERS:
            raise EmulatorError(f"order is {order!r}; needs one of {', '.join(ORDERS)}")
    return orders


def _once(
    held: Sequence[Held],
    groups: list[int],
    order: str,
    open_session: Callable[[str], Session],
    body: Callable[[Session, list[Region]], None],
    kind: str,
) -> tuple[list[bytes], Session]:
    watch = -1
    for attempt in range(2):
        session = open_session(order)
        session.runtime.emu_reset()
        regions: list[Region] = []
        for i, a in enumerate(held):
            if groups[i] != i:
                regions.append(regions[groups[i]])
                continue
            alone = groups.count(i) == 1
            flags = INPUT if a.role == "in" and alone else 0
            regions.append(session.region(a.array.tobytes(), a.array.nbytes, a.granule, flags, a.name))
        session.watch = watch
        body(session, regions)
        if attempt:
            break
        _check_written(held, regions, session)
        at = _find_poison(held, regions, session)
        if at is None:
            break
        watch = at
    if watch >= 0:
        found = session.watched
        text = "a value that nobody wrote reaches an output"
        raise Uninitialized(text, **_place(found, order))
    return [session.read(r) for r in regions], session


def _place(found: EmulatorError | None, order: str) -> dict[str, Any]:
    if found is None:
        return {"order": order}
    names = ("kernel", "line", "lane", "group", "buffer", "offset", "source")
    return {**{n: getattr(found, n) for n in names}, "order": order}


def _find_poison(held: Sequence[Held], regions: list[Region], session: Session) -> int | None:
    for a, region in zip(held, regions, strict=True):
        name = a.dtype or a.array.dtype.name
        if region.number not in session.stored:
            continue
        offset = poisoned(session.read(region), name)
        if offset >= 0 and poisoned(a.array.tobytes(), name) < 0:
            return region.address + offset
    return None


def _check_written(held: Sequence[Held], regions: list[Region], session: Session) -> None:
    for a, region in zip(held, regions, strict=True):
        if not region.bytes or not (a.role == "out" or (a.role == "" and region.number in session.stored)):
            continue
        missing, first = session.unwritten(region)
        if missing:
            total = region.bytes // a.granule
            raise NotWritten(
                f"{missing} of {total} elements of an output are never written",
                kernel=next(iter(session.counters), ""),
                buffer=a.name,
                offset=first,
                order=session.order,
            )


def _order_dependent(a: Held, old: bytes, new: bytes, first: str, order: str) -> OrderDependent:
    x, y = np.frombuffer(old, dtype=np.uint8), np.frombuffer(new, dtype=np.uint8)
    at = int(np.flatnonzero(x != y)[0])
    return OrderDependent(
        f"results differ between the orders {first} and {order}", buffer=a.name, offset=at, order=order
    )


def run_source(
    text: str,
    kind: str,
    arrays: Mapping[str, Any] | Sequence[Any],
    grid: Sequence[int] | int = (1, 1, 1),
    block: Sequence[int] | int = (1, 1, 1),
    numerics: str = "plain",
    orders: Sequence[str] | str = ORDERS,
    kernel: str | None = None,
    *,
    dynamic_bytes: int = 0,
    cluster: int = 1,
    dependent: bool = False,
    outputs: Sequence[str] | None = None,
    once: bool = True,
    seed: int = 0,
    limits: Limits | DeviceLimits | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Emulation:
    """Executes one kernel of a device text on the CPU model; outputs are written in place.

    Parameters
    ----------
    text : Metal or CUDA source, as TVM emits it.
    kind : `metal` or `cuda`.
    arrays : NumPy arrays and numbers, by parameter name or in the text's order. The members of a Metal
        argument struct count as parameters of their own, in place of the struct.
    grid, block : groups of the grid, threads of a group (x, y, z).
    numerics : `plain`, `fma` (multiply-adds are contracted) or `fast` (`-ffast-math`).
    orders : orders of lanes to run: `forward`, `reverse`, `random`; one, or several.
    kernel : name of the kernel, where the text has several.
    dynamic_bytes : threadgroup memory that the launch adds.
    cluster : groups along x that form a thread-block cluster (CUDA).
    dependent : whether the launch may start before the one before has ended (CUDA).
    outputs : names of the parameters that must be written completely, and once; all others must not be
        written. None: what the text stores to.
    once : whether a second write of an element is an error.
    seed : of the random order.
    limits : what a launch may ask for (`Limits` or `tirx_reduce.DeviceLimits`); None: the device's.
    cache_dir : where compiled kernels are kept; None: the user's cache folder.

    Returns
    -------
    Emulation
        Counters by kernel.

    Raises
    ------
    EmulatorError
        One of its kinds: any fault, or a text that the model does not know. No array is changed then.
    """
    model = machine(cache_dir)
    with model.lock:
        library = model.load(text, kind, numerics)
        names = [k.name for k in library.source.kernels]
        if kernel is None and len(names) > 1:
            raise UnsupportedSource(f"the text has the kernels {', '.join(names)}; name one with kernel=")
        chosen = library.source.kernel(kernel or names[0])
        given = _by_name(library, chosen, arrays)
        held = []
        for p in chosen.parameters:
            if p.kind == "pointer":
                if not isinstance(given[p.name], np.ndarray):
                    raise EmulatorError(
                        f"parameter {p.name} needs a NumPy array, not {type(given[p.name]).__name__}"
                    )
                role = "" if outputs is None else "out" if p.name in outputs else "in"
                held.append(Held(p.name, given[p.name], p.granule, role, FLOATS.get(p.type, "")))
        sizes = _three(grid, "grid"), _three(block, "block")

        def body(session: Session, regions: list[Region]) -> None:
            address = {h.name: r.address for h, r in zip(held, regions, strict=True)}
            values = [
                address[p.name] if p.kind == "pointer" else _scalar(p, given) for p in chosen.parameters
            ]
            session.launch(chosen, values, sizes[0], sizes[1], dynamic_bytes, cluster, dependent)

        def open_session(order: str) -> Session:
            return Session(model.runtime, library, order, seed, limits_of(limits, kind), once)

        return execute(held, orders, numerics, open_session, body, kind, text)


def _three(value: Sequence[int] | int, what: str) -> tuple[int, int, int]:
    sizes = [value] if isinstance(value, int) else [int(v) for v in value]
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise LimitExceeded(f"{what} is {value!r}; needs one to three sizes")
    x, y, z = [*sizes, 1, 1][:3]
    return x, y, z


def _by_name(library: Library, kernel: Kernel, arrays: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    names = [n for p in kernel.parameters for n in ([f.name for f in p.fields] if p.fields else [p.name])]
    if isinstance(arrays, Mapping):
        given = dict(arrays)
        # TVM prints `x_ptr` for a parameter x; both names are taken.
        for n in names:
            short = n.removesuffix("_ptr")
            if n not in given and short in given:
                given[n] = given.pop(short)
        unknown = sorted(set(given) - set(names))
        missing = [n for n in names if n not in given]
        if unknown or missing:
            raise EmulatorError(
                f"arguments {', '.join(unknown) or 'none'} unknown, {', '.join(missing) or 'none'} missing; "
                f"kernel {kernel.name} takes {', '.join(names)}"
            )
        return given
    if len(arrays) != len(names):
        raise EmulatorError(f"{len(arrays)} arguments; kernel {kernel.name} takes {', '.join(names)}")
    return dict(zip(names, arrays, strict=True))


def _scalar(p: Parameter, given: Mapping[str, Any]) -> Any:
    if p.kind == "reference":
        return pack(p, [given[f.name] for f in p.fields])
    return c_scalar(p.type, given[p.name])
