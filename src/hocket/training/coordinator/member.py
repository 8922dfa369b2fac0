"""A rank's part of the protocol: it hears what the program does and what the leader says, and says what to do.

States of a tensor in a round: idle; ready (submitted) or absent (left out until the flush); agreed (in a batch); then
launched and done, which the caller of this class sees to. In a locked round the rank launches the next batch when its
own tensors of it are ready, and the rest at the flush; it sends nothing, because the collective itself is the
agreement. Ranks may produce in different orders: each waits for its next batch only.
"""

from collections.abc import Sequence

from hocket.errors import InternalError
from hocket.training.coordinator.leader import Sizes
from hocket.training.coordinator.messages import Announcement, Batch, Ids, Kind, Lock

ROUNDS_BEFORE_UNLOCK = 3

Action = Announcement | Batch
"""What the caller does next: send an Announcement to the leader, or launch the collective of a Batch."""


class Member:
    """The state of one rank. Its methods return actions, to be done in order and before the next method is called.

    round: the number of the present round. present: the tensors that were submitted in it. lock: the batches of a round
    that is replayed without messages; None while ranks negotiate.
    """

    def __init__(self, rank: int, sizes: Sizes, round: int = 0) -> None:
        self._rank, self._sizes = rank, sizes
        self.round = round
        self.num_late = 0  # successive locked rounds in which batches waited that had not waited at first
        self._patience = ROUNDS_BEFORE_UNLOCK
        self.lock: tuple[Ids, ...] | None = None
        self._next_lock: tuple[Ids, ...] | None = None
        self._first_order: list[int] | None = None
        self._failure: BaseException | None = None
        self._begin()

    def _begin(self) -> None:
        self.present: set[int] = set()
        self.has_begun = False  # whether the program has done anything in this round
        self.has_flushed = self.has_joined = False
        self.have_all_joined = False
        self.is_complete = False  # whether the last batch is launched
        self._untold: list[int] = []
        self._untold_bytes, self._limit = 0, self._sizes.first_bytes
        if self.lock is not None:
            self._missing = [len(batch) for batch in self.lock]
            self._num_launched = 0
            self._order: list[int] = []  # batches in the order in which they became ready

    @property
    def is_locked(self) -> bool:
        """Whether the present round is replayed without messages."""
        return self.lock is not None

    def fail(self, error: BaseException) -> None:
        """Ends all rounds on this rank: from now on submit, flush, hear and end raise this error, the first of them."""
        self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def submit(self, id: int) -> Sequence[Action]:
        """Notes that the tensor is ready. The caller has checked that it was not submitted in this round."""
        self._check()
        if self.has_flushed or id in self.present:
            raise InternalError(f"round {self.round}: tensor {id} was submitted twice, or after the flush")
        self.present.add(id)
        self.has_begun = True
        if self.lock is not None:
            batch = self._batch_of[id]
            self._missing[batch] -= 1
            if self._missing[batch]:
                return ()
            self._order.append(batch)
            return self._launch_ready()
        self._untold.append(id)
        self._untold_bytes += self._sizes.num_bytes[id]
        return [self._speak("ready")] if self._untold_bytes >= self._limit else ()

    def flush(self, joins: bool = False) -> Sequence[Action]:
        """Ends what this rank contributes to the round; joins: it contributes nothing to any later one either."""
        self._check()
        self.has_flushed = self.has_begun = True
        self.has_joined = joins
        if self.lock is None:
            return [self._speak("join" if joins else "flush")]
        if self._first_order is None:
            self._first_order = self._order
        # A batch that became ready while an earlier one was not had to wait. If it has always been so, then ranks
        # produce in different orders, and no other order is better.
        waited = self._order != list(range(len(self._order)))
        self.num_late = self.num_late + 1 if waited and self._order != self._first_order else 0
        self._missing = [0] * len(self.lock)
        return self._launch_ready()

    @property
    def wants_unlock(self) -> bool:
        """Whether the locked order has become a bad one on this rank; asked after the flush of a locked round."""
        return self.num_late >= self._patience

    def hear(self, message: Batch | Lock) -> Sequence[Action]:
        """Takes what the leader says. Raises InternalError for a message that does not belong to this round."""
        self._check()
        if message.round != self.round or self.lock is not None:
            raise InternalError(f"rank {self._rank} heard {message} in round {self.round}")
        if isinstance(message, Lock):
            self._next_lock = message.batches
            return ()
        self.is_complete, self.have_all_joined = message.is_last, message.have_all_joined
        return [message] if message.ids else ()

    def end(self, unlocks: bool = False) -> None:
        """Begins the next round, after all batches of this one are done; unlocks: ranks negotiate from it on."""
        self._check()
        if unlocks:
            self.lock, self.num_late = None, 0
            self._patience *= 2  # so that ranks which always change spend few rounds on negotiating
        elif self._next_lock is not None:
            self.lock, self._next_lock = self._next_lock, None
            self._batch_of = {id: number for number, batch in enumerate(self.lock) for id in batch}
            self._first_order = None
        self.round += 1
        self._begin()

    def _speak(self, kind: Kind) -> Announcement:
        told, self._untold = tuple(self._untold), []
        self._untold_bytes, self._limit = 0, self._sizes.bucket_bytes
        return Announcement(self._rank, self.round, kind, told)

    def _launch_ready(self) -> list[Action]:
        assert self.lock is not None
        launched: list[Action] = []
        while self._num_launched < len(self.lock) and self._missing[self._num_launched] == 0:
            ids = self.lock[self._num_launched]
            self._num_launched += 1
            self.is_complete = self._num_launched == len(self.lock)
            launched.append(Batch(self.round, ids, self.is_complete))
        return launched
