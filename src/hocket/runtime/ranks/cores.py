"""The cores on which ranks run. A rank with a core of its own spins as it waits; one that shares a core must not.

A spinning rank would keep its core from the ranks for which it waits. At the rendezvous each rank says on which cores
it may run, and on how many at a time. Other threads of a rank are not counted; a rank that spins for nothing soon
sleeps, and the stream of a communicator never spins.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

_CGROUPS = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def own_cores() -> dict[str, Any]:
    """Returns what this rank tells the others: "cores" (bit c: it may run on core c; little-endian) and "quota"."""
    mask = sum(1 << core for core in os.sched_getaffinity(0))
    return {"cores": mask.to_bytes((mask.bit_length() + 7) // 8, "little"), "quota": quota()}


def quota() -> float | None:
    """Returns how many cores the container may use at a time; None without a limit."""
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
    """Returns, for each rank, whether its cores are at least as many as the ranks that share them.

    `said` is own_cores() of every rank of the job. Ranks share cores if they have one in common, directly or through
    other ranks. If each rank is bound to a core, each has one. A quota of any rank counts for all that share its cores.
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
    """Returns the number of cores on which the ranks of a job run; `said` is own_cores() of every rank."""
    cores = 0
    for one in said:
        cores |= int.from_bytes(one["cores"], "little")
    return cores.bit_count()


class CoresOfHosts:
    """The cores of a job: own_cores() of every rank, and the number of its host. Only ranks of one host share cores.

    number: of all cores; are_shared: whether some rank has no core of its own, on any host.
    """

    def __init__(self, said: Sequence[dict[str, Any]], hosts: Sequence[int]) -> None:
        self._here = {number: [rank for rank, host in enumerate(hosts) if host == number] for number in set(hosts)}
        self._said, self._hosts = said, hosts
        self._have = {number: have_cores(self._of(number)) for number in self._here}
        self.number = sum(num_cores(self._of(number)) for number in self._here)
        self.are_shared = not all(all(have) for have in self._have.values())

    def _of(self, host: int) -> list[dict[str, Any]]:
        return [self._said[rank] for rank in self._here[host]]

    def has_core(self, rank: int) -> bool:
        """Returns whether the rank has a core of its own."""
        host = self._hosts[rank]
        return self._have[host][self._here[host].index(rank)]

    def on_host_of(self, rank: int, of: Callable[[Sequence[dict[str, Any]], int], list[int]]) -> list[int]:
        """Returns the ranks that `neighbours`, `beside` or `far` finds for this rank."""
        here = self._here[self._hosts[rank]]
        return [here[found] for found in of(self._of(self._hosts[rank]), here.index(rank))]


def shared_by(num_ranks: int) -> bool:
    """Returns whether ranks started from this process would share cores: some would have no core of their own."""
    return not all(have_cores([own_cores()] * num_ranks))


def neighbours(said: Sequence[dict[str, Any]], rank: int) -> list[int]:
    """Returns the other ranks that may run on a core of this rank; `said` is own_cores() of every rank of the job."""
    masks = [int.from_bytes(one["cores"], "little") for one in said]
    return [other for other, mask in enumerate(masks) if other != rank and mask & masks[rank]]


def beside(said: Sequence[dict[str, Any]], rank: int) -> list[int]:
    """Returns the neighbours that are bound to one core, the same as this rank's; none if it has several cores."""
    bound_to_one = [int.from_bytes(one["cores"], "little").bit_count() == 1 for one in said]
    return [other for other in neighbours(said, rank) if bound_to_one[rank] and bound_to_one[other]]


def far(said: Sequence[dict[str, Any]], rank: int) -> list[int]:
    """Returns the other ranks whose cores share no last cache with those of this rank, as far as the system tells.

    Only caches of level 3 or more count: a lower one often belongs to one core, and some systems do not list the last
    cache. `said` is own_cores() of every rank of the job, all of one host.
    """
    masks = [int.from_bytes(one["cores"], "little") for one in said]
    near, left = 0, masks[rank]
    while left:
        sharing = _sharing_cache((left & -left).bit_length() - 1)
        if sharing == 0:
            return []
        near |= sharing
        left &= ~sharing  # the system says the same of all cores that share the cache
    return [other for other, mask in enumerate(masks) if other != rank and not mask & near]


def _sharing_cache(core: int) -> int:
    """Returns the cores that share the last cache of this one (bit c: core c); 0 where the system does not tell."""
    levels = {
        int(level): folder
        for folder in (_CPUS / f"cpu{core}" / "cache").glob("index*")
        if (level := _read(folder / "level")).isdecimal()
    }
    last = max(levels, default=0)
    if last < 3:
        return 0
    ranges = (part.split("-") for part in _read(levels[last] / "shared_cpu_list").split(",") if part)
    return sum(1 << each for ends in ranges for each in range(int(ends[0]), int(ends[-1]) + 1)) | 1 << core


@contextlib.contextmanager
def bound(rank: int, num_ranks: int) -> Iterator[None]:
    """Binds processes that this thread starts inside the block to that rank's share of the cores.

    With more ranks than cores, neighbours share a core, because they exchange most messages in many algorithms. Without
    binding, two ranks that wait for each other are sometimes on the same core although another is free.
    """
    usual = os.sched_getaffinity(0)
    cores = sorted(usual)
    first, end = (position * len(cores) // num_ranks for position in (rank, rank + 1))
    with contextlib.suppress(OSError):  # a sandbox may refuse it: then Linux chooses the cores
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
