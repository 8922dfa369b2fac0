"""The rounds of one rank: the protocol's two parts joined to a communicator, a lock and a thread.

A lock guards all state; nobody waits for another rank while holding it. In a round that is negotiated, a thread hears
the messages of the leader (on rank 0: of the members), so that batches go out as the program computes. In a locked
round there is no thread: the call that makes a batch complete launches it. Collectives run on the communicator's own
stream.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from hocket.errors import CommunicationError, PeerAborted
from hocket.runtime import ANY_SOURCE, Communicator, Work, reason_of
from hocket.training.buckets.slots import Slots
from hocket.training.coordinator.leader import Leader, Sizes
from hocket.training.coordinator.member import Action, Member
from hocket.training.coordinator.messages import (
    Announcement,
    Batch,
    Lock,
    Message,
    frames_of,
    message_of,
    new_frame,
    num_left,
)
from hocket.training.coordinator.waiting import LastDone, RoundsReport, RoundWork, Stalls, await_message

_UP, _DOWN = 1, 2  # tags of messages to the leader, and from it


class Rounds:
    """What happens in rounds, by the numbers of tensors. `lock` is held by whoever calls begin, submit or flush."""

    member: Member  # from the first `renew` on

    def __init__(self, comm: Communicator, carrier: Slots) -> None:
        self.comm, self.carrier = comm, carrier
        self.lock = threading.RLock()
        self.done: set[int] = set()  # tensors of this round
        self.failure: BaseException | None = None
        self.has_ended = False  # all ranks have joined
        self.is_open = False  # this rank is in a round, which it has not flushed
        self.report = RoundsReport()
        self.stalls = Stalls(comm)
        self._changed = threading.Condition(self.lock)  # a batch was launched, or something failed
        self._finishing = threading.Lock()  # held by the thread that waits for the end of a round
        self._leader: Leader | None = None
        self._num_tensors = 0
        self._launched: deque[tuple[Batch, list[Work]]] = deque()  # whose works are not yet awaited
        self._control = np.zeros(2, np.int32)  # ranks that want to unlock, and ranks that have joined
        self._control_work: Work | None = None

    def renew(self, sizes: Sizes, round: int) -> None:
        """Begins to negotiate over these tensors, with this round. All ranks call it between the same rounds."""
        self._num_tensors = len(sizes.num_bytes)
        self.member = Member(self.comm.rank, sizes, round)
        self._leader = Leader(self.comm.size, sizes, round) if self.comm.rank == 0 else None

    def check(self) -> None:
        """Raises the error of communication, if there was one."""
        if self.failure is not None:
            raise self.failure

    def begin(self) -> None:
        """Begins the round."""
        self.done.clear()
        self.carrier.present.fill(0)
        self.member.has_begun = self.is_open = True
        if not self.member.is_locked and self.comm.size > 1:
            threading.Thread(target=self._listen, name="hocket coordinator", daemon=True).start()

    def submit(self, id: int) -> None:
        """Says that the tensor is ready."""
        self.stalls.note(self.member.round, LastDone.SUBMITTED, id)
        self._do(self.member.submit(id))

    def flush(self, joins: bool) -> RoundWork:
        """Ends this rank's part of the round."""
        member, self.is_open = self.member, False
        self.stalls.note(member.round, LastDone.JOINED if joins else LastDone.FLUSHED)
        self._do(member.flush(joins))
        if member.is_locked:
            self._control[:] = member.wants_unlock, joins
            self._control_work = self.comm.all_reduce(self._control, async_op=True)
        return RoundWork(self.finish, member.round)

    def finish(self, round: int, id: int | None = None) -> None:
        """Waits until a round, or a tensor in it, is done on this rank.

        Raises RuntimeError if this rank has not flushed that round, and the error of communication if there was one.
        """
        started = time.perf_counter()
        with self._finishing:
            self.check()
            member = self.member
            if round < member.round or (round == member.round and id in self.done):
                return
            if round > member.round or not member.has_flushed:
                raise RuntimeError(f"wait: round {round} is not over on this rank; call flush() before you wait")
            try:
                while (batch := self._await_next()) is not None:
                    if id in batch.ids:
                        return
                self._end()
            except BaseException as error:
                self.fail(error)
                raise
            finally:
                self.report.seconds_waited += time.perf_counter() - started

    def fail(self, error: BaseException) -> None:
        """Keeps the first error for all calls to come, and tells other ranks of one that they do not know."""
        with self.lock:
            self.is_open = False
            if self.failure is None:
                is_ours = not isinstance(error, CommunicationError)
                if not isinstance(error, Exception):  # as Ctrl-C: later calls must not raise it again
                    error = CommunicationError(f"the coordinator was interrupted by {type(error).__name__}; close it")
                self.failure = error
                if self._num_tensors:
                    self.member.fail(error)
                if isinstance(error, PeerAborted):
                    error.add_note(
                        f"Rank {self.comm.context.rank} was in round {self.member.round} of a coordinator. All ranks "
                        "need equally many rounds: a rank with fewer of them ends with join()."
                    )
                if is_ours:
                    self.comm.abort(reason_of(error))
            self._changed.notify_all()

    def _await_next(self) -> Batch | None:
        """Waits for the next batch and completes it; None after the last one of the round."""
        with self.lock:
            while not self._launched:
                self.check()
                if self.member.is_complete:
                    return None
                self.stalls.wait(self._changed, self.member, self.done)
            batch, works = self._launched.popleft()
        for work in works:
            self.stalls.await_work(work, self.member, self.done)
        self.carrier.finish(batch.ids)
        with self.lock:
            self.done.update(batch.ids)
        return batch

    def _end(self) -> None:
        """Ends the round on this rank, and learns what the ranks have agreed upon for the next."""
        member, unlocks, joined = self.member, 0, 0
        if self._control_work is not None:
            self.stalls.await_work(self._control_work, member, self.done)
            (unlocks, joined), self._control_work = self._control.tolist(), None
        with self.lock:
            self.report.count(member)
            self.has_ended = member.have_all_joined or joined == self.comm.size
            was_locked = member.is_locked
            member.end(unlocks > 0)
            if unlocks and self._leader is not None:
                self._leader.restart(member.round)
            if member.lock is not None and not was_locked:
                self.carrier.cut(member.lock)

    def _do(self, actions: Sequence[Action]) -> None:
        """Sends messages and launches batches: all go out in this order."""
        for action in actions:
            try:
                if isinstance(action, Batch):
                    self._launch(action)
                elif self._leader is not None:
                    self._tell(self._leader.hear(action))
                else:
                    self._send(action, [0], _UP)
            except BaseException as error:
                self.fail(error)
                raise

    def _launch(self, batch: Batch) -> None:
        self._launched.append((batch, self.carrier.launch(batch.ids, self.member.present)))
        self.report.num_batches += 1
        self.report.num_bytes = self.carrier.num_bytes_sent
        self._changed.notify_all()

    def _tell(self, told: Sequence[Batch | Lock]) -> None:
        for message in told:
            self._send(message, range(1, self.comm.size), _DOWN)
            self._hear(message)

    def _send(self, message: Message, ranks: Sequence[int], tag: int) -> None:
        for frame in frames_of(message, self._num_tensors):
            for rank in ranks:
                self.comm.isend(frame, rank, tag=tag)
        self.report.num_messages += len(ranks)

    def _hear(self, message: Batch | Lock) -> None:
        self._do(self.member.hear(message))
        self._changed.notify_all()  # this may have been the end of the round

    def _listen(self) -> None:
        """Hears the messages of one round; runs in a thread of its own."""
        round, frame = self.member.round, new_frame()
        source, tag = (ANY_SOURCE, _UP) if self._leader is not None else (0, _DOWN)
        try:
            while self._expects(round):
                rank = await_message(self.comm.irecv(frame, source, tag=tag), self._check_closed)
                rest = np.empty(num_left(frame), np.int64)
                if len(rest):
                    self.comm.recv(rest, rank, tag=tag)
                message = message_of([frame, rest], rank, self._num_tensors)
                with self.lock:
                    if not isinstance(message, Announcement):
                        self._hear(message)
                    elif self._leader is not None:
                        self._tell(self._leader.hear(message))
        except BaseException as error:
            self.fail(error)

    def _check_closed(self) -> None:
        """Fails if a rank has closed for which the leader waits; it would wait for any rank, and so not notice."""
        if self._leader is None:
            return
        for rank in self.comm.lower.closed():
            if self._leader.awaits(rank):
                self.comm.recv(np.empty(1, np.int64), rank, tag=_UP)  # fails on all ranks, and names this one

    def _expects(self, round: int) -> bool:
        """Returns whether other ranks still have something to say in this round."""
        with self.lock:
            if self.failure is not None or self.member.round != round:
                return False
            if self._leader is None:
                return not self.member.is_complete
            return self._leader.round == round and any(map(self._leader.awaits, range(1, self.comm.size)))
