"""Neighbor exchange: two blocks at a time, with the left and right neighbours in turn."""

import pytest

from hocket.algorithms import ALGORITHMS, Algorithm
from tests.algorithms.promises import chunks_sent, distances, has_sound_plans, keeps_its_promises, named, refuses, title


@pytest.mark.parametrize("one", named("neighbor_exchange"), ids=title)
def test_it_keeps_its_promises(one: Algorithm) -> None:
    keeps_its_promises(one, range(1, 34), () if one.collective == "all_gather" else ("same_on_all_ranks",))


@pytest.mark.parametrize("one", named("neighbor_exchange"), ids=title)
def test_its_plans_are_sound(one: Algorithm) -> None:
    has_sound_plans(one, [1, 2, 4, 6, 8, 14])


@pytest.mark.parametrize("p", [4, 6, 10, 16])
def test_neighbours_on_either_side_in_turn(p: int) -> None:
    steps = list(ALGORITHMS["all_gather", "neighbor_exchange"].build(p).steps())
    got = [{rank} for rank in range(p)]  # What each rank received last.
    for i, step in enumerate(steps):
        assert distances(step, p) == {1, p - 1} and chunks_sent(step) == {2 if i else 1}
        rows = zip(step.src.tolist(), step.dst.tolist(), step.src_chunk.tolist(), step.count.tolist(), strict=True)
        moves = {src: (dst, set(range(chunk, chunk + count))) for src, dst, chunk, count in rows}
        assert all(moves[dst][0] == src for src, (dst, _) in moves.items()), "partners swap"
        assert moves[0][0] == (1 if i % 2 == 0 else p - 1)
        known = {rank: {rank, rank ^ 1} for rank in range(p)} if i == 1 else dict(enumerate(got))
        assert all(blocks == known[src] for src, (_, blocks) in moves.items()), "what came last"
        got = [moves[moves[rank][0]][1] for rank in range(p)]


@pytest.mark.parametrize("one", named("neighbor_exchange"), ids=title)
def test_refused_rank_counts_have_an_alternative(one: Algorithm) -> None:
    refuses(one, 5, "an even number of", "ring")
