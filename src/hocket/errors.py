"""The whole error tree. An error names the ranks and the place, what was expected, what was found and what to do next.

    HocketError
    |-- ScheduleError            a schedule (or the algorithm that builds it) is malformed
    |   `-- VerifyError          a well-formed schedule breaks a law: .law .step .rank .chunk
    |-- TopologyError            a network description is malformed or cannot be routed
    |-- CommunicationError       something between ranks went wrong
    |   |-- RendezvousError      the ranks did not find each other: .missing
    |   |-- CollectiveMismatch   ranks called different collectives: .field .values
    |   |-- CollectiveTimeout    a rank did not come in time; also a TimeoutError: .missing
    |   |-- PeerDied             a process ended without closing, or cannot be reached any more: .rank
    |   |-- PeerAborted          a rank closed or gave up while others needed it: .rank .reason
    |   `-- ForkedUse            a communicator or a stream was used in a forked child
    |-- ResourceError            memory, descriptors or threads ran out: .errno .call
    `-- InternalError            Hocket broke its own rules: please report it

A bad argument is a plain ValueError or TypeError, raised before the first byte is sent. If it is a name that does not
exist, `did_you_mean` says which name is near.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def name_count(number: int, noun: str) -> str:
    """Returns for example "1 rank", "2 ranks", "2 switches" or "2 memories"."""
    if number == 1:
        return f"{number} {noun}"
    if noun.endswith("y"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 'sh', 's', 'x')) else 's'}"


def did_you_mean(found: object, names: Iterable[str]) -> str:
    """The end of the error for a name that is none of `names`: "; did you mean 'ring'?", or "" if it is near none."""
    from difflib import get_close_matches  # seldom needed, and every rank imports this module

    by_plain_name = {name.lower(): name for name in names}
    near = get_close_matches(str(found).lower(), by_plain_name, n=1)
    return f"; did you mean {by_plain_name[near[0]]!r}?" if near else ""


class HocketError(Exception):
    """Base of every error of Hocket that is not a plain ValueError or TypeError."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with all attributes; the default would call __init__ without its keyword arguments."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[HocketError], args: tuple[Any, ...], attributes: dict[str, Any]) -> HocketError:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError, a base of CollectiveTimeout, takes them in __init__ only
    error.__dict__.update(attributes)
    return error


class ScheduleError(HocketError):
    """A schedule is malformed. Nothing ran; the algorithm has to be corrected."""


class VerifyError(ScheduleError):
    """A schedule breaks one of the five laws. Nothing ran.

    Attributes: law (1 to 5), and, where they apply, step, rank, chunk, expected, found. Of an algorithm's schedule
    also site, the "file:line" that wrote the wrong step, or else that of the algorithm, and next_step, the end of the
    message if it says what to do.
    """

    site = next_step = ""

    def __init__(
        self,
        message: str,
        *,
        law: int,
        step: int | None = None,
        rank: int | None = None,
        chunk: int | None = None,
        expected: Any = None,
        found: Any = None,
    ) -> None:
        self.law, self.step, self.rank, self.chunk = law, step, rank, chunk
        self.expected, self.found = expected, found
        where = [
            f"{name} {value}" for name, value in (("step", step), ("rank", rank), ("chunk", chunk)) if value is not None
        ]
        text = f"law {law}" + (f" ({', '.join(where)})" if where else "") + f": {message}"
        if expected is not None or found is not None:
            text += f"; expected {expected}, found {found}"
        super().__init__(text)

    def locate(self, site: str) -> None:
        """Put the place in front of the message, and remove it elsewhere in the message."""
        self.site = site
        self.args = (f"{site}: {self.args[0].replace(f' ({site})', '')}",)

    def suggest(self, what: str) -> None:
        """Put what to do next at the end of the message."""
        self.next_step = f"; {what}"
        self.args = (self.args[0] + self.next_step,)


class TopologyError(HocketError):
    """A network description is malformed, or no route exists in it."""


class CommunicationError(HocketError):
    """Something between ranks went wrong. The communicator can only be closed."""


class RendezvousError(CommunicationError):
    """The ranks did not find each other. No communicator exists; init may be tried again.

    Attributes: missing, the ranks that never came (empty if that is not the cause); follows, whether another rank
    failed, or ended, first.
    """

    def __init__(self, message: str, *, missing: Sequence[int] = (), follows: bool = False) -> None:
        self.missing, self.follows = tuple(missing), follows
        super().__init__(message)


class CollectiveMismatch(CommunicationError):
    """Ranks called collectives that differ. No rank returned data that depends on such a call.

    Attributes: field ("kind", "count", "dtype", "op", "root", "schedule" ...), values (by rank, of the ranks known when
    the difference was found), sequence (number of the call on this communicator). The communicator can only be closed.
    """

    def __init__(self, message: str, *, field: str, values: Mapping[int, Any], sequence: int) -> None:
        self.field, self.values, self.sequence = field, dict(values), sequence
        super().__init__(message)


class CollectiveTimeout(CommunicationError, TimeoutError):
    """A collective, a message or an event did not end in time. The communicator can only be closed.

    After the timeout of a Work.wait or an Event.synchronize everything goes on, and the program may wait again.

    Attributes: missing (ranks that were waited for; of an event none), seconds (the limit), sequence, late (the rank
    whose program explains the wait, as far as that is known, else None: it has not come, or it waits for a message).
    """

    def __init__(
        self, message: str, *, missing: Sequence[int], seconds: float, sequence: int, late: int | None = None
    ) -> None:
        self.missing, self.seconds, self.sequence, self.late = tuple(missing), seconds, sequence, late
        super().__init__(message)


class PeerDied(CommunicationError):
    """The process of a rank ended without closing its communicator, or it cannot be reached any more.

    The communicator can only be closed. Attributes: rank.
    """

    def __init__(self, message: str, *, rank: int) -> None:
        self.rank = rank
        super().__init__(message)


class PeerAborted(CommunicationError):
    """A rank closed its communicator, or left it with an error, while this one needed it. Only close works.

    Attributes: rank, reason.
    """

    def __init__(self, message: str, *, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(message)


class ForkedUse(CommunicationError):
    """A communicator or a stream was used in a forked child. The parent's still works; the child may make its own."""


class ResourceError(HocketError):
    """The system refused memory, a descriptor or a thread. Attributes: errno, call."""

    def __init__(self, message: str, *, errno: int, call: str) -> None:
        self.errno, self.call = errno, call
        super().__init__(message)


class InternalError(HocketError):
    """Hocket broke its own rules. Please report it with the message."""
