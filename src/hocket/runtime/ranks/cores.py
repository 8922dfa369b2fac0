"""Which cores ranks run on, and whether one has a core of its own: then it spins where it waits. Else it would keep the
core from those it awaits.

Each rank says at the rendezvous on which cores it may run and how many at a time. What other threads of a rank do is
not known here; a rank that spins for nothing sleeps soon, and the stream of a communicator never spins.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")


def own_cores() -> dict[str, Any]:
    """What this rank says: "cores" (it may run on core c where bit c is set, low end first) and "quota" (see below)."""
    mask = sum(1 << core for core in os.sched_getaffinity(0))
    return {"cores": mask.to_bytes((mask.bit_length() + 7) // 8, "little"), "quota": quota()}


def quota() -> float | None:
    """How many cores the container's limit lets run at a time; None without a limit."""
    group = next((line[3:] for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "/")
    allowed, period = "", ""
    for folder in (_CGROUPS / group.strip("/"), _CGROUPS):  # version 2, then the container's root
        allowed, _, period = _read(folder / "cpu.max").partition(" ")
        if allowed:
            break
    else:
        allowed, period = (_read(_CGROUPS / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(allowed) / int(period) if allowed.isdecimal() and period.isdecimal() else None


def have_cores(said: Sequence[dict[str, Any]]) -> list[bool]:
    """Whether there are as many cores as ranks where each rank runs; `said` is own_cores() of every rank of the job.

    Those count that share a core with it, or with one that does. Ranks that are bound to a core each have one each. All
    of them are taken to be under the limit that any of those is under.
    """
    masks: list[int] = [int.from_bytes(one["cores"], "little") for one in said]
    have: list[bool] = [False] * len(said)
    left = set(range(len(said)))
    while left:
        sharing, cores = {first := left.pop()}, masks[first]
        while found := {other for other in left if masks[other] & cores}:
            left -= found
            sharing |= found
            for other in found:
                cores |= masks[other]
        limits: list[float] = [said[other]["quota"] for other in sharing if said[other]["quota"] is not None]
        for rank in sharing:
            have[rank] = len(sharing) <= cores.bit_count() and len(said) <= min(limits, default=math.inf)
    return have


def num_cores(said: Sequence[dict[str, Any]]) -> int:
    """On how many cores the ranks of a job run, all together; `said` is own_cores() of every rank."""
    cores = 0
    for one in said:
        cores |= int.from_bytes(one["cores"], "little")
    return cores.bit_count()


def shared_by(num_ranks: int) -> bool:
    """Whether so many ranks share cores if they are started from here, as have_cores of all that they say."""
    return not all(have_cores([own_cores()] * num_ranks))


def neighbours(said: Sequence[dict[str, Any]], rank: int) -> list[int]:
    """The other ranks that may run on a core of this one; `said` is own_cores() of every rank of the job."""
    masks = [int.from_bytes(one["cores"], "little") for one in said]
    return [other for other, mask in enumerate(masks) if other != rank and mask & masks[rank]]


def beside(said: Sequence[dict[str, Any]], rank: int) -> list[int]:
    """Those of its neighbours that are bound to one core, as it is: so to the same one."""
    bound_to_one = [int.from_bytes(one["cores"], "little").bit_count() == 1 for one in said]
    return [other for other in neighbours(said, rank) if bound_to_one[rank] and bound_to_one[other]]


@contextlib.contextmanager
def bound(rank: int, num_ranks: int) -> Iterator[None]:
    """What this thread starts meanwhile, as that rank, may run on its share of the cores only.

    Where there are more ranks than cores neighbours, which many algorithms let talk most, share one. Unbound, two that
    wait for each other are now and then on one core, though another one is free.
    """
    usual = os.sched_getaffinity(0)
    cores = sorted(usual)
    first, end = (position * len(cores) // num_ranks for position in (rank, rank + 1))
    with contextlib.suppress(OSError):  # a sandbox may refuse it: then they run where Linux puts them
        os.sched_setaffinity(0, cores[first : max(end, first + 1)])
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, usual)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
