"""Named operators with their PrimFunc, seeded inputs, float64 reference, bytes moved and tolerance.

A workload goes in by `register_workload`; an unknown name, a malformed shape or a dtype that a workload does
not take is refused by `ReduceError` with what is known.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tirx_reduce.errors import ReduceError, check_type

from .dtypes import DTYPES, FLOATS, dtype_name, numpy_dtype, unit_roundoff
from .files import is_in_file, load, told
from .shapes import Shape, parse_shape, shape_text

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

__all__ = [
    "DTYPES",
    "FLOATS",
    "Operand",
    "Shape",
    "Verdict",
    "Workload",
    "dtype_name",
    "get_workload",
    "parse_shape",
    "register_workload",
    "shape_text",
    "workloads",
]

Array = np.ndarray[Any, Any]
SCALES = ("value", "row", "sum", "mean")
Draw = Callable[[np.random.Generator, Shape], Array]


def normal(rng: np.random.Generator, shape: Shape) -> Array:
    """Zero mean and unit variance."""
    return rng.standard_normal(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One tensor of a workload."""

    name: str
    axes: str = "rows columns"
    """`rows columns`, `rows`, `columns`, `rows 1`, or `last2` (the last two axes, for every outer index)."""
    dtype: str | None = None
    """Fixed dtype; None follows the workload's."""
    draw: Draw = normal
    """Values in float64 (or integers), rounded to the dtype afterwards."""

    def shape(self, shape: Shape) -> Shape:
        """Shape of this tensor where the workload's is `shape`."""
        match self.axes:
            case "rows columns":
                return shape
            case "rows":
                return shape[:-1]
            case "rows 1":
                return (*shape[:-1], 1)
            case "columns":
                return shape[-1:]
            case "last2":
                return shape[-2:]
        raise ReduceError(
            f"operand {self.name!r} has axes {self.axes!r}; "
            "needs 'rows columns', 'rows', 'rows 1', 'columns' or 'last2'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What comparing one set of outputs with the float64 reference gave."""

    ok: bool
    max_abs: float
    """Largest absolute error over all outputs; NaN where a NaN stands against a number."""
    max_rel: float
    """Largest error relative to the reference's own magnitude, where that is not zero."""
    share: float
    """Largest error as a share of what is allowed: 1 or less passes."""
    where: str
    """Output and index of the largest share."""
    allowed: str
    """How the tolerance comes about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One operator over the trailing axis, as Relax legalises it."""

    name: str
    summary: str
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    express: Callable[..., Any]
    """From `tvm.relax` and one Relax variable an operand to a Relax expression, or a tuple of them."""
    reference: Callable[..., tuple[Array, ...]]
    """From float64 operands (integers stay integers) and `cast`, which rounds as a Cast of `express` does."""
    dtypes: tuple[str, ...] = FLOATS
    casts: int = 0
    """Explicit roundings to the operands' dtype between them and the last store."""
    cast_dtypes: tuple[str, ...] = ("float16",)
    """Dtypes whose expression holds those casts."""
    scale: str = "row"
    """What errors are relative to: the own `value`, the `row`'s largest, `sum` or `mean` of magnitudes."""
    exact: bool = False
    """Outputs must be equal (indices, comparisons)."""

    def __post_init__(self) -> None:
        unknown = set(self.dtypes) - set(DTYPES)
        if unknown:
            raise ReduceError(
                f"workload {self.name!r} names dtypes {sorted(unknown)}; known: {', '.join(DTYPES)}"
            )
        if self.scale not in SCALES:
            raise ReduceError(
                f"workload {self.name!r} has scale {self.scale!r}; needs one of {', '.join(SCALES)}"
            )

    def func(self, shape: Shape, dtype: str = "float32", *, symbolic_rows: bool = False) -> PrimFunc:
        """The PrimFunc that Relax hands to a schedule rule, its operands first and its results last.

        With `symbolic_rows` the first extent of `shape` counts for nothing: it is known at each call only.
        """
        self.check_dtype(dtype)
        self.check_shape(shape[1:] if symbolic_rows and isinstance(shape, tuple | list) else shape)
        if not shape or (len(shape) < 2 and (symbolic_rows or any(o.axes == "last2" for o in self.operands))):
            raise ReduceError(f"{self.name} has shape {shape_text(shape)!r}; needs at least two axes")
        for extent in shape[1:] if symbolic_rows else shape:
            if extent < 0:
                raise ReduceError(f"{self.name} has an extent of {extent!r}; needs 0 or more")
        if not symbolic_rows:
            return _build(self, tuple(int(e) for e in shape), dtype)
        from tvm import tirx

        extents: tuple[Any, ...] = (tirx.Var("rows", "int64"), *(int(e) for e in shape[1:]))
        return _build(self, extents, dtype)

    def check_dtype(self, dtype: str) -> None:
        """Refuse a dtype that this workload is not written for."""
        if dtype not in self.dtypes:
            raise ReduceError(f"{self.name} has dtype {dtype!r}; it takes {', '.join(self.dtypes)}")

    def check_shape(self, shape: Shape) -> None:
        """Refuse what is no tuple of whole numbers."""
        needs = "a tuple of ints, such as (768, 6144)"
        check_type(f"the shape of {self.name}", shape, (tuple, list), needs)
        for extent in shape:
            check_type(f"an extent of {self.name}, {extent!r},", extent, (int, np.integer), "an int")

    @contextmanager
    def _calling(self, function: str) -> Iterator[None]:
        """Tells whose function failed: they are strangers', and may raise anything."""
        try:
            yield
        except ReduceError:
            raise
        except Exception as error:
            raise ReduceError(f"workload {self.name!r}: its {function} fails with {told(error)}") from error

    def inputs(self, shape: Shape, dtype: str = "float32", *, seed: int = 0) -> tuple[Array, ...]:
        """Operands in the order of the PrimFunc's parameters, the same for the same seed."""
        self.check_dtype(dtype)
        self.check_shape(shape)
        rng = np.random.default_rng([seed, *shape])
        arrays = []
        for o in self.operands:
            target = numpy_dtype(o.dtype or dtype)
            with self._calling(f"draw of {o.name!r}"):
                arrays.append(np.ascontiguousarray(o.draw(rng, o.shape(shape)).astype(target)))
        return tuple(arrays)

    def outputs(self, shape: Shape, dtype: str = "float32") -> tuple[tuple[Shape, str], ...]:
        """Shape and dtype of each result."""
        return tuple((r.shape(shape), r.dtype or dtype) for r in self.results)

    def empty(self, shape: Shape, dtype: str = "float32") -> tuple[Array, ...]:
        """Result arrays filled with a bit pattern that no result holds by chance (0xFF bytes)."""
        arrays = []
        for result_shape, result_dtype in self.outputs(shape, dtype):
            array = np.empty(result_shape, numpy_dtype(result_dtype))
            array.view(np.uint8).fill(0xFF) if array.ndim else array.fill(-1)
            arrays.append(array)
        return tuple(arrays)

    def expected(self, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        """The float64 reference of `inputs`; casts round where they stand, the last store does not."""
        follows = [a for a, o in zip(inputs, self.operands, strict=True) if o.dtype is None]
        narrow = follows[0].dtype if follows else np.dtype(np.float32)
        wide = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in inputs]

        def cast(values: Array) -> Array:
            return values.astype(narrow).astype(np.float64) if str(narrow) in self.cast_dtypes else values

        with np.errstate(all="ignore"), self._calling("reference"):
            found = self.reference(*wide, cast=cast)
        return self._referred(found)

    def _referred(self, found: Any) -> tuple[Array, ...]:
        count = len(self.results)
        needs = f"a tuple of {count} array{'s' if count > 1 else ''}, one a result"
        check_type(f"what the reference of workload {self.name!r} gives", found, (tuple, list), needs)
        if len(found) != count:
            raise ReduceError(
                f"the reference of workload {self.name!r} gives {len(found)} arrays; needs {needs}"
            )
        return tuple(np.asarray(a) for a in found)

    def bytes_moved(self, shape: Shape, dtype: str = "float32") -> int:
        """Bytes of all operands and results, each moved once."""
        total = 0
        for o in (*self.operands, *self.results):
            total += math.prod(o.shape(shape)) * numpy_dtype(o.dtype or dtype).itemsize
        return total

    def verify(self, outputs: tuple[Array, ...], inputs: tuple[Array, ...]) -> Verdict:
        """Compare every element of `outputs` with the float64 reference of `inputs`."""
        from .verify import compare

        return compare(self, outputs, inputs)

    def tolerance(self, dtype: str, columns: int) -> tuple[float, str]:
        """Allowed error relative to `scale`, and how it comes about."""
        if self.exact:
            return 0.0, "equal: the result is an index or an integer"
        rounding = unit_roundoff("float32")
        computed = (64 + 4 * math.sqrt(columns)) * rounding
        # Next to a rounding boundary a value may fall on the other side: a step a cast, half for the store.
        halves = 1 + 2 * (self.casts if dtype in self.cast_dtypes else 0)
        text = (
            f"(64 + 4·√{columns})·2^-24 for fast-math functions and the random walk of an fp32 sum, "
            f"plus {halves}·2^{int(math.log2(unit_roundoff(dtype)))} for rounding to {dtype}"
        )
        return computed + 1.01 * halves * unit_roundoff(dtype), text


_TABLE: dict[str, Workload] = {}


def register_workload(workload: Workload) -> Workload:
    """Add an operator to the table; a name that stands in it already is refused."""
    check_type("workload", workload, Workload, "a Workload")
    _load_builtin()
    if workload.name in _TABLE:
        raise ReduceError(
            f"workload {workload.name!r} is registered already ({_TABLE[workload.name].summary}); "
            "needs a new name"
        )
    _TABLE[workload.name] = workload
    return workload


def get_workload(name: str) -> Workload:
    """The workload of that name, or of FILE.py:NAME.

    Raises
    ------
    ReduceError
        There is none; the text lists the known ones.
    """
    check_type("the name of a workload", name, str, "a str, such as 'softmax'")
    if is_in_file(name):
        return _of_file(name)
    _load_builtin()
    if name in _TABLE:
        return _TABLE[name]
    if name.endswith(".py"):
        raise ReduceError(
            f"{name} names a file; needs {name}:NAME, the name of a Workload or a PrimFunc in it"
        )
    close = difflib.get_close_matches(name, _TABLE, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ReduceError(f"unknown operator {name!r}{hint} (known: {', '.join(sorted(_TABLE))})")


def _of_file(name: str) -> Workload:
    found = load(name)
    check_type(
        name, found, Workload, "a Workload, which has inputs and a reference (docs/extend.md shows one)"
    )
    return found


def workloads() -> tuple[str, ...]:
    """Names of all workloads, sorted."""
    _load_builtin()
    return tuple(sorted(_TABLE))


def _load_builtin() -> None:
    if not _TABLE:
        from .operators import OPERATORS

        _TABLE.update({w.name: w for w in OPERATORS})


def _expressed(workload: Workload, builder: Any, operands: list[Any]) -> tuple[Any, ReduceError | None]:
    """What `express` gives, emitted; or anything, and why there is nothing."""
    from tvm import relax

    try:
        with workload._calling("express"):
            made = workload.express(relax, *operands)
            for part in made if isinstance(made, tuple) else (made,):
                check_type(
                    f"what the express of workload {workload.name!r} gives",
                    part,
                    relax.Expr,
                    "a Relax expression, or a tuple of them",
                )
            return builder.emit_output(builder.normalize(made)), None
    except ReduceError as failure:
        return builder.emit_output(operands[0]), failure


@lru_cache(maxsize=512)
def _build(workload: Workload, shape: Shape, dtype: str) -> PrimFunc:
    import tvm
    from tvm import relax

    name = workload.name
    builder = relax.BlockBuilder()
    operands = [
        relax.Var(o.name, relax.TensorType(o.shape(shape), o.dtype or dtype)) for o in workload.operands
    ]
    # One primitive function, so that FuseTIR makes one PrimFunc of it however many operators it holds.
    with builder.function(name, operands, attrs={"Primitive": True}, private=True):
        with builder.dataflow():
            # Its failure waits until the scopes are left: TVM writes a warning where they are left by an exception.
            result, failure = _expressed(workload, builder, operands)
        builder.emit_func_output(result)
    if failure is not None:
        raise failure
    fused = builder.get()
    outer = [relax.Var(o.name, v.ty) for o, v in zip(workload.operands, operands, strict=True)]
    main = relax.BlockBuilder(fused)
    with main.function("main", outer):
        with main.dataflow():
            called = main.emit_output(relax.Call(fused.get_global_var(name), outer))
        main.emit_func_output(called)
    passes = relax.transform
    steps = [passes.LegalizeOps(), passes.FuseTIR(), passes.DeadCodeElimination()]
    with workload._calling("express, legalised by TVM,"):
        mod = tvm.transform.Sequential(steps)(main.get())
    found = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    if len(found) != 1:
        raise ReduceError(f"{name} at {shape_text(shape)} legalises to {len(found)} PrimFuncs; needs one")
    func = found[0]
    return func.with_attr("global_symbol", name)
