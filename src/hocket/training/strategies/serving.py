"""The server's half of a parameter server: it takes requests in the order in which they come, and answers them.

A request is a header of int64[3], and a gradient after the header of a PUSH. An answer is a header of int64[3] and the
fresh shard. One of the servers *leads*: it alone decides who is present, and which step a worker is in.

    PUSH    a gradient of the worker's step; the leader answers with its next step
    PULL    only the shard; in rounds, as soon as all rounds before the worker's step are in it
    ENTER   to the leader only; it answers with the step from which on the worker is present
    LEAVE   no gradient of this step nor of a later one; no answer
    CLOSE   the worker asks for nothing more; no answer

A request is kind, step and members; an answer is version, step and members. In rounds a step is a round, and `members`
is the number of workers in it. The leader's answers tell it, and each PUSH and LEAVE repeats it to the other servers,
which therefore need no word of the leader.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hocket.runtime import ANY_SOURCE, Recv, Send
from hocket.training.coordinator.waiting import await_message
from hocket.training.strategies.strategy import Floats, Optimizer

if TYPE_CHECKING:
    from hocket.runtime import Communicator

PUSH, PULL, ENTER, LEAVE, CLOSE = range(5)
REQUEST, GRADIENT, ANSWER, SHARD = range(2**31 - 4, 2**31)  # tags; all others are for the program


class TimedMessages:
    """The messages of a communicator, and the wall seconds inside them, including waits."""

    def __init__(self, communicator: "Communicator") -> None:
        self._communicator = communicator
        self.seconds = 0.0

    def exchange(self, messages: Sequence[Send | Recv]) -> list[Any]:
        """Begins all messages at once and waits for all; returns what `batch` does."""
        if not messages:
            return []
        started = perf_counter()
        results: list[Any] = self._communicator.batch(messages)
        self.seconds += perf_counter() - started
        return results

    def await_any(self, header: NDArray[np.int64], senders: Collection[int]) -> int:
        """Receives a request of any rank, and returns the rank; fails if one of `senders` has left without a word."""
        started = perf_counter()
        communicator = self._communicator

        def check() -> None:
            for rank in communicator.lower.closed():
                if rank in senders:
                    communicator.recv(np.empty(1), rank, tag=REQUEST)  # fails on all ranks, and names this one

        worker = await_message(communicator.irecv(header, ANY_SOURCE, tag=REQUEST), check)
        self.seconds += perf_counter() - started
        return worker


class ShardServer(ABC):
    """One server: its shard, the number of updates of it (version), and the requests that wait for an answer."""

    def __init__(self, messages: TimedMessages, shard: Floats, workers: Sequence[int]) -> None:
        self._messages, self._shard = messages, shard
        self._workers = frozenset(workers)
        self.version = 0
        self._closed: set[int] = set()
        self._num_pushes = 0
        self._part = np.empty_like(shard)

    def serve(self, optimizer: Optimizer, num_pushes: int | None = None) -> None:
        """Serves so many pushes, or until all workers have closed."""
        enough = self._num_pushes + (num_pushes or 0)
        header = np.empty(3, np.int64)
        while self._closed < self._workers if num_pushes is None else self._num_pushes < enough:
            worker = self._messages.await_any(header, self._workers - self._closed)
            kind, step, members = header.tolist()
            self._num_pushes += kind == PUSH
            if kind == CLOSE:
                self._closed.add(worker)
            else:
                self.take(kind, worker, step, members, optimizer)

    @abstractmethod
    def take(self, kind: int, worker: int, step: int, members: int, optimizer: Optimizer) -> None:
        """Does what a request asks for, as far as that is possible now."""

    def _gradient_of(self, worker: int) -> Floats:
        """Returns the gradient of a worker's PUSH; the next call overwrites it."""
        self._messages.exchange([Recv(self._part, worker, GRADIENT)])
        return self._part

    def _apply(self, gradient: Floats, optimizer: Optimizer) -> None:
        optimizer.step(self._shard, gradient)
        self.version += 1

    def _answer(self, steps: Iterable[tuple[int, int]], members: int) -> None:
        """Answers workers, given as (worker, its next step)."""
        messages = []
        for worker, step in steps:
            header = np.array([self.version, step, members])
            messages += [Send(header, worker, ANSWER), Send(self._shard, worker, SHARD)]
        self._messages.exchange(messages)


