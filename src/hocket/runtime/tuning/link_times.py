"""How long messages take between the ranks of a running job: inside a host, and between hosts.

A simulation takes these figures as the constants of a network of such hosts: `topology_of`.
"""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from hocket.runtime.communicator.communicator import Communicator

SHORT, LONG = 8, 1 << 20
"""Bytes of the messages: one shows the delay, the other one the bandwidth."""

_MOST_PAIRS = 4  # of a kind; more would only take longer
_BATCHES, _CALLS = 5, {SHORT: 100, LONG: 1}
# Long messages in a row, as a link that has rested may take the first bytes faster than it goes on.
_IN_A_ROW = {SHORT: 1, LONG: 8}


@dataclass(frozen=True)
class LinkTimes:
    """Messages of one kind: "inside" a host, or "across" between hosts.

    pairs: the ranks between which they were timed, one pair after the other. short_seconds, long_seconds: one way, for
    SHORT and LONG bytes: the median of some batches, of the slowest pair.
    """

    kind: str
    pairs: tuple[tuple[int, int], ...]
    short_seconds: float
    long_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """The bandwidth of a long message, without the delay that a short one has too."""
        return LONG / max(self.long_seconds - self.short_seconds, 1e-9)


def pairs_of(hosts: Sequence[int]) -> dict[str, tuple[tuple[int, int], ...]]:
    """Returns the pairs of ranks to time, by kind: neighbours in each host; the first ranks of one host and the next.

    Kinds without a pair are left out.
    """
    ranks: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    inside = [(members[0], members[1]) for members in ranks.values() if len(members) > 1]
    first = [members[0] for members in ranks.values()]
    across = list(itertools.pairwise(first))
    found = {"inside": tuple(inside[:_MOST_PAIRS]), "across": tuple(across[:_MOST_PAIRS])}
    return {kind: pairs for kind, pairs in found.items() if pairs}


def measure_links(comm: Communicator) -> list[LinkTimes]:
    """Times the messages between some pairs of ranks; returns the same on all ranks, all of which call it.

    Nothing else should run on these hosts meanwhile.
    """
    found = []
    for kind, pairs in pairs_of([comm.context.hosts[rank] for rank in comm.group]).items():
        times = np.zeros((len(pairs), 2))
        for number, pair in enumerate(pairs):
            for column, num_bytes in enumerate((SHORT, LONG)):
                comm.barrier()
                if comm.rank in pair:
                    times[number, column] = _one_way(comm, pair[comm.rank == pair[0]], num_bytes, comm.rank == pair[0])
        slowest = comm.all_reduce(times, op="max", algorithm="direct").max(axis=0)
        found.append(LinkTimes(kind, pairs, *slowest.tolist()))
    return found


def _one_way(comm: Communicator, other: int, num_bytes: int, begins: bool) -> float:
    """Returns the time of a message, as the rank that begins sees it; else 0. Messages go there, and then back."""
    data, batches = np.zeros(num_bytes, np.uint8), []
    num_calls, in_a_row = _CALLS[num_bytes], range(_IN_A_ROW[num_bytes])
    for _ in range(_BATCHES):
        began = perf_counter()
        for _ in range(num_calls):
            for way in (comm.send, comm.recv) if begins else (comm.recv, comm.send):
                for _ in in_a_row:
                    way(data, other)
        batches.append((perf_counter() - began) / num_calls / len(in_a_row) / 2)
    return statistics.median(batches) if begins else 0.0


def topology_of(links: Sequence[LinkTimes], hosts: Sequence[int]) -> str:
    """Returns the network of these hosts with these times, as the option --topology takes it; "" if it has no name.

    It has one if there are several hosts of equal size. The paths of the network "home" take two links to a neighbour,
    and from host to host four links inside the hosts and two between them.
    """
    times = {one.kind: one for one in links}
    sizes = {list(hosts).count(host) for host in hosts}
    if "across" not in times or len(sizes) > 1:
        return ""
    across, inside, [size] = times["across"], times.get("inside"), sizes
    rate = f"nic-bandwidth={across.bytes_per_second / 1e6:.4g}MB/s"
    if inside is None:
        return f"home:{len(set(hosts))},pcie=no,{rate},nic-latency={across.short_seconds * 1e6 / 4:.4g}us"
    between = max(across.short_seconds - 2 * inside.short_seconds, 0) / 2
    return (
        f"home:{len(set(hosts))},gpus={size},gpu-direct=yes,{rate},nic-latency={between * 1e6:.4g}us,"
        f"pcie-bandwidth={inside.bytes_per_second / 1e6:.4g}MB/s,pcie-latency={inside.short_seconds * 1e6 / 2:.4g}us"
    )
