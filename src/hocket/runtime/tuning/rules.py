"""Makes few lines of a tuner file from measured rounds: only where an algorithm is clearly faster than the default."""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from hocket.runtime.choice.tuner_file import Rule

_CLEARLY = 0.95  # of the default's time, in the median of the rounds
_AGAIN = 0.98  # the same in the second measurement
_SURELY = 75  # per cent of the rounds in which it must be faster
_AS_GOOD = 1.04  # times the best: others may also serve a size, so that lines can be merged


def ratios(rounds: Mapping[str, Sequence[float]], name: str, default: str) -> list[float]:
    """Returns the time of an algorithm over the default's, round by round; empty unless both were timed to the end."""
    if len(rounds[name]) != len(rounds[default]):
        return []
    return [mine / other for mine, other in zip(rounds[name], rounds[default], strict=True)]


def clear_winners(rounds: Mapping[str, Sequence[float]], default: str) -> list[str]:
    """Returns algorithms that are faster than the default by more than the noise and close to the best; best first."""
    clear: dict[str, float] = {}
    for name in rounds:
        against = ratios(rounds, name, default)
        if against and np.median(against) <= _CLEARLY and np.percentile(against, _SURELY) < 1:
            clear[name] = float(np.median(against))
    least = min(clear.values(), default=0.0)
    return sorted((name for name in clear if clear[name] <= _AS_GOOD * least), key=lambda name: clear[name])


def loses_clearly(against: Sequence[float]) -> bool:
    """Returns whether the default is faster as clearly as an algorithm must be to be chosen; `against`: time ratios."""
    return bool(np.median(against) >= 1 / _CLEARLY and np.percentile(against, 100 - _SURELY) > 1)


def as_good(rounds: Mapping[str, Sequence[float]], default: str) -> list[str]:
    """Returns the algorithms that were timed to the end and than which the default is not clearly faster."""
    return [name for name in rounds if (against := ratios(rounds, name, default)) and not loses_clearly(against)]


def wins_again(against: Sequence[float]) -> bool:
    """Returns whether the ratios of a second measurement confirm that an algorithm is faster than the default."""
    return bool(np.median(against) <= _AGAIN)


def merged(
    collective: str,
    num_ranks: int,
    winners: Mapping[int, Sequence[str]],
    alike: Mapping[int, Collection[str]],
) -> list[Rule]:
    """Returns the fewest lines that give each measured size one of its winners; a size without winners gets none.

    alike: by size, the algorithms that are about as good as the default. Between two sizes, the border is halfway on a
    logarithmic scale if both have lines of their own, or if the algorithm of one size is `alike` at the other. Else the
    line ends at its measured size. The first line begins at 0, the last has no end.
    """
    sizes = sorted(winners)
    groups: list[tuple[list[int], list[str]]] = []  # adjacent sizes, and the algorithms that serve all of them
    for size in sizes:
        names = list(winners[size])
        if groups and names:
            both = [name for name in groups[-1][1] if name in names]
            if both:
                groups[-1] = ([*groups[-1][0], size], both)
                continue
        if groups and not names and not groups[-1][1]:
            groups[-1][0].append(size)
        else:
            groups.append(([size], names))
    rules = []
    for index, (served, names) in enumerate(groups):
        if not names:
            continue
        least, most = 0, -1
        if index > 0:
            before, taken = groups[index - 1]
            reaches = taken or names[0] in alike.get(before[-1], ())
            least = math.isqrt(before[-1] * served[0]) + 1 if reaches else served[0]
        if index + 1 < len(groups):
            after, taken = groups[index + 1]
            reaches = taken or names[0] in alike.get(after[0], ())
            most = math.isqrt(served[-1] * after[0]) if reaches else served[-1]
        rules.append(Rule(collective, least, most, names[0], num_nodes=1, num_ranks=num_ranks))
    return rules
