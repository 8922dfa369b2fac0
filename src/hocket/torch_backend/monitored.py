"""monitored_barrier: rank 0 finds missing ranks through the store, so that the communicator stays usable.

The errors use the words of PyTorch's own errors, because programs look for them.
"""

import contextlib
import time
from typing import Any

from hocket.torch_backend.handles import BackendError
from hocket.torch_backend.roll_call import come

_OK = b"ok"


class MonitoredBarrier:
    """One rank's side of the barrier.

    Each arrival has a number. Rank 0 answers it by this number, or its rank takes it back. If a rank still waits when
    rank 0 has given up, its arrival counts for the next barrier, as with messages; a rank that gives up takes it back.
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
            if not self._appears(self._key("gone", rank), 0.0):
                return True
            self._delete("arrival", "gone", rank=rank)
            self._numbers[rank] += 1
        return False

    def _arrive(self, seconds: float) -> None:
        rank = self._rank
        verdict, answered = self._key("verdict", rank), False
        self._store.set(self._key("arrival", rank), _OK)
        try:
            answered = self._appears(verdict, seconds)
            passed = answered and self._store.get(verdict) == _OK
        finally:
            if answered:
                self._delete("arrival", "verdict", rank=rank)
            else:
                self._store.set(self._key("gone", rank), _OK)
            self._numbers[rank] += 1
        if not passed:
            raise BackendError(
                f"[Rank {rank}]: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
                "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
                + ("" if answered else f" Rank 0 did not answer within {seconds * 1000:.0f} ms")
            )

    def _delete(self, *whats: str, rank: int) -> None:
        """Deletes keys that no rank reads again, if the store can delete."""
        for what in whats:
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(self._key(what, rank))

    def _key(self, what: str, rank: int) -> str:
        return f"hocket/monitored_barrier/{what}/{rank}/{self._numbers[rank]}"

    def _appears(self, key: str, seconds: float) -> bool:
        """Returns whether a rank sets the key within `seconds`; checks at least once."""
        return come(self._store, [key], seconds)
