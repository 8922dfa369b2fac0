"""What a command refuses before it begins, as it asks for more than a host has or than could ever end."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.schedule import Schedule

MOST_RANKS = 1024
"""On one host, or where all algorithms are tried: above, schedules of which some grow with the square of the ranks take
minutes to write."""

MOST_COUNT = (1 << 31) - 1
"""Of calls, checks and seconds."""

MOST_BYTES = 1 << 60

_MOST_PROVED_ROWS = 1 << 24  # above, a picture or a prediction should not wait for the proof
_LAWS = (1, 2, 4, 5)  # law 3 is about plans; what is shown or predicted is the schedule


def check_ranks(num_ranks: int, least: int = 1) -> None:
    """ValueError for what is no number of ranks of one host."""
    if num_ranks < least:
        raise ValueError(f"--ranks: expected at least {least}, found {num_ranks}")
    if num_ranks > MOST_RANKS:
        raise ValueError(f"--ranks: expected at most {MOST_RANKS}, as they are on one host; found {num_ranks}")


def check_memory(num_ranks: int, num_bytes: int, option: str) -> None:
    """ValueError where this host cannot hold an input and an output of so many bytes on each of so many ranks."""
    needed, present = 2 * num_ranks * num_bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > present:
        raise ValueError(
            f"an input and an output of {num_bytes} bytes on each of {num_ranks} ranks take {needed} bytes, and this "
            f"host has {present}; choose a smaller {option}"
        )


def laws_asked(schedule: "Schedule") -> tuple[int, ...]:
    """The laws that a command holds a schedule to which it does not run; none where the proof would take too long."""
    return _LAWS if schedule.num_rows <= _MOST_PROVED_ROWS else ()
