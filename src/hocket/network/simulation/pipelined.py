"""Schedules of GPU libraries, for the simulator only: pieces of a vector follow each other through stages.

The executor cuts any schedule into pieces by itself; here they are written out, because they go through stages that
ours has not. A switch that reduces and multicasts is a rank without input or output,
behind all others. So nothing else has to know of such switches: what they reduce has been sent to them, and what they
multicast they send once over each of their links.
"""

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hocket.schedule import Builder, Schedule, compose

Ints = npt.NDArray[np.int64]
_Stage = Callable[[int], None]
"""What one piece does in a stage, by its number."""

_REMEMBERED = 64  # schedules: one serves many sizes, and building it costs more than simulating it


@functools.lru_cache(_REMEMBERED)
def all_reduce_in_switches(num_ranks: int, num_hosts: int, num_pieces: int) -> Schedule:
    """All ranks of a host reduce in its switch, hosts among each other in two trees, and switches multicast the result.

    Ranks num_ranks, num_ranks + 1 ... are the switches, one for each host; num_ranks is a multiple of num_hosts. Rank i
    of its host is responsible for two chunks of each piece: it asks the switch for their sums, which takes those chunks
    of every rank on the way (NVLS), exchanges one in either tree with the rank i of other hosts, and writes both to all
    through the switch.
    """
    lanes = _Lanes(num_ranks, num_hosts)
    schedule = Builder("all_reduce", num_ranks + num_hosts, num_pieces * lanes.number)
    rank = np.arange(num_ranks).reshape(num_hosts, -1)
    switch = num_ranks + np.arange(num_hosts)[:, None]

    def to_switch(piece: int) -> None:
        first = piece * lanes.number
        schedule.copy(src=rank[:, :1], dst=switch, chunk=first, count=lanes.number)
        schedule.reduce(src=rank[:, 1:], dst=switch, chunk=first, count=lanes.number)

    def to_heads(piece: int) -> None:
        schedule.copy(src=switch, dst=lanes.head, chunk=lanes.chunk(piece))

    def from_heads(piece: int) -> None:
        schedule.copy(src=lanes.head, dst=switch, chunk=lanes.chunk(piece))

    def from_switch(piece: int) -> None:
        schedule.copy(src=switch, dst=rank, chunk=piece * lanes.number, count=lanes.number)

    up, down = _between_hosts(schedule, lanes)
    return _pipelined(schedule, [to_switch, to_heads, *up, *down, from_heads, from_switch], num_pieces)


@functools.lru_cache(_REMEMBERED)
def all_reduce_in_tree(parents: tuple[int, ...], num_pieces: int) -> Schedule:
    """Sums rise through a tree of switches that reduce, and the total is multicast back down (SHARP).

    parents: of each rank, then of each switch, which are ranks behind the others: what it hangs on; -1 of the root.
    """
    above, depth = np.array(parents), np.zeros(len(parents), np.int64)
    at = above.copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, above[at], -1)
    schedule = Builder("all_reduce", len(parents), num_pieces)

    def rise(below: Ints) -> _Stage:
        first = np.unique(above[below], return_index=True)[1]  # what a switch gets first it has nothing to add to
        one, others = below[first], np.delete(below, first)

        def move(piece: int) -> None:
            schedule.copy(src=one, dst=above[one], chunk=piece)
            schedule.reduce(src=others, dst=above[others], chunk=piece)

        return move

    def fall(below: Ints) -> _Stage:
        return lambda piece: schedule.copy(src=above[below], dst=below, chunk=piece)

    levels = [np.flatnonzero(depth == number) for number in range(1, int(depth.max()) + 1)]
    return _pipelined(schedule, [*map(rise, reversed(levels)), *map(fall, levels)], num_pieces)


@functools.lru_cache(_REMEMBERED)
def all_reduce_in_chains(num_ranks: int, num_hosts: int, num_pieces: int) -> Schedule:
    """A chain in every host up to its head, two trees among heads, and back the same ways.

    Every rank of a host is the head of two lanes, one for either tree, so that all NICs are used; num_ranks is a
    multiple of num_hosts.
    """
    lanes = _Lanes(num_ranks, num_hosts)
    schedule = Builder("all_reduce", num_ranks, num_pieces * lanes.number)
    length = num_ranks // num_hosts

    def hop(number: int, *, up: bool) -> _Stage:
        near, far = lanes.behind_head(number), lanes.behind_head(number + 1)

        def move(piece: int) -> None:
            if up:
                schedule.reduce(src=far, dst=near, chunk=lanes.chunk(piece))
            else:
                schedule.copy(src=near, dst=far, chunk=lanes.chunk(piece))

        return move

    up, down = _between_hosts(schedule, lanes)
    into = [hop(number, up=True) for number in reversed(range(length - 1))]
    out = [hop(number, up=False) for number in range(length - 1)]
    return _pipelined(schedule, [*into, *up, *down, *out], num_pieces)


