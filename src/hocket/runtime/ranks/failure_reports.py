"""What a rank tells `hocket run` about its failure: whether it fails by itself, or only because another rank failed.

Which rank ends first does not say which one was the cause. On each host, `hocket run` listens at a name that is made of
the address of the job and the first rank of the host. If nobody listens there, the report is dropped.
"""

import contextlib
import os
import re
import socket
import struct
from collections import Counter
from typing import NamedTuple

from hocket.errors import CollectiveMismatch, CollectiveTimeout, PeerAborted, PeerDied, RendezvousError
from hocket.runtime.ranks.environment import here
from hocket.runtime.ranks.program_frames import site_of
from hocket.runtime.variables import ADDRESS, LOCAL_RANK, RANK

_FAILS, _FOLLOWS, _HEARD = "fails", "follows", "heard"
_PATIENCE_SECONDS = 1.0  # for `hocket run` to read, if many ranks tell at once
_MAX_BYTES = 64
_CREDENTIALS = struct.Struct("3i")  # process, user and group

_told: set[tuple[int, str]] = set()  # by process: a forked child tells for itself


def follows_from_another(error: BaseException | None) -> bool:
    """Returns whether the error, an error that caused it, or each error of a group reports that another rank failed."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup) and all(follows_from_another(one) for one in error.exceptions):
            return True
        if isinstance(error, PeerDied | PeerAborted) or (isinstance(error, RendezvousError) and error.follows):
            return True
        error = error.__cause__ or error.__context__
    return False


def tell_heard() -> None:
    """Tells that this rank has heard of the failure of another rank; if it fails without more words, it follows."""
    _tell(_HEARD)


def tell_uncaught(error: BaseException) -> None:
    """Tells of the exception with which the process ends. This counts more than `tell_heard`, whichever is first."""
    _tell(_FOLLOWS if follows_from_another(error) else _FAILS, _suspect(error))


def reason_of(error: BaseException) -> str:
    """Returns why a rank gives up, as the other ranks are told: the first sentence, or where the program ended it."""
    if isinstance(error, SystemExit):
        site = site_of(error.__traceback__)
        return f"sys.exit({'' if error.code is None else repr(error.code)})" + (f" at {site}" if site else "")
    return re.split(r"(?<=[.?!])\s+(?=[A-Z])|\n", f"{type(error).__name__}: {error}", maxsplit=1)[0]


def _suspect(error: BaseException | None) -> int | None:
    """Returns the rank that an error, or one that caused it, points at: its call differs, or it was late, or ended.

    Of differing calls it is the rank with the rarest value; if several have it, the last one, as the receiver of a
    message.
    """
    while error is not None:
        if isinstance(error, CollectiveMismatch) and error.values:
            values = {rank: repr(value) for rank, value in error.values.items()}
            shared = Counter(values.values())
            return min(reversed(values), key=lambda rank: shared[values[rank]])
        if isinstance(error, CollectiveTimeout):
            return error.late
        if isinstance(error, PeerDied | PeerAborted):
            return error.rank
        error = error.__cause__ or error.__context__
    return None


def _name(address: str, first_rank: int) -> str:
    return f"\0{address}-failures-{first_rank}"


def _tell(what: str, suspect: int | None = None) -> None:
    rank, address = os.environ.get(RANK, ""), os.environ.get(ADDRESS)
    local_rank = os.environ.get(LOCAL_RANK, rank)
    environment = here.scope.environment
    is_thread = environment is not None and environment.source == "threads"  # of a run_ranks inside the process
    known = rank.isdecimal() and local_rank.isdecimal() and address
    if not known or is_thread or (os.getpid(), what) in _told:
        return
    _told.add((os.getpid(), what))
    name = _name(str(address), int(rank) - int(local_rank))
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.sendto(f"{what} {rank} {'' if suspect is None else suspect}".encode(), name)


class FailureReport(NamedTuple):
    """What a rank has told. suspect: the rank that its error points at; None if it points at none."""

    what: str
    rank: int
    suspect: int | None


class ReportSocket:
    """Where the ranks of this host tell, the first of which is `first_rank`; what other users tell is dropped."""

    def __init__(self, address: str, first_rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(_name(address, first_rank))

    def fileno(self) -> int:
        """Returns the descriptor that is readable when there is something to `read`."""
        return self._socket.fileno()

    def read(self) -> list[FailureReport]:
        """Returns all that has come."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                data, ancillary, *_ = self._socket.recvmsg(_MAX_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
                users = [_CREDENTIALS.unpack(content)[1] for _, _, content in ancillary]
                what, rank, suspect, *_ = [*data.decode(errors="replace").split(" "), "", ""]
                if users == [os.geteuid()] and rank.isdecimal():
                    found.append(FailureReport(what, int(rank), int(suspect) if suspect.isdecimal() else None))
        return found

    def close(self) -> None:
        """Ends listening."""
        self._socket.close()


class FailureReports:
    """What the ranks of a job have told.

    `by_themselves` are the ranks that fail by themselves, in order of arrival; `suspects` are those that errors point
    at, because their calls differ, or because they came late or ended early.
    """

    def __init__(self) -> None:
        self.by_themselves: list[int] = []
        self.suspects: set[int] = set()
        self._following: set[int] = set()
        self._heard: set[int] = set()

    def take(self, report: FailureReport, *, ending: bool) -> None:
        """Adds a report. ending: ranks were told to end, which makes them fail."""
        if report.what == _FAILS and not ending and report.rank not in self.by_themselves:
            self.by_themselves.append(report.rank)
        elif report.what == _FOLLOWS:
            self._following.add(report.rank)
        elif report.what == _HEARD:
            self._heard.add(report.rank)
        if report.suspect is not None:
            self.suspects.add(report.suspect)

    def follows(self, rank: int) -> bool:
        """Returns whether the rank has told that it fails, if it does, because another rank has failed."""
        return rank in self._following or (rank in self._heard and rank not in self.by_themselves)
