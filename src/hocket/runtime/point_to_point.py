"""Messages between two ranks of a communicator: send, recv, their forms that do not wait, and groups of them.

They run beside the collectives of the communicator, which they never disturb. A message that both ends have begun gets
there, whatever the ranks do next. Short ones (up to 8 KiB) do not wait for the receive; longer ones may, as may those
beyond 32 that nobody has asked for. A channel holds 16 short ones, or 4 of more than 4 KiB, or 2 of more than 128 KiB:
the next waits until its receiver looks, which that does whenever it waits in a call of this communicator, be it a
collective. The rules are MPI's: messages of one source and tag arrive in the order in which they were sent, at receives
in the order in which they were posted. Both ends have to give the same number of elements and dtype, or all ranks get
CollectiveMismatch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hocket import _core
from hocket.runtime.arguments import RESIZABLE, check_unmasked
from hocket.runtime.calls import cached
from hocket.runtime.settings import check_timeout
from hocket.runtime.stream import current_stream, launch_mark
from hocket.runtime.work import InFlight, MessageWork, Work

ANY_SOURCE = -1
ANY_TAG = -1


@dataclass(eq=False, slots=True)
class Send:
    """For batch: x goes to rank dst."""

    x: Any
    dst: int
    tag: int = 0


@dataclass(eq=False, slots=True)
class Recv:
    """For batch: x is filled by a message of rank src."""

    x: Any
    src: int = ANY_SOURCE
    tag: int = 0


class PointToPoint:
    """The messages of a communicator, as its base.

    Arrays are as in collectives. Ranks are those of this communicator; one may send to itself. Tags are 0 to 2**31 - 1,
    and ANY_TAG where something is received. `timeout` is in seconds. ValueError, TypeError before anything is sent.
    After a CommunicationError or ResourceError the communicator can only be closed.
    """

    if TYPE_CHECKING:

        def _usable(self) -> Any: ...

        def _timeout_of(self, name: str) -> float: ...

    _core: Any
    _rank: int
    _size: int
    _works: InFlight

    @cached
    def send(self, x: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Sends x to rank dst; returns when x may be written again, which says nothing of its having been received."""
        self._exchange([self._outgoing("send", x, dst, tag)], (x,), "send", timeout)

    @cached
    def recv(
        self, x: Any, src: int = ANY_SOURCE, *, tag: int = 0, timeout: float | None = None
    ) -> tuple[Any, int, int]:
        """Fills x with a message from rank src, or from any, and returns (x, source, tag).

        x is as long as the message, and of its dtype; its shape may be another. Where a stream is current, which comes
        to it later, source and tag are those that were given, perhaps ANY_SOURCE and ANY_TAG; irecv's Work tells more.
        """
        [(source, found)] = self._exchange([self._incoming("recv", x, src, tag)], (x,), "recv", timeout)
        return x, source, found

    @cached
    def isend(self, x: Any, dst: int, *, tag: int = 0, timeout: float | None = None) -> Work:
        """Begins to send x to rank dst. x may not be written until the Work is done."""
        [work] = self._begin([self._outgoing("isend", x, dst, tag)], [x], "isend", timeout)
        return work

    @cached
    def irecv(self, x: Any, src: int = ANY_SOURCE, *, tag: int = 0, timeout: float | None = None) -> Work:
        """Begins to fill x with a message from rank src, or from any; the Work then tells source and tag."""
        [work] = self._begin([self._incoming("irecv", x, src, tag)], [x], "irecv", timeout)
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
        """Sends x to rank dst and fills `out` with a message from rank src, both at once: (out, source, tag).

        recv_tag: the tag to receive, `tag` without it.
        """
        outgoing = self._outgoing("sendrecv", x, dst, tag)
        incoming = self._incoming("sendrecv", out, src, tag if recv_tag is None else recv_tag, "out")
        _core.check_apart("sendrecv", [outgoing, incoming])
        _, (source, found) = self._exchange([outgoing, incoming], (x, out), "sendrecv", timeout)
        return out, source, found

    def batch(
        self, messages: Iterable[Send | Recv], *, timeout: float | None = None, async_op: bool = False
    ) -> list[Any]:
        """Begins all messages at once, so that no order among them can deadlock, and waits for all.

        Returns, in their order, None for each Send and (x, source, tag) for each Recv; with async_op=True a Work each.
        """
        if not isinstance(messages, Iterable):
            raise TypeError(f"batch: expected a list of hocket.Send and hocket.Recv, found {messages!r}")
        descriptions, arrays = _core.describe_batch(list(messages), Send, Recv, self._size)
        _core.check_apart("batch", descriptions)
        if async_op:
            return list(self._begin(descriptions, arrays, "batch", timeout))
        found = self._exchange(descriptions, tuple(arrays), "batch", timeout)
        return [
            None if description[0] else (x, *envelope)  # whether it sends
            for description, x, envelope in zip(descriptions, arrays, found, strict=True)
        ]

    def _exchange(
        self, descriptions: list[tuple[Any, ...]], arrays: tuple[Any, ...], name: str, timeout: float | None
    ) -> list[tuple[int, int]]:
        core = self._usable()
        if current_stream() is not None:
            for work in self._begin(descriptions, list(arrays), name, timeout):
                work.wait()
            return [(source, tag) for _, source, tag, *_ in descriptions]
        held = [memoryview(one) for one in arrays if type(one) in RESIZABLE]
        found: list[tuple[int, int]] = core.exchange(descriptions, self._seconds(name, timeout))
        del held
        return found

    def _begin(
        self, descriptions: list[tuple[Any, ...]], arrays: list[Any], name: str, timeout: float | None
    ) -> list[Work]:
        core, seconds = self._usable(), self._seconds(name, timeout)
        what = f"{name} on rank {self._rank}"
        works: list[MessageWork] = []
        begun: list[Any] = []
        try:
            for x, description in zip(arrays, descriptions, strict=True):
                held = memoryview(x) if type(x) in RESIZABLE else None
                works.append(MessageWork((x, held), not description[0], what))
                self._works.add(works[-1])  # before it begins: nothing that interrupts this lets go of its memory
            core.begin_exchange(descriptions, seconds, launch_mark(current_stream()), begun)
        finally:
            for number, work in enumerate(works):
                work.begun(begun[number] if begun else None)
        return list(works)

    def _seconds(self, name: str, timeout: float | None) -> float:
        return self._timeout_of(name) if timeout is None else check_timeout(name, timeout)

    def _outgoing(self, name: str, x: Any, dst: int, tag: int) -> tuple[Any, ...]:
        """What the core needs for a send, once it is checked."""
        check_unmasked(f"{name}: x", x)
        return _core.describe_message(True, x, dst, tag, self._size, name, "x")

    def _incoming(self, name: str, x: Any, src: int, tag: int, what: str = "x") -> tuple[Any, ...]:
        check_unmasked(f"{name}: {what}", x)
        return _core.describe_message(False, x, src, tag, self._size, name, what)
