"""TVM's compiled host function, linked so that its launches and workspaces come to the model."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import toolchain
from .errors import EmulatorError, UnsupportedSource
from .kernels import Kernel
from .run import Held
from .scalars import c_scalar, pack
from .session import WORKSPACE, Library, Region, Session
from .tensors import DeviceTensor, Dtype

_AXES = ("x", "y", "z")
# DLPack's numbers of the devices.
DEVICE = {"metal": 8, "cuda": 2}

_DEPENDENT = "tirx.use_programtic_dependent_launch"
"""The tag, in TVM's spelling, of a launch that may start before the one before has ended; without a value."""


class LinkedHost:
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
        """A workspace in the memory of the model; 0 where there is no room."""
        if self.session is None:
            return 0
        try:
            return self.session.region(None, size, self.workspace_granule(), WORKSPACE, "workspace").address
        except EmulatorError as error:
            self.fault = error
            return 0

    def workspace_granule(self) -> int:
        """Bytes of the smallest element that any kernel stores."""
        pointers = [
            p.granule for k in self.library.source.kernels for p in k.parameters if p.kind == "pointer"
        ]
        return min(pointers, default=4)

    def launch(self, name: str, arguments: tuple[Any, ...]) -> None:
        """A launch of the host function; a fault is kept, since it has to cross TVM's calls."""
        try:
            self._launch(name, arguments)
        except EmulatorError as error:
            self.fault = error
            raise RuntimeError(str(error)) from None

    def _launch(self, name: str, arguments: tuple[Any, ...]) -> None:
        session, kernel = self.session, self.library.source.kernel(name)
        if session is None:
            raise EmulatorError("a kernel is launched outside a call")
        tags = [t for t in self.launches[name] if t != _DEPENDENT]
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
        grid, block, cluster = sizes["blockIdx"], sizes["threadIdx"], sizes["clusterCtaIdx"]
        if cluster[1:] != [1, 1]:
            raise UnsupportedSource(
                f"a cluster of {cluster} groups; the model knows those along x", kernel=name
            )
        session.launch(
            kernel,
            _values(kernel, list(arguments[:split])),
            (grid[0], grid[1], grid[2]),
            (block[0], block[1], block[2]),
            dynamic,
            cluster[0],
            _DEPENDENT in self.launches[name],
        )

    def call(self, session: Session, plan: list[Any], held: list[Held], regions: list[Region]) -> None:
        """One call of the host function."""
        self.session, self.fault = session, None
        _CURRENT[str(self.path)] = self
        tensors = iter(zip(held, regions, strict=True))
        kind = DEVICE[self.library.source.kind]
        kept, values = [], []
        for item in plan:
            if isinstance(item, Dtype):
                h, region = next(tensors)
                t = DeviceTensor(h.array.shape, item, region.address, kind)
                kept.append(t)
                values.append(t.tensor)
            else:
                values.append(item)
        try:
            self.module[self.name](*values)
        except Exception as error:
            if self.fault is not None:
                raise self.fault from None
            shown = iter(held)
            given = ", ".join(_seen(item, shown) for item in plan)
            raise EmulatorError(
                f"the host function refused the call: {error}; it was given {given}"
            ) from error
        finally:
            self.session = None
        if self.fault is not None:
            raise self.fault


def _seen(item: Any, tensors: Iterator[Held]) -> str:
    """An argument in words: dtype and shape of a tensor, or the number."""
    if not isinstance(item, Dtype):
        return str(item)
    h = next(tensors)
    return f"{h.dtype or h.array.dtype.name}{list(h.array.shape)}"


_LOOKUP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
_ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int
)
_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
# A loaded host library stays loaded, and keeps pointers to what it has asked for.
_FUNCTIONS: dict[str, dict[str, Any]] = {}
_CURRENT: dict[str, LinkedHost] = {}
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
