"""The fit: search records in, a profile out; the same records give the same bytes.

Labels come from raw samples. Six non-negative coefficients minimise the sum of squared relative errors, by
trying all 64 active sets on scaled columns; the capacity is that of least mean leave-one-shape-out regret.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tirx_reduce.bench.records import BadRecords, check_identity, file_digest, of_kind, read
from tirx_reduce.bench.search import DESIGN, TRIAL
from tirx_reduce.bench.statistics import regret
from tirx_reduce.bench.trial import label_us
from tirx_reduce.cost.calibration import (
    COEFFICIENTS,
    CapacityRow,
    Coefficients,
    Profile,
    dumps,
    load,
)
from tirx_reduce.errors import BadCalibration, ReduceError
from tirx_reduce.values import REUSES

Matrix = np.ndarray[Any, np.dtype[np.float64]]
CAPACITIES = (64, 128, 256, 512, 1024, 2048)
UNIT = "us"
DIGITS = 12
"""Significant digits of what is written, so that the last bits of one machine's BLAS do not show."""
SAME_ERROR = 1e-14
"""Squared errors this close, as a share of that of no model at all, count as equal."""
LEAST_SHAPES = 2
"""Leaving one shape out needs another to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured trial, as the fit sees it."""

    shape: tuple[int, ...]
    case: tuple[str, tuple[int, ...]]
    """Operator and shape."""
    order: tuple[int, int]
    """Breaks ties of price: width, then reuse."""
    label_us: float
    scalar_rounds: float
    collectives: float
    """reductions × subgroups of a program."""
    private_bytes: float
    launch_bytes: float
    """programs × global bytes of one."""
    worker_bytes: float
    subgroups: float
    """Of the whole launch."""

    def terms(self, capacity: float) -> tuple[float, ...]:
        """What D, R, K, P, G and W are multiplied by."""
        waves = max(1.0, self.subgroups / capacity)
        return (
            1.0,
            self.scalar_rounds * waves,
            self.collectives * waves,
            self.private_bytes * waves,
            self.launch_bytes,
            self.worker_bytes,
        )


def row_of(trial: Mapping[str, Any]) -> Row:
    """The fit's view of a measured trial."""
    f, c = trial["features"], trial["candidate"]
    shape = tuple(trial["case"]["shape"])
    return Row(
        shape=shape,
        case=(trial["case"]["operator"], shape),
        order=(c["width"], REUSES.index(c["reuse"])),
        label_us=label_us(dict(trial)),
        scalar_rounds=f["scalar_rounds"],
        collectives=f["reductions"] * f["subgroups_per_program"],
        private_bytes=f["worker_private_access_bytes"],
        launch_bytes=f["programs"] * f["program_global_access_bytes"],
        worker_bytes=f["worker_global_access_bytes"],
        subgroups=f["threadgroups"] * f["subgroups_per_program"] * c["packing"],
    )


def solve(rows: Sequence[Row], capacity: float) -> Matrix:
    """The six coefficients of least squared relative error, none below 0."""
    terms = np.array([row.terms(capacity) for row in rows], dtype=np.float64)
    relative = terms / np.array([[row.label_us] for row in rows])
    return nonnegative(relative, np.ones(len(rows)))


def nonnegative(matrix: Matrix, wanted: Matrix) -> Matrix:
    """Non-negative least squares by trying every active set, on columns scaled to length 1.

    Among sets of equal error (to `SAME_ERROR`) the first in order of size wins. Columns of zeros get 0.
    """
    scale = np.linalg.norm(matrix, axis=0)
    live = [int(i) for i in np.flatnonzero(scale > 0)]
    scaled = matrix / np.where(scale > 0, scale, 1.0)
    best, least = np.zeros(matrix.shape[1]), float(wanted @ wanted)
    for size in range(1, len(live) + 1):
        for active in itertools.combinations(live, size):
            columns = scaled[:, list(active)]
            found, _, rank, _ = np.linalg.lstsq(columns, wanted, rcond=None)
            if rank < size or np.any(found < 0):
                continue
            error = columns @ found - wanted
            squared = float(error @ error)
            if squared < least - SAME_ERROR * float(wanted @ wanted):
                least = squared
                best = np.zeros(matrix.shape[1])
                best[list(active)] = found
    return best / np.where(scale > 0, scale, 1.0)


def predict(rows: Sequence[Row], coefficients: Matrix, capacity: float) -> Matrix:
    """Predicted µs of each row."""
    predicted: Matrix = np.array([row.terms(capacity) for row in rows]) @ coefficients
    return predicted


