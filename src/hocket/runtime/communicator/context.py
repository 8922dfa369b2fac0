"""What all communicators of a rank share."""

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from hocket.runtime.network.doorkeeper import Doorkeeper
from hocket.runtime.ranks.environment import at_rank_end

contexts: "weakref.WeakSet[Context]" = weakref.WeakSet()
"""Those of the process."""


class Context:
    """The state that all communicators of one rank share: its memory, and its rank in the job.

    Attributes: rank and size in the job; has_core: whether the rank has a core of its own, and so spins as it waits;
    num_cores: the number of cores on which all ranks of the job run; hosts: the number of the host of each rank of the
    job.
    """

    def __init__(
        self,
        core: Any,
        rank: int,
        size: int,
        has_core: bool,
        num_cores: int,
        cancel: threading.Event | None = None,
        door: Doorkeeper | None = None,
        hosts: Sequence[int] = (),
    ) -> None:
        self._core, self.rank, self.size, self.has_core, self.num_cores = core, rank, size, has_core, num_cores
        self.hosts = tuple(hosts) or (0,) * size
        self._door = door  # which is open as long as this context is there
        if door is not None:
            weakref.finalize(self, door.close).atexit = False  # communicators may be closed later than that
        self._cancel = cancel  # shared by the ranks that are threads of one run_ranks
        self._communicators: weakref.WeakSet[Any] = weakref.WeakSet()
        contexts.add(self)

    @property
    def num_communicators(self) -> int:
        """The number of open communicators of this rank."""
        return len(self._communicators)

    def end_with_rank(self) -> None:
        """Ends this with its rank if it still exists: a closed one has freed its thread and its mappings before."""
        alive = weakref.ref(self)

        def end(error: BaseException | None) -> None:
            still = alive()
            if still is not None:
                still._end(error)

        at_rank_end(end)

    def close_door(self) -> None:
        """Lets no connection in or out any more."""
        if self._door is not None:
            self._door.close()

    def _finish(self) -> None:
        for communicator in list(self._communicators):
            communicator._finish()

    def _end(self, error: BaseException | None) -> None:
        """Closes all open communicators, subgroups first; after an exception, tells the other ranks about it."""
        if error is None:
            self._finish()
        with contextlib.ExitStack() as ends:  # if one raises, the others are closed all the same
            for communicator in sorted(self._communicators, key=lambda one: -len(one.group)):
                ends.callback(communicator._end, error)

    def __repr__(self) -> str:
        return f"<hocket.Context rank {self.rank} of {self.size}, {self.num_communicators} communicators>"
