"""A hash of integers, equal on every machine. It spreads flows over equally good paths."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def mix(keys: npt.NDArray[np.int64], salt: npt.NDArray[np.int64] | int) -> Ints:
    """Returns a number from 0 to 2^62 - 1 for each key; depends on the salt. SplitMix64's finaliser (Steele 2014)."""
    with np.errstate(over="ignore"):
        x: npt.NDArray[Any] = np.asarray(keys, np.int64).astype(np.uint64)
        x = x * np.uint64(0x9E3779B97F4A7C15) + np.asarray(salt, np.int64).astype(np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(2)).astype(np.int64)
