"""How many addresses a rank reserves for its registered memory: those of the whole machine, within the limits."""

import os
import resource
from pathlib import Path

from hocket.errors import RendezvousError
from hocket.runtime.ranks.environment import discover


def arena_bytes(num_ranks: int | None = None) -> int:
    """Returns the size of an arena of this process; None means as many ranks as its environment says.

    It is the memory of the machine. `ulimit -f` limits it, because an arena is a file, and so does `ulimit -v`: a
    process maps the arenas of all ranks, and half of the addresses that are left stay free for the program.
    """
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    file_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if file_bytes != resource.RLIM_INFINITY:
        found = min(found, file_bytes)
    address_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_bytes != resource.RLIM_INFINITY:
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        num_ranks = _num_ranks() if num_ranks is None else num_ranks
        found = min(found, (address_bytes - mapped) // (2 * num_ranks))
    page = os.sysconf("SC_PAGE_SIZE")
    return max(found // page, 1) * page


def _num_ranks() -> int:
    try:
        return discover().size
    except RendezvousError:  # hocket.init says it again, unless its arguments replace the environment
        return 1
