"""What a command is about: a named operator with a shape, or a PrimFunc in somebody's file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tirx_reduce.bench.files import absolute, is_in_file, load, told
from tirx_reduce.bench.shapes import Shape, parse_shape, shape_text
from tirx_reduce.bench.workloads import Workload, dtype_name, get_workload
from tirx_reduce.errors import ReduceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One PrimFunc, and the workload that it comes from where there is one."""

    label: str
    func: Any
    operator: str = ""
    """By which `get_workload` finds the workload in every process."""
    workload: Workload | None = None
    shape: Shape | None = None
    dtype: str | None = None

    def runnable(self) -> tuple[Workload, Shape, str]:
        """Workload, shape and dtype of what can be run and verified.

        Raises
        ------
        ReduceError
            The subject is a bare PrimFunc, which has no reference and no inputs.
        """
        if self.workload is None or self.shape is None or self.dtype is None:
            raise ReduceError(
                f"{self.label} is a PrimFunc without inputs and reference; "
                "needs an operator or a Workload to run (docs/extend.md shows one), or tr.emulate "
                "with arrays of yours; plan, explain and show take it as it is"
            )
        return self.workload, self.shape, self.dtype


def read_subjects(name: str, shape: str | None, dtype: str | None) -> tuple[Subject, ...]:
    """Everything that `name` stands for: one operator (float32 by default), or each PrimFunc of a module.

    Raises
    ------
    ReduceError
        An operator is unknown, a shape is missing or not read, a file does not hold what it should, or a
        PrimFunc, which has both, is given a shape or a dtype.
    """
    wanted = dtype_name(dtype or "float32")
    found = load(name) if is_in_file(name) else get_workload(name)
    if isinstance(found, Workload):
        return (_of_workload(name, found, shape, wanted),)
    if shape is not None:
        raise ReduceError(f"{name} has its shape in the PrimFunc; needs no shape {shape!r}")
    if dtype is not None:
        raise ReduceError(f"{name} has its dtypes in the PrimFunc; needs no --dtype {dtype}")
    return _of_tvm(name, found)


def _of_workload(name: str, workload: Workload, shape: str | None, dtype: str) -> Subject:
    if shape is None:
        raise ReduceError(f"operator {workload.name!r} has no shape; needs one such as 768x6144")
    extents = parse_shape(shape)
    return Subject(
        label=f"{workload.name} {shape_text(extents)} {dtype}",
        func=workload.func(extents, dtype),
        operator=absolute(name),
        workload=workload,
        shape=extents,
        dtype=dtype,
    )


def _of_tvm(name: str, found: Any) -> tuple[Subject, ...]:
    import tvm

    if callable(found) and not isinstance(found, tvm.ir.BaseFunc):
        found = _called(name, found)
    if isinstance(found, tvm.tirx.PrimFunc):
        return (Subject(label=name, func=found),)
    if isinstance(found, tvm.ir.IRModule):
        functions = {v.name_hint: f for v, f in found.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
        if functions:
            return tuple(Subject(label=f"{name}.{k}", func=functions[k]) for k in sorted(functions))
        raise ReduceError(f"{name} is an IRModule without PrimFuncs; needs LegalizeOps and FuseTIR first")
    raise ReduceError(
        f"{name} is of type {type(found).__name__}; "
        "needs a PrimFunc, an IRModule, a Workload, or a function that gives one"
    )


def _called(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except ReduceError:
        raise
    except Exception as error:
        raise ReduceError(f"{name} fails with {told(error)}") from error