class RoundServer(ShardServer):
    """Synchronous: a round has one gradient of each present worker, and makes one update with their sum."""

    def __init__(self, messages: TimedMessages, shard: Floats, workers: Sequence[int]) -> None:
        super().__init__(messages, shard, workers)
        self._round = 0
        self._present = set(workers)  # up to date only at the leader
        self._pushed: list[int] = []
        self._num_left = 0
        self._entering: list[int] = []
        self._pulling: list[tuple[int, int]] = []

    def take(self, kind: int, worker: int, step: int, members: int, optimizer: Optimizer) -> None:
        """Collects the requests of a round, and ends the round with the last of them."""
        if kind == PULL:
            self._pulling.append((worker, step))
        elif kind == ENTER:
            self._entering.append(worker)
        elif kind == PUSH:
            self._pushed.append(worker)
        elif kind == LEAVE:
            self._num_left += 1
            self._present.discard(worker)
        if kind in (PUSH, LEAVE) and len(self._pushed) + self._num_left == members:
            self._end_round(optimizer)
        elif kind == ENTER and not self._present:
            self._begin_round([])
        self._answer_pulls()

    def _end_round(self, optimizer: Optimizer) -> None:
        """Folds the gradients from left to right in rank order, in their own type, as an all_reduce of order "rank"."""
        workers = sorted(self._pushed)
        if workers:
            total = self._gradient_of(workers[0]).copy()
            for worker in workers[1:]:
                total += self._gradient_of(worker)
            self._apply(total, optimizer)
        self._round += 1
        self._pushed.clear()
        self._num_left = 0
        self._begin_round(workers)

    def _begin_round(self, workers: list[int]) -> None:
        answered = workers + self._entering
        self._present.update(self._entering)
        self._entering.clear()
        self._answer([(worker, self._round) for worker in answered], len(self._present))

    def _answer_pulls(self) -> None:
        due = [(worker, step) for worker, step in self._pulling if step <= self._round]
        if due:
            self._pulling = [one for one in self._pulling if one not in due]
            self._answer(due, len(self._present))


class StreamServer(ShardServer):
    """Asynchronous: every gradient is an update as soon as it comes.

    It holds back the answer to a worker that is more than `staleness` steps ahead of the slowest present worker; with
    None, no answer. Only the leader knows the steps, and a worker waits for all answers.
    """

    def __init__(self, messages: TimedMessages, shard: Floats, workers: Sequence[int], staleness: int | None) -> None:
        super().__init__(messages, shard, workers)
        self._staleness = staleness
        self._steps = dict.fromkeys(workers, 0)  # of the present workers; up to date only at the leader
        self._held: list[int] = []

    def take(self, kind: int, worker: int, step: int, members: int, optimizer: Optimizer) -> None:
        """Does at once what the request asks for, and answers every worker that need not wait any more."""
        if kind == PULL:
            self._answer([(worker, step)], len(self._steps))
        elif kind == ENTER:
            self._steps[worker] = min(self._steps.values(), default=0)
            self._held.append(worker)
        elif kind == LEAVE:
            self._steps.pop(worker, None)
        elif kind == PUSH:
            self._apply(self._gradient_of(worker), optimizer)
            self._steps[worker] = step + 1
            self._held.append(worker)
        self._answer_held()

    def _answer_held(self) -> None:
        slowest = min(self._steps.values(), default=0)
        free = [
            worker
            for worker in self._held
            if self._staleness is None or self._steps[worker] - slowest <= self._staleness
        ]
        self._held = [worker for worker in self._held if worker not in free]
        self._answer([(worker, self._steps[worker]) for worker in free], len(self._steps))
