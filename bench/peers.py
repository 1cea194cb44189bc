"""The other sides of the peers' grid: torch eager, torch.compile, Liger, quack, and the copy of the bytes.

Each is an optional import; what is absent or refuses a case raises, and the caller keeps the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.grid_operands import Buffers
from tirx_reduce.bench.operators import EPSILON
from tirx_reduce.errors import ReduceError

Tensors = tuple[Any, ...]
Call = Callable[[Tensors], Tensors]
"""From a case's operands to its results, in memory that the peer allocates."""
COPY, OURS, DLIGHT = "copy", "ours", "dlight"


def _same(operands: Tensors) -> Tensors:
    return operands


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A peer made ready for one case."""

    call: Call
    adapt: Callable[[Tensors], Tensors] = _same
    """What the peer needs otherwise (weights of another dtype); applied once, outside every timing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One library that computes the same."""

    name: str
    package: str
    """Whose version counts, as installers spell it."""
    make: Callable[[Case], Ready]
    """Raises ImportError where the library is absent, ReduceError where it has no such operator."""
    note: str = ""


def copy(source: Buffers, target: Buffers) -> Tensors:
    """Torch's device-to-device copy of all whole matrices: the practical floor."""
    target.matrices.copy_(source.matrices)
    return target.tensors


def make_eager(case: Case) -> Ready:
    """Torch's own operators."""
    return Ready(call=_torch_function(case))


def make_compile(case: Case) -> Ready:
    """`torch.compile` with static shapes."""
    import torch

    # One function at many static shapes runs into the recompile limit and is then run eagerly, in silence.
    torch._dynamo.reset()
    quiet_inductor()
    return Ready(call=torch.compile(_torch_function(case), dynamic=False))


def quiet_inductor() -> None:
    """No compile processes of its own, and no choice taken from another process's timing."""
    from torch._inductor import config

    settings: Any = config
    for name, value in (("compile_threads", 1), ("autotune_local_cache", False)):
        if hasattr(settings, name):
            setattr(settings, name, value)


def make_liger(case: Case) -> Ready:
    """Liger's autograd functions, forward only."""
    ops: Any = import_module("liger_kernel.ops")

    calls: dict[str, Call] = {
        "softmax": lambda t: (ops.LigerSoftmaxFunction.apply(t[0]),),
        "rms_norm": lambda t: (ops.LigerRMSNormFunction.apply(t[0], t[1], EPSILON),),
        "layer_norm": lambda t: (ops.LigerLayerNormFunction.apply(t[0], t[1], t[2], EPSILON),),
        "add_rms_norm": lambda t: _swap(ops.LigerFusedAddRMSNormFunction.apply(*t, EPSILON)),
    }
    return Ready(call=_of(calls, case, "liger"))


def make_quack(case: Case) -> Ready:
    """Quack's public functions; its layernorm takes float32 weights only."""
    norms: Any = import_module("quack.rmsnorm")
    softmax: Any = import_module("quack.softmax")

    calls: dict[str, Call] = {
        "softmax": lambda t: (softmax.softmax_fwd(t[0]),),
        "rms_norm": lambda t: (norms.rmsnorm_fwd(t[0], t[1], eps=EPSILON)[0],),
        "layer_norm": lambda t: (norms.layernorm_fwd(t[0], t[1], t[2], eps=EPSILON),),
        "add_rms_norm": lambda t: _swap(norms.rmsnorm_fwd(t[0], t[2], residual=t[1], eps=EPSILON)),
    }
    call = _of(calls, case, "quack")
    if case.operator != "layer_norm":
        return Ready(call=call)
    return Ready(call=call, adapt=lambda t: (t[0], t[1].float(), t[2].float()))


def make_quack_same(case: Case) -> Ready:
    """Quack's LayerNorm with weights of the input's dtype, below its public function, which refuses them."""
    if case.operator != "layer_norm" or case.dtype == "float32":
        raise ReduceError("quack's public function is this one; only a 16-bit layer_norm differs")
    import torch

    norms: Any = import_module("quack.rmsnorm")

    def call(t: Tensors) -> Tensors:
        out = torch.empty_like(t[0])
        norms._rmsnorm_fwd(t[0], t[1], out, t[2], None, None, None, None, EPSILON, True)
        return (out,)

    return Ready(call=call)


PEERS: dict[str, tuple[Peer, ...]] = {
    "eager": (Peer(name="eager", package="torch", make=make_eager),),
    "compile": (Peer(name="compile", package="triton", make=make_compile, note="static shapes"),),
    "liger": (Peer(name="liger", package="liger-kernel", make=make_liger),),
    "quack": (
        Peer(name="quack", package="quack-kernels", make=make_quack, note="layer_norm with float32 weights"),
        Peer(name="quack-same", package="quack-kernels", make=make_quack_same, note="16-bit weights"),
    ),
}
"""By the name that selects them. The copy, stock dlight and our own kernels are no calls of this kind."""
NAMES = (COPY, *PEERS, DLIGHT, OURS)


def read_peers(text: str) -> tuple[str, ...]:
    """Names from `copy,eager,ours`.

    Raises
    ------
    ReduceError
        One is unknown, or stands there twice.
    """
    names = tuple(n.strip() for n in text.split(",") if n.strip())
    unknown = [n for n in names if n not in NAMES]
    if unknown or not names:
        raise ReduceError(f"peers {', '.join(unknown) or 'are none'}; known: {', '.join(NAMES)}")
    if len(set(names)) != len(names):
        raise ReduceError(f"peers {text!r} name one twice; needs each once")
    return names


def versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of the chosen peers' packages; `absent` is one too."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in sorted({p.package for n in names for p in PEERS.get(n, ())}):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def _torch_function(case: Case) -> Call:
    import torch
    import torch.nn.functional as fn

    columns = (case.shape[-1],)

    def add_rms_norm(t: Tensors) -> Tensors:
        total = t[0] + t[1]
        return (total, fn.rms_norm(total, columns, t[2], EPSILON))

    calls: dict[str, Call] = {
        "softmax": lambda t: (torch.softmax(t[0], -1),),
        "rms_norm": lambda t: (fn.rms_norm(t[0], columns, t[1], EPSILON),),
        "layer_norm": lambda t: (fn.layer_norm(t[0], columns, t[1], t[2], EPSILON),),
        "add_rms_norm": add_rms_norm,
        "masked_softmax": lambda t: (torch.softmax(t[0] + t[1], -1),),
    }
    return _of(calls, case, "torch")


def _swap(results: Sequence[Any]) -> Tensors:
    """(normalised, sum, …) in the order of our results."""
    return (results[1], results[0])


def _of(calls: dict[str, Call], case: Case, who: str) -> Call:
    if case.operator not in calls:
        raise ReduceError(f"{who} has no {case.operator}")
    return calls[case.operator]
