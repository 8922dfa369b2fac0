"""Makes few cases in which every pair of values of two parameters occurs: a greedy, seeded generator.

Cases are tuples. `shapes` are the allowed tuples of the parameters that depend on each other; independent parameters
go with any shape.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

Case = tuple[Hashable, ...]
Pair = tuple[int, Hashable, int, Hashable]

CANDIDATES = 24  # how many cases are tried for each that is taken


def pairs_of(case: Case) -> set[Pair]:
    return {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(enumerate(case), 2)}


def pairwise(
    shapes: Sequence[Case],
    independent: Sequence[Sequence[Hashable]],
    *,
    covered_by: Callable[[Case], Iterable[Pair]] = pairs_of,
    seed: int = 0,
) -> list[Case]:
    """Returns cases that cover all pairs that any case covers: each a shape, and a value of each independent parameter.

    covered_by(case): the pairs that the case counts for, a part of pairs_of(case). A pair is given up after
    CANDIDATES random cases that contain it without covering it.
    """
    choose = random.Random(seed)
    width = len(shapes[0])
    having: dict[tuple[int, Hashable], list[Case]] = defaultdict(list)
    for shape in shapes:
        for place in enumerate(shape):
            having[place].append(shape)
    missing = dict.fromkeys(_all_pairs(shapes, independent))  # an ordered set: runs must not differ

    def candidate(pair: Pair) -> Case:
        i, a, j, b = pair
        fitting: Sequence[Case] = shapes
        if j < width:
            fitting = [shape for shape in having[i, a] if shape[j] == b]
        elif i < width:
            fitting = having[i, a]
        free = [choose.choice(list(values)) for values in independent]
        for place, value in ((i, a), (j, b)):
            if place >= width:
                free[place - width] = value
        return (*choose.choice(fitting), *free)

    cases: list[Case] = []
    while missing:
        pair = next(iter(missing))
        best: set[Pair] = set()
        taken: Case | None = None
        for _ in range(CANDIDATES):
            case = candidate(pair)
            gained = {one for one in covered_by(case) if one in missing}
            if pair in gained and len(gained) > len(best):
                best, taken = gained, case
        del missing[pair]  # even if nothing covers it
        for one in best - {pair}:
            del missing[one]
        if taken is not None:
            cases.append(taken)
    return cases


def _all_pairs(shapes: Sequence[Case], independent: Sequence[Sequence[Hashable]]) -> Iterable[Pair]:
    width = len(shapes[0])
    found: dict[Pair, None] = {}
    for shape in shapes:
        found.update(dict.fromkeys(sorted(pairs_of(shape), key=repr)))
    single = dict.fromkeys(place for shape in shapes for place in enumerate(shape))
    for offset, values in enumerate(independent):
        found.update({(i, a, width + offset, value): None for i, a in single for value in values})
    for (i, left), (j, right) in itertools.combinations(enumerate(independent), 2):
        found.update({(width + i, a, width + j, b): None for a in left for b in right})
    return found
