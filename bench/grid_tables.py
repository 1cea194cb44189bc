"""Record files of the grids as Markdown: cold and warm runs, and row-count dispatch, in tables of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tirx_reduce.bench import grid_dispatch, grid_report
from tirx_reduce.bench.records import of_kind, read

PEERS, DISPATCH = "peers", "dispatch"


def tables(paths: Sequence[Path | str]) -> str:
    """The tables of all files, those of one kind and regime together, in the order of the first of each.

    Raises
    ------
    BadRecords
        A file is bad, or two that belong together are of different machines.
    """
    groups: dict[tuple[str, str], list[Path | str]] = {}
    for path in paths:
        groups.setdefault(_kind(path), []).append(path)
    texts = []
    for (kind, _), mine in groups.items():
        if kind == DISPATCH:
            texts.append(grid_dispatch.markdown(grid_dispatch.rows_of(mine)))
        else:
            texts.append(grid_report.markdown(grid_report.rows_of(mine)))
    return "\n\n".join(texts)


def _kind(path: Path | str) -> tuple[str, str]:
    records = read(path)
    for kind, settings in ((DISPATCH, grid_dispatch.SETTINGS), (PEERS, grid_report.SETTINGS)):
        for found in of_kind(records, settings):
            return kind, str(found["regime"])
    return PEERS, ""
