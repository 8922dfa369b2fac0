"""The ways of what is sent: a trace names them, and equal calls in private memory take equal ones."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.runtime.traces import trace_file

# Elements of float32 of the longer array: in lines, in one slot, in pieces, and what the system may copy.
COUNTS = (16, 16_384, 262_144, 1 << 20)
NUM_CALLS = 20


def steps_of(file: Path) -> list[trace_file.Event]:
    return [one for one in trace_file.read(file).events if one["ph"] == "X" and one["cat"] == "step"]


def send_by_all_ways(file: Path) -> None:
    with hocket.init() as comm, hocket.trace(file, steps=True):
        for count in (2, 4_000, 4_000_000):
            comm.broadcast(np.ones(count, "f4"))
        x = hocket.empty(1_000_000)
        comm.broadcast(x)
        comm.barrier()  # before that, x may still be read


def test_each_piece_that_is_sent_names_its_way(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    hocket.run_ranks(send_by_all_ways, 2, args=(file,), kind="process")
    ways: dict[int, set[str]] = defaultdict(set)
    for one in steps_of(file):
        sends = one["name"].startswith("send")
        assert sends == ("way" in one["args"])
        if sends:
            ways[one["args"]["sequence"]].add(one["args"]["way"])
    # What goes beyond depends on the processor, and on whether cores are shared.
    assert (ways[1], ways[2]) == ({"line"}, {"stage"})
    assert ways[3] <= {"stage", "fetch", "halve"} and ways[4] <= {"stage", "lend", "put", "halve"}


def calls_of(comm: hocket.Communicator, count: int) -> list[Callable[[], Any]]:
    """Returns one call of each collective, from private memory to private memory."""
    x, out, part = np.ones(count, "f4"), np.ones(count, "f4"), np.ones(count // comm.size, "f4")
    whole = x if comm.rank == 0 else None
    return [
        lambda: comm.all_reduce(x, out=out),
        lambda: comm.all_gather(part, out=out),
        lambda: comm.reduce_scatter(x, out=part),
        lambda: comm.all_to_all(x, out=out),
        lambda: comm.broadcast(x),
        lambda: comm.reduce(x, out=out),
        lambda: comm.gather(part, out=out),
        lambda: comm.scatter(whole, out=part),
    ]


def repeat_all(file: Path) -> int:
    """Calls each collective many times in a trace; returns how many different calls there are."""
    with hocket.init() as comm:
        calls = [call for count in COUNTS for call in calls_of(comm, count)]
        for call in calls:
            call()
        with hocket.trace(file, steps=True):
            for call in calls:
                for _ in range(NUM_CALLS):
                    call()
        return len(calls)


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_equal_calls_take_equal_ways(num_ranks: int, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    num_kinds = hocket.run_ranks(repeat_all, num_ranks, args=(file,), kind="process")[0]
    ways: dict[tuple[int, int], set[tuple[Any, ...]]] = defaultdict(set)  # by rank and call
    for one in steps_of(file):
        if "way" in one["args"]:
            said = one["args"]
            move = (said["step"], one["name"], said["piece"], said["way"])
            ways[one["pid"], said["sequence"]].add(move)
    first = num_kinds + 1  # the calls before the trace
    for (rank, sequence), found in ways.items():
        same = sequence - (sequence - first) % NUM_CALLS
        assert found == ways[rank, same], f"rank {rank}: call {sequence} against call {same}"
    assert {way for moves in ways.values() for *_, way in moves} >= {"line", "stage"}
