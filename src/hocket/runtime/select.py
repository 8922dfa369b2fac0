"""Which algorithm runs, when the caller does not say: one table, read with what is equal on all ranks."""

import functools
import math

# For each collective, from the top: up to so many ranks, up to so many bytes of the whole vector, this algorithm.
# In shared memory a step costs more than reading a small vector several times; measured on 2 cores.
_DEFAULTS: dict[str, tuple[tuple[float, float, str], ...]] = {
    "all_reduce": ((2, 4 << 20, "direct"), (math.inf, 32 << 10, "direct"), (math.inf, math.inf, "direct_two_shot")),
    "all_gather": ((math.inf, math.inf, "direct"),),
    "reduce_scatter": ((math.inf, math.inf, "direct"),),
    "broadcast": ((math.inf, math.inf, "binomial"),),
    "reduce": ((math.inf, math.inf, "binomial"),),
    "barrier": ((math.inf, math.inf, "dissemination"),),
}


@functools.lru_cache(4096)  # programs repeat their sizes, and this is on the path of every call
def choose(collective: str, num_ranks: int, num_bytes: int) -> str:
    """The name of the algorithm for a vector of this size among so many ranks."""
    return next(name for ranks, limit, name in _DEFAULTS[collective] if num_ranks <= ranks and num_bytes <= limit)
