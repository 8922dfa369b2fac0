"""From (collective, algorithm, rank count, root) to a plan that the core may run: built, proved, lowered, remembered.

A proof is expensive beside a call, so its verdict is kept on disk, under the content of the schedule, what the
algorithm promises, and the code that proves. Of the ranks that need one proof at the same time, one makes it and the
others wait for it, though not for long: it may have been stopped.

Beside a start of some milliseconds, building and lowering are expensive too, above all where ranks share cores. So the
plans of built-in algorithms are kept as well, of each rank once its schedule was proved, under the code that makes
them: what a user's algorithm comes to may depend on anything, and is made anew by each process.
"""

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hocket import __version__, _core, algorithms, schedule
from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.algorithms.registry import is_built_in, only
from hocket.runtime import file_lock
from hocket.schedule.collective import COLLECTIVES
from hocket.schedule.ir import Schedule
from hocket.schedule.lower import Plan, lower
from hocket.schedule.verify import LAWS

_PLANS = 1024  # plans remembered: hundreds of communicators share a few
_DIGEST_CHARACTERS = 64
_LOCKS = 16  # files that serialise proofs, chosen by the key
_PATIENCE_SECONDS = 5.0  # with who proves, more than nearly all proofs take; then each proves for itself

_in_process: dict[str, dict[str, Any]] = {}  # verdicts by key
_of_files: dict[tuple[str, str], Algorithm] = {}  # by collective and "FILE.py:NAME"
# Guards both, and makes threads of one process load and prove one after the other. A file may call us while it loads.
_lock = threading.RLock()


