"""Trace files in the JSON that Chrome and Perfetto read. Each rank adds its part when it ends.

One line is one event, and the end of the document has a known length. So a rank adds its events without reading those
of others. No rank gathers, and the part of a rank survives if other ranks die. Times are microseconds of
CLOCK_MONOTONIC, which is one clock for all ranks of a host; the event "rank" of each rank says on which host it was
measured. A file whose name ends in .gz is compressed.
"""

import errno
import fcntl
import gzip
import io
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from hocket import __version__
from hocket.runtime import file_lock

Event = dict[str, Any]

LANES_OF_A_KIND = 1 << 28
"""The "thread_sort_index" of program threads is below this number; streams and then communicators follow."""

_PATIENCE_SECONDS = 60.0  # the longest wait for ranks that write their parts: one of them may be stopped
_END = b"\n]}\n"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class TraceFile:
    """The content of a file: its events, and what each rank says of itself ("rank", "size", "boot", "ended_early")."""

    events: list[Event]
    ranks: dict[int, dict[str, Any]]


def append(file: Path, run: str, events: Iterable[Event]) -> None:
    """Adds a rank's events to the trace of this run; replaces the file if it belongs to another run or is no trace.

    Raises OSError if it cannot be written; TimeoutError (an OSError) if another process keeps it locked.
    """
    packed = file.suffix == ".gz"
    end = gzip.compress(_END, mtime=0) if packed else _END
    with tempfile.TemporaryFile() as lines:  # they may not fit in memory
        _write_lines(lines, packed, events)
        lines.seek(0)
        # The end of the file is overwritten, and written again after the new lines.
        with file.open("a+b") as opened, _locked(opened):
            opened.seek(0)
            if _first_line(opened, packed) == _head(run):
                opened.truncate(os.fstat(opened.fileno()).st_size - len(end))
                before = b",\n"
            else:
                opened.truncate(0)
                before = _head(run)
            opened.write(gzip.compress(before, mtime=0) if packed else before)
            shutil.copyfileobj(lines, opened)
            opened.write(end)


def write(file: Path, run: str, events: Iterable[Event]) -> None:
    """Writes a new trace, over any old content of the file. Raises OSError if it cannot be written."""
    file.unlink(missing_ok=True)
    append(file, run, events)


def read(file: Path) -> TraceFile:
    """Reads a trace that Hocket has written. Raises ValueError for any other file, and if there is none."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"expected a trace; found {str(file)!r}: {error.strerror}; write one with hocket.trace(FILE) or "
            "HOCKET_TRACE=FILE"
        ) from None
    try:
        document = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        events = document["traceEvents"]
        ranks = {event["pid"]: event["args"] for event in events if event["ph"] == "M" and event["name"] == "rank"}
    except (msgspec.DecodeError, gzip.BadGzipFile, zlib.error, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"expected a trace that Hocket has written; found {file}: {error}") from None
    if not ranks:
        raise ValueError(f"expected a trace that Hocket has written; found {file}, which names no ranks")
    return TraceFile(events, ranks)


def merge(files: Iterable[Path]) -> TraceFile:
    """Returns the events of several files as one trace. ValueError if two have the same rank, or clocks differ."""
    events: list[Event] = []
    ranks: dict[int, dict[str, Any]] = {}
    for file in files:
        one = read(file)
        twice = sorted(ranks.keys() & one.ranks.keys())
        if twice:
            raise ValueError(f"expected each rank in one file; found rank {twice[0]} in {file} and in an earlier file")
        events += one.events
        ranks |= one.ranks
    boots = {said["boot"] for said in ranks.values()}
    if len(boots) > 1:
        raise ValueError(
            "expected traces of one host without a restart in between, because only these share a clock; found "
            f"{len(boots)} clocks"
        )
    return TraceFile(events, ranks)


def boot() -> str:
    """Returns an identity of CLOCK_MONOTONIC: equal for all processes of a host until the host is restarted."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _head(run: str) -> bytes:
    said = json.dumps({"hocket": __version__, "run": run})
    return f'{{"displayTimeUnit":"ns","otherData":{said},"traceEvents":[\n'.encode()


def _write_lines(file: IO[bytes], packed: bool, events: Iterable[Event]) -> None:
    written = cast(IO[bytes], io.BufferedWriter(gzip.GzipFile(fileobj=file, mode="wb"))) if packed else file
    before = b""
    for event in events:
        written.write(before)
        written.write(_encode(event))
        before = b",\n"
    if packed:
        written.close()


def _first_line(opened: IO[bytes], packed: bool) -> bytes:
    if not packed:
        return opened.readline()
    try:
        with gzip.open(opened) as unpacked:
            return unpacked.readline()
    except (gzip.BadGzipFile, zlib.error, EOFError):
        return b""


@contextmanager
def _locked(opened: IO[bytes]) -> Iterator[None]:
    if not file_lock.acquire(opened.fileno(), _PATIENCE_SECONDS):
        held = f"another process has kept it locked for {_PATIENCE_SECONDS:g} seconds; is a rank stopped?"
        raise TimeoutError(errno.ETIMEDOUT, held, opened.name)
    try:
        yield
    finally:
        opened.flush()
        fcntl.flock(opened, fcntl.LOCK_UN)