def on_rails(ring: Schedule, num_hosts: int) -> Schedule:
    """A ring over hosts as many times as a host has ranks, each with an equal share of the vector and NICs of its own.

    A ring leaves a host at the rank by whose number it enters the next one, so that it stays on one rail: every second
    host is passed backwards. For collectives with one block.
    """
    length = ring.num_ranks // num_hosts
    parts = []
    for channel in range(length):
        inside = [(channel + i) % length for i in range(length)]
        order = [host * length + i for host in range(num_hosts) for i in inside[:: -1 if host % 2 else 1]]
        chunks = range(channel * ring.num_chunks, (channel + 1) * ring.num_chunks)
        parts.append(compose.on(ring, order, ring.num_ranks, chunks=chunks, num_chunks=length * ring.num_chunks))
    return compose.beside(*parts)


class _Lanes:
    """What is done side by side with a piece: for every rank of a host, which is the head of it, one in either tree.

    head: int64[num_hosts, number], the head of each lane in each host. The first half of the lanes is for one tree.
    """

    def __init__(self, num_ranks: int, num_hosts: int) -> None:
        self.num_hosts, self.length = num_hosts, num_ranks // num_hosts
        self.number = 2 * self.length
        self.head = self.behind_head(0)

    def behind_head(self, distance: int) -> Ints:
        """The ranks that are so far behind the heads in the chains of their hosts; shaped like head."""
        inside = (np.arange(self.number) + distance) % self.length
        return np.arange(self.num_hosts)[:, None] * self.length + inside

    def chunk(self, piece: int) -> Ints:
        """The chunk of each lane: int64[number]."""
        return piece * self.number + np.arange(self.number)


def _pipelined(schedule: Builder, stages: list[_Stage], num_pieces: int) -> Schedule:
    """Every step each stage has the piece that the stage before it had in the step before."""
    for number in range(num_pieces + len(stages) - 1):
        with schedule.step():
            for ahead, stage in enumerate(stages):
                if 0 <= number - ahead < num_pieces:
                    stage(number - ahead)
    return schedule.finish()


def _between_hosts(schedule: Builder, lanes: _Lanes) -> tuple[list[_Stage], list[_Stage]]:
    """The stages up both trees and down again, level by level."""
    first, second = slice(0, lanes.length), slice(lanes.length, lanes.number)
    trees = [(first, _tree(lanes.num_hosts)), (second, _mirrored(_tree(lanes.num_hosts)))]
    levels = range(1, 1 + int(trees[0][1][1].max()))

    def level(depth: int, *, up: bool) -> _Stage:
        def move(piece: int) -> None:
            for lane, (parents, depths) in trees:
                below = np.flatnonzero(depths == depth)
                low, high, chunk = lanes.head[below, lane], lanes.head[parents[below], lane], lanes.chunk(piece)[lane]
                if up:
                    schedule.reduce(src=low, dst=high, chunk=chunk)
                else:
                    schedule.copy(src=high, dst=low, chunk=chunk)

        return move

    return [level(depth, up=True) for depth in reversed(levels)], [level(depth, up=False) for depth in levels]


_Tree = tuple[Ints, Ints]
"""The parent of each host, -1 for the root, and its depth."""


def _tree(num_hosts: int) -> _Tree:
    """A binary tree in order, in which every second host is a leaf."""
    parents, depths = np.full(num_hosts, -1), np.zeros(num_hosts, np.int64)
    for host in range(1, num_hosts):
        bit = host & -host
        above = (host ^ bit) | (bit << 1)
        parents[host] = above if above < num_hosts else host ^ bit
    for host in range(num_hosts):
        above = host
        while parents[above] >= 0:
            above = int(parents[above])
            depths[host] += 1
    return parents, depths


def _mirrored(tree: _Tree) -> _Tree:
    """The last host in the place of the first: of an even number, leaves change places with those inside."""
    parents, depths = tree[0][::-1], tree[1][::-1]
    return np.where(parents < 0, -1, len(parents) - 1 - parents), depths
