"""Fits costs to measured times: seconds per step, per byte sent, per byte reduced.

The times of one algorithm cannot separate bytes sent from bytes reduced, because both grow with the size of the call.
The proportion of the two differs between algorithms. So the price of a sent byte and the price of a reduced byte are
fitted to all algorithms of a group together. Each algorithm then gets its own price per step, and one factor for all
its bytes.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hocket.schedule import Schedule

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Traits:
    """The work of a schedule: steps; the most bytes that a rank sends; the most bytes that a rank reduces.

    Both are in units of the size that chooses the algorithm: the whole vector, or for all_to_all the input of a rank.
    """

    steps: int
    sent: float
    reduced: float


@dataclass(frozen=True)
class Costs:
    """Fitted costs: alpha seconds per step, beta per byte sent, gamma per byte reduced; none is negative.

    error: the root mean square of (predicted - measured) / measured.
    """

    alpha: float
    beta: float
    gamma: float
    error: float

    def parts(self, traits: Traits, num_bytes: int) -> tuple[float, float, float]:
        """Returns the seconds of a call of `num_bytes`: for its steps, for bytes sent, for bytes reduced."""
        sent, reduced = traits.sent * num_bytes, traits.reduced * num_bytes
        return self.alpha * traits.steps, self.beta * sent, self.gamma * reduced

    def seconds(self, traits: Traits, num_bytes: int) -> float:
        """Returns the predicted seconds of a call: the sum of the parts."""
        return sum(self.parts(traits, num_bytes))


Times = Sequence[tuple[int, float]]
"""The times of one algorithm: bytes, and seconds of a call."""


def traits_of(schedule: Schedule) -> Traits:
    """Counts the traits from the rows of a schedule. Local rows send nothing; a barrier sends no bytes of a vector."""
    if not schedule.kind.exactly_once:
        return Traits(schedule.num_steps, 0.0, 0.0)
    p = schedule.num_ranks
    sent, reduced = np.zeros(p), np.zeros(p)
    for repeat in schedule.repeats:
        step = repeat.step
        away = step.src != step.dst
        sent += repeat.times * np.bincount(step.src[away], step.count[away], p)
        reduced += repeat.times * np.bincount(step.dst[step.reduce], step.count[step.reduce], p)
    whole = schedule.vector_chunks
    return Traits(schedule.num_steps, float(sent.max() / whole), float(reduced.max() / whole))


def fit(measured: Mapping[Any, tuple[Traits, Times]]) -> dict[Any, Costs]:
    """Returns the costs of each algorithm of a group of ranks, by the keys given; each needs at least one time.

    It minimises the squares of the relative errors, so a call of a microsecond counts as much as one of a second.
    """
    if not measured:
        return {}
    columns = [_columns(traits, times) for traits, times in measured.values()]
    seconds = [np.array([second for _, second in times]) for _, times in measured.values()]
    _, beta, gamma = _non_negative(np.concatenate(columns), np.concatenate(seconds))
    costs = {}
    for key, own, times in zip(measured, columns, seconds, strict=True):
        prices = np.array([beta, gamma])
        if not (own[:, 1:] @ prices).any():  # no price for these bytes is known: use the same for both kinds
            prices = np.ones(2)
        alpha, factor = _non_negative(np.column_stack([own[:, 0], own[:, 1:] @ prices]), times)
        found = np.array([alpha, *(factor * prices)])
        error = float(np.sqrt(np.mean((own @ found / times - 1) ** 2)))
        costs[key] = Costs(float(found[0]), float(found[1]), float(found[2]), error)
    return costs


def _columns(traits: Traits, times: Times) -> Floats:
    """Returns a row for each time: steps, bytes sent, bytes reduced."""
    sizes = np.array([num_bytes for num_bytes, _ in times], np.float64)
    return np.column_stack([np.full(len(sizes), traits.steps), traits.sent * sizes, traits.reduced * sizes])


def _non_negative(columns: Floats, seconds: Floats) -> Floats:
    """Returns coefficients >= 0 with the least squares of relative errors; tries all choices of nonzero ones."""
    rows = columns / seconds[:, np.newaxis]
    scale = np.linalg.norm(rows, axis=0)
    present = [index for index in range(rows.shape[1]) if scale[index] > 0]
    best, least = np.zeros(rows.shape[1]), np.inf
    for size in range(1, len(present) + 1):
        for chosen in map(list, itertools.combinations(present, size)):
            solution = np.linalg.lstsq(rows[:, chosen] / scale[chosen], np.ones(len(rows)), rcond=None)[0]
            error = float(np.sum((rows[:, chosen] / scale[chosen] @ solution - 1) ** 2))
            if solution.min() >= 0 and error < least:
                best, least = np.zeros(rows.shape[1]), error
                best[chosen] = solution / scale[chosen]
    return best
