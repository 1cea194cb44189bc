"""Checks of the addresses that a launch is given, on the host and before it: the widest access of the kernels decides.

In goes a module after TVM has split host and device, out comes the same module with assertions before the launches.
CUDA alone: a Metal buffer is an object, whose own address says nothing of its memory.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from tirx_reduce import compat

PACKET = 16
"""Bytes of an access by those helpers that take an address."""

_FIRST_FIELD = 17
"""TVM's `kInt64ArrayElem`: element 0 of a DLTensor's memory is its data pointer, as a number.

A pointer cannot be cast to one, and the data pointer itself is declared to LLVM as aligned, which drops the check.
"""


@tvm.transform.module_pass(opt_level=0, name="tirx_reduce.CheckAddresses")
def check_addresses(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Refuse tensors that start where an access of their kernels would be misaligned.

    Before → after, for a softmax in packets of four floats::

        launch main_kernel(y, x)
        assert x.data % 16 == 0, "main: x starts …"; assert y.data % 16 == 0, …; launch main_kernel(y, x)
    """
    functions = {str(g.name_hint): f for g, f in mod.functions_items()}
    kernels = {n: f for n, f in functions.items() if f.attrs["target"].kind.name == "cuda"}
    out = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    for var, func in mod.functions_items():
        if var.name_hint not in kernels:
            out[var] = func.with_body(_guarded(func.body, kernels, str(var.name_hint)))
    return out


def _guarded(body: Any, kernels: dict[str, Any], name: str) -> Any:
    """A host function whose launches stand behind assertions about the tensors that they are given."""
    handles: dict[Any, Any] = {}
    needed: dict[Any, int] = {}

    def look(node: Any) -> None:
        if type(node) is tirx.DeclBuffer:
            tensor = next((v for v in compat.leaves(node.data) if not compat.is_buffer(v)), None)
            if tensor is not None:
                handles[node.buffer] = tensor
        elif str(node.op.name) == "tirx.call_ffi_kernel" and str(node.args[0].value) in kernels:
            kernel = kernels[str(node.args[0].value)]
            widest = alignments(kernel.body)
            for given, parameter in zip(node.args[1:], kernel.params, strict=False):
                for tensor in filter(compat.is_buffer, compat.leaves(given)):
                    needed[tensor] = max(needed.get(tensor, 1), widest.get(parameter, 1))

    tvm_ffi.structural_walk(body, ((tirx.DeclBuffer, compat.Call), look), order="pre")
    checks = [_assertion(t, h, needed[t], name) for t, h in handles.items() if needed.get(t, 1) > 1]

    def guard(stmt: Any) -> Any:
        return tirx.SeqStmt([*checks, stmt]) if str(stmt.attr_key) == "compute_scope" else stmt

    return tvm_ffi.structural_map(body, (tirx.AttrStmt, guard)) if checks else body


def alignments(body: Any) -> dict[Any, int]:
    """Bytes of the widest access by way of each pointer that a kernel is given."""
    roots: dict[Any, Any] = {}
    widest: dict[Any, int] = {}

    def note(buffer: Any, size: int) -> None:
        pointer = roots.get(buffer)
        if pointer is not None:
            widest[pointer] = max(widest.get(pointer, 1), size)

    def look(node: Any) -> None:
        kind = type(node)
        if kind is tirx.DeclBuffer:
            source = next(iter(compat.leaves(node.data)))
            roots[node.buffer] = roots.get(source, source)
        elif kind is compat.TensorLoad:
            note(node.source, _bytes(node.ty.dtype))
        elif kind is tirx.BufferStore:
            note(node.buffer, _bytes(node.value.ty.dtype))
        elif str(node.op.name) == "tirx.address_of":
            note(node.args[0].source, PACKET)

    kinds = (tirx.DeclBuffer, compat.TensorLoad, tirx.BufferStore, compat.Call)
    tvm_ffi.structural_walk(body, (kinds, look), order="pre")
    return widest


def _bytes(dtype: Any) -> int:
    return max(1, int(dtype.bits) // 8) * int(dtype.lanes)


def _assertion(tensor: Any, handle: Any, size: int, name: str) -> Any:
    address = tirx.tvm_struct_get(handle, 0, _FIRST_FIELD, "int64")
    rest = tirx.bitwise_and(address, tirx.IntImm("int64", size - 1))
    text = (
        f"{name}: {tensor.name} does not start at a multiple of {size} bytes; "
        f"needs one that does, such as a copy"
    )
    # TVM 0.27 names the first two parameters of AssertStmt the other way round than it takes them.
    return tirx.AssertStmt(
        tirx.EQ(rest, tirx.IntImm("int64", 0)), ir.StringImm("ValueError"), [ir.StringImm(text)]
    )
