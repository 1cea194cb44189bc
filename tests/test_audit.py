"""The audit: passes on what is right, names the place of whatever is not, and imports nothing of ours."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.study_cases import QUICK, MadeUpStand, edit, made_up
from tirx_reduce.bench import audit, fit, replay
from tirx_reduce.bench.cli import main as command
from tirx_reduce.bench.cohorts import cases, grid
from tirx_reduce.bench.records import Writer, compress, digest, file_digest
from tirx_reduce.bench.search import search

PROGRAM = Path(audit.__file__)
OPERATORS = ("softmax", "rms_norm", "layer_norm")
Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with calibration.json, search.jsonl and replay.jsonl."""
    folder = tmp_path_factory.mktemp("honest")
    with pytest.MonkeyPatch.context() as patch:
        made_up(patch)
        stand: Any = MadeUpStand(folder)
        search(
            stand,
            folder / "search.jsonl",
            cohort=cases(operators=OPERATORS, shapes=((23, 769), (16, 8193), (64, 2048))),
            candidates=grid(widths=(64, 128, 512)),
            options=QUICK,
        )
        fit.write(fit.fit(folder / "search.jsonl"), folder / "calibration.json")
        replay.collect(
            stand,
            folder / "replay.jsonl",
            calibration=folder / "calibration.json",
            cohort=cases(operators=OPERATORS, shapes=((37, 1537),)),
            rounds=3,
            collect_options=QUICK,
            replay_options=QUICK,
        )
        replay.freeze(folder / "replay.jsonl", stand)
        replay.run(stand, folder / "replay.jsonl", calibration=folder / "calibration.json")
    return folder


@pytest.fixture
def folder(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "study"))


def receipt(folder: Path) -> list[str]:
    return audit.audit(folder / "calibration.json", [folder / "search.jsonl", folder / "replay.jsonl"])


def test_it_passes_on_what_is_right(folder: Path) -> None:
    lines = receipt(folder)
    assert lines[-1] == "PASS"
    assert any("48 trials, 6 infeasible" in line for line in lines)
    assert sum("GPU gain" in line for line in lines) == 3
    assert any("the outputs themselves" in line for line in lines)


