"""Parameter server: few ranks sum for all."""

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from tests.schedule.promise import keeps_promise

SERVERS = ALGORITHMS["all_reduce", "parameter_server"]


def test_the_law_holds_for_all_rank_counts() -> None:
    for p in range(1, 34):
        SERVERS.verify(p, laws=(1, 2, 4, 5))
        keeps_promise(SERVERS.build(p))
    for p in range(1, 10):
        SERVERS.verify(p, laws=(3,))


@pytest.mark.parametrize(("p", "servers"), [(2, [0]), (7, [0]), (8, [0, 4]), (13, [0, 4, 8]), (16, [0, 4, 8, 12])])
def test_all_push_to_servers_and_pull_from_them(p: int, servers: list[int]) -> None:
    push, pull = SERVERS.build(p).steps()
    assert sorted(set(push.dst.tolist())) == sorted(set(pull.src.tolist())) == servers
    for chunk, server in enumerate(servers):
        pushed, pulled = push.dst == server, pull.src == server
        assert (push.src_chunk[pushed] == chunk).all() and (pull.src_chunk[pulled] == chunk).all()
        assert push.src[pushed].tolist() == list(range(p)), "folded in the order of ranks"
        assert sorted(pull.dst[pulled].tolist()) == [rank for rank in range(p) if rank != server]
    assert np.count_nonzero(push.src == p - 1) == len(servers), "one that is no server sends the vector once"


def test_bits_are_those_of_a_fold_over_ranks() -> None:
    assert SERVERS.verify(9, laws=(4,)).labels == {"same_on_all_ranks", "rank_order", "size_invariant"}
