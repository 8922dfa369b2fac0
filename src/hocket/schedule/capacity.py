"""Refusing work that memory cannot hold, before it begins: better than the end that the kernel makes of it."""

import errno
import os
from pathlib import Path

from hocket.errors import ResourceError

_ASK_FROM = 1 << 28
"""Bytes that every machine is taken to have."""


def require_memory(num_bytes: int, what: str) -> None:
    """ResourceError if this many bytes, needed for `what`, are more than half of the memory that is available now."""
    if num_bytes < _ASK_FROM:
        return
    available = _available()
    if num_bytes > available // 2:
        raise ResourceError(
            f"{what} would take {num_bytes / 2**30:.3g} GiB; expected at most half of the {available / 2**30:.3g} GiB"
            " available. Where ranks do the same, turned, few of them stand for all (symmetry.of), but not here:"
            " try fewer ranks, chunks or slots of scratch",
            errno=errno.ENOMEM,
            call="allocate",
        )


def _available() -> int:
    """Bytes that can be had without swapping; of a system that does not say, all that it has."""
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
