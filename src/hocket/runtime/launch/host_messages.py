"""What `hocket run --hosts` and its agents on the hosts say to each other: one JSON object a line, through ssh.

The launcher writes to the agent's standard input, and an empty line from time to time, so that the agent knows that it
is there. Everything else that comes from a host is text of its shell or of ssh.
"""

import msgspec

from hocket.runtime.ranks.failure_reports import FailureReport

BEAT = b"\n"
BEAT_SECONDS = 5.0  # between two empty lines
SILENCE_SECONDS = 30.0  # an agent that hears nothing for so long ends its ranks
AGENT_MODULE = "hocket.runtime.launch.host_agent"


class StartRanks(msgspec.Struct, tag=True, frozen=True):
    """To an agent: start the ranks from `first` on. The other fields are arguments of HostRanks.start."""

    first: int
    num_ranks: int
    size: int
    address: str
    store: tuple[str, int]
    key: bytes
    program: list[str]
    directory: str
    variables: dict[str, str]


class SendSignal(msgspec.Struct, tag=True, frozen=True):
    """To an agent: send a signal to all ranks of the host."""

    number: int


class HostReady(msgspec.Struct, tag=True, frozen=True):
    """The first words of an agent. version: that of Hocket there.

    address: the one at which ssh reached the host ("" if it was not ssh); port, store_port: ports that are free there.
    """

    version: str
    address: str
    port: int
    store_port: int


class RankOutput(msgspec.Struct, tag=True, frozen=True):
    """Output of a rank; see RanksListener."""

    rank: int
    stream: int
    data: bytes


class RankTold(msgspec.Struct, tag=True, frozen=True):
    """A rank has told of its failure."""

    report: FailureReport


class RankEnded(msgspec.Struct, tag=True, frozen=True):
    """A rank has ended; see RanksListener."""

    rank: int
    code: int


class HostRefuses(msgspec.Struct, tag=True, frozen=True):
    """The program cannot be started on the host. code: the exit code that a shell would give."""

    text: str
    code: int


class HostDone(msgspec.Struct, tag=True, frozen=True):
    """All ranks of the host have ended, and all their output was sent: the last words of an agent."""


Order = StartRanks | SendSignal
News = HostReady | RankOutput | RankTold | RankEnded | HostRefuses | HostDone

read_order = msgspec.json.Decoder(Order).decode
read_news = msgspec.json.Decoder(News).decode


def line_of(message: Order | News) -> bytes:
    """Returns a message as it travels."""
    return msgspec.json.encode(message) + b"\n"


class WholeLines:
    """Cuts what comes from a descriptor into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def split(self, data: bytes) -> list[bytes]:
        """Returns the lines that data completes, without their ends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
