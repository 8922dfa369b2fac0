"""The interface of a communicator for the layers above, `communicator.lower`. Programs do not need it."""

from typing import TYPE_CHECKING, Any

from hocket.errors import ForkedUse
from hocket.runtime.choice.select import choose
from hocket.runtime.streams.work import MessageWork, Work

if TYPE_CHECKING:
    from hocket import _core

_FOLLOWING = 1  # the tag of this message; those of groups have 0 (groups.py)


class LowerFace:
    """Messages in two steps (check, begin), closing in two steps, a word of progress, and the choice of an algorithm
    without a call."""

    def __init__(self, communicator: Any) -> None:  # a Communicator, whose file imports this one
        self._communicator = communicator

    def one_message(self, name: str, sends: bool, x: Any, peer: int, tag: int) -> "_core.MessageGroup":
        """Returns a checked message that has not begun; errors name it `name`. Raises ValueError or TypeError."""
        message: _core.MessageGroup = self._communicator._one_message(name, sends, x, peer, tag)
        return message

    def begin(self, group: "_core.MessageGroup", name: str) -> list[MessageWork]:
        """Begins a message of `one_message`, as isend and irecv do. Raises CommunicationError."""
        works: list[MessageWork] = self._communicator._begin(group, name, None)
        return works

    def pending(self, *, messages: bool = True) -> list[Work]:
        """Returns the launched operations that are not done; messages: also sends and receives. In a forked child there
        are none: they belong to its parent.
        """
        try:
            works: list[Work] = self._communicator._works.pending()
        except ForkedUse:
            return []
        return [work for work in works if messages or not isinstance(work, MessageWork)]

    def finish(self) -> None:
        """Waits until all operations are done, and leaves the communicator open. Raises CommunicationError."""
        self._communicator._finish()

    def abort(self, reason: str, *, only_later: bool = False) -> None:
        """Tells the other ranks that this rank aborts; only_later: from the first call that this rank has not made."""
        self._communicator._abort(reason, only_later)

    def follow_first(self, seconds: float) -> None:
        """Returns on rank 0 at once, on the other ranks once rank 0 has called it; it counts as no call.

        Raises CommunicationError, CollectiveTimeout after `seconds`.
        """
        communicator = self._communicator
        core = communicator._usable()
        if communicator.rank > 0:
            core.receive_internal(1, 0, _FOLLOWING, seconds)
            return
        for other in range(1, communicator.size):
            core.send_internal(b"0", other, _FOLLOWING, seconds)

    def note_progress(self, word: int) -> None:
        """Writes down what this rank does now, where all ranks can read it; it sends nothing and wakes nobody.

        word: from 0 to 2**64 - 1; what it means is the caller's. Raises ValueError, CommunicationError once closed.
        """
        core = self._communicator._usable()
        try:
            core.note_progress(word)
        except TypeError:
            raise ValueError(
                f"rank {self._communicator.context.rank}: note_progress: expected an integer from 0 to 2**64 - 1, "
                f"found {word!r}; pack what the ranks shall know into 64 bits"
            ) from None

    def progress(self) -> list[tuple[int, float]]:
        """Returns, by rank: the last word that it noted, and how many seconds ago; (0, math.inf) if none.

        It waits for nobody: of a rank on another host it returns what is known here, and asks for more, which the next
        call returns if that comes a tenth of a second later. Raises CommunicationError once closed.
        """
        found: list[tuple[int, float]] = self._communicator._usable().progress()
        return found

    def closed(self) -> list[int]:
        """Returns the ranks that have closed this communicator, as far as that is known here; waits for nobody."""
        found: list[int] = self._communicator._usable().closed()
        return found

    def chosen(self, collective: str, num_bytes: int, order: str = "fast") -> str:
        """Returns the algorithm that a call without algorithm= would run; num_bytes: size of the whole vector."""
        communicator = self._communicator
        return choose(collective, communicator.size, num_bytes, order, communicator._policy)
