"""The assumptions of a simulation apart from the network: pieces, and the overheads and speed of ranks."""

import math
from dataclasses import dataclass, fields

PIECE_BYTES = 256 * 1024
"""The size of the executor's pieces."""


@dataclass(frozen=True)
class SimulationOptions:
    """Overheads and speeds of ranks. Raises ValueError for a negative value, or for a speed or size of 0.

    piece_bytes: chunks move in pieces of this size, pipelined; infinity: whole chunks. launch_seconds: from a call to
    its first message. send_seconds: time of a rank for each message before it leaves, one message after the other;
    receive_seconds: likewise after it has arrived. gap_seconds: the least time between messages that a rank sends, and
    between those that it receives. eager_bytes: a piece of a message of at most so many bytes does not hold up its
    sender; after another one it goes on when the last byte has left. reduce_bytes_per_second, copy_bytes_per_second:
    speed of a rank's additions and of its copies within memory. store_and_forward_bytes: nodes receive packets of this
    size completely before they forward them, and links are first in, first out; None: messages flow through all links
    at the same time and share them max-min fairly. tick_seconds: times of packets are cut to whole ticks; 0: they are
    not.

    LogGP (Alexandrov et al. 1995): L is the latency of links, o is send_seconds and receive_seconds, g gap_seconds, G
    1 / bandwidth; eager_bytes is infinite.
    """

    piece_bytes: float = PIECE_BYTES
    launch_seconds: float = 0.0
    send_seconds: float = 0.0
    receive_seconds: float = 0.0
    gap_seconds: float = 0.0
    eager_bytes: float = 0.0
    reduce_bytes_per_second: float = math.inf
    copy_bytes_per_second: float = math.inf
    store_and_forward_bytes: float | None = None
    tick_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value is None:
                continue
            positive = "bytes" in name and name != "eager_bytes"
            if (
                math.isnan(value)
                or value < 0
                or (positive and value == 0)
                or ("bytes" not in name and math.isinf(value))
            ):
                raise ValueError(f"{name}: expected {'more than 0' if positive else '0 or more'}, found {value}")
        if self.tick_seconds and self.store_and_forward_bytes is None:
            raise ValueError(f"tick_seconds: expected 0 without store_and_forward_bytes, found {self.tick_seconds}")
