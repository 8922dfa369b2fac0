"""Refuses work that does not fit in memory before it begins, because otherwise the kernel would kill the process."""

import errno
import os
from pathlib import Path

from hocket.errors import ResourceError

_ASK_FROM = 1 << 28
"""Bytes that every machine is assumed to have."""


_NO_SYMMETRY = (
    "This schedule has no symmetry (symmetry.of) that would let a few ranks stand for all: try fewer ranks, chunks or "
    "slots of scratch"
)


def require_memory(num_bytes: int, what: str, advice: str = _NO_SYMMETRY) -> None:
    """ResourceError if this many bytes, needed for `what`, are more than half of the memory that is available now."""
    if num_bytes < _ASK_FROM:
        return
    available = _available()
    if num_bytes > available // 2:
        raise ResourceError(
            f"{what} would take {num_bytes / 2**30:.3g} GiB; expected at most half of the {available / 2**30:.3g} GiB"
            f" available. {advice}",
            errno=errno.ENOMEM,
            call="allocate",
        )


def _available() -> int:
    """Bytes that are available without swapping; if the system does not tell, all bytes that it has."""
    try:
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
