"""Limits that are checked before anything starts: requests larger than the host, or too large to finish."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.schedule import Schedule

MOST_RANKS = 1024
"""Largest rank count on one host, and where all algorithms are tried. Above it, building all schedules takes minutes,
because some grow with the square of the rank count."""

MOST_PROVED_RANKS = 1 << 16
"""Largest rank count of a proof or a picture: beyond it, an algorithm alone writes its schedule for many seconds."""

MOST_COUNT = (1 << 31) - 1
"""Largest number of calls, checks or seconds."""

MOST_BYTES = 1 << 60

_MOST_PROVED_ROWS = 1 << 24  # above this, a picture or a prediction does not wait for the proof
_LAWS = (1, 2, 4, 5)  # law 3 is about plans; only the schedule is shown or predicted


def check_ranks(num_ranks: int, least: int = 1) -> None:
    """Raises ValueError if one host cannot have this many ranks."""
    if num_ranks < least:
        raise ValueError(f"ranks: expected at least {least}, found {num_ranks}")
    if num_ranks > MOST_RANKS:
        raise ValueError(f"ranks: expected at most {MOST_RANKS} on one host; found {num_ranks}")


def check_proved_ranks(counts: Iterable[int], what: str) -> None:
    """Raises ValueError for a rank count that is too large for `what`: "a proof" or "a picture"."""
    for num_ranks in counts:
        if num_ranks > MOST_PROVED_RANKS:
            raise ValueError(
                f"ranks: expected at most {MOST_PROVED_RANKS} for {what}, because a schedule has rows for every rank "
                f"and step; found {num_ranks}; take fewer ranks, or predict the time with `hocket simulate`"
            )


def check_memory(num_ranks: int, num_bytes: int, option: str) -> None:
    """Raises ValueError if this host cannot hold an input and an output of `num_bytes` on each of `num_ranks` ranks."""
    needed, present = 2 * num_ranks * num_bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > present:
        raise ValueError(
            f"an input and an output of {num_bytes} bytes on each of {num_ranks} ranks take {needed} bytes, and this "
            f"host has {present}; choose a smaller {option}"
        )


def laws_asked(schedule: "Schedule") -> tuple[int, ...]:
    """Returns the laws to check for a schedule that is only shown or predicted; none if the proof takes too long."""
    return _LAWS if schedule.num_rows <= _MOST_PROVED_ROWS else ()
