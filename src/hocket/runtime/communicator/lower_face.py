"""What layers above need of a communicator, and programs do not: `communicator.lower`."""

from typing import TYPE_CHECKING, Any

from hocket.runtime.choice.select import choose
from hocket.runtime.streams.work import MessageWork

if TYPE_CHECKING:
    from hocket import _core


class LowerFace:
    """Messages in two steps, ends in two steps, and the choice of an algorithm without a call."""

    def __init__(self, communicator: Any) -> None:  # a Communicator, whose file imports this one
        self._communicator = communicator

    def one_message(self, name: str, sends: bool, x: Any, peer: int, tag: int) -> "_core.MessageGroup":
        """A checked message that has not begun; errors speak of `name`. ValueError, TypeError."""
        message: _core.MessageGroup = self._communicator._one_message(name, sends, x, peer, tag)
        return message

    def begin(self, group: "_core.MessageGroup", name: str) -> list[MessageWork]:
        """Begins what `one_message` has checked, as isend and irecv do. CommunicationError."""
        works: list[MessageWork] = self._communicator._begin(group, name, None)
        return works

    def finish(self) -> None:
        """Waits until what was launched is done, and leaves the communicator open. CommunicationError."""
        self._communicator._finish()

    def abort(self, reason: str, *, only_later: bool = False) -> None:
        """Tells the other ranks that this one gives up; only_later: at a call that this rank has not made yet."""
        self._communicator._abort(reason, only_later)

    def chosen(self, collective: str, num_bytes: int, order: str = "fast") -> str:
        """The name of the algorithm that a call runs which names none; num_bytes are of the whole vector."""
        communicator = self._communicator
        return choose(collective, communicator.size, num_bytes, order, communicator._policy)
