"""Checks of the addresses that a launch is given, on the host and before it: where tensors start, and what overlaps.

In goes a module after TVM has split host and device, out comes the same module with assertions before the launches.
CUDA alone: a Metal buffer is an object, whose own address says nothing of its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from tirx_reduce import compat
from tirx_reduce.program import item_bytes

PACKET = 16
"""Bytes of an access by those helpers that take an address."""

_FIRST_FIELD = 17
"""TVM's `kInt64ArrayElem`: element 0 of a DLTensor's memory is its data pointer, as a number.

A pointer cannot be cast to one, and the data pointer itself is declared to LLVM as aligned, which drops the check.
"""


@tvm.transform.module_pass(opt_level=0, name="tirx_reduce.CheckAddresses")
def check_addresses(mod: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
    """Refuse tensors that start where an access would be misaligned, and outputs that lie across other tensors.

    An output may be the very tensor that an input is, of as many bytes; how that comes out right is up to the emitter.

    Before → after, for a softmax in packets of four floats::

        launch main_kernel(y, x)
        assert x.data % 16 == 0; assert y.data % 16 == 0; assert y is x, or apart from it; launch main_kernel(y, x)
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
    uses: dict[Any, Use] = {}

    def look(node: Any) -> None:
        if type(node) is tirx.DeclBuffer:
            tensor = next((v for v in compat.leaves(node.data) if not compat.is_buffer(v)), None)
            if tensor is not None:
                handles[node.buffer] = tensor
        elif str(node.op.name) == "tirx.call_ffi_kernel" and str(node.args[0].value) in kernels:
            kernel = kernels[str(node.args[0].value)]
            found = used(kernel.body)
            for given, parameter in zip(node.args[1:], kernel.params, strict=False):
                for tensor in filter(compat.is_buffer, compat.leaves(given)):
                    uses[tensor] = uses.get(tensor, Use()).joined(found.get(parameter, Use()))

    tvm_ffi.structural_walk(body, ((tirx.DeclBuffer, compat.Call), look), order="pre")
    mine = {t: h for t, h in handles.items() if t in uses}
    checks = [_aligned(t, h, uses[t].bytes, name) for t, h in mine.items() if uses[t].bytes > 1]
    for (a, first), (b, second) in combinations(mine.items(), 2):
        if uses[a].written or uses[b].written:
            checks.append(_apart(a, first, b, second, name))

    def guard(stmt: Any) -> Any:
        return tirx.SeqStmt([*checks, stmt]) if str(stmt.attr_key) == "compute_scope" else stmt

    return tvm_ffi.structural_map(body, (tirx.AttrStmt, guard)) if checks else body


@dataclass(frozen=True, slots=True)
class Use:
    """What kernels do with one tensor."""

    bytes: int = 1
    """Bytes of the widest access."""
    written: bool = False

    def joined(self, other: Use) -> Use:
        """Both uses as one."""
        return Use(max(self.bytes, other.bytes), self.written or other.written)


def used(body: Any) -> dict[Any, Use]:
    """What a kernel does by way of each pointer that it is given."""
    roots: dict[Any, Any] = {}
    found: dict[Any, Use] = {}

    def note(buffer: Any, size: int, written: bool = False) -> None:
        pointer = roots.get(buffer)
        if pointer is not None:
            found[pointer] = found.get(pointer, Use()).joined(Use(size, written))

    def look(node: Any) -> None:
        kind = type(node)
        if kind is tirx.DeclBuffer:
            source = next(iter(compat.leaves(node.data)))
            roots[node.buffer] = roots.get(source, source)
        elif kind is compat.TensorLoad:
            note(node.source, _bytes(node.ty.dtype))
        elif kind is tirx.BufferStore:
            note(node.buffer, _bytes(node.value.ty.dtype), written=True)
        elif str(node.op.name) == "tirx.cuda.func_call":
            name = str(node.args[0].value)
            # A prefetch, and the address of what is read, take any start.
            size, stores = PACKET if "copy" in name else 1, "store" in name
            for argument in node.args[1:]:
                if isinstance(argument, compat.Call) and str(argument.op.name) == "tirx.address_of":
                    note(argument.args[0].source, size, stores)

    kinds = (tirx.DeclBuffer, compat.TensorLoad, tirx.BufferStore, compat.Call)
    tvm_ffi.structural_walk(body, (kinds, look), order="pre")
    return found


def _bytes(dtype: Any) -> int:
    return max(1, int(dtype.bits) // 8) * int(dtype.lanes)


def _aligned(tensor: Any, handle: Any, size: int, name: str) -> Any:
    rest = tirx.bitwise_and(_address(handle), int64(size - 1))
    return _assertion(
        tirx.EQ(rest, int64(0)),
        f"{name}: {tensor.name} does not start at a multiple of {size} bytes; needs one that does, such as a copy",
    )


def _apart(a: Any, first: Any, b: Any, second: Any, name: str) -> Any:
    """One tensor ends before the other begins; or both are the same memory."""
    x, y, x_bytes, y_bytes = _address(first), _address(second), _size(a), _size(b)
    apart = tirx.Or(tirx.LE(x + x_bytes, y), tirx.LE(y + y_bytes, x))
    same = tirx.And(tirx.EQ(x, y), tirx.EQ(x_bytes, y_bytes))
    return _assertion(
        tirx.Or(apart, same),
        f"{name}: {a.name} and {b.name} overlap in part, and one of them is written; needs tensors apart, or the same",
    )


def _address(handle: Any) -> Any:
    return tirx.tvm_struct_get(handle, 0, _FIRST_FIELD, "int64")


def _size(tensor: Any) -> Any:
    """Bytes of a compact tensor."""
    total: Any = int64(item_bytes(str(tensor.ty.dtype)))
    for extent in tensor.shape:
        total = total * tirx.Cast("int64", extent)
    return tvm.sym.Analyzer().simplify(total)


def _assertion(condition: Any, text: str) -> Any:
    # TVM 0.27 names the first two parameters of AssertStmt the other way round than it takes them.
    return tirx.AssertStmt(condition, ir.StringImm("ValueError"), [ir.StringImm(text)])


def int64(value: int) -> Any:
    """A literal."""
    return tirx.IntImm("int64", value)
