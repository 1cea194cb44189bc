"""The device text that TVM emitted for a build."""

from __future__ import annotations

from typing import Any

from tirx_reduce.errors import ReduceError

TEXT_KINDS = ("metal", "cuda")


def device_sources(executable: Any) -> list[str]:
    """Every Metal or CUDA text of `executable`, the VM's inner modules included.

    Raises
    ------
    ReduceError
        There is none: TVM builds a GPU function that nobody scheduled as host code, without a word.
    """
    found: list[str] = []
    waiting = [executable.mod if hasattr(executable, "mod") else executable]
    while waiting:
        module = waiting.pop(0)
        if module.kind in TEXT_KINDS:
            found.append(str(module.inspect_source()))
        waiting.extend(module.imports)
    if not found:
        raise ReduceError("the build holds no device text; the function was left without threads")
    return found
