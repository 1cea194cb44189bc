"""The values between two verbs: frozen, printable, JSON-able, and free of TVM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import ReduceError
from .program import RowProgram

REUSES = ("reload", "private", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLimits:
    """Hard limits of one device; no cost policy may lift them."""

    subgroup_size: int = 32
    """Lanes of a subgroup (simdgroup, warp)."""
    max_threads: int = 1024
    """Threads of a group."""
    shared_bytes: int = 32768
    """Threadgroup memory of a group (bytes)."""
    max_arguments: int = 31
    """Arguments of a kernel."""
    private_scalars: int = 64
    """Values that one lane may keep of its row between passes."""
    kind: str = "metal"
    """Target kind: `metal` or `cuda`."""
    cores: int = 0
    """Multiprocessors (GPU cores) of the device, 0 where it is not known."""

    def __post_init__(self) -> None:
        for name in ("subgroup_size", "max_threads", "shared_bytes", "max_arguments", "private_scalars"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ReduceError(f"DeviceLimits.{name} is {value!r}; needs a positive int")
        if self.subgroup_size & (self.subgroup_size - 1):
            raise ReduceError(f"DeviceLimits.subgroup_size is {self.subgroup_size}; needs a power of two")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One mapping of rows onto the GPU."""

    width: int
    """Lanes of one program (row)."""
    packing: int = 1
    """Programs of one group."""
    vector: int = 1
    """Elements of one access."""
    unroll: int = 1
    """Packets of one loop step."""
    reuse: str = "reload"
    """Where a row is kept between passes: `reload`, `private` or `shared`."""
    splits: int = 1
    """Groups of one row."""

    def __post_init__(self) -> None:
        for name in ("width", "packing", "vector", "unroll", "splits"):
            if getattr(self, name) < 1:
                raise ReduceError(f"Candidate.{name} is {getattr(self, name)}; needs 1 or more")
        if self.reuse not in REUSES:
            raise ReduceError(f"Candidate.reuse is {self.reuse!r}; needs one of {', '.join(REUSES)}")

    @property
    def threads(self) -> int:
        """Threads of one group."""
        return self.width * self.packing


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Source-level demand of one candidate, counted on the captured function of its reuse family."""

    rows: int
    columns: int
    passes: int
    """Walks over the row."""
    scalar_rounds: int
    """passes · ceil(N / (W·V)) · V."""
    reductions: int
    """Collective reductions."""
    subgroups_per_program: int
    programs: int
    """Rows, each one a program."""
    threadgroups: int
    """Groups launched: ceil(rows / packing)."""
    program_global_access_bytes: int
    """Global bytes that one program asks for."""
    worker_global_access_bytes: int
    """The same for the busiest lane, padding included."""
    worker_private_access_bytes: int
    """Kept bytes that one lane touches; 0 under reload."""
    storage_bytes: int
    """Size of the widest matrix element in memory."""
    accumulation_bytes: int
    """Size of the widest accumulator."""
    incumbent: tuple[Candidate, Features] | None = None
    """The incumbent's choice, for policies that guard it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """The price of one whole launch."""

    local: float
    """Work of one program."""
    launch: float
    """The factor or term of the whole launch."""
    kernel_score: float
    """The complete objective; the solver minimises it, and nothing multiplies it afterwards."""
    unit: str
    """Unit of `kernel_score`, e.g. `rounds` or `us`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """What is proved of a row-reduction PrimFunc."""

    program: RowProgram
    rows: int | None
    """Rows, where fixed."""
    columns: int | None
    """Reduced extent, where fixed."""
    passes: int
    """Walks over the row, the last one writing."""
    reductions: int
    """Collective reductions (several values of one pass together count each)."""
    storage: tuple[str, ...]
    """Dtypes in memory, sorted."""
    accumulation: tuple[str, ...]
    """Dtypes of accumulators, sorted."""
    kept: int
    """Values of a row that later passes read again (values a column)."""
    arguments: int
    """Arguments of the kernel."""
    payload_bytes: tuple[tuple[str, int | None], ...] = field(default=())
    """Global bytes of one row under each reuse; None where columns are symbolic."""

    def to_json(self) -> dict[str, Any]:
        """A JSON-able description."""
        from . import describe  # printing is a room of its own

        return describe.facts_to_json(self)
