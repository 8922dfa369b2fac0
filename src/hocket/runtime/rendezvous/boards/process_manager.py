"""The process manager of MPICH, Intel MPI and their kin (hydra), spoken to by PMI-1: lines of text over PMI_FD.

A value that rank 0 puts reaches the other ranks when all have entered a barrier. So rank 0 waits in `publish` for all
of them, and the manager does not tell which one is missing. Only the ranks hold the descriptor, so it carries a key;
the manager sends it from host to host in clear (docs/security.md).

The manager ends all ranks if one that has spoken to it ends without a farewell, as MPI programs know it. A process says
it at its end, unless mpi4py does. MPI itself may use the descriptor before and after, in the same thread.
"""

import contextlib
from collections.abc import Iterator, Sequence

from hocket.errors import RendezvousError
from hocket.runtime.rendezvous.boards.board import check_text, checked_found
from hocket.runtime.rendezvous.boards.pmi import PmiError, talk_at


class ProcessManager:
    """The process manager at a descriptor. seconds: how long rank 0 waits for the other ranks."""

    carries_key = True
    ports: Sequence[int] = ()
    listens_at: tuple[str, int] | None = None

    def __init__(self, descriptor: int, seconds: float) -> None:
        self._descriptor, self._seconds = descriptor, seconds
        self._text: str | None = None
        self.where = f"the process manager of MPI (PMI_FD {descriptor})"

    def publish(self, text: str) -> None:
        """Puts the text, and waits until all ranks have come for it."""
        check_text(text)
        with _telling(self.where):
            talk = talk_at(self._descriptor)
            if talk.in_barrier:
                raise PmiError("a meeting that has not ended", "one that all ranks entered")
            talk.ask(f"put kvsname={talk.name} key={talk.key} value={text}", "put_result")
            if not talk.enter_barrier(self._seconds):
                raise PmiError(f"not all ranks in its barrier within {self._seconds:g} s", "a hocket.init() on each")
            talk.meetings += 1

    def find(self, seconds: float) -> str | None:
        """Enters the barrier, or goes on waiting there, and returns the text."""
        if self._text is None:
            with _telling(self.where):
                talk = talk_at(self._descriptor)
                if not talk.enter_barrier(seconds):
                    return None
                answer = talk.ask(f"get kvsname={talk.name} key={talk.key}", "get_result")
                talk.meetings += 1
            self._text = checked_found(answer.get("value", ""), self.where)
        return self._text


@contextlib.contextmanager
def _telling(where: str) -> Iterator[None]:
    try:
        yield
    except (OSError, PmiError) as error:
        told = error if isinstance(error, PmiError) else PmiError(f"the error {error.strerror}", "an answer")
        raise RendezvousError(
            f"cannot use {where}: found {told.found}, expected {told.expected}; if a wrapper closed the descriptor, or "
            "the program uses MPI at the same time, tell all ranks where rank 0 is by HOCKET_ADDRESS=HOST:PORT"
        ) from error
