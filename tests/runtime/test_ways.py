"""The ways of what is sent: a trace names them, and a thousand equal calls take equal ones.

One thing may differ, and only where ranks write into each other's memory: a peer may not have said by then that it lets
this rank write. Then the piece takes the second way of its route.
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.runtime.traces import trace_file

CALLS = 1000
IN_ANOTHERS_MEMORY = {"put", "halve"}


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


def calls_of(comm: hocket.Communicator, count: int, new: Callable[[int], Any]) -> dict[str, Callable[[], object]]:
    """Returns a call of each collective, whose longest vector has about `count` float32 elements."""
    part = count // comm.size
    few, many, other = new(part), new(count), new(count)
    lengths = [part] * comm.size
    return {
        "all_reduce": lambda: comm.all_reduce(many, out=other),
        "all_gather": lambda: comm.all_gather(few, out=many),
        "reduce_scatter": lambda: comm.reduce_scatter(many, out=few),
        "broadcast": lambda: comm.broadcast(many),
        "reduce": lambda: comm.reduce(many, out=other),
        "all_to_all": lambda: comm.all_to_all(many, out=other),
        "gather": lambda: comm.gather(few, out=many),
        "scatter": lambda: comm.scatter(many if comm.rank == 0 else None, out=few),
        "barrier": comm.barrier,
        "all_gather_v": lambda: comm.all_gather_v(few, lengths, out=many),
        "all_to_all_v": lambda: comm.all_to_all_v(many, lengths, lengths, out=other),
        "gather_v": lambda: comm.gather_v(few, lengths if comm.rank == 0 else None, out=many),
        "scatter_v": lambda: comm.scatter_v(
            many if comm.rank == 0 else None, lengths if comm.rank == 0 else None, out=few
        ),
    }


def trace_equal_calls(folder: Path, count: int, registered: bool) -> list[str]:
    """Runs one rank: traces each collective, and returns their names."""
    with hocket.init() as comm:
        new = (lambda size: hocket.empty(size, "float32")) if registered else (lambda size: np.ones(size, np.float32))
        calls = calls_of(comm, count, new)
        for collective, call in calls.items():
            call()
            with hocket.trace(folder / f"{collective}.json", steps=True):
                for _ in range(CALLS):
                    call()
        return list(calls)


def ways_of(file: Path) -> tuple[dict[Any, set[str]], int]:
    """Returns the ways of each piece that a rank sends in a step, over all calls, and how many moves there are."""
    found: dict[Any, set[str]] = defaultdict(set)
    number = 0
    for one in steps_of(file):
        if "way" in one["args"]:
            move = one["args"]
            found[one["pid"], one["name"], move["step"], move["piece"]].add(move["way"])
            number += 1
    return found, number


@pytest.mark.parametrize(
    ("size", "count", "registered"),
    [(2, 16, False), (2, 262_144, False), (2, 160_000, True), (8, 4096, True)],
    ids=["2-short", "2-private", "2-registered", "8"],
)
def test_equal_calls_take_equal_ways(tmp_path: Path, size: int, count: int, registered: bool) -> None:
    collectives = hocket.run_ranks(trace_equal_calls, size, args=(tmp_path, count, registered), kind="process")[0]
    assert len(collectives) == 13
    for collective in collectives:
        pieces, number = ways_of(tmp_path / f"{collective}.json")
        assert pieces and number >= CALLS * len(pieces), f"{collective}: each piece is in each call"
        for piece, ways in pieces.items():
            assert len(ways) == 1 or (len(ways) == 2 and ways & IN_ANOTHERS_MEMORY), (collective, piece, ways)
