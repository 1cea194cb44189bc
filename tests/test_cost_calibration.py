"""Calibrations: what is read, what is refused, and in which words."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.cost_cases import COEFFICIENTS
from tests.test_policies import BOUND, profile
from tirx_reduce import cost
from tirx_reduce.cost import calibration
from tirx_reduce.errors import BadCalibration


@pytest.mark.parametrize("name", ["D", "R", "K", "P", "G", "W", "capacity"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-9, "1", None, True])
def test_coefficients_must_be_finite_and_not_negative(name: str, value: Any) -> None:
    with pytest.raises(BadCalibration, match=f"{name} is {value!r}"):
        cost.resolve("service", {**COEFFICIENTS, name: value})


def test_capacity_zero_and_all_zero_are_refused() -> None:
    with pytest.raises(BadCalibration, match="capacity is 0"):
        calibration.load({**COEFFICIENTS, "capacity": 0})
    with pytest.raises(BadCalibration, match="all of D, R, K, P, G, W are 0"):
        calibration.load(dict.fromkeys(COEFFICIENTS, 0.0) | {"capacity": 64})


def test_missing_and_unknown_keys_are_named() -> None:
    short = {k: v for k, v in COEFFICIENTS.items() if k != "G"}
    with pytest.raises(BadCalibration, match="lacks G"):
        calibration.load(short)
    with pytest.raises(BadCalibration, match="holds unknown gamma"):
        calibration.load({**COEFFICIENTS, "gamma": 1.0})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("target_kind", "metal", "target kind 'cuda' in place of 'metal'"),
        ("device", "Other GPU", "device 'Test GPU' in place of 'Other GPU'"),
        ("device", None, "device 'Test GPU' where none answers here"),
        ("dtype", "float16", "dtype 'float32' in place of 'float16'"),
        ("tvm_version", "0.28.0", "TVM '0.27.0' in place of '0.28.0'"),
    ],
)
def test_a_profile_of_something_else_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(BadCalibration, match=message) as caught:
        cost.bind("service", profile(), **{**BOUND, field: value})
    assert calibration.MAKE_ONE in str(caught.value)


def bind_at(**changes: Any) -> None:
    cost.bind("service", profile(), **{**BOUND, **changes})


def test_where_no_device_answers_the_one_that_is_meant_can_be_named() -> None:
    with pytest.raises(
        BadCalibration, match="name the device to plan for it from here: --device 'Test GPU', device="
    ):
        bind_at(device=None)
    for other in ({"device": "Other GPU"}, {"device": None, "dtype": "float16"}):
        with pytest.raises(BadCalibration) as caught:
            bind_at(**other)
        assert "--device" not in str(caught.value)


def test_the_fitting_profile_of_several_is_taken(tmp_path: Path) -> None:
    half = profile(dtype="float16", mean_regret=0.01)
    path = tmp_path / "calibration.json"
    path.write_text(calibration.dumps((profile(), half)))
    bound: Any = cost.bind("service", path, **{**BOUND, "dtype": "float16"})
    assert bound.calibration == half


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    text = calibration.dumps((profile(),))
    path.write_text(text)
    loaded = calibration.load(str(path))
    assert loaded == (profile(),)
    assert calibration.dumps((profile(),)) == text
    assert calibration.load(json.loads(text)) == (profile(),)
    assert calibration.load(profile().to_dict()) == profile()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "holds a list; needs an object"),
        ('{"format": 9, "profiles": []}', "has format 9; this version reads 1"),
        ('{"format": 1}', "lacks profiles"),
        ('{"format": 1, "profiles": {}}', "no list of profiles"),
        ('{"format": 1, "profiles": [{}]}', "profile lacks"),
    ],
)
def test_broken_files_get_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(BadCalibration, match=message) as caught:
        cost.resolve("analytic", path)
    assert "\n" not in str(caught.value)


def test_missing_files_doubled_profiles_and_wrong_types(tmp_path: Path) -> None:
    with pytest.raises(BadCalibration, match="cannot be read"):
        calibration.load(tmp_path / "none.json")
    with pytest.raises(BadCalibration, match="twice"):
        calibration.load(json.loads(calibration.dumps((profile(), profile()))))
    with pytest.raises(BadCalibration, match="calibration is a int"):
        calibration.load(3)


def test_a_nan_in_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nan.json"
    path.write_text(json.dumps({**COEFFICIENTS, "W": math.nan}))
    with pytest.raises(BadCalibration, match=r"nan\.json': .*W is nan"):
        calibration.load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "holds a list; needs an object"),
        ('{"format": 9}', "the file has format 9; this version reads"),
        ('{"format": 1, "profiles": 3}', "the file has no list of profiles"),
        ('{"format": 1, "profiles": [{}]}', "profile lacks"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(BadCalibration, match=rf"broken\.json'.*{message}"):
        calibration.load(path)


def test_the_packaged_file_is_read_and_holds_no_apple_profile() -> None:
    packaged = calibration.load(None)
    assert isinstance(packaged, tuple)
    assert all(p.target_kind != "metal" for p in packaged)
    with pytest.raises(BadCalibration, match="make one with: tirx-reduce search"):
        cost.bind("service", None, **{**BOUND, "target_kind": "metal", "device": "Apple M1 Max"})


def test_analytic_needs_no_calibration() -> None:
    nowhere: dict[str, Any] = {**BOUND, "device": None}
    assert cost.bind("analytic", None, **nowhere).name == "analytic"
