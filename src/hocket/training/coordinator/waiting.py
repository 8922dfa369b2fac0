"""What a rank waits on, and what it says after it has waited for long: for whom, and what these ranks did last.

A rank notes on its control page what it did last. So others can say what a rank did that does not come, although that
rank answers nothing: it runs the code of the program.
"""

import sys
import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from hocket.errors import CollectiveTimeout, name_count
from hocket.runtime import Communicator, Work, name_ranks, stream
from hocket.training.coordinator.member import Member

STALL_SECONDS = 5.0  # until the first line; each further one comes after twice the time
_ASKING_SECONDS = 0.2
_NUM_NAMED = 3
_QUIET_SECONDS = 1.0  # a longer wait for a message would be told as a stall


class LastDone(IntEnum):
    """What a rank did last in its coordinator."""

    NOTHING = 0
    SUBMITTED = 1
    FLUSHED = 2
    JOINED = 3


@dataclass
class RoundsReport:
    """What a coordinator's rounds have cost on this rank, so far.

    num_negotiated and num_replayed: rounds that ranks agreed upon by messages, and that repeated the locked order.
    seconds_waited: wall seconds in which the program waited for rounds and tensors.
    """

    num_negotiated: int = 0
    num_replayed: int = 0
    num_batches: int = 0
    num_bytes: int = 0
    num_messages: int = 0
    seconds_waited: float = 0.0

    def count(self, member: Member) -> None:
        """Counts a round that is over."""
        if member.is_locked:
            self.num_replayed += 1
        else:
            self.num_negotiated += 1

    def copy(self) -> "RoundsReport":
        """Returns a copy that later rounds do not change."""
        return replace(self)


class RoundWork(NamedTuple):
    """The handle of a round of this rank."""

    finish: Callable[..., None]  # of Rounds
    round: int

    def wait(self) -> None:
        """Blocks until every tensor of the round has its result. Raises the error of communication, if there is one."""
        self.finish(self.round)


class TensorWork(NamedTuple):
    """The handle of a submitted tensor."""

    finish: Callable[..., None]  # of Rounds
    round: int
    id: int

    def wait(self) -> None:
        """Blocks until the tensor has its result. Raises RuntimeError before the flush, else as RoundWork does."""
        self.finish(self.round, self.id)


class Stalls:
    """Notes what this rank does, and waits for others with a word about it now and then."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._lower = comm, comm.lower
        self.names: list[str] = []

    def note(self, round: int, what: LastDone, id: int = 0) -> None:
        """Writes down what this rank did, for the others to read."""
        self._lower.note_progress(round << 32 | what << 28 | id)

    def wait(self, changed: threading.Condition, member: Member, done: Set[int]) -> None:
        """Waits until something changes; the lock of `changed` is held."""
        self._until(changed.wait, member, done)

    def await_work(self, work: Work, member: Member, done: Set[int]) -> None:
        """Waits until the collective is done; raises its error."""

        def is_done(seconds: float) -> bool:
            try:
                work.wait(seconds)
            except CollectiveTimeout:
                if work.is_completed():  # the time of the collective itself is over
                    raise
                return False
            return True

        with stream(None):  # the host waits, whatever the current stream
            self._until(is_done, member, done)

    def _until(self, is_over: Callable[[float], bool], member: Member, done: Set[int]) -> None:
        started, patience = time.monotonic(), STALL_SECONDS
        while not is_over(patience - _ASKING_SECONDS):
            self._lower.progress()  # asks ranks of other hosts, whose answers come a little later
            if is_over(_ASKING_SECONDS):
                return
            self._tell(member, done, time.monotonic() - started)
            patience *= 2

    def _tell(self, member: Member, done: Set[int], seconds: float) -> None:
        found = self._lower.progress()
        late = {}
        for rank, (word, ago) in enumerate(found):
            round, what, id = word >> 32, LastDone(word >> 28 & 15), word & ((1 << 28) - 1)
            if round < member.round or (round == member.round and what < LastDone.FLUSHED):
                late[rank] = self._did(rank, member.round, round, what, id, ago)
        if member.has_joined or not late:  # a rank that has joined awaits the others for as long as they compute
            return
        ranks = name_ranks(self._comm.group[rank] for rank in late)
        print(
            f"hocket: rank {self._comm.context.rank} has waited {seconds:.0f} s in round {member.round} of its "
            f"coordinator for {ranks}, and has not got {self._pending(member, done)}; {'; '.join(late.values())}",
            file=sys.stderr,
            flush=True,
        )

    def _did(self, rank: int, now: int, round: int, what: LastDone, id: int, ago: float) -> str:
        named = f"rank {self._comm.group[rank]}"
        if what is LastDone.NOTHING:
            return f"{named} has not entered a round"
        if what is LastDone.SUBMITTED:
            of = "" if round == now else f" of round {round}"
            return f"{named} submitted {self.names[id]}{of} {ago:.1f} s ago and has not flushed"
        return f"{named} ended round {round} {ago:.1f} s ago and has not entered round {now}"

    def _pending(self, member: Member, done: Set[int]) -> str:
        return self.named(member.present - done) or "the end of the round"

    def named(self, ids: Set[int]) -> str:
        """Returns the first names of these tensors, and the number of the others; "" if there are none."""
        shown = ", ".join(self.names[id] for id in sorted(ids)[:_NUM_NAMED])
        left = len(ids) - _NUM_NAMED
        return shown + (f" and {name_count(left, 'tensor')} more" if left > 0 else "")


def await_message(work: Work, check: Callable[[], None]) -> int:
    """Waits for a message, and returns its sender; calls check() now and then.

    It says nothing of a long wait, because ranks compute meanwhile.
    """
    while True:
        try:
            work.wait(_QUIET_SECONDS)
        except CollectiveTimeout:
            if work.is_completed():
                raise
            check()
        else:
            assert work.source is not None
            return work.source
