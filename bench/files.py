"""Names of the form FILE.py:NAME: runs the file once, gives what it holds there; refuses what is not there."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tirx_reduce.errors import ReduceError

BLOCKS = "s_tir."
"""In TVM's text where a function with blocks is not marked as one of S-TIR."""
HINT = "; a PrimFunc written by hand is @T.prim_func(s_tir=True) in TVM 0.27"


def is_in_file(name: str) -> bool:
    """Whether `name` is FILE.py:NAME; names of operators hold no colon."""
    return ":" in name


def absolute(name: str) -> str:
    """`name` as every process finds it, whatever its working folder; names of operators stay as they are."""
    if not is_in_file(name):
        return name
    path, _, attribute = name.rpartition(":")
    return f"{Path(path).resolve()}:{attribute}"


def load(name: str) -> Any:
    """What FILE.py:NAME stands for; the file is run again only after it was changed.

    Raises
    ------
    ReduceError
        There is no such file, it does not run, or it holds no such name.
    """
    path, _, attribute = name.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise ReduceError(f"file {path!r} of {name!r} is not there; needs FILE.py:NAME")
    try:
        module = _run(file.resolve(), file.stat().st_mtime_ns)
    except ReduceError:
        raise
    except Exception as error:
        raise ReduceError(f"file {path!r} does not run: {told(error)}") from error
    if module is None:
        raise ReduceError(f"file {path!r} is no Python file; needs FILE.py:NAME")
    if not hasattr(module, attribute):
        names = sorted(n for n in vars(module) if not n.startswith("_"))
        raise ReduceError(f"file {path!r} holds no {attribute!r} (it holds: {', '.join(names)})")
    return getattr(module, attribute)


def told(error: Exception) -> str:
    """An exception of a stranger's code in words, with what helps where TVM's own text does not."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ").rstrip()
    return text + HINT if BLOCKS in text else text


@lru_cache(maxsize=64)
def _run(file: Path, changed: int) -> ModuleType | None:
    # Two files may have one stem, and neither may stand in the place of a module that is imported.
    name = f"{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    # TVMScript reads its own source, so the module must be known while it runs.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
