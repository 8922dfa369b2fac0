"""How many addresses a rank reserves for its registered memory: those of the whole machine, within the limits."""

import os
import resource
from pathlib import Path

from hocket.errors import RendezvousError
from hocket.runtime.ranks.environment import discover


def arena_bytes(num_ranks: int | None = None) -> int:
    """Returns the size of an arena of this process; None means as many ranks as its environment says.

    It is the memory of the machine, unless there are too few addresses: a process maps the arenas of all ranks, and
    half of the addresses that are left stay free for the program. `ulimit -v` limits these, too; and `ulimit -f` an
    arena, because it is a file.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    address_bytes, limit = _address_bytes(), resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        address_bytes = min(address_bytes, limit)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * page
    num_ranks = _num_ranks() if num_ranks is None else num_ranks
    found = min(os.sysconf("SC_PHYS_PAGES") * page, (address_bytes - mapped) // (2 * num_ranks))
    file_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if file_bytes != resource.RLIM_INFINITY:
        found = min(found, file_bytes)
    return max(found // page, 1) * page


def _address_bytes() -> int:
    """Returns the addresses of a process: the stack lies near their end. What lies above 2**63 is the system's."""
    ends = (
        int(line.split("-", 2)[1].split(" ", 1)[0], 16) for line in Path("/proc/self/maps").read_text().splitlines()
    )
    return 1 << max(end for end in ends if end < 1 << 63).bit_length()


def _num_ranks() -> int:
    try:
        return discover().size
    except RendezvousError:  # hocket.init says it again, unless its arguments replace the environment
        return 1
