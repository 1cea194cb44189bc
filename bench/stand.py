"""Where kernels run: a device of this machine, one behind TVM's RPC, or the CPU as a stand-in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tirx_reduce.bench.build import Built, cache_compiles
from tirx_reduce.bench.clock import CudaSession, Kernel, TvmSession
from tirx_reduce.bench.environment import environment
from tirx_reduce.bench.measure import Session
from tirx_reduce.errors import ReduceError

Array = np.ndarray[Any, Any]
STAND_IN_TARGET = {"kind": "cuda", "arch": "sm_90"}
"""What a stand-in plans for, unless told otherwise."""
BANDWIDTH = {"NVIDIA H200": 4800.0, "NVIDIA H100 80GB HBM3": 3350.0, "NVIDIA A100-SXM4-80GB": 2039.0}
"""Memory bandwidth by the vendor's data sheet (GB/s)."""
LOAD_PATH = {"NVIDIA H200": 33450.0, "NVIDIA H100 80GB HBM3": 33450.0}
"""What all multiprocessors can load from their own caches: 132 × 128 bytes × 1.98 GHz (GB/s)."""


class Stand(Protocol):
    """One place where built kernels are loaded, run and timed."""

    target: Any
    """What to plan and build for."""
    stand_in: bool
    """Builds are of the plain function, for the CPU."""
    device: Any
    """The TVM device, with `sync()`."""
    folder: Path
    """Where libraries are put."""
    suffix: str
    """Of libraries."""

    @property
    def kind(self) -> str:
        """Target kind of what runs."""
        ...

    def environment(self) -> dict[str, Any]:
        """What is recorded of it."""
        ...

    def load(self, built: Built, arrays: Sequence[Sequence[Array]]) -> Kernel:
        """A kernel with one set of operands for each item of `arrays`."""
        ...

    def read(self, tensor: Any) -> Array:
        """An operand's values."""
        ...

    def session(self, kernel: Kernel) -> Session:
        """A clock round the kernel."""
        ...


@dataclass(slots=True, kw_only=True)
class LocalStand:
    """A device of this machine."""

    target: Any
    device: Any
    folder: Path
    stand_in: bool = False
    commit: str | None = None
    dirty: bool | None = None
    name: str | None = None
    """Of the device, where it does not say."""
    suffix: str = ".so"

    @property
    def kind(self) -> str:
        """Target kind of what is built."""
        return "llvm" if self.stand_in else str(self.target.kind.name)

    def environment(self) -> dict[str, Any]:
        """Device, driver, libraries, commit."""
        return environment(self.device, self.kind, commit=self.commit, dirty=self.dirty, name=self.name)

    def load(self, built: Built, arrays: Sequence[Sequence[Array]]) -> Kernel:
        """Load the library and upload the operands."""
        import tvm

        if self.kind == "cuda":
            cache_compiles(Path(built.library).parent)
        module = tvm.runtime.load_module(built.library)
        sets = tuple(tuple(tvm.runtime.tensor(a, device=self.device) for a in one) for one in arrays)
        return Kernel(
            module=module, entry=built.entry, device=self.device, call=module[built.entry], sets=sets
        )

    def read(self, tensor: Any) -> Array:
        """Download."""
        values: Array = tensor.numpy()
        return values

    def session(self, kernel: Kernel) -> Session:
        """CUDA graphs and events, or TVM's own timer."""
        return CudaSession(kernel) if self.kind == "cuda" and _has_torch() else TvmSession(kernel)


@dataclass(slots=True, kw_only=True)
class RpcStand:
    """A device behind a TVM RPC tracker; host times would be the network's, so only its own timer counts."""

    target: Any
    remote: Any
    """An RPC session."""
    device: Any
    name: str
    folder: Path
    stand_in: bool = False
    commit: str | None = None
    dirty: bool | None = None
    suffix: str = ".tar"
    """Linked by the far side's own compiler."""

    @property
    def kind(self) -> str:
        """Target kind of what runs."""
        return "llvm" if self.stand_in else str(self.target.kind.name)

    def environment(self) -> dict[str, Any]:
        """As seen from here; the device's name is the one that was given."""
        found = environment(self.device, self.kind, commit=self.commit, dirty=self.dirty, name=self.name)
        return {**found, "driver": "behind rpc", "rpc": True}

    def load(self, built: Built, arrays: Sequence[Sequence[Array]]) -> Kernel:
        """Upload library and operands."""
        import tvm

        name = Path(built.library).name
        self.remote.upload(built.library)
        module = self.remote.load_module(name)
        sets = tuple(tuple(tvm.runtime.tensor(a, device=self.device) for a in one) for one in arrays)
        return Kernel(
            module=module, entry=built.entry, device=self.device, call=module[built.entry], sets=sets
        )

    def read(self, tensor: Any) -> Array:
        """Download."""
        values: Array = tensor.numpy()
        return values

    def session(self, kernel: Kernel) -> Session:
        """TVM's timer on the far side."""
        return TvmSession(kernel, local=False)


def local_stand(
    target: Any,
    folder: Path,
    *,
    stand_in: bool = False,
    commit: str | None = None,
    dirty: bool | None = None,
) -> LocalStand:
    """The device of a target on this machine, or the CPU in its place.

    Raises
    ------
    ReduceError
        There is no such device here.
    """
    import tvm

    found = tvm.target.Target(target) if not isinstance(target, tvm.target.Target) else target
    device = tvm.cpu(0) if stand_in else tvm.runtime.device(found.kind.name, 0)
    if not device.exist:
        raise ReduceError(f"no {found.kind.name} device answers here; needs one, or --stand-in for a trial")
    return LocalStand(
        target=found, device=device, folder=folder, stand_in=stand_in, commit=commit, dirty=dirty
    )


def target_json(target: Any) -> str:
    """A target as text that `tvm.target.Target(json.loads(text))` reads."""
    exported = target.export()
    return json.dumps(_plain(dict(exported)), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "__iter__"):
        return [_plain(v) for v in value]
    return str(value)


def floor_us(device_name: str, bytes_moved: int, *, cold: bool) -> float:
    """Least time that the device's bandwidth allows; 0 where it is not known."""
    from tirx_reduce.bench.clock import bandwidth_floor_us

    return bandwidth_floor_us(bytes_moved, (BANDWIDTH if cold else LOAD_PATH).get(device_name, 0.0))


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None
