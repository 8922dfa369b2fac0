"""Messages between two ranks of a communicator: send, recv, their non-blocking forms, and groups of messages.

Messages run beside the collectives of the communicator and never disturb them. A message that both ends have begun
arrives, whatever the ranks do next. A short send (up to 8 KiB) does not wait for the receive; a longer one may wait,
and so may any send when 32 messages without a matching receive are under way. A channel holds 16 short messages, or 4
of more than 4 KiB, or 2 of more than 128 KiB. The next one waits until the receiver reads the channel, which it does
whenever it waits in a call of this communicator, collectives included. The order is MPI's: messages with the same
source and tag match receives in the order in which both were posted. Both ends must give the same number of elements
and the same dtype, or all ranks get CollectiveMismatch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket import _core
from hocket.runtime.communicator.arguments import RESIZABLE, refused_rank
from hocket.runtime.communicator.call_settings import check_timeout
from hocket.runtime.communicator.calls import cached, explained
from hocket.runtime.streams.stream import current_stream, launch_mark
from hocket.runtime.streams.work import InFlight, MessageWork, Work

ANY_SOURCE = -1
"""As `src` of a receive: a message of any rank matches."""
ANY_TAG = -1
"""As `tag` of a receive: a message with any tag matches."""


@dataclass(eq=False, slots=True)
class Send:
    """A send for batch: x goes to rank dst."""

    x: Any
    dst: int
    tag: int = 0


@dataclass(eq=False, slots=True)
class Recv:
    """A receive for batch: a message from rank src fills x."""

    x: Any
    src: int = ANY_SOURCE
    tag: int = 0


class PointToPoint:
    """The messages of a communicator; one of its base classes.

    Arrays are as in collectives. Ranks are those of this communicator; a rank may send to itself. Tags are 0 to
    2**31 - 1; a receive may give ANY_TAG. `timeout` is in seconds. Bad arguments raise ValueError or TypeError before
    anything is sent. After a CommunicationError or ResourceError the communicator can only be closed.
    """

    if TYPE_CHECKING:

        def _usable(self) -> Any: ...

        def _timeout_of(self, name: str) -> float: ...

    context: Any
    _core: Any
    _rank: int
    _size: int
    _works: InFlight

    @cached
    def send(self, x: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Sends x to rank dst; returns when x may be written again. The message may not have been received yet."""
        self._exchange(self._one_message("send", True, x, dst, tag), "send", timeout)

    @cached
    def recv(
        self, x: Any, src: int = ANY_SOURCE, *, tag: int = 0, timeout: float | None = None
    ) -> tuple[Any, int, int]:
        """Fills x with a message from rank src, or from any, and returns (x, source, tag).

        x must have the length and dtype of the message; the shape may differ. Inside `with hocket.stream(...)` the call
        returns before the message arrives: source and tag are then the arguments, perhaps ANY_SOURCE and ANY_TAG. The
        Work of irecv gives the actual ones.
        """
        [(x, source, found)] = self._exchange(self._one_message("recv", False, x, src, tag), "recv", timeout)
        return x, source, found

    @cached
    def isend(self, x: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> Work:
        """Begins to send x to rank dst. x may not be written until the Work is done."""
        [work] = self._begin(self._one_message("isend", True, x, dst, tag), "isend", timeout)
        return work

    @cached
    def irecv(self, x: Any, src: int = ANY_SOURCE, *, tag: int = 0, timeout: float | None = None) -> Work:
        """Begins to fill x with a message from rank src, or from any; the Work has source and tag once it is done."""
        [work] = self._begin(self._one_message("irecv", False, x, src, tag), "irecv", timeout)
        return work

    @cached
    def sendrecv(
        self,
        x: Any,
        dst: int,
        out: Any,
        src: int = ANY_SOURCE,
        *,
        tag: int = 0,
        recv_tag: int | None = None,
        timeout: float | None = None,
    ) -> tuple[Any, int, int]:
        """Sends x to rank dst and fills `out` with a message from rank src, both at once; returns (out, source, tag).

        recv_tag: the tag of the message to receive; by default it is `tag`.
        """
        group = self._one_message("sendrecv", True, x, dst, tag)
        try:
            group.add(False, out, src, tag if recv_tag is None else recv_tag, "sendrecv", "out")
        except ValueError as error:
            raise refused_rank(error, self._size) from None
        group.check_apart("sendrecv")
        _, (out, source, found) = self._exchange(group, "sendrecv", timeout)
        return out, source, found

    @explained
    def batch(
        self, messages: Iterable[Send | Recv], *, timeout: float | None = None, async_op: bool = False
    ) -> list[Any]:
        """Begins all messages at once, so that their order cannot deadlock, and waits for all.

        Returns a list in the order of the messages: None for a Send, (x, source, tag) for a Recv; with async_op=True a
        Work for each.
        """
        if not isinstance(messages, Iterable):
            raise TypeError(f"batch: expected a list of hocket.Send and hocket.Recv, found {messages!r}")
        group = _core.MessageGroup(self._size, RESIZABLE)
        try:
            group.add_all(list(messages), Send, Recv)
        except ValueError as error:
            raise refused_rank(error, self._size) from None
        group.check_apart("batch")
        if async_op:
            return self._begin(group, "batch", timeout)
        return self._exchange(group, "batch", timeout)

    def _exchange(self, group: _core.MessageGroup, name: str, timeout: float | None) -> list[Any]:
        core = self._usable()
        results: list[Any]
        if current_stream() is None:
            results = core.exchange(group, self._seconds(name, timeout))
        else:
            for work in self._begin(group, name, timeout):
                work.wait()
            results = group.results_as_asked()
        return results

    def _begin(self, group: _core.MessageGroup, name: str, timeout: float | None) -> list[MessageWork]:
        core, seconds = self._usable(), self._seconds(name, timeout)
        what = f"{name} on rank {self.context.rank}"
        works: list[MessageWork] = []
        begun: list[Any] = []
        try:
            for arrays, receives in group.arrays():
                works.append(MessageWork(arrays, receives, what))
                self._works.add(works[-1])  # before it begins: an interrupt in between must not free its memory
            core.begin_exchange(group, seconds, launch_mark(current_stream()), begun)
        finally:
            for number, work in enumerate(works):
                work.begun(begun[number] if begun else None)
        return works

    def _seconds(self, name: str, timeout: float | None) -> float:
        return self._timeout_of(name) if timeout is None else check_timeout(name, timeout)

    def _one_message(self, name: str, sends: bool, x: Any, peer: int, tag: int) -> _core.MessageGroup:
        """Returns a checked send or receive that has not begun."""
        group = _core.MessageGroup(self._size, RESIZABLE)
        try:
            group.add(sends, x, peer, tag, name, "x")
        except ValueError as error:
            raise refused_rank(error, self._size) from None
        return group
