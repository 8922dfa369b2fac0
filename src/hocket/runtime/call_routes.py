"""By which ways the core would move the data of a call between ranks of this host."""

import os
from typing import NamedTuple

from hocket import _core
from hocket.runtime.choice.profile import profile_from, read_profiles
from hocket.runtime.plans import find, in_core
from hocket.runtime.ranks import cores
from hocket.runtime.tuning.timed_ranks import ITEM_BYTES, exact_bytes
from hocket.runtime.vocabulary import DTYPES
from hocket.schedule import find_collective, lower

MEMORIES = ("registered", "huge_pages", "small_pages")
_IN_PLACE = ("all_reduce", "broadcast", "reduce")


class Alike(NamedTuple):
    """Messages that travel alike: the step of each one, their bytes, and their way from each of MEMORIES."""

    steps: list[int]
    num_bytes: int
    ways: tuple[str, ...]


def routes_of(collective: str, algorithm: str, num_ranks: int, num_bytes: int) -> list[Alike]:
    """Returns the messages of a call of float32 without `out=`, in the order of their steps.

    It counts on ranks that may read each other's private memory, and whose cores share a cache. Raises ValueError if
    HOCKET_PROFILE is wrong.
    """
    shares_cores = cores.shared_by(num_ranks)
    profile = profile_from(read_profiles(os.environ)[shares_cores], shares_cores=shares_cores)
    schedule = find(collective, algorithm).build(num_ranks)
    num_blocks = 1 if find_collective(collective).blocks == "one" else num_ranks
    block = max(1, exact_bytes(collective, num_bytes, num_ranks) // ITEM_BYTES // num_blocks)
    dtype, in_place = DTYPES.index("float32"), collective in _IN_PLACE
    found: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for rank in range(num_ranks):
        plan = in_core(lower(schedule, rank, in_place), collective, algorithm)
        by_memory = [
            _core.routes(plan, in_place, dtype, block, getattr(_core.MemoryKind, memory), _core.Reach(), profile)
            for memory in MEMORIES
        ]
        for rows in zip(*by_memory, strict=True):
            ways = tuple(way if way == otherwise else f"{way} or {otherwise}" for *_, (way, otherwise, *_) in rows)
            step, readers, size, _ = rows[0]
            found.setdefault((size, ways), []).extend([step] * len(readers))
    alike = [Alike(sorted(steps), size, ways) for (size, ways), steps in found.items()]
    return sorted(alike, key=lambda one: (one.steps, -one.num_bytes))
