"""`%%console`: runs the lines of a cell as `tirx-reduce` commands in the kernel's own process.

A page with twenty commands would otherwise import TVM twenty times. A status other than the one that the
cell names (`%%console 2`) fails the build.
"""

from __future__ import annotations

import shlex

from IPython.core.magic import register_cell_magic


@register_cell_magic
def console(line: str, cell: str) -> None:
    """Run every command of the cell."""
    from tirx_reduce.bench import cli

    wanted = int(line or 0)
    for command in cell.replace("\\\n", " ").splitlines():
        words = shlex.split(command)
        if not words:
            continue
        if words.pop(0) != "tirx-reduce":
            raise ValueError(f"{command!r} is no tirx-reduce command")
        try:
            status = cli.main(words)
        except SystemExit as stop:
            status = int(stop.code or 0)
        if status != wanted:
            raise RuntimeError(f"{command!r} ended with status {status}, not {wanted}")
