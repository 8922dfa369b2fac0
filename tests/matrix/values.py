"""What ranks contribute: values that round, wrap or propagate, as the reduction needs; the same in every run."""

from typing import Any

import numpy as np

from tests.matrix.definition import COMPLEX, FLOATS, Array, dtype_of

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0)


def values(dtype: str, op: str, count: int, seed: list[int], *, wild: bool = False) -> Array:
    """Returns `count` elements for this reduction; op "" only moves them, so they have any bits.

    wild: NaN, infinities and overflow also for sums and products, for folds with a known order.
    """
    random = np.random.default_rng(seed)
    stored = dtype_of(dtype)
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype not in FLOATS + COMPLEX:
        whole = np.frombuffer(random.bytes(count * stored.itemsize), stored).copy()
        if op in ("land", "lor", "lxor"):
            whole[random.random(count) < 0.4] = 0
        return whole
    if not op:
        return np.frombuffer(random.bytes(count * stored.itemsize), stored).copy()
    num_parts = 2 * count if dtype in COMPLEX else count
    parts = _real(random, op, num_parts, wild)
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype in COMPLEX:
            return parts.astype(stored.type(0).real.dtype).view(stored)
        return parts.astype(stored)


def _real(random: np.random.Generator, op: str, count: int, wild: bool) -> np.ndarray[Any, np.dtype[np.float64]]:
    if op in ("min", "max", "land", "lor", "lxor") or wild:
        normal = random.standard_normal(count) * (8 if wild else 1)
        special = random.choice(SPECIAL, count)
        return np.where(random.random(count) < (0.04 if wild else 0.3), special, normal)
    if op == "prod":  # near 1, so that eight of them neither overflow nor lose digits in eight bits
        return random.uniform(0.75, 1.33, count) * random.choice([-1.0, 1.0], count)
    return random.uniform(-4, 4, count)
