"""monitored_barrier: rank 0 finds missing ranks through the store, so that the communicator stays usable.

The errors use the words of PyTorch's own errors, because programs look for them.
"""

import contextlib
import time
from typing import Any

import torch.distributed as dist

from hocket.torch_backend.roll_call import come
from hocket.torch_backend.told_errors import BackendError

_OK = b"ok"
# In this time the ranks that have come can read the answer of rank 0. Then it may leave, and the store with it.
_READING_SECONDS = 5.0


class MonitoredBarrier:
    """One rank's side of the barrier.

    Each arrival has a number. Rank 0 answers it by this number, and waits until its rank has read that: the store may
    end with rank 0. If a rank still waits when rank 0 has given up, its arrival counts for the next barrier, as with
    messages; a rank that gives up takes it back. A rank sets "done" as its last step, which no store answers.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._numbers = [0] * size  # the number of each rank's next arrival; ranks other than 0 use only their own

    def __call__(self, seconds: float, wait_all_ranks: bool) -> None:
        """Returns when all ranks have come.

        After `seconds`, rank 0 raises a BackendError that names all missing ranks, or only the first one unless
        wait_all_ranks; the other ranks then raise one, too.
        """
        if self._rank == 0:
            self._gather(seconds, wait_all_ranks)
        else:
            self._arrive(seconds)

    def _gather(self, seconds: float, wait_all_ranks: bool) -> None:
        deadline = time.monotonic() + seconds
        came: list[int] = []
        missing: list[int] = []
        for rank in range(1, self._size):
            # After the first missing rank, rank 0 only checks which ranks are there, and does not wait for more.
            goes_on = wait_all_ranks or not missing
            if self._comes(rank, deadline if goes_on else 0.0):
                came.append(rank)
            elif goes_on:
                missing.append(rank)
        for rank in came:
            self._store.set(self._key("verdict", rank), b"failed" if missing else _OK)
        if came:
            come(self._store, [self._key("done", rank) for rank in came], _READING_SECONDS)
        for rank in came:
            if self._appears(self._key("done", rank), 0.0):
                self._clear(rank)
            else:  # it may read the answer yet
                self._numbers[rank] += 1
        if missing:
            who = f"Rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            raise BackendError(
                f"[Rank 0]: Rank 0 timed out in monitoredBarrier: {who} failed to pass monitoredBarrier in "
                f"{seconds * 1000:.0f} ms"
            )

    def _comes(self, rank: int, deadline: float) -> bool:
        """Returns whether the rank arrives before the deadline and stays; checks at least once."""
        while self._appears(self._key("arrival", rank), deadline - time.monotonic()):
            if not self._appears(self._key("done", rank), 0.0):
                return True
            self._clear(rank)
        return False

    def _arrive(self, seconds: float) -> None:
        rank, answered, passed = self._rank, False, False
        verdict, lost = self._key("verdict", rank), ""
        try:
            self._store.set(self._key("arrival", rank), _OK)
            answered = self._appears(verdict, seconds)
            passed = answered and self._store.get(verdict) == _OK
        except dist.DistError as error:
            lost = f" The store is lost; see whether the process that serves it, usually rank 0, ended early ({error})"
        finally:
            with contextlib.suppress(dist.DistError):
                self._store.set(self._key("done", rank), _OK)
            self._numbers[rank] += 1
        if not passed:
            raise BackendError(
                f"[Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
                "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
                + (lost or ("" if answered else f" Rank 0 did not answer within {seconds * 1000:.0f} ms"))
            )

    def _clear(self, rank: int) -> None:
        """Deletes the keys of an arrival, if the store can delete, and goes on to the next one."""
        for what in ("arrival", "verdict", "done"):
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(self._key(what, rank))
        self._numbers[rank] += 1

    def _key(self, what: str, rank: int) -> str:
        return f"hocket/monitored_barrier/{what}/{rank}/{self._numbers[rank]}"

    def _appears(self, key: str, seconds: float) -> bool:
        """Returns whether a rank sets the key within `seconds`; checks at least once."""
        return come(self._store, [key], seconds)
