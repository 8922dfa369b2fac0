"""What a simulation takes for granted beside the network: pieces, overheads of ranks, how fast they work."""

import math
from dataclasses import dataclass, fields

PIECE_BYTES = 256 * 1024
"""What the executor moves at once."""


@dataclass(frozen=True)
class SimulationOptions:
    """Seconds and bytes per second of ranks. ValueError for what is negative, or 0 where nothing would ever end.

    piece_bytes: chunks move in pieces of so many bytes, pipelined; infinity: whole. launch_seconds: from a call to its
    first message. send_seconds: a rank needs them for each message before it leaves, one after the other;
    receive_seconds likewise after it arrived. reduce_bytes_per_second, copy_bytes_per_second: of what a rank adds, and
    moves within its memory. store_and_forward_bytes: nodes receive packets of so many bytes whole before they send them
    on, each link first in first out; None: messages flow through all links at once and share them max-min fairly.
    tick_seconds: of packets, times are cut to whole ticks; 0: they are not.
    """

    piece_bytes: float = PIECE_BYTES
    launch_seconds: float = 0.0
    send_seconds: float = 0.0
    receive_seconds: float = 0.0
    reduce_bytes_per_second: float = math.inf
    copy_bytes_per_second: float = math.inf
    store_and_forward_bytes: float | None = None
    tick_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if value is None:
                continue
            positive = "bytes" in name
            if math.isnan(value) or value < 0 or (positive and value == 0) or (not positive and math.isinf(value)):
                raise ValueError(f"{name}: expected {'more than 0' if positive else '0 or more'}, found {value}")
        if self.tick_seconds and self.store_and_forward_bytes is None:
            raise ValueError(f"tick_seconds: expected 0 without store_and_forward_bytes, found {self.tick_seconds}")
