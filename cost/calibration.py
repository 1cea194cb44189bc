"""Calibrations: a committed JSON file of profiles in, a checked profile out; refuses what does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from tirx_reduce.errors import BadCalibration

FORMAT = 1
"""Of calibration.json. 1: first."""
COEFFICIENTS = ("D", "R", "K", "P", "G", "W")
MAKE_ONE = "tirx-reduce search --out records.jsonl && tirx-reduce fit records.jsonl --out calibration.json"
"""The command that makes a profile of the device at hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """The six non-negative coefficients of the service objective, and its saturation capacity."""

    D: float
    """Fixed price of a launch."""
    R: float
    """Of a scalar round."""
    K: float
    """Of one subgroup's part in one collective."""
    P: float
    """Of a byte that a lane touches of its private state."""
    G: float
    """Of a byte that a program asks global memory for, over all programs."""
    W: float
    """Of a byte that the busiest lane asks global memory for."""
    capacity: float
    """Subgroups that run at once before waves begin: a fitted prior, no queried occupancy."""

    def __post_init__(self) -> None:
        for name in (*COEFFICIENTS, "capacity"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadCalibration(f"coefficient {name} is {value!r}; needs a number")
            if not math.isfinite(value) or value < 0:
                raise BadCalibration(f"coefficient {name} is {value!r}; needs a finite number of 0 or more")
        if self.capacity <= 0:
            raise BadCalibration(f"capacity is {self.capacity!r}; needs more than 0")
        if not any(getattr(self, name) for name in COEFFICIENTS):
            raise BadCalibration(f"all of {', '.join(COEFFICIENTS)} are 0; needs one above")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """How one capacity did in the selection."""

    capacity: int
    mean_regret: float
    """Mean over the cases of leave-one-shape-out regret (0.05 is 5 %)."""
    max_regret: float
    relative_rmse: float
    """Root of the mean squared relative error of the fit on all trials."""

    def __post_init__(self) -> None:
        for name in ("mean_regret", "max_regret", "relative_rmse"):
            _finite(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Coefficients of one device and dtype, and what they were fitted on."""

    target_kind: str
    device: str
    dtype: str
    coefficients: Coefficients
    unit: str
    families: tuple[str, ...]
    """Reuse families that were measured."""
    widths: tuple[int, ...]
    """Widths that were measured, ascending."""
    vectors: tuple[int, ...]
    private_scalars: int
    """The private budget of the fit (values a lane)."""
    tvm_version: str
    driver: str
    libraries: tuple[tuple[str, str], ...]
    """Versions of what generated and launched the code, by name."""
    records_sha256: str
    """Of the training records."""
    trials: int
    infeasible: int
    operators: tuple[str, ...]
    shapes: tuple[tuple[int, int], ...]
    """Training shapes (rows, columns)."""
    capacities: tuple[CapacityRow, ...]
    mean_regret: float
    """Leave-one-shape-out, of the selected capacity; not a held-out result."""
    max_regret: float
    date: str
    """Day of the last training record."""

    def __post_init__(self) -> None:
        for name in ("mean_regret", "max_regret"):
            _finite(name, getattr(self, name))
        for name in ("target_kind", "device", "dtype", "unit", "tvm_version"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise BadCalibration(f"profile.{name} is {value!r}; needs a text")
        if not self.families:
            raise BadCalibration("profile.families is empty; needs the families that were measured")

    @property
    def label(self) -> str:
        """Key of the profile, for messages."""
        return f"{self.target_kind}, {self.device}, {self.dtype}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form, as in calibration.json."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        out["coefficients"] = {f.name: getattr(self.coefficients, f.name) for f in fields(Coefficients)}
        out["capacities"] = [{f.name: getattr(row, f.name) for f in fields(row)} for row in self.capacities]
        out["libraries"] = dict(self.libraries)
        return out


Calibration: TypeAlias = "Bare | Profile | tuple[Profile, ...]"


@dataclass(frozen=True, slots=True)
class Bare:
    """Coefficients that came as a mapping: no profile, so nothing of a profile is checked."""

    coefficients: Coefficients


def load(source: Any) -> Calibration:
    """What `calibration=` names, read and checked.

    Parameters
    ----------
    source
        A path; a mapping with the keys D, R, K, P, G, W, capacity, or the content of a calibration file or
        of one profile; a loaded profile; or None for the packaged file.

    Raises
    ------
    BadCalibration
        It cannot be read, or a value in it is missing, unknown or out of range.
    """
    if source is None:
        return _packaged()
    if isinstance(source, Profile | Bare):
        return source
    if isinstance(source, tuple) and all(isinstance(p, Profile) for p in source):
        return source
    if isinstance(source, str | Path):
        return _read(Path(source))
    if not isinstance(source, Mapping):
        raise BadCalibration(
            f"calibration is a {type(source).__name__}; needs a path, a mapping, a profile or None"
        )
    if "profiles" in source:
        return _file(source, "mapping")
    if "coefficients" in source:
        return profile_from_dict(source)
    return Bare(_coefficients(source))


def profile_from_dict(data: Mapping[str, Any]) -> Profile:
    """The profile that `Profile.to_dict` wrote.

    Raises
    ------
    BadCalibration
        A field is missing, unknown or out of range.
    """
    _exact(data, {f.name for f in fields(Profile)}, "profile")
    out = dict(data)
    try:
        out["coefficients"] = _coefficients(data["coefficients"])
        out["capacities"] = tuple(CapacityRow(**row) for row in data["capacities"])
        out["libraries"] = tuple(sorted((str(k), str(v)) for k, v in dict(data["libraries"]).items()))
        out["shapes"] = tuple((int(m), int(n)) for m, n in data["shapes"])
        for name in ("families", "widths", "vectors", "operators"):
            out[name] = tuple(data[name])
        return Profile(**out)
    except (TypeError, ValueError) as error:
        raise BadCalibration(f"profile is malformed: {error}") from error


def select(
    calibration: Calibration, *, target_kind: str, device: str | None, dtype: str, tvm_version: str
) -> Bare | Profile:
    """The one profile that fits; a bare mapping fits everything.

    Raises
    ------
    BadCalibration
        None fits; the text says in what, and which command makes one.
    """
    if isinstance(calibration, Bare):
        return calibration
    profiles = (calibration,) if isinstance(calibration, Profile) else calibration
    wanted = {"target kind": target_kind, "device": device, "dtype": dtype, "TVM": tvm_version}
    misfits = []
    named = ""
    for profile in profiles:
        have = {
            "target kind": profile.target_kind,
            "device": profile.device,
            "dtype": profile.dtype,
            "TVM": profile.tvm_version,
        }
        wrong = [
            f"{key} {have[key]!r} "
            + ("where none answers here" if wanted[key] is None else f"in place of {wanted[key]!r}")
            for key in have
            if have[key] != wanted[key]
        ]
        if not wrong:
            return profile
        misfits.append(f"that of ({profile.label}) has " + " and ".join(wrong))
        if device is None and len(wrong) == 1:
            named = named or profile.device
    seen = "; ".join(misfits) if misfits else "the calibration holds no profile"
    asked = f"{target_kind}, {device or 'no device'}, {dtype}, TVM {tvm_version}"
    # Where no device answers, one of them may be meant all the same.
    name = (
        f"name the device to plan for it from here: --device {named!r}, device= in Python; or "
        if named
        else ""
    )
    raise BadCalibration(f"no calibration for ({asked}): {seen}; {name}make one with: {MAKE_ONE}")


def _coefficients(data: Any) -> Coefficients:
    if not isinstance(data, Mapping):
        raise BadCalibration(f"coefficients are {data!r}; needs a mapping with D, R, K, P, G, W, capacity")
    _exact(data, {*COEFFICIENTS, "capacity"}, "calibration")
    return Coefficients(**data)


def _exact(data: Mapping[str, Any], wanted: set[str], what: str) -> None:
    missing, unknown = sorted(wanted - set(data)), sorted(map(str, set(data) - wanted))
    if missing:
        raise BadCalibration(f"{what} lacks {', '.join(missing)}; needs {', '.join(sorted(wanted))}")
    if unknown:
        raise BadCalibration(
            f"{what} holds unknown {', '.join(unknown)}; needs only {', '.join(sorted(wanted))}"
        )


def _finite(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise BadCalibration(f"profile.{name} is {value!r}; needs a finite number of 0 or more")


def _read(path: Path) -> Calibration:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadCalibration(f"calibration {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BadCalibration(f"calibration {str(path)!r} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadCalibration(f"calibration {str(path)!r} holds a {type(data).__name__}; needs an object")
    try:
        if set(data) == {*COEFFICIENTS, "capacity"}:
            return Bare(_coefficients(data))
        return _file(data, "file")
    except BadCalibration as error:
        raise BadCalibration(f"calibration {str(path)!r}: {error}") from error


def _file(data: Mapping[str, Any], where: str) -> tuple[Profile, ...]:
    if data.get("format") != FORMAT:
        raise BadCalibration(f"the {where} has format {data.get('format')!r}; this version reads {FORMAT}")
    _exact(data, {"format", "profiles"}, f"the {where}")
    if not isinstance(data["profiles"], list):
        raise BadCalibration(f"the {where} has no list of profiles")
    profiles = tuple(profile_from_dict(p) for p in data["profiles"])
    labels = [p.label for p in profiles]
    doubled = sorted({label for label in labels if labels.count(label) > 1})
    if doubled:
        raise BadCalibration(f"the {where} holds ({doubled[0]}) twice; needs one profile of each")
    return profiles


def dumps(profiles: tuple[Profile, ...]) -> str:
    """Text of a calibration file, the same for the same profiles."""
    ordered = sorted(profiles, key=lambda p: p.label)
    content = {"format": FORMAT, "profiles": [p.to_dict() for p in ordered]}
    return json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"


def packaged_path() -> Path:
    """Where the packaged file lies: beside the package's modules, or one folder up in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "calibration.json"
    if installed.exists():
        return installed
    # In a checkout this file is reached as tirx_reduce/cost/… (a link) or as cost/….
    for folder in (package.parent, Path(__file__).resolve().parent.parent):
        if (folder / "calibration.json").exists():
            return folder / "calibration.json"
    return installed


@lru_cache(maxsize=1)
def _packaged() -> Calibration:
    return _read(packaged_path())