def test_it_reads_compressed_files_as_a_program_of_its_own(folder: Path, tmp_path: Path) -> None:
    for name in ("search", "replay"):
        compress(folder / f"{name}.jsonl")
    alone = tmp_path / "elsewhere" / "audit.py"
    alone.parent.mkdir()
    shutil.copy(PROGRAM, alone)
    found = subprocess.run(
        # Isolated: no site-packages, no environment, not this folder.
        [sys.executable, "-I", "-S", str(alone), str(folder / "calibration.json"),
         str(folder / "search.jsonl.gz"), str(folder / "replay.jsonl.gz")],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.endswith("PASS\n")


def test_it_imports_the_standard_library_alone() -> None:
    names: set[str] = set()
    for node in ast.walk(ast.parse(PROGRAM.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(str(node.module).split(".")[0])
    assert names <= set(sys.stdlib_module_names) | {"__future__"}


def records_of(records: Records, kind: str, **wanted: Any) -> Records:
    found = [r for r in records if r["kind"] == kind]
    return [r for r in found if all(r["data"].get(k) == v for k, v in wanted.items())]


def set_in(kind: str, path: str, value: Any, **wanted: Any) -> Callable[[Records], None]:
    """Set a field, such as `features.passes`, of the first record of a kind."""

    def change(records: Records) -> None:
        at: Any = records_of(records, kind, **wanted)[0]["data"]
        *steps, last = path.split(".")
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at[step]
        key: Any = int(last) if isinstance(at, list) else last
        before = at[key]
        at[key] = value(before) if callable(value) else value
        assert at[key] != before

    return change


def drop(kind: str) -> Callable[[Records], None]:
    def change(records: Records) -> None:
        records.remove(records_of(records, kind)[-1])

    return change


def repin(folder: Path) -> None:
    """Make the profile point at the changed search file, here and in the replay: a forger would."""
    path = folder / "calibration.json"
    data = json.loads(path.read_text())
    data["profiles"][0]["records_sha256"] = file_digest(folder / "search.jsonl")
    path.write_text(json.dumps(data))
    refreeze(folder, data["profiles"][0])


def refreeze(folder: Path, profile: dict[str, Any]) -> None:
    def change(records: Records) -> None:
        records_of(records, "profile")[0]["data"] = profile
        records_of(records, "freeze")[0]["data"]["calibration_sha256"] = digest(profile)

    edit(folder / "replay.jsonl", change)


SEARCH_EDITS = {
    "raw sample": (
        set_in("trial", "timing.phases.gpu_batch.samples_us.1", lambda t: t * 3, status="measured"),
        "done again it is|not that of least error",
    ),
    "demand": (
        set_in("trial", "features.scalar_rounds", 1, status="measured"),
        "demand is not what the oracle counts",
    ),
    "candidate": (set_in("trial", "candidate.width", 96), "not in the design, or twice in the file"),
    "case": (set_in("trial", "case.shape.0", 24), "not in the design, or twice in the file"),
    "impossible sample": (
        set_in("trial", "timing.phases.gpu_single.samples_us.0", -1.0, status="measured"),
        "gpu_single: sample -1.0 cannot be true",
    ),
    "missing sample": (
        set_in("trial", "timing.phases.gpu_batch.samples_us", lambda s: s[1:], status="measured"),
        "2 samples; the design has 3",
    ),
    "verdict": (set_in("trial", "verified.ok", False, status="measured"), "timed without being right"),
    "status": (
        set_in("trial", "status", "infeasible", status="measured"),
        "against the private budget of 64",
    ),
    "failure without a reason": (
        set_in("trial", "status", "failed", status="measured"),
        "it failed without a reason",
    ),
    "missing trial": (drop("trial"), "1 trials of the design are missing"),
    "source text": (set_in("source", "text", "changed"), "the text does not have its hash"),
    "source hash": (set_in("trial", "source_sha256", "0" * 64, status="measured"), "text is not in the file"),
    "device": (set_in("environment", "device", "Better GPU"), "device is not that of the records"),
    "driver": (set_in("environment", "driver", "2.0"), "driver is not that of the records"),
    "TVM": (set_in("environment", "tvm", "0.28"), "tvm_version is not that of the records"),
    "unfinished": (drop("end"), "the run did not come to its end"),
}


@pytest.mark.parametrize("what", SEARCH_EDITS)
def test_edits_of_the_search_that_are_sealed_again_are_found(folder: Path, what: str) -> None:
    change, message = SEARCH_EDITS[what]
    edit(folder / "search.jsonl", change)
    repin(folder)
    with pytest.raises(audit.Failed, match=message):
        receipt(folder)


def test_an_edit_that_does_not_repin_the_profile_is_found(folder: Path) -> None:
    edit(folder / "search.jsonl", SEARCH_EDITS["raw sample"][0])
    with pytest.raises(audit.Failed, match=r"0 profiles of calibration\.json were fitted on it; needs one"):
        receipt(folder)


PROFILE_EDITS: dict[str, tuple[tuple[Any, ...], Callable[[Any], Any], str]] = {
    "coefficient": (("coefficients", "G"), lambda v: v * 1.0001 + 1e-11, "coefficient [A-Z] is"),
    "capacity": (("coefficients", "capacity"), lambda v: 2048 if v != 2048 else 64, "not that of least mean"),
    "mean regret": (("mean_regret",), lambda v: v / 2 + 0.001, "mean_regret is not that of the selected"),
    "max regret": (("max_regret",), lambda v: v / 2 + 0.001, "max_regret is not that of the selected"),
    "capacity table": (("capacities", 0, "mean_regret"), lambda v: v + 0.01, "capacity 64: mean_regret is"),
    "rmse": (("capacities", 5, "relative_rmse"), lambda v: v + 0.01, "capacity 2048: relative_rmse is"),
    "trials": (("trials",), lambda v: v + 1, "trials is 49; the records say 48"),
    "infeasible": (("infeasible",), lambda v: 0, "infeasible is 0; the records say 6"),
    "widths": (("widths",), lambda v: [*v, 1024], "widths is"),
    "shapes": (("shapes",), lambda v: v[:-1], "shapes is"),
    "families": (("families",), lambda v: ["reload"], "families is"),
    "device": (("device",), lambda v: "Other GPU", "device is not that of the records"),
}


@pytest.mark.parametrize("what", PROFILE_EDITS)
def test_edits_of_the_profile_that_are_frozen_again_are_found(folder: Path, what: str) -> None:
    path, change, message = PROFILE_EDITS[what]
    file = folder / "calibration.json"
    data = json.loads(file.read_text())
    at: Any = data["profiles"][0]
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = change(at[path[-1]])
    file.write_text(json.dumps(data))
    refreeze(folder, data["profiles"][0])
    with pytest.raises(audit.Failed, match=message):
        receipt(folder)


def replan(path: str, value: Any, policy: str = "service") -> Callable[[Records], None]:
    """Change a plan, and its key wherever it stands."""

    def change(records: Records) -> None:
        record = next(r for r in records_of(records, "plan") if r["data"]["plan"]["policy"] == policy)
        at: Any = record["data"]["plan"]
        *steps, last = path.split(".")
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at[step]
        key: Any = int(last) if isinstance(at, list) else last
        at[key] = value(at[key]) if callable(value) else value
        text = json.dumps(record["data"]["plan"], sort_keys=True, separators=(",", ":"))
        old, new = record["data"]["key"], hashlib.sha256(text.encode()).hexdigest()
        renamed = json.loads(json.dumps(records).replace(old, new))
        records[:] = renamed

    return change


def late_freeze(records: Records) -> None:
    frozen = records_of(records, "freeze")[0]
    records.remove(frozen)
    records.insert(len(records) - 2, frozen)


REPLAY_EDITS = {
    "plan without its key": (set_in("plan", "plan.policy", "other"), "the plan does not have its key"),
    "price of the winner": (replan("estimate.kernel_score", 1.0), "is priced 1.0, not"),
    "price of a loser": (replan("rejected.0.1.kernel_score", lambda v: v * 2), "is priced"),
    "a loser left out": (replan("rejected", lambda v: v[1:]), "priced candidates are not the legal ones"),
    "demand of the plan": (replan("features.passes", 9), "demand is not what the oracle counts"),
    "incumbent": (replan("incumbent.width", 64), "the incumbent is not that of the default policy"),
    "extrapolation": (replan("extrapolated", lambda v: not v), "extrapolation is not marked"),
    "reference": (replan("estimate.kernel_score", 1.0, "analytic"), "is priced 1.0, not"),
    "policy": (replan("policy", "other"), "made by another policy"),
    "raw sample": (
        set_in("measurement", "native.timing.phases.gpu_batch.samples_us.1", lambda t: t * 1.5),
        "softmax 37x1537.*it is not what the raw samples give",
    ),
    "torch sample": (
        set_in("measurement", "torch.timing.phases.gpu_batch.samples_us.1", lambda t: t * 1.5),
        "torch_over_native: it is not what the raw samples give",
    ),
    "median": (
        set_in("summary", "cases.1.native_us.candidate.gpu_batch", 1.0),
        "rms_norm 37x1537.*native_us: it is not",
    ),
    "ratio": (
        set_in("summary", "cases.0.gain.candidate.gpu_batch.median", 9.0),
        "softmax 37x1537.*gain: it is not what",
    ),
    "verdict": (set_in("summary", "cases.0.gain.candidate.gpu_batch.verdict", "better"), "gain: it is not"),
    "what guarded took": (
        set_in("summary", "cases.0.guarded", lambda v: "reference" if v == "candidate" else "candidate"),
        "guarded: it is not what",
    ),
    "price of guarded": (replan("estimate.kernel_score", 1.0, "guarded"), "is priced 1.0, not"),
    "a case left out": (set_in("summary", "cases", lambda c: c[1:]), "cases are missing from the summary"),
    "a pair left out": (drop("measurement"), "1 measurements of the design are missing"),
    "another plan": (set_in("measurement", "plan_key", "0" * 64), "not the frozen plan"),
    "another text": (set_in("measurement", "native.source_sha256", "0" * 64), "is not the frozen one"),
    "a wrong result": (set_in("measurement", "native.verified.ok", False), "timed without being right"),
    "late freeze": (late_freeze, "it stands after a held-out label"),
    "no freeze": (drop("freeze"), "neither a search nor a replay"),
    "cohort": (set_in("freeze", "cohort", lambda c: c[1:]), "it froze another cohort"),
    "calibration": (set_in("freeze", "calibration_sha256", "0" * 64), "it froze another calibration"),
    "design": (set_in("design", "rounds", 9), "it froze another design"),
    "package": (set_in("freeze", "package_sha256", "0" * 64), "another package_sha256 than the frozen one"),
    "library": (set_in("freeze", "library_sha256", {}), "another library_sha256 than the frozen one"),
    "profile": (set_in("profile", "trials", 1), "its profile is not in the calibration"),
}


@pytest.mark.parametrize("what", REPLAY_EDITS)
def test_edits_of_the_replay_that_are_sealed_again_are_found(folder: Path, what: str) -> None:
    change, message = REPLAY_EDITS[what]
    edit(folder / "replay.jsonl", change)
    with pytest.raises(audit.Failed, match=message):
        receipt(folder)


@pytest.mark.parametrize("name", ["search.jsonl", "replay.jsonl"])
def test_any_edit_that_is_not_sealed_again_names_its_line(folder: Path, name: str) -> None:
    def change(records: Records) -> None:
        records[5]["data"]["x"] = 1

    edit(folder / name, change, reseal=False)
    with pytest.raises(audit.Failed, match=f"{name}, line 6: its content does not have the hash"):
        receipt(folder)


def test_the_exit_status_tells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [str(folder / n) for n in ("calibration.json", "search.jsonl", "replay.jsonl")]
    assert audit.main(given) == 0
    edit(folder / "replay.jsonl", drop("measurement"))
    assert audit.main(given) == 1
    assert "FAIL replay.jsonl" in capsys.readouterr().out
    assert audit.main([given[0], str(folder / "none.jsonl")]) == 2
    assert f"cannot be read: {folder / 'none.jsonl'}: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("{", 2, "calibration.json is not JSON: Expecting"),
        ("[]", 1, "calibration.json: it holds a list; needs an object with profiles"),
        ("{}", 1, "calibration.json: format None; needs 1"),
        ('{"format": 1}', 1, "calibration.json: it holds no list of profiles"),
        (
            '{"format": 1, "profiles": [3]}',
            1,
            "calibration.json: profile 0 lacks coefficients, device, records_sha256",
        ),
        ('{"format": 1, "profiles": [{"device": "x"}]}', 1, "profile 0 lacks coefficients, records_sha256"),
    ],
)
def test_a_broken_calibration_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, status: int, message: str
) -> None:
    (folder / "calibration.json").write_text(text)
    given = [str(folder / n) for n in ("calibration.json", "search.jsonl")]
    assert audit.main(given) == status
    shown = capsys.readouterr()
    assert message in shown.out + shown.err
    assert command(["audit", *given]) == status


def test_a_compressed_file_that_is_cut_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = compress(folder / "search.jsonl")
    packed.write_bytes(packed.read_bytes()[:-20])
    assert audit.main([str(folder / "calibration.json"), str(packed)]) == 2
    assert f"cannot be read: {packed}: Compressed file ended" in capsys.readouterr().err


def test_records_of_a_grid_are_named_as_what_they_are_not(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "grid.jsonl"
    with Writer(path, MadeUpStand(tmp_path).environment()) as writer:
        writer.append("grid settings", {"policies": []})
    with pytest.raises(audit.Failed, match=r"grid\.jsonl: neither a search nor a replay"):
        audit.audit(folder / "calibration.json", [path])


def test_a_record_without_its_fields_is_a_failure_and_no_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "search.jsonl", lambda records: records_of(records, "trial")[0]["data"].pop("case"))
    repin(folder)
    given = [str(folder / n) for n in ("calibration.json", "search.jsonl")]
    assert audit.main(given) == 1
    assert (
        "FAIL search.jsonl, or its profile in calibration.json, lacks what it needs"
        in capsys.readouterr().out
    )


def test_a_training_shape_in_the_cohort_is_found(folder: Path) -> None:
    data = json.loads((folder / "calibration.json").read_text())
    data["profiles"][0]["shapes"].append([37, 1537])
    (folder / "calibration.json").write_text(json.dumps(data))
    refreeze(folder, data["profiles"][0])
    with pytest.raises(audit.Failed, match="softmax 37x1537 is a training shape"):
        audit.audit(folder / "calibration.json", [folder / "replay.jsonl"])


def test_an_operator_that_the_oracle_does_not_know_is_named() -> None:
    case = {"operator": "cumsum", "shape": [4, 64], "dtype": "float32"}
    candidate = {"width": 64, "vector": 4, "reuse": "reload", "packing": 1, "splits": 1}
    with pytest.raises(audit.Failed, match="cumsum 4x64: the oracle knows only softmax"):
        audit.demand(case, candidate)


def test_a_profile_whose_records_were_not_given_is_named(folder: Path) -> None:
    lines = audit.audit(folder / "calibration.json", [folder / "replay.jsonl"])
    assert "not audited: the profile of Made-up GPU, whose records were not given" in lines
