"""README and documentation: commands run, output is what is printed, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import call
from tirx_reduce.bench import cli
from tirx_reduce.bench.targets import device_of

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts and "_generated" not in p.parts)
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLE = re.findall(r"```console\n\$ ([^\n]+)\n(.*?)```", README, flags=re.S)


def settled(text: str) -> str:
    """Output without what differs from run to run: wall times, and errors in their last digits."""
    text = re.sub(r"\d+\.\d+ s wall time", "# s wall time", text)
    text = re.sub(
        r"largest error \S+ absolute, \S+ relative, \S+ % of what is allowed, at .*", "largest error #", text
    )
    return text.strip()


@pytest.mark.parametrize(("command", "output"), CONSOLE, ids=[c for c, _ in CONSOLE])
def test_the_readme_shows_what_is_printed(
    capsys: pytest.CaptureFixture[str], command: str, output: str
) -> None:
    words = shlex.split(command)
    assert words.pop(0) == "tirx-reduce"
    if words[0] == "run" and any(device_of(kind) for kind in ("metal", "cuda")):
        words.append("--cpu-model")
    status, out, _ = call(capsys, *words)
    assert status == 0
    assert settled(out) == settled(output)


def test_the_readme_holds_real_output_of_the_main_job() -> None:
    commands = [c for c, _ in CONSOLE]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    jobs = re.findall(r"^\t\$\(BIN\)/(tirx-reduce run .+)$", makefile, flags=re.M)
    assert len(jobs) == 2
    for job in jobs:
        assert any(c.startswith(job) for c in commands)


def test_the_readmes_python_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    space: dict[str, Any] = {}
    printed: list[str] = []
    space["print"] = lambda *words: printed.append(" ".join(map(str, words)))
    for block in blocks:
        if "tvm.compile(model" in block:
            # Any Relax module does for the model of this block.
            exec("from tests.test_docs import tiny_model\nmodel, target = tiny_model()", space)
        exec(compile(block, "README.md", "exec"), space)
    promised = re.findall(r"^print\(.*\)\s+# (.+)$", "\n".join(blocks), flags=re.M)
    assert printed == promised


def tiny_model() -> tuple[Any, Any]:
    """A Relax module with a row reduction, and a target."""
    import tvm
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.nn.softmax(x, axis=-1))
        builder.emit_func_output(y)
    return builder.get(), tvm.target.Target("metal", host="llvm")


def commands_of(path: Path) -> list[str]:
    """Commands that a page shows, in cells or in blocks for a shell."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```\{code-cell\}\n%%console[^\n]*\n(.*?)```", text, flags=re.S)
    blocks += re.findall(r"```sh\n(.*?)```", text, flags=re.S)
    inline = re.findall(r"`(tirx-reduce [^`\n]+)`", text)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in [*lines, *inline] if line.startswith("tirx-reduce ")]


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_of_a_page_is_one_that_is_read(path: Path) -> None:
    # Cells are run when the pages are built; here every command, those for a Mac included, is parsed.
    parser = cli.build_parser()
    for command in commands_of(path):
        words = shlex.split(command.split(" #")[0].replace("…", "x"))[1:]
        if any(w.isupper() and len(w) > 2 for w in words):
            continue
        if len(words) == 1 and not words[0].startswith("-"):
            assert words[0] in cli_verbs(), command
            continue
        with pytest.raises(SystemExit) if words == ["--help"] else nullcontext():
            parser.parse_args(words)


def test_every_verb_is_shown() -> None:
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    for verb in cli_verbs():
        assert f"tirx-reduce {verb}" in text or f"`{verb} " in text, verb


def cli_verbs() -> list[str]:
    """Names of all verbs."""
    from tirx_reduce.bench import cli_arguments, cli_study_arguments

    return [v.name for v in (*cli_arguments.PLAN_VERBS, *cli_study_arguments.STUDY_VERBS)]


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_inside_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file) if file else path
        assert found.exists(), f"{path.name} links to {target}"
        if anchor:
            heads = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), flags=re.M)
            assert anchor in [re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in heads]


def test_the_words_for_metal_are_always_the_same() -> None:
    words = "emitted MSL executed on a CPU model of Metal; not compiled by Apple's compiler, not run on a GPU"
    for path in (ROOT / "README.md", DOCS / "limits.md", DOCS / "index.md"):
        assert words in " ".join(path.read_text(encoding="utf-8").split())
    from tirx_reduce.bench.execute import METAL_WORDS

    assert words == METAL_WORDS


def test_make_run_and_ci_ask_nothing() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "set -euo pipefail" in script
    for step in ("make docs", "make optimised", "make test"):
        assert step in script
