"""Cross-memory attach between processes: the same bits whether it is permitted, refused or switched off."""

import ctypes
import os
import signal
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import hocket
from hocket.runtime import may_attach, run_ranks
from tests.runtime.test_faults import Ranks

# float32 elements: 128 KiB is a piece. From 2 MiB in huge pages (NumPy has them from 4 MiB on), or from 16 MiB in other
# attached pages, both ranks move the data of one direction.
COUNTS = (16_388, 32_768, 300_004, 1_500_004, 4_194_300, 4_194_304, 4_800_004)
PR_SET_DUMPABLE = 4


def refuse_nothing(rank: int) -> None:
    """Attaching as the system permits it."""


def switch_off(rank: int) -> None:
    os.environ["HOCKET_CMA"] = "0"


def switch_off_on_one(rank: int) -> None:
    os.environ["HOCKET_CMA"] = str(int(rank != 1))


def hide_one(rank: int) -> None:
    """The kernel lets only a privileged process attach to one that cannot be dumped."""
    if rank == 1:
        assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0) == 0


def every_collective(before: Callable[[int], None]) -> None:
    before(int(os.environ["HOCKET_RANK"]))
    with hocket.init() as comm:
        rank, size = comm.rank, comm.size
        for count in COUNTS:
            of = [
                np.random.default_rng([count, each]).integers(-99, 99, count).astype("float32") for each in range(size)
            ]
            total, blocks = sum(of), np.split(of[rank][: count // size * size], size)
            for root in range(size):
                for x in (of[rank].copy(), hocket.empty(count, "float32")):
                    x[:] = of[rank]
                    assert (comm.broadcast(x, root=root) == of[root]).all()
                y = np.empty_like(of[rank])
                comm.broadcast(of[rank].copy(), root=root, out=y)
                assert (y == of[root]).all()
                reduced, gathered = comm.reduce(of[rank].copy(), root=root), comm.gather(of[rank], root=root)
                if rank == root:
                    assert (reduced == total).all() and (gathered == np.concatenate(of)).all()
                y = np.empty_like(blocks[0])
                comm.scatter(np.concatenate(blocks) if rank == root else None, out=y, root=root)
                assert (y == of[root][len(y) * rank :][: len(y)]).all()
            x = of[rank].copy()
            assert (comm.all_reduce(x) == total).all() and (comm.all_gather(of[rank]) == np.concatenate(of)).all()
            if rank == 0:
                comm.send(of[0], 1)
            elif rank == 1:
                comm.recv(y := np.empty_like(x), 0)
                assert (y == of[0]).all()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("before", [refuse_nothing, switch_off, switch_off_on_one, hide_one])
def test_every_collective_gives_the_same_however_memory_is_reached(size: int, before: Callable[[int], None]) -> None:
    run_ranks(partial(every_collective, before), size, kind="process")


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_stops_in_an_attached_broadcast_is_named(stopped: int) -> None:
    program = """
comm = hocket.init()
comm.barrier()
tell(ready=1)
failing(lambda: [comm.broadcast(np.ones(1 << 21), timeout=0.5) for _ in range(10**9)])
comm.close()
"""
    other = 1 - stopped
    with Ranks(program, 2) as ranks:
        for rank in range(2):
            ranks.told(rank)
        ranks.signal(stopped, signal.SIGSTOP)
        found = ranks.told(other)
        assert (found["error"], found["missing"]) == ("CollectiveTimeout", [stopped])
        assert ranks.end(other) == (0, "")
        ranks.signal(stopped, signal.SIGCONT)
        assert ranks.told(stopped)["error"] == "CollectiveTimeout"
        assert ranks.end(stopped) == (0, "")


def test_the_variable_is_0_or_1() -> None:
    assert may_attach({}) and may_attach({"HOCKET_CMA": "1"}) and not may_attach({"HOCKET_CMA": "0"})
    with pytest.raises(ValueError, match="expected 0"):
        may_attach({"HOCKET_CMA": "no"})
