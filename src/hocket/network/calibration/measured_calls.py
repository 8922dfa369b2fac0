"""Measured calls of a log: one table for each run of a benchmark, and how a wrong line is refused."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hocket.errors import did_you_mean
from hocket.network.machines.library import LIBRARY_COLLECTIVES
from hocket.schedule import COLLECTIVES, find_collective_name

MOST_RANKS = 1 << 17
"""A log that says more is damaged."""

_EXACT, _EXACT_GB, _MOST_KNOWN = 1e-3, 10, 32  # factors of more ranks hardly differ; less bandwidth has few digits
_SAME_FACTOR = 0.03  # largest relative difference between busbw / algbw and the factor of a rank count


@dataclass(frozen=True)
class MeasuredCall:
    """One size. num_bytes: of the whole vector, for all_to_all of one rank. where: its line, such as "line 12"."""

    where: str
    num_bytes: int
    seconds: float


@dataclass(frozen=True)
class MeasuredTable:
    """One run of a benchmark. source: the name of its file. ranks_per_host: how many ranks each host has, in order.

    num_ranks is 0 and ranks_per_host is empty if the log does not say it. sizes_of_ranks: whether sizes are those of
    OSU, which counts the bytes of one rank where each has a block of its own and nothing is reduced.
    """

    source: str
    collective: str
    num_ranks: int
    ranks_per_host: tuple[int, ...]
    calls: tuple[MeasuredCall, ...]
    sizes_of_ranks: bool = False

    def placed(self, num_ranks: int | None, num_hosts: int | None, host_size: int) -> "MeasuredTable":
        """Returns the table with the ranks of each host and bytes of the whole vector, where the log does not say them.

        num_ranks, num_hosts: what the user says, or None. host_size: ranks that a full host has. Raises ValueError if
        both say different things, and if neither says the number of ranks.
        """
        ranks = self.num_ranks or num_ranks
        if ranks is None or ranks < 1:
            raise ValueError(
                f"{self.source}: expected the number of ranks, which this log does not say; give it with ranks= "
                "(--ranks N)"
            )
        if ranks == 1:
            raise ValueError(
                f"{self.source}: expected 2 ranks or more; found 1, which sends nothing; nccl-tests without MPI=1 run "
                "each process alone"
            )
        if ranks > MOST_RANKS:
            raise ValueError(f"{self.source}: expected at most {MOST_RANKS} ranks; found {ranks}")
        for name, found, given in (("ranks", ranks, num_ranks), ("hosts", len(self.ranks_per_host), num_hosts)):
            if found and given not in (None, found):
                raise ValueError(f"{self.source}: the log is of {found} {name}; found {name}={given}; leave it out")
        if self.ranks_per_host:
            return self
        hosts = num_hosts or -(-ranks // host_size)
        if not 1 <= hosts <= ranks or ranks % hosts:
            raise ValueError(
                f"{self.source}: expected hosts with equally many of {ranks} ranks; found {hosts} hosts; give their "
                "number with hosts= (--hosts N)"
            )
        kind, calls = COLLECTIVES[self.collective], self.calls
        if self.sizes_of_ranks and kind.blocks != "one" and not kind.reduces:
            calls = tuple(replace(one, num_bytes=one.num_bytes * ranks) for one in calls)
        return MeasuredTable(self.source, self.collective, ranks, (ranks // hosts,) * hosts, calls)


def wrong(source: str, where: str, text: str) -> ValueError:
    """Returns the error for a place in a log, to be raised."""
    return ValueError(f"{source}, {where}: {text}")


def named_collective(source: str, where: str, text: str) -> str:
    """Returns the collective that a log names. Raises ValueError if machines do not predict it."""
    name = find_collective_name(text) or text
    if name not in LIBRARY_COLLECTIVES:
        raise wrong(
            source,
            where,
            f"expected a collective that is predicted on machines, one of {', '.join(LIBRARY_COLLECTIVES)}; found "
            f"{text!r}{did_you_mean(text, LIBRARY_COLLECTIVES)}",
        )
    return name


def ranks_of_bandwidths(collective: str, algbw: float, busbw: float) -> int:
    """Returns the number of ranks for which busbw / algbw is this; 0 if several numbers come near, or digits are few.

    algbw, busbw: in GB/s, with two decimals.
    """
    if algbw < _EXACT_GB:
        return 0
    known = [(count, COLLECTIVES[collective].bus_factor(count)) for count in range(2, _MOST_KNOWN + 1)]
    fitting = [count for count, factor in known if abs(busbw / algbw / factor - 1) < _EXACT]
    return fitting[0] if len(fitting) == 1 else 0


def check_factor(source: str, where: str, collective: str, num_ranks: int, factor: float) -> None:
    """Raises ValueError if busbw / algbw is not that of the collective on so many ranks."""
    expected = COLLECTIVES[collective].bus_factor(num_ranks)
    if abs(factor - expected) > _SAME_FACTOR * expected:
        raise wrong(
            source,
            where,
            f"expected busbw / algbw of {expected:.3g}, as for {collective} on {num_ranks} ranks; found {factor:.3g}: "
            "the log names another collective or other ranks than its table is of",
        )


def fastest_of_each(calls: Iterable[MeasuredCall]) -> tuple[MeasuredCall, ...]:
    """Returns the fastest call of each size, by size."""
    found: dict[int, MeasuredCall] = {}
    for one in sorted(calls, key=lambda call: (call.num_bytes, call.seconds)):
        found.setdefault(one.num_bytes, one)
    return tuple(found.values())


def hosts_in_order(names: Sequence[str]) -> tuple[int, ...]:
    """Returns how many ranks each host has, from the name of each rank's host; () if ranks of a host do not follow."""
    counts: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in counts and names[number - 1] != name:
            return ()
        counts[name] = counts.get(name, 0) + 1
    return tuple(counts.values())
