"""Which algorithm runs, when the caller does not say: one table, read with what is equal on all ranks."""

import math

# collective -> (up to so many bytes, algorithm); the first line that fits. Bytes are those of the whole vector.
_DEFAULTS: dict[str, tuple[tuple[float, str], ...]] = {
    "all_reduce": ((64 << 10, "direct"), (math.inf, "direct_two_shot")),
    "all_gather": ((math.inf, "direct"),),
    "reduce_scatter": ((math.inf, "direct"),),
    "broadcast": ((math.inf, "binomial"),),
    "reduce": ((math.inf, "binomial"),),
    "barrier": ((math.inf, "dissemination"),),
}


def choose(collective: str, num_bytes: int) -> str:
    """The name of the algorithm for a vector of this size."""
    return next(name for limit, name in _DEFAULTS[collective] if num_bytes <= limit)
