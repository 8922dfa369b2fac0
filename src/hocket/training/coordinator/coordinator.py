"""The coordinator as programs use it: tensors by name, submitted in any order and from any thread."""

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np

from hocket.errors import CommunicationError, did_you_mean
from hocket.runtime import Communicator, reason_of
from hocket.training.buckets.slots import Moved, Order, Slot, Slots
from hocket.training.coordinator.leader import Sizes
from hocket.training.coordinator.names import numbers_of
from hocket.training.coordinator.rank_rounds import Rounds
from hocket.training.coordinator.waiting import RoundsReport, RoundWork, TensorWork


class Coordinator:
    """Sums tensors over the ranks of a communicator, whatever the order in which ranks produce them.

        with hocket.training.Coordinator(comm) as engine:
            engine.register("w", w)                  # on all ranks, in any order
            engine.register("b", b, op="avg")
            for batch in data:
                engine.submit("b")                   # in any order, from any thread, or not at all
                engine.submit("w")
                engine.flush().wait()                # the round is over: w has the sum, b the average

    All ranks make it, register the same tensors, and flush equally often; a rank that has fewer rounds calls `join`.
    bucket_bytes: ranks communicate when so much is ready on all of them; first_bytes: the same for the first batch of a
    round. order: as in collectives; with "invariant" the bits depend neither on these sizes nor on the order of
    submissions. carrier: what holds the tensors and communicates a batch, made from (communicator, order); by default
    Slots, which sums; the compressions of training/buckets/ are others.

    After an error of communication all methods raise that error, and only close() is left.
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        bucket_bytes: int = 4 << 20,
        first_bytes: int = 1 << 20,
        order: Order = "fast",
        carrier: Callable[[Communicator, Order], Slots] = Slots,
    ) -> None:
        for name, value in (("bucket_bytes", bucket_bytes), ("first_bytes", first_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Coordinator: expected {name} of at least 1 byte, found {value!r}")
        if not hasattr(comm, "dup") or not callable(carrier):
            expected = "a communicator, and a carrier such as half('bfloat16')"
            raise TypeError(f"Coordinator: expected {expected}, found {comm!r} and {carrier!r}")
        self._bucket_bytes, self._first_bytes = bucket_bytes, min(first_bytes, bucket_bytes)
        self._comm = comm.dup()
        self._carrier = carrier(self._comm, order)
        self._rounds = Rounds(self._comm, self._carrier)
        self._lock = self._rounds.lock
        self._between = threading.Lock()  # held by the thread that prepares a round
        self._new: dict[str, Slot] = {}  # registered, not yet agreed upon
        self._numbers: dict[str, int] = {}
        self._queued: dict[int, Any] = {}  # submitted again before the flush: for the next round
        self._is_closed = False

    @property
    def communicator(self) -> Communicator:
        """The communicator of the coordinator's own, with the ranks of the one that it was made from."""
        return self._comm

    def register(self, name: str, x: Any, op: str = "sum", moved: Moved | None = None) -> None:
        """Registers a tensor, between rounds; all ranks register the same ones before their next round.

        x: a NumPy array or a PyTorch tensor. submit(name) copies it, and it holds the result when the round is done.
        op: "sum", or "avg" over the ranks that submit it. moved: then the tensor lives in a bucket: moved(view) is
        called with an array like x in which to write instead of x, before the first round and whenever buckets are cut
        anew, which is between rounds and keeps the values. Ranks whose tensors differ get CollectiveMismatch when they
        next prepare, submit or flush; a rank that registers alone waits until its time-out. Raises ValueError,
        TypeError, or RuntimeError in the middle of a round.
        """
        if not isinstance(name, str) or name in self._numbers or name in self._new:
            raise ValueError(f"register: expected a name, text that is not registered yet, found {name!r}")
        slot = self._carrier.new(name, x, op, moved)
        with self._lock:
            self.check()
            if self._is_in_round():
                raise RuntimeError(f"register: {name!r} came in the middle of a round; register it before, or flush()")
            self._new[name] = slot

    def prepare(self) -> None:
        """Agrees on newly registered tensors at once; without it, the next submit or flush does. All ranks call it."""
        with self._between:
            self.check()
            if self._numbers and self._rounds.member.has_flushed:
                self._rounds.finish(self._rounds.member.round)
            if self._new:
                self._agree()

    def submit(self, name: str) -> TensorWork:
        """Says that the tensor is ready; returns at once, with a handle to wait on after the flush.

        A second submit in a round is for the next round, with the values of now; of a tensor that lives in a bucket it
        raises RuntimeError, because the first may be on its way. The first submit of a round waits for the last round.
        """
        with self._lock:
            rounds = self._rounds
            if self._new or not rounds.is_open:
                self._enter()
            id, member = self._number(name), rounds.member
            if id in member.present:
                self._queue(name, id)
                return TensorWork(rounds.finish, member.round + 1, id)
            self._carrier.hold(id)
            rounds.submit(id)
            return TensorWork(rounds.finish, member.round, id)

    def flush(self) -> RoundWork:
        """Ends this rank's round; returns at once, with a handle for the end of the round on this rank.

        What was not submitted is absent: it contributes nothing, and `present` does not count this rank.
        """
        with self._lock:
            self._enter()
            return self._rounds.flush(False)

    def join(self) -> None:
        """Says that this rank has no more rounds; takes part without values until all ranks have joined.

        Raises RuntimeError in the middle of a round.
        """
        with self._lock:
            if self._is_in_round():
                raise RuntimeError(f"join: round {self._rounds.member.round} is not over on this rank; call flush()")
        while not self._rounds.has_ended:
            with self._lock:
                self._enter()
                work = self._rounds.flush(True)
            work.wait()

    def present(self, name: str) -> int:
        """Returns how many ranks submitted the tensor in the last round, until the next one begins here."""
        with self._lock:
            return int(self._carrier.present[self._number(name)])

    def submitted(self) -> list[str]:
        """Returns the names of the tensors that this rank has submitted in its present round."""
        with self._lock:
            is_open, member = self._rounds.is_open, self._rounds.member
            return [self._rounds.stalls.names[id] for id in member.present] if is_open else []

    def absent(self) -> list[str]:
        """Returns the names of the tensors that no rank submitted in the last round, until the next begins here."""
        with self._lock:
            return [self._rounds.stalls.names[id] for id in np.flatnonzero(self._carrier.present == 0)]

    def report(self) -> RoundsReport:
        """Returns what the rounds so far have cost on this rank."""
        return self._rounds.report.copy()

    def _is_in_round(self) -> bool:
        return bool(self._numbers) and self._rounds.member.has_begun and not self._rounds.member.has_flushed

    def _enter(self) -> None:
        """Begins a round, unless this rank is in one. The lock is held, but not while this waits for the last round."""
        rounds = self._rounds
        self.check()
        while self._new or not self._numbers or rounds.member.has_flushed:
            if not (self._new or self._numbers):
                raise RuntimeError("Coordinator: no tensor is registered; call register() first")
            self._lock.release()
            try:
                self.prepare()
            finally:
                self._lock.acquire()
            self.check()
        if rounds.has_ended:
            raise RuntimeError("Coordinator: all ranks have joined, so there is no further round; make a new one")
        if not rounds.member.has_begun:
            rounds.begin()
            queued, self._queued = self._queued, {}
            for id, value in queued.items():
                self._carrier.hold(id, value)
                rounds.submit(id)

    def _agree(self) -> None:
        """Numbers the new tensors after the old ones, and lets the ranks negotiate from this round on."""
        try:
            new, old = list(self._new.values()), self._carrier.slots
            slots = [*old, *new]
            numbers = numbers_of(self._comm, [slot.tensor for slot in new], self._carrier.settings)
            for number, slot in zip(numbers, new, strict=True):
                slots[len(old) + number] = slot
            sizes = Sizes([self._carrier.num_bytes(slot) for slot in slots], self._first_bytes, self._bucket_bytes)
            with self._lock:
                self._carrier.place(slots)
                self._rounds.stalls.names = [slot.tensor.name for slot in slots]
                self._rounds.renew(sizes, self._rounds.member.round if old else 0)
                self._numbers = {slot.tensor.name: number for number, slot in enumerate(slots)}
                for slot in new:  # more may have been registered meanwhile
                    del self._new[slot.tensor.name]
        except BaseException as error:
            self._rounds.fail(error)
            raise

    def check(self) -> None:
        """Raises the error of communication, if there was one, or CommunicationError if this is closed."""
        if self._is_closed:
            raise CommunicationError("Coordinator: it is closed; use it inside its `with` block, or make another")
        self._rounds.check()

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            hint = did_you_mean(name, self._numbers)
            raise ValueError(f"Coordinator: expected the name of a registered tensor, found {name!r}{hint}")
        return self._numbers[name]

    def _queue(self, name: str, id: int) -> None:
        value = self._carrier.slots[id].source
        if id in self._queued or value is None:
            raise RuntimeError(f"submit: {name!r} was submitted in this round; flush() before you submit it again")
        self._queued[id] = value.copy() if isinstance(value, np.ndarray) else value.detach().clone()

    def close(self) -> None:
        """Leaves. Raises RuntimeError, after it has left, if tensors were submitted and their round is not done."""
        with self._lock:
            if self._is_closed:
                return
            rounds, self._is_closed, self._rounds.is_open = self._rounds, True, False
            goes_on = self._numbers and rounds.failure is None
            pending = rounds.stalls.named(rounds.member.present - rounds.done | self._queued.keys()) if goes_on else ""
        if not pending:
            self._comm.close()
            return
        self._comm.abort(f"its coordinator was closed before {pending} were done")
        with contextlib.suppress(CommunicationError):  # of calls under way on this rank, which has just aborted
            self._comm.close()
        raise RuntimeError(f"Coordinator: closed before {pending} were done; flush().wait() before you close it")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return self.close()
        self._is_closed, self._rounds.is_open = True, False
        with contextlib.suppress(CommunicationError), contextlib.closing(self._comm):
            # Other ranks may still be in calls that this rank has finished, and find the same error there.
            self._comm.lower.abort(reason_of(error), only_later=True)
