"""The values between two verbs: frozen, printable, JSON-able, and free of TVM."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from .errors import ReduceError
from .program import RowProgram

REUSES = ("reload", "private", "shared", "mixed")
RUNGS = "rungs"
"""Unit of the prices of `ladder`: how far down its list a candidate stands."""


@dataclass(frozen=True, slots=True)  # positional as well: users write them by hand
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
    max_cluster: int = 1
    """Groups of one thread-block cluster; 1 where the device has none."""
    kind: str = "metal"
    """Target kind: `metal` or `cuda`."""
    cores: int = 0
    """Multiprocessors (GPU cores) of the device, 0 where it is not known."""
    cores_assumed: bool = False
    """`cores` is the usual number of the architecture, not read from a device."""
    opt_in_shared_bytes: int = 0
    """Shared memory that a kernel may ask for at its launch, 0 where that is no more than `shared_bytes`."""

    def __post_init__(self) -> None:
        for name in ("subgroup_size", "max_threads", "shared_bytes", "max_arguments", "private_scalars"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ReduceError(f"DeviceLimits.{name} is {value!r}; needs a positive int")
        if self.subgroup_size & (self.subgroup_size - 1):
            raise ReduceError(f"DeviceLimits.subgroup_size is {self.subgroup_size}; needs a power of two")


@dataclass(frozen=True, slots=True)  # positional as well: users write them by hand
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
    """Where a row is kept between passes: `reload`, `private`, `shared` or `mixed`."""
    splits: int = 1
    """Groups of one row."""
    resident: int = 0
    """Groups that stay on the device and take row after row, the next ones on their way; 0: as many as rows need."""
    merged: bool = False
    """Two reductions meet in one exchange where the second can be corrected to the first (softmax, a variance)."""
    rows: int = 1
    """Rows of one program, one after another: what is the same for all of them it reads once."""

    def __post_init__(self) -> None:
        for name in ("width", "packing", "vector", "unroll", "splits", "rows", "resident"):
            value, least = getattr(self, name), 0 if name == "resident" else 1
            if not isinstance(value, int) or isinstance(value, bool):
                raise ReduceError(f"Candidate.{name} is {value!r}; needs an int")
            if value < least:
                raise ReduceError(f"Candidate.{name} is {value}; needs {least} or more")
        if not isinstance(self.merged, bool):
            raise ReduceError(f"Candidate.merged is {self.merged!r}; needs True or False")
        if self.reuse not in REUSES:
            raise ReduceError(f"Candidate.reuse is {self.reuse!r}; needs one of {', '.join(REUSES)}")

    @property
    def threads(self) -> int:
        """Threads of one group."""
        return self.width * self.packing

    @property
    def rows_a_group(self) -> int:
        """Rows of one group, or of the groups that share one."""
        return self.packing * self.rows

    def groups(self, rows: int) -> int:
        """Groups that so many rows start."""
        return -(-rows // self.rows_a_group) * self.splits


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyCounts:
    """What was counted on the captured function of one reuse family, in its plain form."""

    reuse: str
    """The family: `reload`, `private`, `shared` or `mixed`."""
    passes: int
    """Walks over the row, the last one writing."""
    reductions: int
    """Collective reductions."""
    column_bytes_per_row_column: int
    """Sum of storage sizes over a row's accesses, for one column (bytes)."""
    kept: int
    """Values a column kept between passes; 0 under reload."""
    storage_bytes: int
    """Size of the widest matrix element in memory."""
    accumulation_bytes: int
    """Size of the widest accumulator."""

    def __post_init__(self) -> None:
        if self.reuse not in REUSES:
            raise ReduceError(f"FamilyCounts.reuse is {self.reuse!r}; needs one of {', '.join(REUSES)}")
        for name in ("passes", "reductions", "column_bytes_per_row_column", "kept"):
            if getattr(self, name) < 0:
                raise ReduceError(f"FamilyCounts.{name} is {getattr(self, name)}; needs 0 or more")


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
    """Groups that rows need: ceil(rows / (packing · rows a program)) · splits. Fewer that stay take them in turn."""
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


@dataclass(frozen=True, slots=True)  # positional as well: users write them by hand
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

    @property
    def ordinal(self) -> bool:
        """Whether scores are places in an order: twice as far down is not twice as dear."""
        return self.unit == RUNGS


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

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from . import describe_html

        return describe_html.facts_to_html(self)


