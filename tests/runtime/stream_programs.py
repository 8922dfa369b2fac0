"""Random programs of streams, events, collectives and messages, run by ranks and by a model that knows no streams.

python -m tests.runtime.stream_programs [--programs 10000]

The model does each action at once, in the order of the program. So ranks get the same only if the program orders all
conflicting accesses: before an action touches an array that another stream still uses, it waits, in one of the possible
ways. Vector clocks show which accesses are already ordered.
"""

import argparse
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

import hocket
from hocket.runtime import run_ranks

NUM_RANKS, NUM_STREAMS, NUM_EVENTS, NUM_ARRAYS, NUM_ELEMENTS = 3, 3, 3, 4, 40
PATIENCE_SECONDS = 100.0

Action = tuple[Any, ...]
"""A kind and its arguments. Where one is a stream, None is the host."""

Intent = tuple[str, int, int, int, int, int]
"""A kind, a stream (the host, where there is none of this number), two arrays, a number, a way to wait."""

KINDS = ("compute", "compute", "record", "wait_event", "sync_event", "sync_stream", "reduce", "broadcast", "exchange")


def intents() -> st.SearchStrategy[list[Intent]]:
    small = st.integers(0, 3)
    one = st.tuples(st.sampled_from(KINDS), small, small, small, st.integers(0, 20), st.integers(0, 2))
    return st.lists(one, max_size=25)


# --- from intents to programs --------------------------------------------------------------------------------------

Clock = dict[str, int]
"""Of an agent (the host, a stream, a communicator's stream, a message): how much of each agent comes before it."""


