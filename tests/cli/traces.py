"""Events of traces with known times."""

from typing import Any

from hocket.runtime.traces.trace_file import Event

HOST, COLLECTIVES = 0, 4096


def event(rank: int, lane: int, begin: float, end: float, name: str, category: str, **said: Any) -> Event:
    """Times in microseconds."""
    return {
        "ph": "X", "pid": rank, "tid": lane, "ts": 1e9 + begin, "dur": end - begin, "name": name, "cat": category,
        "args": said,
    }  # fmt: skip


def arrow(number: int, start: tuple[int, int, float], end: tuple[int, int, float]) -> list[Event]:
    return [
        {"ph": phase, "pid": rank, "tid": lane, "ts": 1e9 + time, "name": "launch", "cat": "launch", "id": number}
        for phase, (rank, lane, time) in (("s", start), ("f", end))
    ]


def collective(rank: int, begin: float, end: float, sequence: int) -> Event:
    said = {"algorithm": "ring", "communicator": "c0", "sequence": sequence, "dtype": "float32", "bytes": 400}
    elements = {"elements_in": 100, "elements_out": 100}
    return event(rank, COLLECTIVES, begin, end, "all_reduce", "communication", **said, **elements)


def part(rank: int, *events: Event, **said: Any) -> list[Event]:
    facts = {"rank": rank, "size": 2, "boot": "b", "ended_early": False, "communicators": {"c0": [0, 1]}} | said
    names = [(0, "process_name", f"rank {rank}"), (HOST, "thread_name", "host")]
    names += [(COLLECTIVES, "thread_name", "collectives, ranks 0-1")]
    return [
        {"ph": "M", "pid": rank, "tid": 0, "name": "rank", "args": facts},
        *({"ph": "M", "pid": rank, "tid": lane, "name": kind, "args": {"name": name}} for lane, kind, name in names),
        *events,
    ]
