"""What each rank notes of itself, as all ranks of its host read it; over hosts: tests/hosts/test_over_loopback.py."""

import math
import signal
import time

import pytest

import hocket
from hocket.errors import CommunicationError
from hocket.runtime import run_ranks
from tests.runtime.test_faults import Ranks
from tests.waiting import wait_until

KINDS = ("thread", "process")


def note_and_read() -> None:
    with hocket.init() as comm:
        lower = comm.lower
        assert lower.progress() == [(0, math.inf)] * comm.size
        comm.barrier()
        for word in (0, 2**64 - 1, 5):
            begun = time.monotonic()
            lower.note_progress(word)
            comm.barrier()  # all have noted it
            found = lower.progress()
            assert [one for one, _ in found] == [word] * comm.size
            assert 0 <= found[comm.rank][1] <= time.monotonic() - begun
            comm.barrier()  # all have read it
        with comm.split(comm.rank % 2) as half:
            assert half.lower.progress() == [(0, math.inf)] * half.size  # each communicator has its own notes


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_read_the_last_word_of_each(kind: str) -> None:
    run_ranks(note_and_read, 4, kind=kind)


def test_a_rank_that_is_killed_leaves_its_last_word() -> None:
    program = """
comm = hocket.init()
if comm.rank == 1:
    comm.lower.note_progress(77)
tell(ready=1)
until_told()
failing(comm.barrier)
tell(words=[word for word, _ in comm.lower.progress()])
comm.close()
"""
    with Ranks(program, 2) as ranks:
        ranks.told(1)
        ranks.signal(1, signal.SIGKILL)
        ranks.processes[1].wait()
        ranks.tell(0)
        ranks.told(0)
        assert ranks.told(0)["error"] == "PeerDied"
        assert ranks.told(0)["words"] == [0, 77]


@pytest.mark.parametrize("word", [-1, 2**64, 0.5, "5", None])
def test_a_word_that_is_none_is_refused(word: object) -> None:
    with hocket.init() as comm:
        with pytest.raises(ValueError, match=r"rank 0: note_progress: expected an integer .* found .*; pack"):
            comm.lower.note_progress(word)  # type: ignore[arg-type]
        assert comm.lower.progress() == [(0, math.inf)]


def test_a_closed_communicator_has_no_notes() -> None:
    comm = hocket.init()
    lower = comm.lower
    comm.close()
    for call in (lower.progress, lower.closed, lambda: lower.note_progress(1)):
        with pytest.raises(CommunicationError, match="closed"):
            call()


def see_who_has_closed() -> None:
    with hocket.init() as comm:
        other = comm.dup()
        if comm.rank == 2:
            other.close()
        else:
            wait_until(lambda: other.lower.closed() == [2])
        comm.barrier()
        other.close()


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_have_closed_are_known(kind: str) -> None:
    run_ranks(see_who_has_closed, 3, kind=kind)
