"""Torch eager as the other side of a ratio: softmax with a preallocated output, norms that allocate theirs.

Outputs that the functional norms allocate are inside their timing; every table that shows them says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tirx_reduce.bench.build import Case
from tirx_reduce.bench.clock import CudaSession, HostSession, Kernel, MpsSession
from tirx_reduce.bench.measure import NoValidTiming, Options, Session, measure
from tirx_reduce.bench.operators import EPSILON
from tirx_reduce.bench.trial import check, inputs_of
from tirx_reduce.errors import ReduceError

TORCH_OPERATORS = ("softmax", "log_softmax", "rms_norm", "layer_norm")
NOTE = "torch eager; softmax writes a preallocated output, functional norms allocate theirs inside the timing"


def torch_device(kind: str) -> str:
    """Torch's name for the device of a target kind."""
    return {"cuda": "cuda", "metal": "mps"}.get(kind, "cpu")


def torch_call(case: Case, *, compiled: bool = False) -> Callable[..., Any]:
    """A function of the case's inputs and one preallocated output.

    Raises
    ------
    ReduceError
        Torch has no single operator for the case.
    """
    import torch
    import torch.nn.functional as fn

    columns = case.shape[-1]
    calls: dict[str, Callable[..., Any]] = {
        "softmax": lambda x, out: torch.softmax(x, -1, out=out),
        "log_softmax": lambda x, out: torch.log_softmax(x, -1),
        "rms_norm": lambda x, weight, out: fn.rms_norm(x, (columns,), weight, EPSILON),
        "layer_norm": lambda x, weight, bias, out: fn.layer_norm(x, (columns,), weight, bias, EPSILON),
    }
    if case.operator not in calls:
        raise ReduceError(f"torch has no operator for {case.operator}; known: {', '.join(TORCH_OPERATORS)}")
    if not compiled:
        return calls[case.operator]
    if case.operator == "softmax":
        # A compiled function allocates its output, whatever it is given.
        calls["softmax"] = lambda x, out: torch.softmax(x, -1)
    made: Callable[..., Any] = torch.compile(calls[case.operator], dynamic=False)
    return made


def try_torch(case: Case, options: Options, kind: str, *, compiled: bool = False) -> dict[str, Any]:
    """Run, verify and time Torch's operator on the same inputs; what goes wrong is in the result."""
    result: dict[str, Any] = {"status": "failed", "note": NOTE, "compiled": compiled}
    try:
        import torch

        device = torch_device(kind)
        call = torch_call(case, compiled=compiled)
        operands = [_tensor(torch, a).to(device) for a in inputs_of(case)]
        out = torch.empty(case.shape, dtype=operands[0].dtype, device=device)
        kernel = Kernel(module=None, entry=case.operator, device=device, call=call, sets=((*operands, out),))
        produced = call(*operands, out)
        result["verified"] = check(case, [_array(produced)])
        if not result["verified"]["ok"]:
            return {**result, "reason": f"wrong result at {result['verified']['where']}"}
        timing = measure(_session(torch, kernel, device), options)
    except ImportError as error:
        return {**result, "status": "absent", "reason": f"torch: {error}"}
    except NoValidTiming as error:
        return {**result, "reason": f"timing: {error}"}
    except Exception as error:  # the study goes on and keeps the reason
        return {**result, "reason": f"torch: {type(error).__name__}: {error}"}
    return {**result, "status": "measured", "torch": str(torch.__version__), "timing": timing.to_json()}


def _session(torch: Any, kernel: Kernel, device: str) -> Session:
    if device == "cuda":
        return CudaSession(kernel)
    if device == "mps":
        return MpsSession(kernel, torch.mps.synchronize)
    return HostSession(kernel, lambda: None)


def _tensor(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    import torch

    found = tensor.detach().cpu()
    if found.dtype == torch.bfloat16:
        import ml_dtypes

        return np.asarray(found.view(torch.uint16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(found.numpy())
