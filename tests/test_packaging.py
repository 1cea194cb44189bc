"""What installs, what imports, and how quickly; the folders and the direction of imports."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tirx_reduce as tr

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"cost": "tirx_reduce/cost", "schedules": "tirx_reduce/schedules", "bench": "tirx_reduce/bench"}
CODE = (".py", ".pyi", ".typed", ".h", ".hpp", ".cpp", ".cc")


def python(code: str, *flags: str) -> str:
    """What a fresh interpreter prints for `code`."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tracked() -> list[str]:
    """Files that git knows."""
    done = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True)
    return done.stdout.splitlines()


def installed_names() -> set[str]:
    """Where every tracked file of the package lies once installed."""
    names = set()
    for path in tracked():
        folder, _, rest = path.partition("/")
        if path == "calibration.json":
            names.add("tirx_reduce/calibration.json")
        elif not rest or not path.endswith(CODE):
            continue
        elif folder == "tirx_reduce":
            names.add(path)
        elif folder in ROOMS:
            names.add(f"{ROOMS[folder]}/{rest}")
    return names


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and a source archive of the commit, and a wheel made from that archive."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    source.mkdir()
    # What git knows, as it lies here: stray files must not travel.
    for name in tracked():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            target.symlink_to(os.readlink(ROOT / name))
        elif (ROOT / name).exists():
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def test_the_wheel_holds_what_git_holds(built: tuple[Path, Path]) -> None:
    # `build` makes the wheel from the source archive, so this is a test of that archive as well.
    with zipfile.ZipFile(built[0]) as wheel:
        names = {n for n in wheel.namelist() if ".dist-info/" not in n}
        metadata = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        text = wheel.read(metadata).decode()
        assert any(n.endswith("licenses/LICENSE") for n in wheel.namelist())
    assert names == installed_names()
    assert "Requires-Dist: apache-tvm-ffi<0.1.15,>=0.1.14.post0" in text
    assert re.search(r'Requires-Dist: torch<2\.14,>=2\.4; extra == "torch"', text)
    assert "License-Expression: Apache-2.0" in text


def test_the_source_archive_holds_every_room(built: tuple[Path, Path]) -> None:
    with tarfile.open(fileobj=io.BytesIO(built[1].read_bytes())) as archive:
        names = {n.split("/", 1)[1] for n in archive.getnames() if "/" in n}
    wanted = {p for p in tracked() if p.partition("/")[0] in ROOMS and p.endswith(CODE)}
    assert wanted <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names


def test_entry_points_name_what_exists(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith("entry_points.txt"))
        text = wheel.read(name).decode()
    assert "tirx-reduce = tirx_reduce.bench.cli:main" in text
    assert "tirx_reduce = tirx_reduce._autoload:register" in text


def test_symlinks_are_relative_and_resolve() -> None:
    for room in ROOMS:
        link = ROOT / "tirx_reduce" / room
        assert link.is_symlink()
        assert os.readlink(link) == f"../{room}"
        assert (link / "__init__.py").exists()


def test_every_public_name_resolves() -> None:
    names = (
        "BadCalibration Candidate CostEstimate DeviceLimits Features GroupPlan ReduceError RowFacts "
        "RowReduction ScheduleReductions UnknownPolicy Unsupported analyze compile emulate emulator "
        "get_policy lower plan policies register register_policy use"
    ).split()
    for name in names:
        assert getattr(tr, name) is not None
        assert name in dir(tr)
        assert name in tr.__all__
    assert {"analytic", "service", "guarded", "ladder"} <= set(tr.policies())
    with pytest.raises(AttributeError, match=r"^module 'tirx_reduce' has no attribute 'nothing'$"):
        tr.nothing


def test_no_module_carries_a_public_name() -> None:
    modules = {p.stem for p in (ROOT / "tirx_reduce").glob("*.py")}
    assert not modules & (set(tr.__all__) - {"emulator"})


def test_importing_is_quick_and_light() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import tirx_reduce; t = time.perf_counter() - t\n"
        "print(sorted({'tvm', 'scipy', 'numpy', 'torch'} & set(sys.modules)), t)"
    )
    runs = [python(code).rsplit(" ", 1) for _ in range(5)]
    assert {loaded for loaded, _ in runs} == {"[]"}
    assert min(float(seconds) for _, seconds in runs) < 0.06


def test_values_need_no_tvm() -> None:
    code = (
        "import sys, tirx_reduce as tr; tr.Candidate(width=32); tr.ReduceError; tr.policies()\n"
        "print(sorted({'tvm', 'scipy', 'torch'} & set(sys.modules)))"
    )
    assert python(code) == "[]"


@pytest.mark.parametrize(
    "first",
    [
        "import tvm",
        "import tirx_reduce.schedules",
        "import tirx_reduce as tr; tr.plan",
        "from tirx_reduce import facts",
    ],
)
def test_pipelines_are_registered_whatever_comes_first(first: str) -> None:
    code = (
        f"{first}\nimport tvm\nfrom tvm import relax\nfrom tvm.tirx import compilation_pipeline as tir\n"
        "print('tirx_reduce' in tir.PIPELINE_MAP, 'tirx_reduce' in relax.pipeline.PIPELINE_MAP)\n"
        "import tirx_reduce; tirx_reduce.register(); tirx_reduce.register()\n"
        "tir.get_tir_pipeline('tirx_reduce'); relax.get_pipeline('tirx_reduce')"
    )
    # A hook that fails only warns: warnings are errors here.
    assert python(code, "-W", "error:Failed to autoload:UserWarning") == "True True"


def test_autoload_is_cheap() -> None:
    code = (
        "import time, tvm, sys; from tvm.tirx import compilation_pipeline as tir; from tvm import relax\n"
        "tir.PIPELINE_MAP.pop('tirx_reduce'); relax.pipeline.PIPELINE_MAP.pop('tirx_reduce')\n"
        "for name in [n for n in sys.modules if n.startswith('tirx_reduce')]: del sys.modules[name]\n"
        "t = time.perf_counter(); from tirx_reduce._autoload import register; register()\n"
        "print(time.perf_counter() - t)"
    )
    assert float(python(code)) < 0.15


def test_nobody_imports_the_rooms_by_their_top_level_names() -> None:
    for path in tracked():
        if not path.endswith(".py"):
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                names = [node.module]
            for name in names:
                assert name.partition(".")[0] not in ROOMS, f"{path} imports {name}"


def test_the_package_says_it_is_typed() -> None:
    assert (ROOT / "tirx_reduce" / "py.typed").exists()


def test_torch_in_the_tests_satisfies_the_extra() -> None:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pinned = re.search(r"^TORCH \?= torch==(\S+)$", makefile, re.M)
    assert pinned is not None
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = re.search(r'^torch = \["(torch[^"]+)"\]$', project, re.M)
    assert extra is not None
    assert pinned.group(1) in SpecifierSet(str(Requirement(extra.group(1)).specifier))
