"""Writes a simulated run as a timeline for `hocket trace view` and Perfetto, with lanes for each rank and each link.

Each piece of a message is a slice of its sender and of its receiver, connected by an arrow, and of every link of its
path. Simultaneous slices of a rank or a link are in several lanes of the same name, one below the other.
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hocket.network.simulation.simulate import SimulationResult

Event = dict[str, Any]
Slice = tuple[float, float, str, Event]
"""Begin and end in seconds, the name, the arguments."""

_RANKS, _LINKS = 1, 2
_MICROSECONDS = 1e6


def write(result: SimulationResult, file: str | Path) -> None:
    """Writes the timeline of a recorded result as JSON; compressed if the file name ends in .gz."""
    content = json.dumps(chrome_trace(result)).encode()
    if str(file).endswith(".gz"):
        import gzip

        content = gzip.compress(content)
    Path(file).write_bytes(content)


def chrome_trace(result: SimulationResult) -> dict[str, Any]:
    """Returns the timeline in the Trace Event Format, in microseconds. Raises ValueError without recorded messages."""
    if result.messages is None:
        raise ValueError('a timeline needs recorded messages: expected simulate(..., level="events", record=True)')
    return {"traceEvents": list(_events(result)), "displayTimeUnit": "ns"}


def _events(result: SimulationResult) -> Iterator[Event]:
    messages, topology = result.messages, result.topology
    assert messages is not None
    columns = (messages.step, messages.piece, messages.source, messages.target, messages.num_bytes)
    times = (messages.started, messages.sent, messages.arrived)
    sends: dict[int, list[Slice]] = {}
    receives: dict[int, list[Slice]] = {}
    passing: dict[int, list[Slice]] = {}
    paths = topology.paths(messages.source, messages.target)
    rows = zip(*(column.tolist() for column in (*columns, *times)), strict=True)
    for number, (step, piece, source, target, num_bytes, started, sent, arrived) in enumerate(rows):
        what = {"step": step, "piece": piece, "bytes": num_bytes, "flow": number}
        sends.setdefault(source, []).append((started, sent, f"to {target}", what))
        receives.setdefault(target, []).append((started + (arrived - sent), arrived, f"from {source}", what))
        for link in paths.links[paths.offsets[number] : paths.offsets[number + 1]].tolist():
            passing.setdefault(link, []).append((started, sent, f"{source} to {target}", what))
    yield _name("process_name", _RANKS, 0, "ranks")
    yield _name("process_name", _LINKS, 0, "links")
    lane = 0
    for rank in range(topology.num_ranks):
        for title, slices, arrow in (("sends", sends, "s"), ("receives", receives, "f")):
            for taken in _lanes(slices.get(rank, [])):
                lane += 1
                yield _name("thread_name", _RANKS, lane, f"rank {rank} {title}")
                for one in taken:
                    yield _slice(_RANKS, lane, one)
                    yield _arrow(lane, one, arrow)
    for link, name in zip(sorted(passing), topology.link_names(sorted(passing)), strict=True):
        for taken in _lanes(passing[link]):
            lane += 1
            yield _name("thread_name", _LINKS, lane, name)
            yield from (_slice(_LINKS, lane, one) for one in taken)


def _lanes(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Returns the slices in as few lanes as possible, without overlap in a lane."""
    lanes: list[list[Slice]] = []
    free: list[tuple[float, int]] = []  # when each lane ends
    for one in sorted(slices, key=lambda slice: slice[:2]):
        if free and free[0][0] <= one[0] + 1e-15:
            number = heapq.heappop(free)[1]
        else:
            number = len(lanes)
            lanes.append([])
        lanes[number].append(one)
        heapq.heappush(free, (one[1], number))
    return lanes


def _slice(process: int, lane: int, one: Slice) -> Event:
    begin, end, name, what = one
    event = {"pid": process, "tid": lane, "ts": begin * _MICROSECONDS, "dur": (end - begin) * _MICROSECONDS}
    category = "communication" if process == _RANKS else "link"
    return {"ph": "X", "name": name, "cat": category, "args": what, **event}


def _arrow(lane: int, one: Slice, phase: str) -> Event:
    """Returns one end of the arrow from the beginning of the send to the end of the receive."""
    begin, end, _, what = one
    at = begin if phase == "s" else float(np.nextafter(end, begin))
    binding = {"bp": "e"} if phase == "f" else {}
    event = {"pid": _RANKS, "tid": lane, "ts": at * _MICROSECONDS}
    return {"ph": phase, "name": "message", "cat": "message", "id": what["flow"], **event, **binding}


def _name(kind: str, process: int, lane: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": lane, "args": {"name": name}}
