"""Planned kernels on Torch tensors: no copies, on the current stream, as operators that torch.compile keeps.

CUDA and MPS tensors go in and come out; one that cannot be shared as it is (another device, strides, dtype)
is refused by `ReduceError` before any launch. There is no gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

try:
    import torch
except ModuleNotFoundError as _absent:
    _absent.add_note('Torch is optional; needs: pip install "tirx-reduce[torch]"')
    raise

from .bench.workloads import Workload, get_workload
from .errors import ReduceError

NAMESPACE = "tirx_reduce"
KINDS = {"cuda": "cuda", "mps": "metal"}
"""Torch's device types and the target kinds that run there."""
ALIGNMENT_BYTES = 16
"""The widest access of a CUDA kernel; the rows of a slice may start anywhere, and TVM's host function does not ask."""

_DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.int8: "int8",
    torch.bool: "bool",
}
_TORCH = {name: dtype for dtype, name in _DTYPES.items()}
_Key = tuple[str, str, int, tuple[int, ...], str]

_operators: dict[str, tuple[Workload, Any, str, Any]] = {}
_kernels: dict[_Key, Any] = {}
_lock = threading.Lock()


def operator(
    workload: str | Workload, policy: Any = "analytic", calibration: Any = None
) -> Callable[..., Any]:
    """The Torch operator of a workload, registered as `tirx_reduce::<name>` on first use.

    Parameters
    ----------
    workload : str or Workload
        A name (`softmax`, `rms_norm`, …) or a workload of one's own.
    policy, calibration
        See `tirx_reduce.plan`; those of the first call stay.

    Returns
    -------
    callable
        Takes the workload's operands as tensors, in order; returns one tensor, or a tuple.

    Raises
    ------
    ReduceError
        The name is unknown, or another workload or policy has been registered under it.

    Examples
    --------
    >>> softmax = operator("softmax")          # doctest: +SKIP
    >>> softmax(torch.randn(768, 6144, device="cuda"))  # doctest: +SKIP
    """
    found = get_workload(workload) if isinstance(workload, str) else workload
    with _lock:
        known = _operators.get(found.name)
        if known is None:
            known = (found, policy, repr(calibration), _define(found, policy, calibration))
            _operators[found.name] = known
    if known[0] != found or known[1] != policy or known[2] != repr(calibration):
        raise ReduceError(
            f"operator {NAMESPACE}::{found.name} is registered with another workload, policy or calibration; "
            "needs a workload of another name"
        )
    call: Callable[..., Any] = known[3]
    return call


def _define(workload: Workload, policy: Any, calibration: Any) -> Any:
    arguments = ", ".join(f"Tensor {o.name}" for o in workload.operands)
    results = ", ".join("Tensor" for _ in workload.results)
    several = len(workload.results) > 1
    schema = f"({arguments}) -> {f'({results})' if several else results}"

    def run(*tensors: torch.Tensor) -> Any:
        kind, shape, dtype = _check(workload, tensors)
        outputs = _empty(workload, tensors[0], shape, dtype)
        kernel = _kernel(workload, tensors[0].device, kind, shape, dtype, policy, calibration)
        _launch(kernel, kind, tensors[0].device, (*tensors, *outputs))
        return outputs if several else outputs[0]

    def fake(*tensors: torch.Tensor) -> Any:
        shape = tuple(tensors[0].shape)
        outputs = _empty(workload, tensors[0], shape, _name(workload, 0, tensors[0]))
        return outputs if several else outputs[0]

    defined = torch.library.custom_op(f"{NAMESPACE}::{workload.name}", run, mutates_args=(), schema=schema)
    defined.register_fake(fake)
    return defined


def _empty(
    workload: Workload, like: torch.Tensor, shape: tuple[int, ...], dtype: str
) -> tuple[torch.Tensor, ...]:
    return tuple(
        like.new_empty(result_shape, dtype=_TORCH[result_dtype])
        for result_shape, result_dtype in workload.outputs(shape, dtype)
    )


def _name(workload: Workload, index: int, tensor: torch.Tensor) -> str:
    if tensor.dtype not in _DTYPES:
        raise ReduceError(
            f"{workload.name}: {workload.operands[index].name} has dtype {tensor.dtype}; "
            f"needs one of {', '.join(workload.dtypes)}"
        )
    return _DTYPES[tensor.dtype]