def left_out_regrets(rows: Sequence[Row], capacity: float) -> dict[tuple[str, tuple[int, ...]], float]:
    """Regret of the pick in each case, by coefficients that never saw its shape."""
    found: dict[tuple[str, tuple[int, ...]], float] = {}
    for shape in sorted({row.shape for row in rows}):
        coefficients = solve([row for row in rows if row.shape != shape], capacity)
        held = [row for row in rows if row.shape == shape]
        for case in sorted({row.case for row in held}):
            group = [row for row in held if row.case == case]
            prices = predict(group, coefficients, capacity)
            picked = min(range(len(group)), key=lambda i: (prices[i], group[i].order))
            found[case] = regret([row.label_us for row in group], picked)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A fit, and how every capacity did."""

    coefficients: Coefficients
    capacities: tuple[CapacityRow, ...]
    regrets: tuple[tuple[tuple[str, tuple[int, ...]], float], ...]
    """Leave-one-shape-out regret of each case, at the selected capacity."""


def fit_rows(rows: Sequence[Row], capacities: Sequence[int] = CAPACITIES) -> Fitted:
    """Select the capacity, then fit it on all rows.

    Raises
    ------
    ReduceError
        There are fewer than two shapes, or too few rows.
    """
    if len({row.shape for row in rows}) < LEAST_SHAPES:
        raise ReduceError("trials of fewer than two shapes; needs another, to leave one out")
    if len(rows) < len(COEFFICIENTS):
        raise ReduceError(f"{len(rows)} valid trials; needs {len(COEFFICIENTS)} or more")
    table = []
    regrets = {}
    for capacity in sorted(capacities):
        regrets[capacity] = left_out_regrets(rows, capacity)
        values = list(regrets[capacity].values())
        errors = predict(rows, solve(rows, capacity), capacity) / np.array([r.label_us for r in rows]) - 1
        table.append(
            CapacityRow(
                capacity=capacity,
                mean_regret=_round(sum(values) / len(values)),
                max_regret=_round(max(values)),
                relative_rmse=_round(float(np.sqrt(np.mean(errors**2)))),
            )
        )
    chosen = min(table, key=lambda row: (row.mean_regret, row.capacity)).capacity
    solved = dict(zip(COEFFICIENTS, map(_round, solve(rows, chosen)), strict=True))
    return Fitted(
        coefficients=Coefficients(**solved, capacity=chosen),
        capacities=tuple(table),
        regrets=tuple(sorted(regrets[chosen].items())),
    )


def fit(records_path: Path | str, capacities: Sequence[int] = CAPACITIES) -> Profile:
    """The profile of one search file.

    Raises
    ------
    BadRecords, ReduceError
        The file is bad, unfinished, of a stand-in's several dtypes, or holds too little.
    """
    path = Path(records_path)
    records = read(path)
    environments = of_kind(records, "environment")
    for other in environments[1:]:
        check_identity(environments[0], other, f"{path}: its resumptions")
    trials = of_kind(records, TRIAL)
    measured = [t for t in trials if t["status"] == "measured"]
    _uniform(path, measured)
    fitted = fit_rows([row_of(t) for t in measured], capacities)
    selected = next(r for r in fitted.capacities if r.capacity == fitted.coefficients.capacity)
    first = environments[0]
    return Profile(
        target_kind=_target_kind(records),
        device=first["device"],
        dtype=measured[0]["case"]["dtype"],
        coefficients=fitted.coefficients,
        unit=UNIT,
        families=tuple(r for r in REUSES if any(t["candidate"]["reuse"] == r for t in measured)),
        widths=tuple(sorted({t["candidate"]["width"] for t in measured})),
        vectors=tuple(sorted({t["candidate"]["vector"] for t in measured})),
        private_scalars=_private_budget(records),
        tvm_version=first["tvm"],
        driver=first["driver"],
        libraries=tuple(sorted(first["libraries"].items())),
        records_sha256=file_digest(path),
        trials=len(measured),
        infeasible=sum(t["status"] == "infeasible" for t in trials),
        operators=tuple(sorted({t["case"]["operator"] for t in measured})),
        shapes=tuple(sorted({(_rows(t["case"]["shape"]), t["case"]["shape"][-1]) for t in measured})),
        capacities=fitted.capacities,
        mean_regret=selected.mean_regret,
        max_regret=selected.max_regret,
        # Of the records, not of the fit: the same records give the same bytes.
        date=environments[-1]["date"][:10],
    )


def write(profile: Profile, path: Path | str) -> Path:
    """Put a profile into a calibration file, in place of that of the same device and dtype; others stay."""
    path = Path(path)
    kept: tuple[Profile, ...] = ()
    if path.exists():
        there = load(path)
        if not isinstance(there, tuple):
            raise BadCalibration(f"{str(path)!r} holds bare coefficients; needs a calibration file")
        kept = tuple(p for p in there if p.label != profile.label)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(dumps((*kept, profile)), encoding="utf-8")
    scratch.replace(path)
    return path


def _uniform(path: Path, measured: Sequence[Mapping[str, Any]]) -> None:
    if not measured:
        raise BadRecords(f"{path}: no trial was measured; needs a search that has labels")
    for name in ("dtype",):
        values = sorted({str(t["case"][name]) for t in measured})
        if len(values) > 1:
            raise BadRecords(f"{path}: trials of {name} {', '.join(values)}; needs one, a profile is of one")
    for name in ("packing", "unroll", "splits"):
        values = sorted({str(t["candidate"][name]) for t in measured})
        if values != ["1"]:
            raise BadRecords(
                f"{path}: trials of {name} {', '.join(values)}; needs 1, the model knows no other"
            )


def _rows(shape: Sequence[int]) -> int:
    rows = 1
    for extent in shape[:-1]:
        rows *= int(extent)
    return rows


def _design(records: Sequence[Any]) -> dict[str, Any]:
    return of_kind(records, DESIGN)[0]


def _target_kind(records: Sequence[Any]) -> str:
    import json

    return str(json.loads(_design(records)["target"])["kind"])


def _private_budget(records: Sequence[Any]) -> int:
    limits = _design(records)["limits"]
    return 64 if limits is None else int(limits["private_scalars"])


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS - 1}e}")
