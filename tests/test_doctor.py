"""The doctor's findings, with made-up installations and the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tirx_reduce.bench import doctor
from tirx_reduce.bench.doctor import FAULT, NOTE, OK
from tirx_reduce.bench.terminal import Style

GOOD = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1"}


@pytest.mark.parametrize(
    ("versions", "what", "state", "seen"),
    [
        (GOOD, "apache-tvm-ffi", OK, "0.1.14.post1"),
        (
            {**GOOD, "apache-tvm-ffi": "0.1.15.post2"},
            "apache-tvm-ffi",
            FAULT,
            "0.1.15.post2: Schedule.tensorize segfaults, so any model with a matmul ends the process",
        ),
        (
            {**GOOD, "apache-tvm-ffi": "0.2.0"},
            "apache-tvm-ffi",
            FAULT,
            "0.2.0: Schedule.tensorize segfaults, so any model with a matmul ends the process",
        ),
        (
            {**GOOD, "apache-tvm-ffi": "0.1.13"},
            "apache-tvm-ffi",
            FAULT,
            "0.1.13; needs 0.1.14.post0 or later",
        ),
        (
            {**GOOD, "apache-tvm": "0.28.0"},
            "apache-tvm",
            FAULT,
            "0.28.0; needs 0.27.*, whose TIR constructors are used",
        ),
        ({}, "apache-tvm", FAULT, "not installed"),
    ],
)
def test_versions_of_tvm(versions: dict[str, str], what: str, state: str, seen: str) -> None:
    found = {f.what: f for f in doctor.check_tvm(versions.get)}[what]
    assert (found.state, found.seen) == (state, seen)
    if state == FAULT:
        assert found.mend.startswith("pip install ")
        assert '"apache-tvm-ffi>=0.1.14.post0,<0.1.15"' in found.mend


def test_the_mend_is_what_the_package_pins() -> None:
    project = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    for pin in ("apache-tvm==0.27.*", "apache-tvm-ffi>=0.1.14.post0,<0.1.15"):
        assert f'"{pin}"' in project
        assert f'"{pin}"' in doctor.MEND_TVM


@pytest.mark.parametrize(("version", "state"), [((3, 10, 4), FAULT), ((3, 12, 1), OK), ((3, 14, 0), FAULT)])
def test_python(version: tuple[int, ...], state: str) -> None:
    assert doctor.check_python(version).state == state


def test_what_is_optional_is_a_note_with_its_purpose() -> None:
    found = {f.what: f for f in doctor.check_optional(lambda name: None)}
    assert found["torch"].state == NOTE
    assert found["torch"].mend == 'pip install "tirx-reduce[torch]"'
    assert found["matplotlib"].seen == "not installed; needed for plots"
    missing = {f.what: f for f in doctor.check_compilers(lambda name: None)}
    assert missing["g++"].seen == "not found; needed for the CPU model of the GPU"


def test_a_fault_decides_the_exit_status(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.test_cli import call

    real = doctor.installed
    monkeypatch.setattr(
        doctor, "installed", lambda name: "0.1.15.post1" if name == "apache-tvm-ffi" else real(name)
    )
    status, out, _ = call(capsys, "doctor")
    assert status == 1
    assert "✗ apache-tvm-ffi: 0.1.15.post1: Schedule.tensorize segfaults" in out
    assert '    mend with: pip install "apache-tvm-ffi>=0.1.14.post0,<0.1.15"' in out
    # A broken basis is not loaded to look further.
    assert "pipelines" not in out


def test_this_installation_is_sound() -> None:
    found = doctor.examine()
    assert [f for f in found if f.state == FAULT] == []
    by_name = {f.what: f for f in found}
    assert by_name["pipelines"].state == OK
    for kind in ("metal", "cuda"):
        assert f"limits ({kind}): subgroup 32, 1024 threads" in by_name[kind].seen


def test_a_broken_calibration_is_a_fault_with_its_command(tmp_path: Path) -> None:
    broken = tmp_path / "calibration.json"
    broken.write_text("[]", encoding="utf-8")
    (found,) = doctor.check_calibration(str(broken))
    assert found.state == FAULT
    assert "holds a list; needs an object" in found.seen
    assert "tirx-reduce search" in found.mend


def test_lines_show_what_to_do() -> None:
    findings = [
        doctor.Finding(what="a", state=OK, seen="1", mend="never shown"),
        doctor.Finding(what="b", state=NOTE, seen="2", mend="x"),
        doctor.Finding(what="c", state=FAULT, seen="3", mend="y"),
    ]
    assert doctor.lines(findings, Style(False)) == [
        "✓ a: 1",
        "· b: 2",
        "    get it with: x",
        "✗ c: 3",
        "    mend with: y",
    ]
