"""Runs TVM's own compiled host function with the CPU model in place of the device."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tirx_reduce.values import DeviceLimits

from .errors import EmulatorError, UnsupportedSource
from .linked import DEVICE, LinkedHost
from .machine import Machine, machine
from .run import Emulation, Held, check_dtype, execute
from .session import ORDERS, Library, Limits, Region, Session, limits_of
from .tensors import BITS, dtype_of


def emulate(
    executable_or_func: Any,
    *arrays: Any,
    target: Any = None,
    orders: Sequence[str] | str = ORDERS,
    numerics: str = "plain",
    seed: int = 0,
    entry: str | None = None,
    outputs: Sequence[int] | None = None,
    once: bool = True,
    limits: Limits | DeviceLimits | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Emulation:
    """Executes a compiled function on the CPU model of the GPU: host function, launches and kernels.

    Parameters
    ----------
    executable_or_func : what `tvm.compile` returned for a PrimFunc (or for an IRModule, with `entry`), or a
        PrimFunc; one that is not scheduled goes through `tirx_reduce.compile` first.
    arrays : NumPy arrays and numbers in the order of the parameters. Outputs are written in place. bfloat16
        and 8-bit floats are arrays of `ml_dtypes`, or bits in uint16 and uint8.
    target : where a PrimFunc is given and carries none; of what was built already it must be the kind.
    orders, numerics, seed, limits, cache_dir : as in `run_source`.
    entry : the function of the module to call.
    outputs : positions of the parameters that must be written completely; None: what a kernel stores to.
    once : whether a second write of an output's element within one launch is an error. Kernels of this package write
        once; others, such as TVM's own for what was declined, may accumulate in place.

    Returns
    -------
    Emulation
        Counters by kernel.

    Raises
    ------
    EmulatorError
        One of its kinds. No array is changed then.
    """
    executable, entry = _executable(executable_or_func, target, entry)
    module = getattr(executable, "mod", executable)
    if not hasattr(module, "imports"):
        raise EmulatorError(
            f"what to run is of type {type(module).__name__}; needs what tr.compile returned, or a PrimFunc"
        )
    host, device = _modules(module)
    kind = str(device.kind)
    _check_target(target, kind)
    text = device.inspect_source()
    model = machine(cache_dir)
    with model.lock:
        library = model.load(text, kind, numerics)
        called = _host(executable, module, host, library, model, entry)
        held, plan = _hold(arrays, called, outputs)

        def open_session(order: str) -> Session:
            return Session(model.runtime, library, order, seed, limits_of(limits, kind), once)

        def body(session: Session, regions: list[Region]) -> None:
            called.call(session, plan, held, regions)

        return execute(held, orders, numerics, open_session, body, kind, text)


def _check_target(target: Any, kind: str) -> None:
    """What was built already is for one kind of device."""
    if target is None:
        return
    wanted = _schedules().as_target(target).kind.name
    if wanted != kind:
        raise EmulatorError(
            f"target is {wanted} and the kernels are for {kind}; needs the same, or no target"
        )


# The last executables and their linked hosts: writing the object file costs more than a run.
_HOSTS: dict[tuple[int, str | None, int], tuple[Any, Library, LinkedHost]] = {}


def _host(
    executable: Any, module: Any, host: Any, library: Library, model: Machine, entry: str | None
) -> LinkedHost:
    key = (id(executable), entry, id(model))
    found = _HOSTS.get(key)
    if found is not None and found[0] is executable:
        called = found[2]
        called.library = library
        return called
    called = LinkedHost(host, library, model.folder, entry)
    called.launches = _launch_tags(module, library)
    if len(_HOSTS) >= 64:
        _HOSTS.pop(next(iter(_HOSTS)))
    _HOSTS[key] = (executable, library, called)
    return called


def _executable(given: Any, target: Any, entry: str | None) -> tuple[Any, str | None]:
    import tvm

    if isinstance(given, tvm.tirx.PrimFunc):
        attrs = dict(given.attrs) if given.attrs is not None else {}
        if target is None and "target" not in attrs:
            raise EmulatorError("the PrimFunc carries no target; needs target=")
        schedules = _schedules()
        if target is not None:
            target = schedules.as_target(target)
        if attrs.get("tirx.is_scheduled"):
            return schedules.build(given, target if target is not None else attrs["target"]), entry
        import tirx_reduce

        return tirx_reduce.compile(given, target if target is not None else attrs["target"]), entry
    return given, entry


def _schedules() -> Any:
    """The emitter, which only those need who bring a PrimFunc or a target."""
    return import_module("tirx_reduce.schedules")


def _modules(module: Any) -> tuple[Any, Any]:
    """The host module and the device module below it."""
    found: list[tuple[Any, Any]] = []
    seen: list[Any] = [module]
    while seen:
        at = seen.pop()
        for imported in at.imports:
            if str(imported.kind) in DEVICE:
                found.append((at, imported))
            else:
                seen.append(imported)
    if not found:
        raise UnsupportedSource(
            "the module has no Metal or CUDA kernels; needs a function that was scheduled for a GPU, "
            "and rows (with none that are known, nothing is launched and nothing is written)"
        )
    if len(found) > 1:
        raise UnsupportedSource(f"the module has {len(found)} device modules; needs one")
    return found[0]


def _launch_tags(module: Any, library: Library) -> dict[str, list[str]]:
    """For each kernel, what the host passes after the arguments (`blockIdx.x`, …), as TVM describes it."""
    import tvm_ffi

    pack_imports = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")
    blob = pack_imports(module).numpy().tobytes()
    tags: dict[str, list[str]] = {}
    for kernel in library.source.kernels:
        name = kernel.name.encode()
        key = struct.pack("<Q", len(name)) + name
        at = blob.find(key + key)
        if at < 0:
            raise UnsupportedSource(f"TVM's description of {kernel.name} is not found in the module")
        at += 2 * len(key)
        (count,) = struct.unpack_from("<Q", blob, at)
        at += 8 + 4 * count
        (n,) = struct.unpack_from("<Q", blob, at)
        at += 8
        tags[kernel.name] = []
        for _ in range(n):
            (size,) = struct.unpack_from("<Q", blob, at)
            tags[kernel.name].append(blob[at + 8 : at + 8 + size].decode())
            at += 8 + size
    return tags


def _roles(outputs: Any, count: int) -> list[str]:
    """For each of `count` arguments `out` or `in`, or "" where no outputs were named."""
    if outputs is None:
        return [""] * count
    positions = list(outputs) if isinstance(outputs, Iterable) else [None]
    if any(p not in range(count) for p in positions):
        raise EmulatorError(f"outputs is {outputs!r}; needs positions among the {count} arguments, from 0")
    return ["out" if i in positions else "in" for i in range(count)]


def _hold(
    arrays: Sequence[Any], host: LinkedHost, outputs: Sequence[int] | None
) -> tuple[list[Held], list[Any]]:
    held: list[Held] = []
    plan: list[Any] = []
    roles = _roles(outputs, len(arrays))
    for i, a in enumerate(arrays):
        wanted = host.dtypes[i] if i < len(host.dtypes) else None
        if isinstance(a, np.ndarray) and a.ndim == 0 and wanted == "":
            a = a[()]
        if not isinstance(a, np.ndarray):
            if not isinstance(a, (int, float, np.generic)):
                raise EmulatorError(f"argument {i} is a {type(a).__name__}; needs a NumPy array or a number")
            plan.append(a.item() if isinstance(a, np.generic) else a)
            continue
        check_dtype(f"argument {i}", a)
        # Bits of a type that NumPy lacks come as unsigned integers of its size.
        bits = a.dtype in (np.uint8, np.uint16) and BITS.get(wanted or "", (0, 0))[1] == 8 * a.dtype.itemsize
        name = wanted if bits and wanted else a.dtype.name
        held.append(Held(f"argument {i}", a, min(a.dtype.itemsize, 4), roles[i], name))
        plan.append(dtype_of(name))
    return held, plan
