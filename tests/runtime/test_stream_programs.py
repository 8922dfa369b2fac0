"""Random programs compared with models: streams and collectives (make streams runs 10,000), failing streams."""

from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies as st

import hocket
from tests.runtime.stream_programs import Intent, Ranks, check, intents, program_of


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks() as ranks:
        yield ranks


@hypothesis.settings(max_examples=200)
@hypothesis.given(intents())
def test_a_random_program_gets_what_it_gets_without_streams(ranks: Ranks, intents: list[Intent]) -> None:
    check(ranks, intents)


def test_programs_wait_for_what_they_must_and_for_nothing_else() -> None:
    """Two streams use the same array in turn, with each way to wait; then they use different arrays."""
    for way, expected in enumerate(("wait_event", "sync_stream", "wait_event")):
        program = program_of([("compute", 0, 1, 2, 5, way), ("compute", 1, 1, 2, 5, way)])
        assert expected in [action[0] for action in program]
    assert len(program_of([("compute", 0, 1, 2, 5, 0), ("compute", 1, 0, 2, 5, 0)])) == 2


# --- failures ------------------------------------------------------------------------------------------------------

NUM_STREAMS, NUM_EVENTS = 3, 3
Step = tuple[str, int, int]


class Failed(Exception):
    """The error of a task, with the task's number."""


def fail(number: int) -> None:
    raise Failed(number)


def modelled(steps: list[Step]) -> tuple[list[list[int]], list[int]]:
    """Returns what each stream did, and the numbers of the raised errors, in the order of the program."""
    done: list[list[int]] = [[] for _ in range(NUM_STREAMS)]
    raised: list[int] = []
    failures: list[int | None] = [None] * NUM_STREAMS
    events: list[int | None] = [None] * NUM_EVENTS
    for number, (kind, s, e) in enumerate([*steps, *(("sync_stream", s, 0) for s in range(NUM_STREAMS))]):
        failure = failures[s]
        if kind == "work" and failure is None:
            done[s].append(number)
        elif kind == "fail" and failure is None:
            failures[s] = number
        elif kind == "record":
            events[e] = failure
        elif kind == "wait" and failure is None:
            failures[s] = events[e]
        elif kind == "sync_event" and (behind := events[e]) is not None:
            raised.append(behind)
        elif kind == "sync_stream" and failure is not None:
            raised.append(failure)
            failures[s] = None
    return done, raised


@hypothesis.settings(max_examples=150)
@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from(["work", "work", "fail", "record", "wait", "sync_event", "sync_stream"]),
            st.integers(0, NUM_STREAMS - 1),
            st.integers(0, NUM_EVENTS - 1),
        ),
        max_size=40,
    )
)
def test_streams_fail_as_they_are_said_to(steps: list[Step]) -> None:
    done: list[list[int]] = [[] for _ in range(NUM_STREAMS)]
    raised: list[int] = []
    streams = [hocket.Stream() for _ in range(NUM_STREAMS)]
    events = [hocket.Event() for _ in range(NUM_EVENTS)]
    for number, (kind, s, e) in enumerate([*steps, *(("sync_stream", s, 0) for s in range(NUM_STREAMS))]):
        try:
            if kind == "work":
                streams[s].submit(done[s].append, number)
            elif kind == "fail":
                streams[s].submit(fail, number)
            elif kind == "record":
                streams[s].record(events[e])
            elif kind == "wait":
                streams[s].wait(events[e])
            elif kind == "sync_event":
                events[e].synchronize()
            else:
                streams[s].synchronize()
        except Failed as error:
            raised.append(error.args[0])
    assert (done, raised) == modelled(steps)
