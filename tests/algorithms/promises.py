"""What every algorithm must keep at the rank counts that it takes, and the shape of its messages."""

from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.schedule import Step, find_collective

ALL_ROOTS_TO = 9


def named(name: str, *collectives: str) -> list[Algorithm]:
    """Returns the algorithms of this name: for these collectives, or for all."""
    return [one for key, one in ALGORITHMS.items() if key[1] == name and (not collectives or key[0] in collectives)]


def title(one: Algorithm) -> str:
    """Returns the name of a test of this algorithm."""
    return f"{one.collective}-{one.name}"


def roots(one: Algorithm, p: int) -> Iterable[int]:
    if not find_collective(one.collective).rooted:
        return [0]
    return range(p) if p <= ALL_ROOTS_TO else [0, p - 1]


def keeps_its_promises(one: Algorithm, rank_counts: Iterable[int], labels: Collection[str] = ()) -> None:
    """Asserts laws 1, 2, 4 and 5, and exactly these labels from three ranks on."""
    for p in filter(one.allows, rank_counts):
        for root in roots(one, p):
            certificate = one.verify(p, root, laws=(1, 2, 4, 5))
            assert one.steps is not None and one.sent is not None
            assert certificate.num_steps == one.steps(p)
            assert float(certificate.sent) == pytest.approx(one.sent(p))
            if p > 2:
                assert certificate.labels == set(labels), p


def has_sound_plans(one: Algorithm, rank_counts: Iterable[int]) -> None:
    """Asserts law 3, out of place and in place."""
    for p in filter(one.allows, rank_counts):
        for root in (0, p - 1) if find_collective(one.collective).rooted else (0,):
            one.verify(p, root, laws=(1, 3))


def distances(step: Step, p: int) -> set[int]:
    """Returns the distances of messages, upwards around the ring of all ranks."""
    return set(((step.dst - step.src)[step.src != step.dst] % p).tolist())


def refuses(one: Algorithm, num_ranks: int, expected: str, alternative: str) -> None:
    """Asserts that the refusal has the rank count, and names an algorithm that takes it for the same collective."""
    with pytest.raises(ValueError, match=f"expected {expected} ranks, found {num_ranks}; {alternative} takes any"):
        one.build(num_ranks)
    assert ALGORITHMS[one.collective, alternative].ranks is None


def chunks_sent(step: Step) -> set[int]:
    """Returns the numbers of chunks of the ranks that send anything."""
    sent = Counter[int]()
    for src, dst, count in zip(step.src.tolist(), step.dst.tolist(), step.count.tolist(), strict=True):
        if src != dst:
            sent[src] += count
    return set(sent.values())


def turned(step: Step, p: int) -> list[set[tuple[int, ...]]]:
    """Returns (target, chunk) of what each rank sends, both relative to the rank, modulo p."""
    moves: list[set[tuple[int, ...]]] = [set() for _ in range(p)]
    rows = (step.src, step.dst, step.src_chunk, step.count, step.stride)
    for src, dst, chunk, count, stride in np.stack(rows, axis=1).tolist():
        moves[src] |= {((dst - src) % p, (chunk + i * stride - src) % p) for i in range(count)}
    return moves
