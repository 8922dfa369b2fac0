"""From (collective, algorithm, rank count, root) to a plan that the core may run: built, proved, lowered, remembered.

A proof is expensive beside a call, so its verdict is kept on disk, under the content of the schedule, what the
algorithm promises, and the content of the prover itself. Of the ranks that need one proof at the same time, one makes
it and the others wait for it, though not for long: it may have been stopped.
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

from hocket import __version__, _core, algorithms
from hocket import schedule as prover
from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.runtime import file_lock
from hocket.schedule.collective import COLLECTIVES
from hocket.schedule.ir import Schedule
from hocket.schedule.lower import Plan, lower
from hocket.schedule.verify import LAWS

_PLANS = 1024  # plans remembered: hundreds of communicators share a few
_LOCKS = 16  # files that serialise proofs, chosen by the key
_PATIENCE_SECONDS = 5.0  # with who proves, more than nearly all proofs take; then each proves for itself

_in_process: dict[str, dict[str, Any]] = {}  # verdicts by key
_of_files: dict[tuple[str, str], Algorithm] = {}  # by collective and "FILE.py:NAME"
# Guards both, and makes threads of one process load and prove one after the other. A file may call us while it loads.
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan of this rank in the core, which communicators of one size share, with what calls need to know about it."""

    plan: Any
    schedule: int  # the first 64 bits of the schedule's digest: part of every call's fingerprint
    labels: frozenset[str]


def launched(
    collective: str, name: str, rank: int, size: int, root: int, in_place: bool, dims: tuple[int, ...] | None
) -> _core.Launched:
    """What one communicator uses of a prepared plan.

    Arguments and errors as `prepare`; dims for an algorithm that takes no grid are none.
    """
    prepared = prepare(collective, name, rank, size, root, in_place, dims if find(collective, name).dims else None)
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
            fitting = algorithms.find(name, collective)
            if len(fitting) > 1:
                names = ", ".join(one.name for one in fitting)
                raise ValueError(f"expected {name}:NAME, one of {names} for {collective}; found {name!r}")
            _of_files[collective, name] = fitting[0]
        return _of_files[collective, name]


@functools.lru_cache(_PLANS)
def prepare(
    collective: str, name: str, rank: int, size: int, root: int, in_place: bool, dims: tuple[int, ...] | None = None
) -> Prepared:
    """The plan of one rank, proved for this rank count, root and grid in both alias modes.

    Without dims the algorithm has its own, if it takes a grid. ValueError for an unknown algorithm or one that does not
    do this rank count; VerifyError if the proof fails.
    """
    algorithm = find(collective, name)
    schedule = algorithm.build(size, root, dims=dims)
    verdict, _ = _proved(algorithm, schedule, dims)
    plan = in_core(lower(schedule, rank, in_place), collective, f"{collective} by {algorithm.name}")
    return Prepared(plan, int(schedule.digest[:16], 16), frozenset(verdict["labels"]))


def in_core(plan: Plan, collective: str, label: str) -> Any:
    """A plan of this collective as the core holds it; `label` is what a stall is reported under."""
    return _core.Plan(
        plan.num_ranks,
        plan.rank,
        plan.chunks_per_block,
        plan.uneven,
        plan.input_blocks,
        plan.output_blocks,
        plan.num_scratch,
        not COLLECTIVES[collective].reduces,
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
    key = hashlib.sha256(f"{_prover()} {schedule.digest} {promises}".encode()).hexdigest()
    with _lock:
        if key in _in_process:
            return _in_process[key], 0.0
        folder = _proofs()
        seconds = 0.0
        known = _read(folder, key, schedule)
        if known is None:
            with _alone(folder, key):
                known = _read(folder, key, schedule)
                if known is None:
                    started = perf_counter()
                    known = algorithm.prove(schedule, declared).as_dict()
                    seconds = perf_counter() - started
                    _write(folder, key, known)
        _in_process[key] = known
        return known, seconds


def cache_folder() -> Path:
    """Where verdicts are kept: $HOCKET_CACHE, else hocket in $XDG_CACHE_HOME or ~/.cache."""
    if "HOCKET_CACHE" in os.environ:
        return Path(os.environ["HOCKET_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hocket"


@functools.cache
def _prover() -> str:
    """The content of the package that proves and lowers: a changed prover trusts no older verdict."""
    content = hashlib.sha256(__version__.encode())
    for file in sorted(Path(prover.__file__).parent.glob("*.py")):
        content.update(file.read_bytes())
    return content.hexdigest()


def _proofs() -> Path | None:
    """The folder of verdicts; None where none can be written: then each process proves."""
    try:
        folder = cache_folder() / "proofs"
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


def _read(folder: Path | None, key: str, schedule: Schedule) -> dict[str, Any] | None:
    """The verdict under this key, if it is one, and of all laws and both alias modes for this schedule."""
    if folder is None:
        return None
    try:
        verdict = msgspec.json.decode((folder / key).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    complete = {"digest": schedule.digest, "laws": list(LAWS), "modes": [False, True]}
    return verdict if complete.items() <= verdict.items() else None


def _write(folder: Path | None, key: str, verdict: dict[str, Any]) -> None:
    if folder is None:
        return
    with contextlib.suppress(OSError):  # a full disk costs the next one a proof
        # If the process dies here the file stays: no key begins like it, so that nobody ever reads it.
        descriptor, name = tempfile.mkstemp(prefix="unfinished-", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(verdict))
            Path(name).replace(folder / key)
        except OSError:
            Path(name).unlink()
