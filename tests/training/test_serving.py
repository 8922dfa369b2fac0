"""The protocol of servers and workers in one thread: requests reach the servers in any order, drawn by a seed.

Workers here are models of strategies/worker.py that push, leave, enter and pull at random.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.runtime import Recv, Send
from hocket.training.strategies.serving import ANSWER, ENTER, LEAVE, PULL, PUSH, RoundServer, ShardServer, StreamServer

WORKERS, LEADER, OTHER = (2, 3, 5), 0, 1
SERVERS = (LEADER, OTHER)


@dataclass
class Post:
    """The messages of one server: it finds the gradients that are sent with a PUSH, and its answers are kept."""

    answers: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # by worker: version, step, members
    gradients: dict[int, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    read: list[list[int]] = field(default_factory=lambda: [[]])  # by update, the workers whose gradients are in it

    def exchange(self, messages: Sequence[Send | Recv]) -> list[Any]:
        for message in messages:
            if isinstance(message, Recv):
                message.x[:] = self.gradients[message.src].popleft()
                self.read[-1].append(message.src)
            elif message.tag == ANSWER:
                self.answers[message.dst] = tuple(message.x.tolist())
        return []

    def step(self, parameters: np.ndarray, gradient: np.ndarray) -> None:
        """Applies a gradient, as the optimizer."""
        parameters += gradient
        self.read.append([])


@dataclass
class Worker:
    """A worker between two requests, or one that waits for the answers of some servers."""

    step: int = 0
    members: int = len(WORKERS)
    is_present: bool = True
    waits_for: tuple[int, ...] = ()
    kind: int = PULL
    num_pushes: int = 0


class World:
    """Two servers, three workers and the requests under way, which keep their order between two of them only."""

    def __init__(self, staleness: int | None, random: Random) -> None:
        self.random, self.staleness = random, staleness
        self.posts = {server: Post() for server in SERVERS}
        self.shards = {server: np.zeros(1) for server in SERVERS}
        self.servers: dict[int, ShardServer] = {}
        for server in SERVERS:
            post: Any = self.posts[server]
            if staleness == 0:
                self.servers[server] = RoundServer(post, self.shards[server], WORKERS)
            else:
                bound = staleness if server == LEADER else None
                self.servers[server] = StreamServer(post, self.shards[server], WORKERS, bound)
        self.workers = {rank: Worker() for rank in WORKERS}
        self.under_way: dict[tuple[int, int], deque[tuple[int, int, int]]] = defaultdict(deque)
        self.versions = dict.fromkeys(((rank, server) for rank in WORKERS for server in SERVERS), 0)

    def act(self, rank: int, calls: Sequence[int]) -> None:
        """A worker that waits for nothing makes one of these calls."""
        worker = self.workers[rank]
        possible = [kind for kind in calls if kind == PULL or (kind == ENTER) != worker.is_present]
        if not possible:
            return
        kind = self.random.choice(possible)
        if kind == PUSH:
            self.check_bound(rank)
            worker.num_pushes += 1
            for post in self.posts.values():
                post.gradients[rank].append(float(rank * 1000 + worker.num_pushes))
        self.send(rank, kind, (LEADER,) if kind == ENTER else SERVERS)
        if kind == LEAVE:
            worker.is_present, worker.waits_for = False, ()

    def send(self, rank: int, kind: int, servers: tuple[int, ...]) -> None:
        worker = self.workers[rank]
        worker.kind, worker.waits_for = kind, servers
        for server in servers:
            self.under_way[rank, server].append((kind, worker.step, worker.members))

    def deliver(self) -> bool:
        """One request arrives, and workers that have all their answers go on. Returns whether there was one."""
        waiting = [way for way, requests in self.under_way.items() if requests]
        if not waiting:
            return False
        rank, server = self.random.choice(waiting)
        kind, step, members = self.under_way[rank, server].popleft()
        post: Any = self.posts[server]
        self.servers[server].take(kind, rank, step, members, post)
        for other, worker in self.workers.items():
            if worker.waits_for and all(other in self.posts[one].answers for one in worker.waits_for):
                self.go_on(other, worker)
        return True

    def go_on(self, rank: int, worker: Worker) -> None:
        answers = {server: self.posts[server].answers.pop(rank) for server in worker.waits_for}
        for server, (version, _, _) in answers.items():
            assert version >= self.versions[rank, server] + (worker.kind == PUSH), "versions are monotone"
            self.versions[rank, server] = version
        has_entered = worker.kind == PULL and worker.waits_for == (OTHER,)
        if self.staleness == 0 and (worker.kind == PUSH or has_entered):
            assert self.versions[rank, LEADER] == self.versions[rank, OTHER], "its shards are of one round"
        worker.waits_for = ()
        if worker.kind in (PUSH, ENTER):
            _, worker.step, worker.members = answers[LEADER]
        if worker.kind == ENTER:
            worker.is_present = True
            self.send(rank, PULL, (OTHER,))

    def check_bound(self, rank: int) -> None:
        """No worker makes a step more than `staleness` ahead of a present worker. A push under way counts as made."""
        if self.staleness is not None:
            present = [worker for worker in self.workers.values() if worker.is_present]
            slowest = min(worker.step + (worker.kind == PUSH and worker.waits_for != ()) for worker in present)
            assert self.workers[rank].step - slowest <= self.staleness


def run(staleness: int | None, seed: int) -> World:
    random = Random(seed)
    world = World(staleness, random)
    for _ in range(300):
        free = [rank for rank, worker in world.workers.items() if not worker.waits_for]
        if free and random.random() < 0.5:
            slow_last = sorted(free)[: random.choice((1, 1, 1, 3))]  # rank 2 acts most often
            world.act(random.choice(slow_last), (PUSH, PUSH, PUSH, PUSH, PULL, LEAVE, ENTER))
        else:
            world.deliver()
    for _ in range(1000):  # the end: all push what they must, then leave
        for rank, worker in world.workers.items():
            if not worker.waits_for:
                world.act(rank, (LEAVE,))
        if not world.deliver():
            break
    return world


@given(st.integers(0, 2**32), st.sampled_from([0, 1, 3, None]))
def test_nobody_waits_for_ever_and_no_gradient_is_lost(seed: int, staleness: int | None) -> None:
    world = run(staleness, seed)
    assert not any(worker.waits_for for worker in world.workers.values())
    assert not any(requests for requests in world.under_way.values())
    expected = sum(
        rank * 1000 * worker.num_pushes + worker.num_pushes * (worker.num_pushes + 1) // 2
        for rank, worker in world.workers.items()
    )
    for server in SERVERS:
        assert world.shards[server][0] == expected
        assert world.servers[server].version == len(world.posts[server].read) - 1


@given(st.integers(0, 2**32))
def test_rounds_have_the_same_workers_on_all_servers_in_rank_order(seed: int) -> None:
    world = run(0, seed)
    leader, other = (world.posts[server].read for server in SERVERS)
    assert leader == other
    assert all(workers == sorted(set(workers)) for workers in leader)


@pytest.mark.parametrize(("staleness", "lead"), [(1, 1), (4, 4), (None, 20)])
def test_a_worker_comes_exactly_so_far_ahead_of_one_that_does_nothing(staleness: int | None, lead: int) -> None:
    world = World(staleness, Random(0))
    for _ in range(100):
        if not world.workers[2].waits_for and world.workers[2].step < 20:
            world.act(2, (PUSH,))
        world.deliver()
    assert world.workers[2].step == lead
    assert world.servers[LEADER].version == min(lead + 1, 20), "the gradient that waits for its answer is applied"
    for slow in (3, 5):
        world.act(slow, (LEAVE,))
    while world.deliver():
        pass
    assert world.workers[2].step == min(lead + 1, 20), "workers that leave let it go on"