def _check(workload: Workload, tensors: tuple[torch.Tensor, ...]) -> tuple[str, tuple[int, ...], str]:
    """Target kind, shape and dtype of a call whose tensors can be shared as they are."""
    first = tensors[0]
    shape = tuple(first.shape)
    if not shape:
        raise ReduceError(f"{workload.name}: {workload.operands[0].name} has no axis; needs rows × columns")
    dtype = _name(workload, 0, first)
    workload.check_dtype(dtype)
    for i, (operand, tensor) in enumerate(zip(workload.operands, tensors, strict=True)):
        where = f"{workload.name}: {operand.name}"
        if tensor.device.type not in KINDS:
            raise ReduceError(
                f"{where} is on {tensor.device}; needs a tensor on {' or '.join(KINDS)} "
                f"(tirx_reduce.emulate runs a kernel without a GPU)"
            )
        if tensor.device != first.device:
            raise ReduceError(
                f"{where} is on {tensor.device}, the first tensor on {first.device}; needs one device"
            )
        wanted, wanted_dtype = operand.shape(shape), operand.dtype or dtype
        if tuple(tensor.shape) != wanted:
            raise ReduceError(f"{where} has shape {tuple(tensor.shape)}; needs {wanted}")
        if _name(workload, i, tensor) != wanted_dtype:
            raise ReduceError(f"{where} has dtype {tensor.dtype}; needs {wanted_dtype}")
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise ReduceError(
                f"{where} has strides {tuple(tensor.stride())} for shape {tuple(tensor.shape)}; "
                "needs a contiguous tensor (.contiguous() makes a copy)"
            )
        if KINDS[tensor.device.type] == "cuda" and tensor.data_ptr() % ALIGNMENT_BYTES:
            raise ReduceError(
                f"{where} starts {tensor.data_ptr() % ALIGNMENT_BYTES} bytes behind a multiple of {ALIGNMENT_BYTES}; "
                "needs a tensor of its own (.clone() makes one)"
            )
        if tensor.is_conj() or tensor.is_neg():
            raise ReduceError(f"{where} is a lazy conjugate or negative; needs .resolve_neg() first")
    return KINDS[first.device.type], shape, dtype


def _kernel(
    workload: Workload,
    device: torch.device,
    kind: str,
    shape: tuple[int, ...],
    dtype: str,
    policy: Any,
    calibration: Any,
) -> Any:
    key: _Key = (workload.name, kind, device.index or 0, shape, dtype)
    if key not in _kernels:
        built = _build(workload, kind, device.index or 0, shape, dtype, policy, calibration)
        # Two threads may build the same kernel; one of them stays.
        _kernels.setdefault(key, built)
    return _kernels[key]


def _build(
    workload: Workload,
    kind: str,
    index: int,
    shape: tuple[int, ...],
    dtype: str,
    policy: Any,
    calibration: Any,
) -> Any:
    import tvm

    from . import schedules

    device = tvm.runtime.device(kind, index)
    target = tvm.target.Target.from_device(device)
    func = workload.func(shape, dtype)
    plan = schedules.plan(func, target, policy=policy, calibration=calibration, device=device)
    executable = schedules.build(schedules.lower(func, plan), target)
    return executable[workload.name]


def _launch(kernel: Any, kind: str, device: torch.device, tensors: tuple[torch.Tensor, ...]) -> None:
    import tvm_ffi

    if not tensors[-1].numel():
        return
    shared = [tvm_ffi.from_dlpack(t.detach()) for t in tensors]
    with _stream(kind, device):
        kernel(*shared)
    if kind == "metal":
        # TVM launches on a queue of its own: what Torch does next must find the results there.
        import tvm

        tvm.metal(device.index or 0).sync()


def _stream(kind: str, device: torch.device) -> AbstractContextManager[Any]:
    import tvm_ffi

    if kind == "cuda":
        stream = torch.cuda.current_stream(device)
        found: AbstractContextManager[Any] = tvm_ffi.use_torch_stream(torch.cuda.stream(stream))
        return found
    if kind == "metal":
        torch.mps.synchronize()
    return nullcontext()


# Registered here and not in the calls, where torch.compile would have to trace it.
_softmax = operator("softmax")
_log_softmax = operator("log_softmax")
_rms_norm = operator("rms_norm")
_layer_norm = operator("layer_norm")


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis."""
    out: torch.Tensor = _softmax(x)
    return out


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """Logarithm of softmax over the last axis."""
    out: torch.Tensor = _log_softmax(x)
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm over the last axis, ε = 1e-5."""
    out: torch.Tensor = _rms_norm(x, weight)
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layer norm over the last axis, ε = 1e-5."""
    out: torch.Tensor = _layer_norm(x, weight, bias)
    return out
