"""Schedules of GPU libraries, for the simulator only: pieces of a vector follow each other through stages.

Hocket's executor cuts any schedule into pieces by itself. These schedules write the pieces out, because they go through
stages that the executor does not have. A switch that reduces and multicasts is a rank without input or output, numbered
after all others. So no other code has to know such switches: data to reduce is sent to them, and data to multicast is
sent once over each of their links.
"""

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hocket.schedule import Builder, Schedule

Ints = npt.NDArray[np.int64]
_Stage = Callable[[int], None]
"""Adds the transfers of a piece in a stage, given the number of the piece."""

_REMEMBERED = 64  # schedules; one serves many sizes, and building it costs more than simulating it


@functools.lru_cache(_REMEMBERED)
def all_reduce_in_switches(num_ranks: int, num_hosts: int, num_pieces: int) -> Schedule:
    """Returns an all_reduce: ranks reduce in their host's switch, hosts reduce in two trees, and switches multicast.

    Ranks num_ranks, num_ranks + 1 ... are the switches, one for each host; num_ranks is a multiple of num_hosts. Rank i
    of a host is responsible for two chunks of each piece. It requests their sums from the switch, which reads these
    chunks from every rank (NVLS). Then it exchanges one chunk in each tree with rank i of other hosts, and writes both
    to all ranks through the switch.
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
    """Returns an all_reduce that sums up a tree of reducing switches and multicasts the total back down (SHARP).

    parents: the parent of each rank, then of each switch (numbered after the ranks); -1 for the root.
    """
    above, depth = np.array(parents), np.zeros(len(parents), np.int64)
    at = above.copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, above[at], -1)
    schedule = Builder("all_reduce", len(parents), num_pieces)

    def rise(below: Ints) -> _Stage:
        first = np.unique(above[below], return_index=True)[1]  # a switch copies its first input and adds the others
        one, others = below[first], np.delete(below, first)

        def move(piece: int) -> None:
            schedule.copy(src=one, dst=above[one], chunk=piece)
            schedule.reduce(src=others, dst=above[others], chunk=piece)

        return move

    def fall(below: Ints) -> _Stage:
        return lambda piece: schedule.copy(src=above[below], dst=below, chunk=piece)

    levels = [np.flatnonzero(depth == number) for number in range(1, int(depth.max()) + 1)]
    return _pipelined(schedule, [*map(rise, reversed(levels)), *map(fall, levels)], num_pieces)


class _Lanes:
    """The parallel lanes of a piece: every rank of a host is the head of two lanes, one for each tree.

    head: int64[num_hosts, number], the head of each lane in each host. The first half of the lanes is for one tree.
    """

    def __init__(self, num_ranks: int, num_hosts: int) -> None:
        self.num_hosts, self.length = num_hosts, num_ranks // num_hosts
        self.number = 2 * self.length
        self.head = self.behind_head(0)

    def behind_head(self, distance: int) -> Ints:
        """Returns the ranks at this distance behind the heads in the chains of their hosts; shaped like head."""
        inside = (np.arange(self.number) + distance) % self.length
        return np.arange(self.num_hosts)[:, None] * self.length + inside

    def chunk(self, piece: int) -> Ints:
        """Returns the chunk of each lane: int64[number]."""
        return piece * self.number + np.arange(self.number)


def _pipelined(schedule: Builder, stages: list[_Stage], num_pieces: int) -> Schedule:
    """Returns a pipelined schedule: in every step, each stage takes the piece that the stage before had last."""
    for number in range(num_pieces + len(stages) - 1):
        with schedule.step():
            for ahead, stage in enumerate(stages):
                if 0 <= number - ahead < num_pieces:
                    stage(number - ahead)
    return schedule.finish()


def _between_hosts(schedule: Builder, lanes: _Lanes) -> tuple[list[_Stage], list[_Stage]]:
    """Returns the stages up both trees and those down again, level by level."""
    first, second = slice(0, lanes.length), slice(lanes.length, lanes.number)
    trees = [(first, host_tree(lanes.num_hosts)), (second, _mirrored(host_tree(lanes.num_hosts)))]
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


def host_tree(num_hosts: int) -> tuple[Ints, Ints]:
    """Returns an in-order binary tree, in which every second host is a leaf: each parent (-1: root) and depth."""
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


def _mirrored(tree: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Returns the mirrored tree: the last host becomes the first. With an even number, leaves become inner hosts."""
    parents, depths = tree[0][::-1], tree[1][::-1]
    return np.where(parents < 0, -1, len(parents) - 1 - parents), depths
