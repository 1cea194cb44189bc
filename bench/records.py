"""Records: one JSON line each, append-only; a file that was cut or edited is named by line and not read.

A line holds `format`, `kind`, `data`, `chain` (the `sha256` of the line before) and `sha256` (of all else).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tirx_reduce.errors import ReduceError

FORMAT = 1
"""Of a line. 1: first."""
START = "0" * 64
"""What the first line chains to."""
ENVIRONMENT = "environment"
"""Kind of a file's first line, and of each resumption."""
END = "end"
"""Kind of the last line of a finished run."""
IDENTITY = ("device", "driver", "tvm")
"""Fields of the environment that must agree before records are put together."""


class BadRecords(ReduceError):
    """A record file is cut, edited, of another format or machine, or being written by another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One line, checked."""

    kind: str
    data: dict[str, Any]
    line: int
    """Number in its file, from 1."""
    sha256: str


def canonical(value: Any) -> str:
    """JSON text of a value, the same for equal values; refuses NaN and infinities."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


_UNPACK: Mapping[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress}


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content; that of the text inside where it is compressed."""
    return hashlib.sha256(content(path)).hexdigest()


def read(path: Path | str) -> tuple[Record, ...]:
    """All records of a file, plain, `.gz` or `.xz`.

    Raises
    ------
    BadRecords
        Any line is wrong; the text names it. Nothing is returned of such a file.
    """
    path = Path(path)
    records = tuple(_parse(path, content(path)))
    if not records:
        raise BadRecords(f"{path}: no record in it")
    if records[0].kind != ENVIRONMENT:
        raise BadRecords(f"{path}, line 1: kind {records[0].kind!r}; needs {ENVIRONMENT!r} first")
    return records


def of_kind(records: Iterable[Record], kind: str) -> tuple[dict[str, Any], ...]:
    """Contents of the records of one kind, in order."""
    return tuple(r.data for r in records if r.kind == kind)


def keep_once(writer: Writer, kind: str, data: Mapping[str, Any]) -> None:
    """Write what a file holds once, such as its design; a file that was begun with another is refused.

    Raises
    ------
    BadRecords
        The file holds another record of that kind.
    """
    known = writer.of_kind(kind)
    if not known:
        writer.append(kind, data)
    elif digest(known[0]) != digest(dict(data)):
        raise BadRecords(f"{writer.path} was begun with another {kind}; needs the same one, or a new file")


def finished(records: Iterable[Record]) -> bool:
    """Whether the run came to its end."""
    last = None
    for record in records:
        last = record
    return last is not None and last.kind == END


def merge(paths: Iterable[Path | str]) -> tuple[Record, ...]:
    """Records of several files of one device, driver and TVM.

    Raises
    ------
    BadRecords
        A file is bad, or two differ in the identity of their machine.
    """
    merged: list[Record] = []
    first: tuple[Path | str, Mapping[str, Any]] | None = None
    for path in paths:
        records = read(path)
        if first is None:
            first = (path, records[0].data)
        check_identity(first[1], records[0].data, f"{first[0]} and {path}")
        merged += records
    return tuple(merged)


def check_identity(
    one: Mapping[str, Any], other: Mapping[str, Any], where: str, names: tuple[str, ...] = IDENTITY
) -> None:
    """Refuse two environments that are not the same machine and TVM."""
    for name in names:
        if one.get(name) != other.get(name):
            raise BadRecords(
                f"{where} differ in {name}: {one.get(name)!r} and {other.get(name)!r}; needs one {name}"
            )