@dataclass
class Orders:
    """A program in the making, and the order of its accesses."""

    actions: list[Action] = field(default_factory=list)
    clocks: dict[str, Clock] = field(default_factory=dict)
    events: dict[int, Clock] = field(default_factory=dict)
    works: list[tuple[str, Clock]] = field(default_factory=list)
    accesses: dict[int, list[tuple[str, int, bool]]] = field(default_factory=dict)  # of an array: who, when, writes

    def clock(self, agent: str) -> Clock:
        return self.clocks.setdefault(agent, {})

    def join(self, agent: str, other: Clock) -> None:
        clock = self.clock(agent)
        for of, number in other.items():
            clock[of] = max(clock.get(of, 0), number)

    def touch(self, agent: str, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Records the next access of the agent."""
        clock = self.clock(agent)
        clock[agent] = clock.get(agent, 0) + 1
        for array in {*reads, *writes}:
            self.accesses.setdefault(array, []).append((agent, clock[agent], array in writes))

    def await_conflicts(self, stream: int | None, reads: Sequence[int], writes: Sequence[int], way: int) -> None:
        """Makes the stream, or the host, wait for all conflicting accesses."""
        for array in {*reads, *writes}:
            for agent, number, written in self.accesses.get(array, []):
                if (written or array in writes) and self.known_to(stream).get(agent, 0) < number:
                    self.wait_for(stream, agent, number, way)

    def known_to(self, stream: int | None) -> Clock:
        """Returns the clock of a new action in the stream, which comes after all that the host knows, too."""
        known = dict(self.clock("host"))
        if stream is not None:
            for of, number in self.clock(name_of(stream)).items():
                known[of] = max(known.get(of, 0), number)
        return known

    def wait_for(self, stream: int | None, agent: str, number: int, way: int) -> None:
        waiting = stream if way != 1 else None
        if agent.startswith("stream"):
            other = int(agent.split()[1])
            if way == 1:
                self.sync_stream(other)
            else:
                event = number % NUM_EVENTS
                self.record(event, other)
                self.wait_event(waiting, event)
        else:
            work = next(at for at, (of, clock) in enumerate(self.works) if of == agent and clock[agent] >= number)
            self.actions.append(("wait_work", waiting, work))
            self.join(name_of(waiting), self.works[work][1])

    def record(self, event: int, stream: int | None) -> None:
        self.actions.append(("record", event, stream))
        self.events[event] = self.known_to(stream) if stream is None else dict(self.clock(name_of(stream)))

    def wait_event(self, stream: int | None, event: int) -> None:
        self.actions.append(("wait_event", stream, event))
        self.join(name_of(stream), self.events.get(event, {}))

    def sync_stream(self, stream: int) -> None:
        self.actions.append(("sync_stream", stream))
        self.join("host", self.clock(name_of(stream)))

    def launch(self, action: Action, agent: str, blocking: bool, reads: Sequence[int], writes: Sequence[int]) -> None:
        stream: int | None = action[1]
        self.actions.append((*action, blocking))
        self.join(agent, self.known_to(stream))
        self.touch(agent, reads, writes)
        self.works.append((agent, dict(self.clock(agent))))
        if blocking:
            self.join(name_of(stream), self.clock(agent))


def name_of(stream: int | None) -> str:
    return "host" if stream is None else f"stream {stream}"


def program_of(intents: Sequence[Intent]) -> list[Action]:
    """Returns the actions: each intent after the waits that it needs."""
    orders = Orders()
    for kind, number, a, b, c, way in intents:
        stream = number if number < NUM_STREAMS else None
        event, blocking = c % NUM_EVENTS, c % 2 == 0
        if kind == "compute":
            orders.await_conflicts(stream, [b], [a], way)
            orders.actions.append(("compute", stream, a, b, c))
            orders.join(name_of(stream), orders.known_to(stream))
            orders.touch(name_of(stream), [b], [a])
        elif kind == "record":
            orders.record(event, stream)
        elif kind == "wait_event":
            orders.wait_event(stream, event)
        elif kind == "sync_event":
            orders.wait_event(None, event)
        elif kind == "sync_stream":
            orders.sync_stream(number % NUM_STREAMS)
        elif kind == "exchange":
            if a != b:
                orders.await_conflicts(stream, [a], [b], way)
                orders.launch(("exchange", stream, a, b), f"message {len(orders.works)}", blocking, [a], [b])
        else:
            orders.await_conflicts(stream, [], [a], way)
            orders.launch((kind, stream, a, c), "communicator", blocking, [], [a])
    return orders.actions


# --- the model -----------------------------------------------------------------------------------------------------


def first_arrays(rank: int) -> list[Any]:
    return [np.full(NUM_ELEMENTS, rank * 10 + number, np.int64) for number in range(NUM_ARRAYS)]


def compute(target: Any, source: Any, number: int) -> None:
    if number % 7 == 0:
        time.sleep(0.0003)  # so that others overtake it if they do not wait
    target[:] = target * 3 + source + number


def modelled(program: Sequence[Action]) -> list[list[Any]]:
    """Returns the arrays of all ranks at the end."""
    of_ranks = [first_arrays(rank) for rank in range(NUM_RANKS)]
    for kind, *arguments in program:
        if kind == "compute":
            _, a, b, number = arguments
            for rank, arrays in enumerate(of_ranks):
                compute(arrays[a], arrays[b], number * NUM_RANKS + rank)
        elif kind == "reduce":
            total = sum(arrays[arguments[1]] for arrays in of_ranks)
            for arrays in of_ranks:
                arrays[arguments[1]][:] = total
        elif kind == "broadcast":
            root = arguments[2] % NUM_RANKS
            for arrays in of_ranks:
                arrays[arguments[1]][:] = of_ranks[root][arguments[1]]
        elif kind == "exchange":
            _, a, b, _ = arguments
            for rank, arrays in enumerate(of_ranks):
                arrays[b][:] = of_ranks[rank - 1][a]
    return of_ranks


# --- the ranks -----------------------------------------------------------------------------------------------------


def launched(comm: hocket.Communicator, arrays: list[Any], kind: str, arguments: list[Any]) -> list[hocket.Work]:
    if kind == "reduce":
        return [comm.all_reduce(arrays[arguments[1]], async_op=True)]
    if kind == "broadcast":
        return [comm.broadcast(arrays[arguments[1]], arguments[2] % NUM_RANKS, async_op=True)]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return [comm.isend(arrays[arguments[1]], right), comm.irecv(arrays[arguments[2]], left)]


def executed(comm: hocket.Communicator, program: Sequence[Action]) -> list[Any]:
    """Returns one rank's arrays at the end."""
    arrays = first_arrays(comm.rank)
    streams = [hocket.Stream() for _ in range(NUM_STREAMS)]
    events = [hocket.Event(timing=number % 2 == 0) for number in range(NUM_EVENTS)]
    works: list[list[hocket.Work]] = []

    for kind, *arguments in program:
        if kind == "compute":
            stream, a, b, number = arguments
            call = (compute, arrays[a], arrays[b], number * NUM_RANKS + comm.rank)
            if stream is None:
                call[0](*call[1:])
            else:
                streams[stream].submit(*call)
        elif kind == "record":
            event, stream = arguments
            events[event].record(None if stream is None else streams[stream])
        elif kind == "wait_event":
            stream, event = arguments
            events[event].wait(None if stream is None else streams[stream])
        elif kind == "sync_stream":
            streams[arguments[0]].synchronize()
        elif kind == "wait_work":
            stream, number = arguments
            with hocket.stream(None if stream is None else streams[stream]):
                for work in works[number]:
                    work.wait()
        else:
            stream, *_, blocking = arguments
            with hocket.stream(None if stream is None else streams[stream]):
                works.append(launched(comm, arrays, kind, arguments))
                for work in works[-1] if blocking else ():
                    work.wait()
    for stream in streams:
        stream.synchronize()
    for work in [work for of_one in works for work in of_one]:
        work.wait()
    return arrays


class Ranks:
    """Threads that run one program after another, as ranks."""

    def __init__(self) -> None:
        self._programs: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(NUM_RANKS)]
        self._found: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=lambda: run_ranks(self._main, NUM_RANKS, kind="thread"), daemon=True)

    def __enter__(self) -> "Ranks":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for programs in self._programs:
            programs.put(None)
        self._thread.join(PATIENCE_SECONDS)

    def run(self, program: Sequence[Action]) -> list[list[Any]]:
        """Returns the arrays of all ranks at the end; fails if a rank does not reach it."""
        for programs in self._programs:
            programs.put(program)
        found = dict(self._found.get(timeout=PATIENCE_SECONDS) for _ in range(NUM_RANKS))
        return [found[rank] for rank in range(NUM_RANKS)]

    def _main(self) -> None:
        with hocket.init() as comm:
            while (program := self._programs[comm.rank].get()) is not None:
                self._found.put((comm.rank, executed(comm, program)))


def check(ranks: Ranks, intents: Sequence[Intent]) -> None:
    """Asserts that the ranks get what the model gets."""
    program = program_of(intents)
    expected = modelled(program)
    for rank, arrays in enumerate(ranks.run(program)):
        for number, x in enumerate(arrays):
            assert (x == expected[rank][number]).all(), f"array {number} of rank {rank} of {program}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=10_000, help="(10000)")
    arguments = parser.parse_args()
    num_actions = 0
    with Ranks() as ranks:

        @hypothesis.settings(max_examples=arguments.programs, deadline=None, database=None)
        @hypothesis.given(intents())
        def run(intents: list[Intent]) -> None:
            nonlocal num_actions
            num_actions += len(program_of(intents))
            check(ranks, intents)

        started = time.monotonic()
        run()
    print(
        f"{arguments.programs} programs of {num_actions} actions on {NUM_RANKS} ranks with {NUM_STREAMS} streams each: "
        f"as the model, in {time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