class _Made(msgspec.Struct):
    """What a rank runs, the digest of its schedule, and the labels of the certificate."""

    plan: Plan
    digest: str
    labels: list[str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan of this rank in the core, which communicators of one size share, with what calls need to know about it."""

    plan: Any
    schedule: int  # the first 64 bits of the schedule's digest: part of every call's fingerprint
    labels: frozenset[str]


def launched(
    algorithm: Algorithm, rank: int, size: int, root: int, in_place: bool, dims: tuple[int, ...] | None
) -> _core.Launched:
    """What one communicator uses of a prepared plan.

    Arguments and errors as `prepare`; dims for an algorithm that takes no grid are none.
    """
    prepared = prepare(algorithm, rank, size, root, in_place, dims if algorithm.dims else None)
    return _core.Launched(prepared.plan, prepared.schedule, prepared.labels)


def find(collective: str, name: str) -> Algorithm:
    """The algorithm of this name; "FILE.py:NAME" takes it from a user's file, run once. ValueError unless there is one.

    NAME may be left out where the file has one algorithm for the collective.
    """
    found = ALGORITHMS.get((collective, name))
    if found is not None:
        return found
    with _lock:
        if (collective, name) not in _of_files:
            _of_files[collective, name] = only(name, algorithms.find(name, collective))
        return _of_files[collective, name]


@functools.lru_cache(_PLANS)
def prepare(
    algorithm: Algorithm, rank: int, size: int, root: int, in_place: bool, dims: tuple[int, ...] | None = None
) -> Prepared:
    """The plan of one rank, proved for this rank count, root and grid in both alias modes.

    It is remembered by the algorithm itself, as its name may come to mean another. Without dims the algorithm has its
    own, if it takes a grid. ValueError for one that does not do this rank count; VerifyError if the proof fails.
    """
    collective, name = algorithm.collective, algorithm.name
    key = _digest(f"{_code()} {collective} {name} {rank} {size} {root} {in_place} {dims}".encode())
    may_be_kept = is_built_in(algorithm.source)
    made = _read_plan(key) if may_be_kept else None
    if made is None:
        built = algorithm.build(size, root, dims=dims)
        verdict, _ = _proved(algorithm, built, dims)
        made = _Made(lower(built, rank, in_place), built.digest, verdict["labels"])
        if may_be_kept:
            _write_plan(key, made)
    is_token = not COLLECTIVES[collective].exactly_once
    plan = in_core(made.plan, collective, f"{collective} by {name}", only_token=is_token)
    return Prepared(plan, int(made.digest[:16], 16), frozenset(made.labels))


def in_core(plan: Plan, collective: str, label: str, *, only_token: bool = False) -> Any:
    """A plan of this collective as the core holds it; `label` is what a stall is reported under.

    only_token: the values are nobody's, as in a barrier between calls, so the core need not compute them.
    """
    return _core.Plan(
        plan.num_ranks,
        plan.rank,
        plan.chunks_per_block,
        plan.uneven,
        plan.input_blocks,
        plan.output_blocks,
        plan.num_scratch,
        not COLLECTIVES[collective].reduces,
        only_token,
        label,
        plan.instructions,
        plan.sources,
        plan.destinations,
        plan.dependencies,
    )


def prove(algorithm: Algorithm, schedule: Schedule) -> float:
    """Holds this very schedule to the law and to what the algorithm promises, unless that was done before.

    Seconds that the proof took, 0 where it was known; VerifyError.
    """
    return _proved(algorithm, schedule)[1]


def _proved(
    algorithm: Algorithm, schedule: Schedule, dims: tuple[int, ...] | None = None
) -> tuple[dict[str, Any], float]:
    """The verdict, a certificate as plain values, and the seconds that it took."""
    declared = algorithm.declared(schedule.num_ranks, schedule.root, dims=dims)
    promises = (declared.steps, str(declared.sent), sorted(declared.labels))
    key = _digest(f"{_code()} {schedule.digest} {promises}".encode())
    with _lock:
        if key in _in_process:
            return _in_process[key], 0.0
        folder = _folder("proofs")
        seconds = 0.0
        known = _read_verdict(folder, key, schedule)
        if known is None:
            with _alone(folder, key):
                known = _read_verdict(folder, key, schedule)
                if known is None:
                    started = perf_counter()
                    known = algorithm.prove(schedule, declared).as_dict()
                    seconds = perf_counter() - started
                    _write(folder, key, msgspec.json.encode(known))
        _in_process[key] = known
        return known, seconds


def cache_folder() -> Path:
    """Where verdicts are kept: $HOCKET_CACHE, else hocket in $XDG_CACHE_HOME or ~/.cache."""
    if "HOCKET_CACHE" in os.environ:
        return Path(os.environ["HOCKET_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hocket"


@functools.cache
def _code() -> str:
    """The content of the packages that write, prove and lower schedules: what is changed trusts nothing older."""
    content = hashlib.sha256(__version__.encode())
    for package in (schedule, algorithms):
        top = package.__path__[0]
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    content.update(f"{folder.removeprefix(top)}/{name}".encode())
                    with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - pathlib is slower
                        content.update(file.read())
    return content.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _folder(name: str) -> Path | None:
    """A folder of the cache; None where none can be written: then each process does all by itself."""
    try:
        folder = cache_folder() / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    return folder


@contextlib.contextmanager
def _alone(folder: Path | None, key: str) -> Iterator[None]:
    """While others that want this proof wait. It spares work and guards nothing: who cannot have it goes on without."""
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):  # a folder to be read only; no locks in its file system
                lock = folder / f"lock-{int(key, 16) % _LOCKS:x}"
                descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, descriptor)
                file_lock.acquire(descriptor, _PATIENCE_SECONDS)
        yield


def _read_verdict(folder: Path | None, key: str, schedule: Schedule) -> dict[str, Any] | None:
    """The verdict under this key, if it is one, and of all laws and both alias modes for this schedule."""
    try:
        verdict = msgspec.json.decode(_read(folder, key), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    complete = {"digest": schedule.digest, "laws": list(LAWS), "modes": [False, True]}
    return verdict if complete.items() <= verdict.items() else None


def _read_plan(key: str) -> _Made | None:
    """What was made under this key, if that is whole: a digest of itself comes first."""
    try:
        kept = _read(_folder("plans"), key)
        if kept[:_DIGEST_CHARACTERS].decode() != _digest(kept[_DIGEST_CHARACTERS:]):
            return None
        return _decoder.decode(kept[_DIGEST_CHARACTERS:])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write_plan(key: str, made: _Made) -> None:
    content = msgspec.msgpack.encode(made, enc_hook=lambda array: (array.shape, array.tobytes()))
    _write(_folder("plans"), key, _digest(content).encode() + content)


def _array(_: type, kept: tuple[list[int], bytes]) -> NDArray[np.int32]:
    shape, content = kept
    return np.frombuffer(content, np.int32).reshape(shape)


_decoder = msgspec.msgpack.Decoder(_Made, dec_hook=_array)  # made here, as threads would make what it needs at once


def _read(folder: Path | None, key: str) -> bytes:
    """OSError where there is none."""
    if folder is None:
        raise FileNotFoundError(key)
    return (folder / key).read_bytes()


def _write(folder: Path | None, key: str, content: bytes) -> None:
    if folder is None:
        return
    with contextlib.suppress(OSError):  # a full disk costs the next one the same work
        # If the process dies here the file stays: no key begins like it, so that nobody ever reads it.
        descriptor, name = tempfile.mkstemp(prefix="unfinished-", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(name).replace(folder / key)
        except OSError:
            Path(name).unlink()
