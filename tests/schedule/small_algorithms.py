"""Small algorithms for the tests of schedules: for each collective an obvious one, and one with many dependencies."""

from collections.abc import Callable

import numpy as np

from hocket.algorithms import ALGORITHMS
from hocket.schedule import Builder, Schedule, compose, find_collective

Make = Callable[[int, int, int], Schedule]  # of rank count, root and chunks per block


def _builder(collective: str, p: int, root: int, k: int) -> Builder:
    return Builder(collective, p, find_collective(collective).num_blocks(p) * k, root)


def _linear(collective: str) -> Make:
    """Every block goes directly from the root, or to it."""

    def make(p: int, root: int, k: int) -> Schedule:
        schedule = _builder(collective, p, root, k)
        others = schedule.ranks[schedule.ranks != root]
        src, dst = (others, root) if collective.startswith("gather") else (root, others)
        with schedule.step():
            schedule.copy(src=src, dst=dst, chunk=others * k, count=k)
        return schedule.finish()

    return make


def _explicit_gather(collective: str) -> Make:
    """Rank after rank, from input to output."""

    def make(p: int, root: int, k: int) -> Schedule:
        schedule = _builder(collective, p, root, k)
        for rank in range(p):
            with schedule.step():
                places = {"src_buffer": "input", "dst_buffer": "output", "src_chunk": 0, "dst_chunk": rank * k}
                schedule.copy(src=rank, dst=root, count=k, **places)
        return schedule.finish()

    return make


def _chain_scatter(p: int, root: int, k: int) -> Schedule:
    """All blocks travel down a chain of ranks, each of which keeps its own."""
    schedule = _builder("scatter", p, root, k)
    for hop in range(p - 1):
        left = (root + np.arange(hop + 1, p)) % p
        with schedule.step():
            schedule.copy(src=(root + hop) % p, dst=(root + hop + 1) % p, chunk=left * k, count=k)
    return schedule.finish()


def _pairwise(collective: str, explicit: bool) -> Make:
    """In step i every rank sends to the rank that is i further on."""

    def make(p: int, root: int, k: int) -> Schedule:
        schedule = _builder(collective, p, root, k)
        for distance in range(0 if explicit else 1, p):
            src, dst = schedule.ranks, (schedule.ranks + distance) % p
            with schedule.step():
                if explicit:
                    places = {"src_buffer": "input", "dst_buffer": "output"}
                    schedule.copy(src=src, dst=dst, src_chunk=dst * k, dst_chunk=src * k, count=k, **places)
                else:
                    schedule.copy(src=src, dst=dst, chunk=(src * p + dst) * k, count=k)
        return schedule.finish()

    return make


def _one_step_exchange(collective: str) -> Make:
    def make(p: int, root: int, k: int) -> Schedule:
        schedule = _builder(collective, p, root, k)
        src, dst = schedule.ranks[:, None], schedule.ranks
        with schedule.step():
            places = {"src_buffer": "input", "dst_buffer": "output"}
            schedule.copy(src=src, dst=dst, src_chunk=dst * k, dst_chunk=src * k, count=k, **places)
        return schedule.finish()

    return make


def _relayed_exchange(p: int, root: int, k: int) -> Schedule:
    """Everything goes through rank 0, one sender after the other."""
    schedule = _builder("all_to_all", p, root, k)
    ranks = schedule.ranks
    for src in range(p):
        with schedule.step():
            schedule.copy(src=src, dst=0, chunk=(src * p + ranks) * k, count=k)
        with schedule.step():
            schedule.copy(src=0, dst=ranks, chunk=(src * p + ranks) * k, count=k)
    return schedule.finish()


def _of_even(collective: str, name: str) -> Make:
    """The built-in algorithm of the even collective, for blocks of unequal length."""

    def make(p: int, root: int, k: int) -> Schedule:
        even = compose.refine(ALGORITHMS[collective, name].build(p), k)
        return Schedule(f"{collective}_v", p, even.num_chunks, 0, even.repeats, even.num_scratch)

    return make


def _explicit_reduce_scatter(p: int, root: int, k: int) -> Schedule:
    """Each rank copies its own contribution, and adds those of others one by one."""
    schedule = _builder("reduce_scatter_v", p, root, k)
    rank = schedule.ranks
    for distance in range(p):
        with schedule.step():
            write = schedule.reduce if distance else schedule.copy
            places = {"src_buffer": "input", "dst_buffer": "output", "src_chunk": rank * k, "dst_chunk": 0}
            write(src=(rank + distance) % p, dst=rank, count=k, **places)
    return schedule.finish()


SMALL: dict[tuple[str, str], Make] = {
    ("gather", "linear"): _linear("gather"),
    ("gather", "explicit"): _explicit_gather("gather"),
    ("gather", "chain"): lambda p, root, k: compose.reversed(_chain_scatter(p, root, k)),
    ("scatter", "linear"): _linear("scatter"),
    ("scatter", "chain"): _chain_scatter,
    ("all_to_all", "pairwise"): _pairwise("all_to_all", explicit=False),
    ("all_to_all", "explicit"): _pairwise("all_to_all", explicit=True),
    ("all_to_all", "one step"): _one_step_exchange("all_to_all"),
    ("all_to_all", "relayed"): _relayed_exchange,
    ("gather_v", "linear"): _linear("gather_v"),
    ("gather_v", "explicit"): _explicit_gather("gather_v"),
    ("scatter_v", "linear"): _linear("scatter_v"),
    ("all_gather_v", "ring"): _of_even("all_gather", "ring"),
    ("all_gather_v", "direct"): _of_even("all_gather", "direct"),
    ("reduce_scatter_v", "ring"): _of_even("reduce_scatter", "ring"),
    ("reduce_scatter_v", "direct"): _of_even("reduce_scatter", "direct"),
    ("reduce_scatter_v", "explicit"): _explicit_reduce_scatter,
    ("all_to_all_v", "pairwise"): _pairwise("all_to_all_v", explicit=False),
    ("all_to_all_v", "explicit"): _pairwise("all_to_all_v", explicit=True),
    ("all_to_all_v", "one step"): _one_step_exchange("all_to_all_v"),
}
"""By collective and name."""