Verdict: TypeAlias = CostEstimate | str
"""The price of a candidate that lost, or the reason of its refusal."""
Interval: TypeAlias = tuple[int, int | None]
"""Row counts from the first to the last, both included; None has no end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """One mapping, chosen, with the objective that chose it and all that lost."""

    candidate: Candidate
    estimate: CostEstimate
    """The complete objective of the winner."""
    policy: str
    features: Features
    """Demand of the winner."""
    limits: DeviceLimits
    rejected: tuple[tuple[Candidate, Verdict], ...] = ()
    """Every other candidate with its price, or with the reason of its refusal."""
    incumbent: Candidate | None = None
    """What the default policy would have taken."""
    extrapolated: bool = False
    """The width is none of those that the calibration was fitted on."""
    variants: tuple[tuple[Interval, GroupPlan], ...] = ()
    """For symbolic rows: row interval and plan."""
    subject: str = ""
    """Hash of the row program that was planned, empty where the caller gave none."""

    def __str__(self) -> str:
        """In a line; `repr` and JSON hold everything."""
        c, price = self.candidate, self.estimate
        usual = Candidate(width=c.width, vector=c.vector, reuse=c.reuse)
        names = ("packing", "unroll", "splits", "resident", "merged", "rows")
        more = [f"{name}={getattr(c, name)}" for name in names if getattr(c, name) != getattr(usual, name)]
        said = ", ".join([f"width={c.width}", f"vector={c.vector}", f"reuse={c.reuse!r}", *more])
        others = (
            f"{len(self.variants)} intervals of rows" if self.variants else f"{len(self.rejected)} others"
        )
        return f"GroupPlan({said}; {price.kernel_score:.4g} {price.unit} by {self.policy!r}, {others})"

    @property
    def width(self) -> int:
        """Lanes of one program."""
        return self.candidate.width

    @property
    def packing(self) -> int:
        """Programs of one group."""
        return self.candidate.packing

    @property
    def vector(self) -> int:
        """Elements of one access."""
        return self.candidate.vector

    @property
    def unroll(self) -> int:
        """Packets of one loop step."""
        return self.candidate.unroll

    @property
    def reuse(self) -> str:
        """Where a row is kept between passes."""
        return self.candidate.reuse

    @property
    def splits(self) -> int:
        """Groups of one row."""
        return self.candidate.splits

    @property
    def target_kind(self) -> str:
        """`metal` or `cuda`."""
        return self.limits.kind

    @property
    def key(self) -> str:
        """SHA-256 of the plan's JSON, the same in every process."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The plan as one line of JSON, always the same for the same plan."""
        return json.dumps(_plan_to_dict(self), sort_keys=True, separators=(",", ":"), allow_nan=False)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from . import describe_html  # printing is a room of its own

        return describe_html.plan_to_html(self)

    @classmethod
    def from_json(cls, text: str) -> GroupPlan:
        """The plan that `to_json` wrote.

        Raises
        ------
        ReduceError
            The text is no plan, or one of another format.
        """
        try:
            return _plan_from_dict(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReduceError(f"not a plan: {type(error).__name__}: {error}") from error


PLAN_FORMAT = 1
"""1: first."""


def _shallow(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _features_to_dict(features: Features) -> dict[str, Any]:
    out = _shallow(features)
    if features.incumbent is not None:
        candidate, demand = features.incumbent
        out["incumbent"] = [_shallow(candidate), _features_to_dict(demand)]
    return out


def _features_from_dict(data: dict[str, Any]) -> Features:
    out = dict(data)
    if out["incumbent"] is not None:
        candidate, demand = out["incumbent"]
        out["incumbent"] = (Candidate(**candidate), _features_from_dict(demand))
    return Features(**out)


def _plan_to_dict(plan: GroupPlan) -> dict[str, Any]:
    return {
        "format": PLAN_FORMAT,
        "candidate": _shallow(plan.candidate),
        "estimate": _shallow(plan.estimate),
        "policy": plan.policy,
        "features": _features_to_dict(plan.features),
        "limits": _shallow(plan.limits),
        "rejected": [[_shallow(c), v if isinstance(v, str) else _shallow(v)] for c, v in plan.rejected],
        "incumbent": None if plan.incumbent is None else _shallow(plan.incumbent),
        "extrapolated": plan.extrapolated,
        "variants": [[list(interval), _plan_to_dict(variant)] for interval, variant in plan.variants],
        "subject": plan.subject,
    }


def _plan_from_dict(data: dict[str, Any]) -> GroupPlan:
    if data["format"] != PLAN_FORMAT:
        raise ReduceError(f"plan of format {data['format']!r}; this version reads {PLAN_FORMAT}")
    return GroupPlan(
        candidate=Candidate(**data["candidate"]),
        estimate=CostEstimate(**data["estimate"]),
        policy=data["policy"],
        features=_features_from_dict(data["features"]),
        limits=DeviceLimits(**data["limits"]),
        rejected=tuple(
            (Candidate(**c), v if isinstance(v, str) else CostEstimate(**v)) for c, v in data["rejected"]
        ),
        incumbent=None if data["incumbent"] is None else Candidate(**data["incumbent"]),
        extrapolated=data["extrapolated"],
        variants=tuple(((lo, hi), _plan_from_dict(v)) for (lo, hi), v in data["variants"]),
        subject=data["subject"],
    )