class Writer:
    """Appends records to one file, alone: a second writer is refused.

    Opening a file that exists resumes it; nothing is written before the first `append`, which records the
    environment of this run. A last line that a kill cut short is dropped then, and the environment says how
    many bytes that were. Each line is on the disk before `append` returns.
    """

    def __init__(
        self, path: Path | str, environment: Mapping[str, Any], *, same: tuple[str, ...] = ("package_sha256",)
    ) -> None:
        self.path = Path(path)
        self.environment = dict(environment)
        if self.path.suffix in _UNPACK:
            raise BadRecords(f"{self.path} is compressed; needs a plain file to append to")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "a+b")  # noqa: SIM115  (held until close)
        try:
            _lock(self._file, self.path)
            self._resume(same)
        except BaseException:
            self._file.close()
            raise

    def _resume(self, same: tuple[str, ...]) -> None:
        self._file.seek(0)
        content = self._file.read()
        self._whole = content.rfind(b"\n") + 1
        self._dropped = len(content) - self._whole
        self.records = list(_parse(self.path, content[: self._whole]))
        self._chain = self.records[-1].sha256 if self.records else START
        self._announced = False
        if not self.records:
            return
        first = self.records[0]
        if first.kind != ENVIRONMENT:
            raise BadRecords(f"{self.path}, line 1: kind {first.kind!r}; needs {ENVIRONMENT!r} first")
        for names in (IDENTITY, same):
            check_identity(first.data, self.environment, f"{self.path} and this run", names)

    def append(self, kind: str, data: Mapping[str, Any]) -> Record:
        """Write one record, and force it to the disk."""
        if finished(self.records):
            raise BadRecords(f"{self.path} is finished; needs a new file")
        if not self._announced:
            self._announced = True
            if self._dropped:
                self._file.truncate(self._whole)
            self.append(ENVIRONMENT, {**self.environment, "dropped_bytes": self._dropped})
        body = {"format": FORMAT, "kind": kind, "data": dict(data), "chain": self._chain}
        sha256 = digest(body)
        self._file.seek(0, os.SEEK_END)
        self._file.write((canonical({**body, "sha256": sha256}) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._chain = sha256
        # Through JSON, so that a record in hand is what a reader will see.
        plain = json.loads(canonical(dict(data)))
        record = Record(kind=kind, data=plain, line=len(self.records) + 1, sha256=sha256)
        self.records.append(record)
        return record

    def of_kind(self, kind: str) -> tuple[dict[str, Any], ...]:
        """What stands in the file already."""
        return of_kind(self.records, kind)

    def finish(self, **data: Any) -> None:
        """Write the last record; a finished file takes no more."""
        if not finished(self.records):
            self.append(END, data)

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def compress(path: Path | str) -> Path:
    """Write `path` + `.gz` beside a file; the same bytes for the same content."""
    path = Path(path)
    out = path.with_name(path.name + ".gz")
    out.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return out


def _lock(file: Any, path: Path) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise BadRecords(f"{path} is being written by another process; needs it alone") from error


def content(path: Path) -> bytes:
    """Bytes of a file, unpacked where it is compressed."""
    try:
        raw = path.read_bytes()
        return _UNPACK.get(path.suffix, bytes)(raw)
    except FileNotFoundError as error:
        raise BadRecords(f"{path}: no such file") from error
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise BadRecords(f"{path} cannot be read: {error}") from error


def _parse(path: Path, content: bytes) -> Iterator[Record]:
    chain = START
    lines = content.split(b"\n")
    if lines[-1]:
        raise BadRecords(f"{path}, line {len(lines)}: cut short; resume the run that wrote it")
    for number, line in enumerate(lines[:-1], start=1):
        record = _parse_line(f"{path}, line {number}", line, number, chain)
        chain = record.sha256
        yield record


def _parse_line(where: str, line: bytes, number: int, chain: str) -> Record:
    try:
        body = json.loads(line)
    except ValueError as error:
        raise BadRecords(f"{where}: not JSON ({error})") from error
    if not isinstance(body, dict) or set(body) != {"format", "kind", "data", "chain", "sha256"}:
        raise BadRecords(f"{where}: not a record; needs format, kind, data, chain and sha256")
    if body["format"] != FORMAT:
        raise BadRecords(f"{where}: format {body['format']!r}; this version reads {FORMAT}")
    stated = body.pop("sha256")
    if digest(body) != stated:
        raise BadRecords(f"{where}: edited; its content does not have the SHA-256 that it states")
    if body["chain"] != chain:
        raise BadRecords(f"{where}: does not follow the line before; a line was removed, added or moved")
    if not isinstance(body["kind"], str) or not isinstance(body["data"], dict):
        raise BadRecords(f"{where}: kind is no text or data no object")
    return Record(kind=body["kind"], data=body["data"], line=number, sha256=stated)
