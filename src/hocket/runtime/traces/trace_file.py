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

_NAME = ((int, str), "a number or a text")
_KINDS: dict[str, tuple[Any, str]] = {
    "pid": _NAME,
    "tid": _NAME,
    "id": _NAME,
    "ts": ((int, float), "a number of microseconds"),
    "dur": ((int, float), "a number of microseconds"),
    "args": (dict, "an object"),
}
_IN_LANE = ("pid", "tid", "ts")
_NEEDED = {"X": _IN_LANE, "i": _IN_LANE, "s": (*_IN_LANE, "id"), "f": (*_IN_LANE, "id"), "M": ("pid",)}
"""What an event of a kind ("ph") must have. Readers leave other kinds out."""

_MOST_SHOWN = 120  # letters of an event in an error
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class TraceFile:
    """The content of a file: its events, and what each rank says of itself.

    That is "size", "boot", "ended_early" and "communicators". A file that another program has written names no rank.
    """

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
    """Reads a trace: one that ranks of Hocket have written, or another file in Chrome's Trace Event Format.

    Raises ValueError if there is none, and for an event that lacks what its kind ("ph") needs; it names the event.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ValueError(
            f"expected a trace; found {str(file)!r}: {error.strerror}; write one with hocket.trace(FILE) or "
            "HOCKET_TRACE=FILE"
        ) from None
    try:
        document = msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (msgspec.DecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(f"expected a trace; found {file}: {error}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ValueError(f"expected a trace; found {file}, which has no list of traceEvents")
    ranks: dict[int, dict[str, Any]] = {}
    for number, event in enumerate(events):
        where = f"{file}, event {number}"
        _check(event, where)
        if event["ph"] == "M" and event.get("name") == "rank":
            ranks[event["pid"]] = _facts(event, where)
    if not ranks and not any(event["ph"] == "X" for event in events):
        raise ValueError(f'expected a trace; found {file}, which has no event with a duration ("ph": "X")')
    return TraceFile(events, ranks)


def _check(event: Any, where: str) -> None:
    """Raises ValueError unless the event has what readers need; they can do without all the rest."""
    if not isinstance(event, dict):
        raise ValueError(f"{where}: expected an object, found {event!r}")
    _expect(event, "ph", str, "text", where)
    for key in _NEEDED.get(event["ph"], ()):
        _expect(event, key, *_KINDS[key], where)
    for key in ("dur", "tid", "args"):
        if event.get(key) is not None:
            _expect(event, key, *_KINDS[key], where)


def _expect(event: Event, key: str, kind: Any, words: str, where: str) -> None:
    found = event.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        told = repr(found) if key in event else f"an event without it: {str(event)[:_MOST_SHOWN]}"
        raise ValueError(f"{where}: expected {key!r} as {words}, found {told}")


def _facts(event: Event, where: str) -> dict[str, Any]:
    """Returns what a rank says of itself, and what holds for a rank that does not say it."""
    facts = {"size": 0, "boot": "", "ended_early": False, "communicators": {}} | (event.get("args") or {})
    _expect(event, "pid", int, "the number of a rank", where)
    _expect(facts, "size", int, "a number of ranks", where)
    _expect(facts, "communicators", dict, "lists of ranks by communicator", where)
    for name in facts["communicators"]:
        _expect(facts["communicators"], name, list, "a list of ranks", where)
    return facts


def merge(files: Iterable[Path]) -> TraceFile:
    """Returns the events of several files as one trace. ValueError if two have the same rank, or clocks differ."""
    events: list[Event] = []
    ranks: dict[int, dict[str, Any]] = {}
    for file in files:
        one = read(file)
        if not one.ranks:
            raise ValueError(f"expected traces that ranks of Hocket have written; found {file}, which names no ranks")
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
