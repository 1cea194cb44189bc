"""Runs TVM's own compiled host function with the CPU model in place of the device."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import toolchain
from .errors import EmulatorError, UnsupportedSource
from .machine import (
    ORDERS,
    WORKSPACE,
    Library,
    Limits,
    Machine,
    Region,
    Session,
    default_limits,
    machine,
)
from .run import Emulation, Held, c_scalar, execute, pack
from .text import Kernel

_AXES = ("x", "y", "z")
# DLPack's numbers of the devices.
_DEVICE = {"metal": 8, "cuda": 2}

_WITHOUT_VALUE = ("tirx.use_programtic_dependent_launch",)
"""Launch tags for which the host passes nothing (TVM's own spelling)."""


def emulate(
    executable_or_func: Any,
    *arrays: Any,
    target: Any = None,
    orders: Sequence[str] = ORDERS,
    numerics: str = "plain",
    seed: int = 0,
    entry: str | None = None,
    outputs: Sequence[int] | None = None,
    once: bool = True,
    limits: Limits | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Emulation:
    """Executes a compiled function on the CPU model of the GPU: host function, launches and kernels.

    Parameters
    ----------
    executable_or_func : what `tvm.compile` returned for a PrimFunc (or for an IRModule, with `entry`), or a
        PrimFunc; one that is not scheduled goes through `tirx_reduce.compile` first.
    arrays : NumPy arrays and numbers in the order of the parameters. Outputs are written in place. bfloat16
        and 8-bit floats are arrays of `ml_dtypes`, or bits in uint16 and uint8.
    target : where a PrimFunc is given and carries none.
    orders, numerics, seed, limits, cache_dir : as in `run_source`.
    entry : the function of the module to call.
    outputs : positions of the parameters that must be written completely; None: what a kernel stores to.
    once : whether a second write of an output's element within one launch is an error.

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
    host, device = _modules(module)
    kind = str(device.kind)
    text = device.inspect_source()
    model = machine(cache_dir)
    with model.lock:
        library = model.load(text, kind, numerics)
        called = _host(executable, module, host, library, model, entry)
        held, plan = _hold(arrays, called, outputs)

        def open_session(order: str) -> Session:
            return Session(model, library, order, seed, limits or default_limits(kind), once)

        def body(session: Session, regions: list[Region]) -> None:
            called.call(session, plan, held, regions)

        return execute(held, orders, numerics, open_session, body, kind, text)


# The last executables and their linked hosts: writing the object file costs more than a run.
_HOSTS: dict[tuple[int, str | None, int], tuple[Any, Library, _Host]] = {}


def _host(
    executable: Any, module: Any, host: Any, library: Library, model: Machine, entry: str | None
) -> _Host:
    key = (id(executable), entry, id(model))
    found = _HOSTS.get(key)
    if found is not None and found[0] is executable:
        called = found[2]
        called.library = library
        return called
    called = _Host(host, library, model.folder, entry)
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
        if target is not None:
            target = tvm.target.Target(target)
        if attrs.get("tirx.is_scheduled"):
            from importlib import import_module

            try:
                build = import_module("tirx_reduce.schedules").build
            except (ImportError, AttributeError):
                build = tvm.compile
            return build(given, target if target is not None else attrs["target"]), entry
        import tirx_reduce

        return tirx_reduce.compile(given, target if target is not None else attrs["target"]), entry
    return given, entry


def _modules(module: Any) -> tuple[Any, Any]:
    """The host module and the device module below it."""
    found: list[tuple[Any, Any]] = []
    seen: list[Any] = [module]
    while seen:
        at = seen.pop()
        for imported in at.imports:
            if str(imported.kind) in _DEVICE:
                found.append((at, imported))
            else:
                seen.append(imported)
    if not found:
        raise UnsupportedSource(
            "the module has no Metal or CUDA kernels; was the function scheduled for a GPU?"
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


class _Host:
    """The compiled host function, linked so that its launches and workspaces come to the model."""

    def __init__(self, host: Any, library: Library, folder: Path, entry: str | None) -> None:
        import tvm_ffi

        self.library = library
        self.launches: dict[str, list[str]] = {}
        self.session: Session | None = None
        self.fault: BaseException | None = None
        if str(host.kind) not in ("llvm", "c"):
            raise UnsupportedSource(
                f"the host function is a {host.kind} module; needs one that TVM compiled here"
            )
        compiled = _object_file(host)
        found = set(re.findall(rb"__tvm_ffi_([A-Za-z]\w*)", compiled))
        # TVM may export its entry function a second time as `main`; that one counts where it is alone.
        names = sorted(found - {b"main"} or found)
        self.name = _entry_name(entry, [n.decode() for n in names])
        self.dtypes = _parameter_dtypes(compiled, self.name)
        self.path = toolchain.link_host(compiled, folder)
        # Loaded once a process: loading again would undo what `_install` does.
        if str(self.path) not in _LOADED:
            _LOADED[str(self.path)] = (tvm_ffi.load_module(str(self.path)), ctypes.CDLL(str(self.path)))
        self.module, self._handle = _LOADED[str(self.path)]
        self._real = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi()).TVMFFIEnvModLookupFromImports
        self._functions: dict[str, Any] = _FUNCTIONS.setdefault(str(self.path), {})
        self._install()

    def _install(self) -> None:
        _CURRENT[str(self.path)] = self
        if "installed" in self._functions:
            return
        path = str(self.path)

        def lookup(context: int, name: bytes, out: Any) -> int:
            return _CURRENT[path].find(context, name.decode(), out)

        def allocate(_type: int, _device: int, size: int, _code: int, _bits: int) -> int:
            return _CURRENT[path].allocate(size)

        self._functions["installed"] = [
            _LOOKUP(lookup),
            _ALLOCATE(allocate),
            _FREE(lambda *_: 0),
        ]
        names = ("__TVMFFIEnvModLookupFromImports", "__TVMBackendAllocWorkspace", "__TVMBackendFreeWorkspace")
        for symbol, callback in zip(names, self._functions["installed"], strict=True):
            try:
                slot = ctypes.c_void_p.in_dll(self._handle, symbol)
            except ValueError:  # this host function needs none
                continue
            slot.value = ctypes.cast(callback, ctypes.c_void_p).value

    def find(self, context: int, name: str, out: Any) -> int:
        """Answers the host's question for a packed function: kernels and the device are ours."""
        import tvm_ffi

        if name not in self._functions:
            if name == "__tvm_set_device":
                self._functions[name] = tvm_ffi.convert(lambda *_: None)
            elif name in self.launches:
                path = str(self.path)
                self._functions[name] = tvm_ffi.convert(lambda *a, name=name: _CURRENT[path].launch(name, a))
            else:
                return int(self._real(ctypes.c_void_p(context), name.encode(), out))
        out[0] = self._functions[name].__chandle__()
        return 0

    def allocate(self, size: int) -> int:
        if self.session is None:
            return 0
        try:
            return self.session.region(None, size, self.workspace_granule(), WORKSPACE, "workspace").address
        except EmulatorError as error:
            self.fault = error
            return 0

    def workspace_granule(self) -> int:
        pointers = [
            p.granule for k in self.library.source.kernels for p in k.parameters if p.kind == "pointer"
        ]
        return min(pointers, default=4)

    def launch(self, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            self._launch(name, arguments)
        except EmulatorError as error:
            self.fault = error
            raise RuntimeError(str(error)) from None

    def _launch(self, name: str, arguments: tuple[Any, ...]) -> None:
        session, kernel = self.session, self.library.source.kernel(name)
        if session is None:
            raise EmulatorError("a kernel is launched outside a call")
        tags = [t for t in self.launches[name] if t not in _WITHOUT_VALUE]
        split = len(arguments) - len(tags)
        sizes = {"blockIdx": [1, 1, 1], "threadIdx": [1, 1, 1], "clusterCtaIdx": [1, 1, 1]}
        dynamic = 0
        for tag, value in zip(tags, arguments[split:], strict=True):
            where, _, axis = tag.partition(".")
            if where in sizes and axis in _AXES:
                sizes[where][_AXES.index(axis)] = int(value)
            elif tag in ("tirx.use_dyn_shared_memory", "tir.use_dyn_shared_memory"):
                dynamic = int(value)
            else:
                raise UnsupportedSource(f"the launch parameter {tag} is not modelled", kernel=name)
        grid, block = sizes["blockIdx"], sizes["threadIdx"]
        session.launch(
            kernel,
            _values(kernel, list(arguments[:split])),
            (grid[0], grid[1], grid[2]),
            (block[0], block[1], block[2]),
            dynamic,
            sizes["clusterCtaIdx"][0],
        )

    def call(self, session: Session, plan: list[Any], held: list[Held], regions: list[Region]) -> None:
        """One call of the host function."""
        self.session, self.fault = session, None
        _CURRENT[str(self.path)] = self
        tensors = iter(zip(held, regions, strict=True))
        kind = _DEVICE[self.library.source.kind]
        kept, values = [], []
        for item in plan:
            if isinstance(item, _Dtype):
                h, region = next(tensors)
                t = _Tensor(h.array.shape, item, region.address, kind)
                kept.append(t)
                values.append(t.tensor)
            else:
                values.append(item)
        try:
            self.module[self.name](*values)
        except Exception as error:
            if self.fault is not None:
                raise self.fault from None
            raise EmulatorError(f"the host function refused the call: {error}") from error
        finally:
            self.session = None
        if self.fault is not None:
            raise self.fault


_LOOKUP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
)
_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
# A loaded host library stays loaded, and keeps pointers to what it has asked for.
_FUNCTIONS: dict[str, dict[str, Any]] = {}
_CURRENT: dict[str, _Host] = {}
_LOADED: dict[str, tuple[Any, ctypes.CDLL]] = {}


def _object_file(host: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "host.o")
        host.write_to_file(path, "o")
        return Path(path).read_bytes()


def _entry_name(entry: str | None, names: list[str]) -> str:
    names = [n for n in names if not n.startswith("_library")]
    if entry is not None:
        if entry not in names:
            raise UnsupportedSource(f"no function {entry!r} in the module; it has {', '.join(names)}")
        return entry
    if len(names) != 1:
        raise UnsupportedSource(f"the module has the functions {', '.join(names)}; name one with entry=")
    return names[0]


def _parameter_dtypes(compiled: bytes, name: str) -> list[str]:
    """Each parameter's tensor dtype, "" for a number: from the signature that the host prints in errors."""
    found = re.search(re.escape(name).encode() + rb"\((\w+: [^\x00]*)\)", compiled)
    if found is None:
        return []
    signature = re.sub(r"\[[^\]]*\]", "", found[1].decode(errors="ignore"))
    parts = re.findall(r"\w+: (Tensor\(, (\w+)\)|\w+)", signature)
    return [dtype for _, dtype in parts]


def _values(kernel: Kernel, arguments: list[Any]) -> list[Any]:
    """The host's arguments as the kernel's parameters: a Metal argument struct takes several."""
    out: list[Any] = []
    for p in kernel.parameters:
        if p.kind == "pointer":
            pointer = arguments.pop(0)
            out.append(int(getattr(pointer, "value", pointer) or 0))
        elif p.kind == "reference":
            out.append(pack(p, [arguments.pop(0) for _ in p.fields]))
        else:
            out.append(c_scalar(p.type, arguments.pop(0)))
    if arguments:
        raise UnsupportedSource(
            f"the host passes {len(arguments)} arguments that the text lacks", kernel=kernel.name
        )
    return out


class _Dtype(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Dtype),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_NAMED = {
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}


def _dtype(name: str) -> _Dtype:
    if name in _NAMED:
        return _Dtype(*_NAMED[name], 1)
    d = np.dtype(name)
    if d.kind not in _CODES:
        raise EmulatorError(f"dtype {name} has no counterpart in TVM")
    return _Dtype(_CODES[d.kind], 8 * d.itemsize, 1)


class _Tensor:
    """A tensor of a device that is not there: its data lies in the memory of the model."""

    def __init__(self, shape: tuple[int, ...], dtype: _Dtype, address: int, device: int) -> None:
        import tvm_ffi

        self._shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        strides: list[int] = []
        at = 1
        for n in reversed(shape):
            strides.insert(0, at)
            at *= n
        self._strides = (ctypes.c_int64 * max(len(shape), 1))(*strides)
        self._managed = _Managed(
            _DLTensor(address, _Device(device, 0), len(shape), dtype, self._shape, self._strides, 0),
            None,
            None,
        )
        self._device = device
        self.tensor = tvm_ffi.from_dlpack(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)


def _hold(arrays: Sequence[Any], host: _Host, outputs: Sequence[int] | None) -> tuple[list[Held], list[Any]]:
    held: list[Held] = []
    plan: list[Any] = []
    for i, a in enumerate(arrays):
        wanted = host.dtypes[i] if i < len(host.dtypes) else None
        if isinstance(a, np.ndarray) and a.ndim == 0 and wanted == "":
            a = a[()]
        if not isinstance(a, np.ndarray):
            if not isinstance(a, (int, float, np.generic)):
                raise EmulatorError(f"argument {i} is a {type(a).__name__}; needs a NumPy array or a number")
            plan.append(a.item() if isinstance(a, np.generic) else a)
            continue
        role = "" if outputs is None else "out" if i in outputs else "in"
        # Bits of a type that NumPy lacks come as unsigned integers of its size.
        bits = (
            a.dtype in (np.uint8, np.uint16) and _NAMED.get(wanted or "", (0, 0))[1] == 8 * a.dtype.itemsize
        )
        name = wanted if bits and wanted else a.dtype.name
        held.append(Held(f"argument {i}", a, min(a.dtype.itemsize, 4), role, name))
        plan.append(_dtype(name))
    return held, plan
