"""Makes plans for the core from (collective, algorithm, rank count, root): builds, proves, lowers and remembers them.

A proof takes long compared with a call, so its verdict is kept on disk. Its key is the content of the schedule, what
the algorithm promises, and the code that proves. If several ranks need the same proof at the same time, one makes it
and the others wait, but not for long: that process may be stopped.

A start takes some milliseconds, so building and lowering are expensive too, above all if ranks share cores. So the
plans of built-in algorithms are kept as well, one for each rank, once the schedule is proved. Their key contains the
code that makes them. A user's algorithm may depend on anything, so each process makes its plan anew.
"""

import functools
import hashlib
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hocket import __version__, _core
from hocket.algorithms import ALGORITHMS, Algorithm, GroupsOfRanks, is_built_in, only
from hocket.algorithms import find as find_by_reference
from hocket.runtime import cache
from hocket.schedule import COLLECTIVES, LAWS, Plan, Schedule, lower

_PLANS = 1024  # plans remembered: hundreds of communicators share a few
_DIGEST_CHARACTERS = 64

_in_process: dict[str, dict[str, Any]] = {}  # verdicts by key
_of_files: dict[tuple[str, str], Algorithm] = {}  # by collective and "FILE.py:NAME"
# Guards both tables. Threads of one process load and prove in turn. A user's file may call this module as it loads.
_lock = threading.RLock()


class _Made(msgspec.Struct):
    """The plan of a rank, the digest of its schedule, and the labels of the certificate."""

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
    algorithm: Algorithm,
    rank: int,
    size: int,
    root: int,
    in_place: bool,
    dims: tuple[int, ...] | None,
    groups: GroupsOfRanks | None,
) -> _core.Launched:
    """Returns a communicator's own state of a prepared plan.

    Arguments and errors are those of `prepare`; dims are ignored if the algorithm takes no grid.
    """
    prepared = prepare(algorithm, rank, size, root, in_place, dims if algorithm.dims else None, groups)
    return _core.Launched(prepared.plan, prepared.schedule, prepared.labels)


def find(collective: str, name: str) -> Algorithm:
    """Returns the algorithm of this name, or raises ValueError; "FILE.py:NAME" takes it from a user's file, run once.

    NAME may be left out if the file has exactly one algorithm for the collective. Nothing is proved yet: `prepare`
    proves what runs.
    """
    found = ALGORITHMS.get((collective, name))
    if found is not None:
        return found
    with _lock:
        if (collective, name) not in _of_files:
            _of_files[collective, name] = only(name, find_by_reference(name, collective))
        return _of_files[collective, name]


@functools.lru_cache(_PLANS)
def prepare(
    algorithm: Algorithm,
    rank: int,
    size: int,
    root: int,
    in_place: bool,
    dims: tuple[int, ...] | None = None,
    groups: GroupsOfRanks | None = None,
) -> Prepared:
    """Returns the plan of one rank, proved for this rank count, root, grid and groups in both alias modes.

    The key of the memory is the algorithm itself, because its name may later mean another algorithm. An algorithm that
    takes a grid or groups chooses them if dims or groups is None. Raises ValueError if the algorithm does not support
    this rank count, and VerifyError if the proof fails.
    """
    collective, name = algorithm.collective, algorithm.name
    key = cache.digest(f"{_code()} {collective} {name} {rank} {size} {root} {in_place} {dims} {groups}".encode())
    may_be_kept = is_built_in(algorithm.source)
    made = _read_plan(key) if may_be_kept else None
    if made is None:
        built = algorithm.build(size, root, groups=groups, dims=dims)
        verdict, _ = _proved(algorithm, built, groups, dims)
        made = _Made(lower(built, rank, in_place), built.digest, verdict["labels"])
        if may_be_kept:
            _write_plan(key, made)
    is_token = not COLLECTIVES[collective].exactly_once
    plan = in_core(made.plan, collective, f"{collective} by {name}", only_token=is_token)
    return Prepared(plan, int(made.digest[:16], 16), frozenset(made.labels))


def in_core(plan: Plan, collective: str, label: str, *, only_token: bool = False) -> Any:
    """Returns a plan of this collective as the core holds it; reports of a stall name it by `label`.

    only_token: no caller reads the values (as in a barrier), so the core need not compute them.
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
        COLLECTIVES[collective].hears_all(plan.output_blocks),
        label,
        plan.instructions,
        plan.sources,
        plan.destinations,
        plan.dependencies,
    )


def prove(algorithm: Algorithm, schedule: Schedule) -> float:
    """Checks this very schedule against the law and the algorithm's promises, unless that was done before.

    Returns the seconds that the proof took, 0 if its verdict was known. Raises VerifyError if the proof fails.
    """
    return _proved(algorithm, schedule)[1]


def _proved(
    algorithm: Algorithm,
    schedule: Schedule,
    groups: GroupsOfRanks | None = None,
    dims: tuple[int, ...] | None = None,
) -> tuple[dict[str, Any], float]:
    """Returns the verdict, a certificate as plain values, and the seconds that it took."""
    declared = algorithm.declared(schedule.num_ranks, schedule.root, groups=groups, dims=dims)
    promises = (declared.steps, str(declared.sent), sorted(declared.labels))
    key = cache.digest(f"{_code()} {schedule.digest} {promises}".encode())
    with _lock:
        if key in _in_process:
            return _in_process[key], 0.0
        folder = cache.folder("proofs")
        seconds = 0.0
        known = _read_verdict(folder, key, schedule)
        if known is None:
            with cache.alone(folder, key):
                known = _read_verdict(folder, key, schedule)
                if known is None:
                    started = perf_counter()
                    known = algorithm.prove(schedule, declared).as_dict()
                    seconds = perf_counter() - started
                    cache.write(folder, key, msgspec.json.encode(known))
        _in_process[key] = known
        return known, seconds


@functools.cache
def _code() -> str:
    """Returns the digest of the code that writes, proves and lowers schedules: changed code trusts no old verdict."""
    content = hashlib.sha256(__version__.encode())
    for package in ("hocket.schedule", "hocket.algorithms"):
        top = sys.modules[package].__path__[0]
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    content.update(f"{folder.removeprefix(top)}/{name}".encode())
                    with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - pathlib is slower
                        content.update(file.read())
    return content.hexdigest()


def _read_verdict(folder: Path | None, key: str, schedule: Schedule) -> dict[str, Any] | None:
    """Returns the verdict under this key if it covers all laws and both alias modes of this schedule, else None."""
    try:
        verdict = msgspec.json.decode(cache.read(folder, key), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    complete = {"digest": schedule.digest, "laws": list(LAWS), "modes": [False, True]}
    return verdict if complete.items() <= verdict.items() else None


def _read_plan(key: str) -> _Made | None:
    """Returns what was made under this key, None if the file is not whole: it begins with a digest of its rest."""
    try:
        kept = cache.read(cache.folder("plans"), key)
        if kept[:_DIGEST_CHARACTERS].decode() != cache.digest(kept[_DIGEST_CHARACTERS:]):
            return None
        return _decoder.decode(kept[_DIGEST_CHARACTERS:])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write_plan(key: str, made: _Made) -> None:
    content = msgspec.msgpack.encode(made, enc_hook=lambda array: (array.shape, array.tobytes()))
    cache.write(cache.folder("plans"), key, cache.digest(content).encode() + content)


def _array(_: type, kept: tuple[list[int], bytes]) -> NDArray[np.int32]:
    shape, content = kept
    return np.frombuffer(content, np.int32).reshape(shape)


_decoder = msgspec.msgpack.Decoder(_Made, dec_hook=_array)  # made at import: threads would race to make it
