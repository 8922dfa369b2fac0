"""Files of traces, in the JSON that Chrome and Perfetto read: to which ranks add their parts as they end.

One line is one event, and what closes the document has a known length. So a rank adds its own without reading those of
the others; nobody gathers, and what a rank has written does not depend on whether the others live. Times are
microseconds of CLOCK_MONOTONIC, which is one clock for all ranks of a host; where it was measured is told by the
event "rank" of each of them. A name that ends in .gz is compressed.
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
"""Threads of the program have a "thread_sort_index" below this; then come streams, then communicators."""

_PATIENCE_SECONDS = 60.0  # with ranks that write their parts; one that was stopped would be waited for for good
_END = b"\n]}\n"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class TraceFile:
    """What a file has: its events, and what the ranks said of themselves ("rank", "size", "boot", "ended_early")."""

    events: list[Event]
    ranks: dict[int, dict[str, Any]]


def append(file: Path, run: str, events: Iterable[Event]) -> None:
    """Adds a rank's events to the trace that ranks of this run share, and makes it if it is of another run, or none.

    OSError where it cannot be written; TimeoutError, which is one, where another process keeps it locked.
    """
    packed = file.suffix == ".gz"
    end = gzip.compress(_END, mtime=0) if packed else _END
    with tempfile.TemporaryFile() as lines:  # there may be more of them than memory
        _write_lines(lines, packed, events)
        lines.seek(0)
        # What is written over: the end of the file, which is written again.
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
    """Writes a trace of its own, over whatever was there. OSError where it cannot be."""
    file.unlink(missing_ok=True)
    append(file, run, events)


def read(file: Path) -> TraceFile:
    """Reads a trace of ours. ValueError for another file, and for none."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"expected a trace; found {str(file)!r}: {error.strerror}; hocket.trace(FILE) or HOCKET_TRACE=FILE writes "
            "one"
        ) from None
    try:
        document = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        events = document["traceEvents"]
        ranks = {event["pid"]: event["args"] for event in events if event["ph"] == "M" and event["name"] == "rank"}
    except (msgspec.DecodeError, gzip.BadGzipFile, zlib.error, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"expected a trace that Hocket has written; found {file}: {error}") from None
    if not ranks:
        raise ValueError(f"expected a trace that Hocket has written; found {file}, which says nothing of ranks")
    return TraceFile(events, ranks)


def merge(files: Iterable[Path]) -> TraceFile:
    """The events of several files as one trace; ValueError where a rank is in two of them, or clocks differ."""
    events: list[Event] = []
    ranks: dict[int, dict[str, Any]] = {}
    for file in files:
        one = read(file)
        twice = sorted(ranks.keys() & one.ranks.keys())
        if twice:
            raise ValueError(f"expected each rank in one file; found rank {twice[0]} in {file} and in one before it")
        events += one.events
        ranks |= one.ranks
    boots = {said["boot"] for said in ranks.values()}
    if len(boots) > 1:
        raise ValueError(
            f"expected ranks of one host that has not been started again, whose clock they share; found {len(boots)}"
        )
    return TraceFile(events, ranks)


def boot() -> str:
    """Since when CLOCK_MONOTONIC counts: equal for all processes of a host until it is started again."""
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
