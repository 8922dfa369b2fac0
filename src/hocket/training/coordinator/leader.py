"""The leader's part of the protocol: it hears what is ready on each rank, and says what is communicated next.

A tensor is agreed when every rank has it ready or leaves it out, and at least one has it ready. Agreed tensors travel
in the order in which they were agreed. A batch is said when it has `bucket_bytes` (the first one of a round when it has
`first_bytes`), and the rest when all ranks have flushed. After three rounds in which each rank has produced the same
tensors, the leader locks: the order is then that of the latest arrival over all ranks, in the median of these rounds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hocket.errors import InternalError
from hocket.training.coordinator.messages import Announcement, Batch, Ids, Lock

ROUNDS_BEFORE_LOCK = 3


@dataclass(frozen=True)
class Sizes:
    """What decides where batches are cut: the bytes of each tensor, of a round's first batch, and of the others."""

    num_bytes: Sequence[int]
    first_bytes: int
    bucket_bytes: int

    def cut(self, ids: Iterable[int], limit: int) -> tuple[list[Ids], Ids]:
        """Returns consecutive batches that have reached their size, the first one `limit` bytes, and what is left."""
        batches: list[Ids] = []
        open: list[int] = []
        held = 0
        for id in ids:
            open.append(id)
            held += self.num_bytes[id]
            if held >= limit:
                batches.append(tuple(open))
                open, held, limit = [], 0, self.bucket_bytes
        return batches, tuple(open)


@dataclass(frozen=True)
class Past:
    """A finished round: the tensors that each rank left out, and each tensor's latest place in any rank's order."""

    absent: tuple[frozenset[int], ...]
    places: tuple[int, ...]


class Leader:
    """The state of rank 0. `hear` takes what a rank says, and returns what all ranks are told, in order."""

    def __init__(self, num_ranks: int, sizes: Sizes, round: int = 0) -> None:
        self._num_ranks, self._sizes = num_ranks, sizes
        self._num_tensors = len(sizes.num_bytes)
        self._past: list[Past] = []
        self.restart(round)

    def restart(self, round: int) -> None:
        """Forgets what came before, because ranks negotiate again from this round on."""
        self._past.clear()
        self._begin(round)

    def _begin(self, round: int) -> None:
        self.round = round
        self._places: list[dict[int, int]] = [{} for _ in range(self._num_ranks)]  # of each rank: tensor -> its place
        self._num_heard = [0] * self._num_tensors  # ranks that have the tensor ready or leave it out
        self._flushed: set[int] = set()
        self._joined: set[int] = set()
        self._agreed: list[int] = []
        self._limit = self._sizes.first_bytes

    def awaits(self, rank: int) -> bool:
        """Returns whether this rank still has something to say in this round."""
        return rank not in self._flushed

    def hear(self, message: Announcement) -> list[Batch | Lock]:
        """Takes what a rank says. Raises InternalError for a message that does not belong to this round."""
        rank = message.rank
        if message.round != self.round or rank in self._flushed:
            raise InternalError(f"the coordinator of round {self.round} heard {message}")
        places, heard = self._places[rank], list(message.ids)
        for id in message.ids:
            places[id] = len(places)
        if message.kind != "ready":
            self._flushed.add(rank)
            heard += sorted(set(range(self._num_tensors)) - places.keys(), key=self._latest)
        if message.kind == "join":
            self._joined.add(rank)
        for id in heard:
            self._num_heard[id] += 1
            if self._num_heard[id] == self._num_ranks and any(id in each for each in self._places):
                self._agreed.append(id)
        batches, rest = self._sizes.cut(self._agreed, self._limit)
        self._agreed = list(rest)
        if batches:
            self._limit = self._sizes.bucket_bytes
        told: list[Batch | Lock] = [Batch(self.round, batch) for batch in batches]
        return told if len(self._flushed) < self._num_ranks else told + self._end()

    def _latest(self, id: int) -> tuple[int, int]:
        """Returns a key that orders tensors by their latest place so far in any rank's order."""
        return max(places.get(id, 0) for places in self._places), id

    def _end(self) -> list[Batch | Lock]:
        round, rest = self.round, tuple(self._agreed)
        have_all_joined = len(self._joined) == self._num_ranks
        told: list[Batch | Lock] = []
        if self._joined:
            self._past.clear()
        else:
            self._past = [*self._past, self._summary()][-ROUNDS_BEFORE_LOCK:]
            if len(self._past) == ROUNDS_BEFORE_LOCK and len({past.absent for past in self._past}) == 1:
                told.append(Lock(round, self._lock()))
        self._begin(round + 1)
        return [*told, Batch(round, rest, True, have_all_joined)]

    def _summary(self) -> Past:
        every = range(self._num_tensors)
        absent = tuple(frozenset(set(every) - places.keys()) for places in self._places)
        last = self._num_tensors
        return Past(absent, tuple(max(places.get(id, last) for places in self._places) for id in every))

    def _lock(self) -> tuple[Ids, ...]:
        rounds = zip(*(past.places for past in self._past), strict=True)
        medians = [sorted(places)[len(places) // 2] for places in rounds]
        order = sorted(range(self._num_tensors), key=lambda id: (medians[id], id))
        batches, rest = self._sizes.cut(order, self._sizes.first_bytes)
        return (*batches, rest) if rest else tuple(batches)
