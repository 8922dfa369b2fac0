"""Traces: the file has what ranks do, with arguments and arrows, even if ranks fail."""

import os
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CommunicationError
from hocket.runtime.traces import trace_file
from hocket.runtime.traces.trace_file import Event, TraceFile


def traced(folder: Path, main: Callable[..., Any], num_ranks: int, **options: Any) -> TraceFile:
    """Returns the trace of main(communicator) on ranks that are threads."""
    file = folder / "out.json"

    def run() -> None:
        with hocket.init() as communicator, hocket.trace(file, **options):
            main(communicator)

    hocket.run_ranks(run, num_ranks, kind="thread")
    return trace_file.read(file)


def slices(trace: TraceFile, category: str, rank: int | None = None) -> list[Event]:
    return [one for one in trace.events if one["ph"] == "X" and one["cat"] == category and rank in (None, one["pid"])]


def lane_of(trace: TraceFile, event: Event) -> str:
    [name] = [
        one["args"]["name"]
        for one in trace.events
        if one["ph"] == "M"
        and one["name"] == "thread_name"
        and (one["pid"], one["tid"]) == (event["pid"], event["tid"])
    ]
    return str(name)


def arrows(trace: TraceFile, name: str) -> list[tuple[Event, Event]]:
    """Returns both ends of each arrow; asserts that each has one start, and one end that is not earlier."""
    ends: dict[int, list[Event]] = defaultdict(list)
    for one in trace.events:
        if one["ph"] in "sf" and one["name"] == name:
            ends[one["id"]].append(one)
    pairs = []
    for both in ends.values():
        assert sorted(one["ph"] for one in both) == ["f", "s"]
        end, start = sorted(both, key=lambda one: one["ph"])
        assert start["ts"] <= end["ts"] and end["bp"] == "e"
        pairs.append((start, end))
    return pairs


def around(trace: TraceFile, end: Event) -> list[Event]:
    """Returns the slices that contain an end of an arrow."""
    return [
        one
        for one in trace.events
        if one["ph"] == "X"
        and (one["pid"], one["tid"]) == (end["pid"], end["tid"])
        and one["ts"] <= end["ts"] <= one["ts"] + one["dur"]
    ]


def test_a_blocking_call_is_on_its_thread_and_on_its_communicator(tmp_path: Path) -> None:
    def main(comm: hocket.Communicator) -> None:
        comm.all_reduce(np.ones(1000, "f4"), op="max", algorithm="ring")
        comm.all_gather(np.ones(10, "i8"))

    trace = traced(tmp_path, main, 3)
    assert sorted(trace.ranks) == [0, 1, 2]
    for rank in range(3):
        reduced, gathered = slices(trace, "communication", rank)
        assert (reduced["name"], gathered["name"]) == ("all_reduce", "all_gather")
        said = reduced["args"]
        assert (said["algorithm"], said["bytes"], said["dtype"], said["op"]) == ("ring", 4000, "float32", "max")
        assert (said["sequence"], gathered["args"]["sequence"]) == (1, 2)
        assert (gathered["args"]["elements_in"], gathered["args"]["elements_out"]) == (10, 30)
        assert gathered["args"]["bytes"] == 240
        assert lane_of(trace, reduced) == "collectives, ranks 0-2"
        assert trace.ranks[rank]["communicators"] == {said["communicator"]: [0, 1, 2]}
        blocking = slices(trace, "blocking", rank)
        assert [(one["ts"], one["dur"]) for one in blocking] == [(one["ts"], one["dur"]) for one in (reduced, gathered)]
        assert lane_of(trace, blocking[0]) == "host"
    assert len({one["args"]["communicator"] for one in slices(trace, "communication")}) == 1


def test_an_arrow_leads_from_each_launch_to_its_execution(tmp_path: Path) -> None:
    def main(comm: hocket.Communicator) -> None:
        works = [comm.all_reduce(np.ones(100_000, "f4"), async_op=True) for _ in range(3)]
        comm.barrier()
        for work in works:
            work.wait()

    trace = traced(tmp_path, main, 2)
    for rank in range(2):
        assert [one["name"] for one in slices(trace, "launch", rank)][:3] == ["launch all_reduce"] * 3
        waits = [one["args"]["sequence"] for one in slices(trace, "wait", rank) if one["name"] == "wait for all_reduce"]
        assert waits == [1, 2, 3]
        executed = {one["args"]["sequence"]: one for one in slices(trace, "communication", rank)}
        found = {}
        for start, end in arrows(trace, "launch"):
            if end["pid"] == rank:
                [execution] = [
                    one for one in around(trace, end) if one["cat"] == "communication" and one["ts"] == end["ts"]
                ]
                launches = [one for one in around(trace, start) if one["cat"] in ("launch", "blocking")]
                assert launches and lane_of(trace, start) == "host"
                found[execution["args"]["sequence"]] = execution
        assert found == executed and len(executed) == 4


def test_messages_are_joined_across_ranks(tmp_path: Path) -> None:
    def main(comm: hocket.Communicator) -> None:
        long, short = np.ones(100_000, "f4"), np.zeros(3, "u1")
        if comm.rank == 0:
            works = [comm.isend(long, 1, tag=9), comm.isend(short, 1, tag=8)]
            comm.send(short, 1, tag=7)
            for work in works:
                work.wait()
        else:
            comm.recv(short, 0, tag=7)
            comm.recv(short, hocket.ANY_SOURCE, tag=8)
            comm.irecv(long, 0, tag=9).wait()
        comm.sendrecv(short, 1 - comm.rank, np.zeros(3, "u1"), 1 - comm.rank)

    trace = traced(tmp_path, main, 2)
    joined = arrows(trace, "message")
    said = [
        (start["pid"], end["pid"], *((one[0]["args"]["tag"], one[0]["args"]["bytes"]) for one in (sent, received)))
        for start, end in joined
        for sent, received in [([o for o in around(trace, start) if o["ts"] == start["ts"]], around(trace, end))]
    ]
    assert Counter(said) == Counter(
        [
            (0, 1, (9, 400_000), (9, 400_000)),
            (0, 1, (8, 3), (8, 3)),
            (0, 1, (7, 3), (7, 3)),
            (0, 1, (0, 3), (0, 3)),
            (1, 0, (0, 3), (0, 3)),
        ]
    )
    assert [one["name"] for one in slices(trace, "blocking", 0)] == ["send", "sendrecv"]
    assert [one["name"] for one in slices(trace, "wait", 1)] == ["wait for irecv"]
    lanes = defaultdict(list)
    for one in slices(trace, "communication", 0):
        lanes[one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
    assert all(before[1] <= after[0] for lane in lanes.values() for before, after in pairwise(lane))


@pytest.mark.parametrize("algorithm", ["ring", "direct_two_shot", "tree"])
def test_steps_are_joined_across_ranks(tmp_path: Path, algorithm: str) -> None:
    def main(comm: hocket.Communicator) -> None:
        for count in (10, 200_000):
            comm.all_reduce(np.ones(count, "f4"), algorithm=algorithm)

    trace = traced(tmp_path, main, 3, steps=True)
    moves = slices(trace, "step")
    calls = {(one["pid"], one["args"]["sequence"]): one for one in slices(trace, "communication")}
    for one in moves:
        call = calls[one["pid"], one["args"]["sequence"]]
        assert call["ts"] <= one["ts"] and one["ts"] + one["dur"] <= call["ts"] + call["dur"]
        assert lane_of(trace, one) == f"step {one['args']['step']}, ranks 0-2"
    assert sum(one["args"]["bytes"] for one in moves if one["name"].startswith("send")) >= 2 * 800_000
    joined = arrows(trace, "piece")
    assert joined
    for start, end in joined:
        [sent] = [one for one in around(trace, start) if one["ts"] == start["ts"]]
        assert any(
            (one["args"]["sequence"], one["args"]["step"], one["args"]["piece"])
            == (sent["args"]["sequence"], sent["args"]["step"], sent["args"]["piece"])
            for one in around(trace, end)
        )


def test_spans_nest_and_are_not_there_without_a_trace(tmp_path: Path) -> None:
    def main(comm: hocket.Communicator) -> None:
        with hocket.span("outer"), hocket.span("inner"):
            comm.barrier()

    with hocket.span("of nobody"):
        trace = traced(tmp_path, main, 2)
    for rank in range(2):
        inner, outer = sorted(slices(trace, "compute", rank), key=lambda one: one["dur"])
        [barrier] = slices(trace, "blocking", rank)
        assert (inner["name"], outer["name"]) == ("inner", "outer")
        ends = [(one["ts"], one["ts"] + one["dur"]) for one in (outer, inner, barrier)]
        assert ends[0][0] <= ends[1][0] <= ends[2][0] and ends[2][1] <= ends[1][1] <= ends[0][1]


def test_streams_have_lanes(tmp_path: Path) -> None:
    def multiply() -> None:
        with hocket.span("inside"):
            pass

    file = tmp_path / "out.json"
    with hocket.trace(file):
        computing, copying = hocket.Stream("compute"), hocket.Stream("copy")
        computing.submit(multiply)
        copying.wait(computing.record())
        copying.submit(multiply)
        copying.record().synchronize()
        computing.synchronize()
    trace = trace_file.read(file)
    items = [one for one in slices(trace, "compute") if one["name"].endswith("multiply")]
    assert [lane_of(trace, one) for one in items] == ["compute", "copy"]
    for item in items:
        [inside] = [one for one in slices(trace, "compute") if one["name"] == "inside" and one["tid"] == item["tid"]]
        assert item["ts"] <= inside["ts"] and inside["ts"] + inside["dur"] <= item["ts"] + item["dur"]
    waits = {(lane_of(trace, one), one["name"]) for one in slices(trace, "wait")}
    assert {("host", "wait for event"), ("host", "wait for compute")} <= waits
    assert waits <= {("host", "wait for event"), ("host", "wait for compute"), ("copy", "wait for event")}


def test_what_is_done_to_an_event_is_a_moment_of_the_thread_and_its_end_one_of_the_stream(tmp_path: Path) -> None:
    file, may_end = tmp_path / "out.json", threading.Event()
    computing, copying = hocket.Stream("compute"), hocket.Stream("copy")
    with hocket.trace(file):
        of_host, done = hocket.Event(), hocket.Event()
        of_host.record()
        computing.submit(may_end.wait)
        done.record(computing)
        assert not done.query()
        done.wait(copying)
        may_end.set()
        done.synchronize()
        assert done.query()
        computing.record(done)  # the stream is idle, so it is there at once
        copying.synchronize()
    trace = trace_file.read(file)
    moments = [one for one in trace.events if one["ph"] == "i"]
    assert all(one["cat"] == "event" and one["s"] == "t" and "dur" not in one for one in moments)
    [number] = {one["args"]["event"] for one in moments if one["name"] == "event reached"}
    by_lane = defaultdict(list)
    for one in moments:
        by_lane[lane_of(trace, one), one["args"]["event"] == number].append(one["name"])
    assert dict(by_lane) == {
        ("host", False): ["record event"],
        ("host", True): [
            "record event on compute",
            "query event: not ready",
            "wait for event on copy",
            "query event: ready",
            "record event on compute",
        ],
        ("compute", True): ["event reached", "event reached"],
    }
    waits = {lane_of(trace, one): one for one in slices(trace, "wait") if one["name"] == "wait for event"}
    assert waits.keys() == {"host", "copy"} and all(one["args"] == {"event": number} for one in waits.values())
    [item] = slices(trace, "compute")
    reached = [one["ts"] for one in moments if one["name"] == "event reached"]
    assert item["ts"] + item["dur"] <= reached[0] <= waits["host"]["ts"] + waits["host"]["dur"] <= reached[1]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_what_a_stream_calls_is_traced_as_its_rank(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "out.json"
    hocket.run_ranks(_compute_on_a_stream, 2, args=(str(file),), kind=kind)
    trace = trace_file.read(file)
    for rank in range(2):
        [item] = [one for one in slices(trace, "compute", rank) if one["name"] == "_submitted"]
        [inside] = [one for one in slices(trace, "compute", rank) if one["name"] == f"inside of {rank}"]
        [waited] = [one for one in slices(trace, "wait", rank) if one["name"] == "wait for event"]
        for one in (item, inside, waited):
            assert lane_of(trace, one) == "compute"


def _compute_on_a_stream(file: str) -> None:
    with hocket.init() as comm, hocket.trace(file):
        computing, copying = hocket.Stream("compute"), hocket.Stream("copy")
        computing.submit(_submitted, comm.rank, copying)
        computing.synchronize()


def _submitted(rank: int, other: hocket.Stream) -> None:
    with hocket.span(f"inside of {rank}"):
        other.record().synchronize()


def test_a_collective_launched_on_a_stream_is_launched_by_the_host(tmp_path: Path) -> None:
    def main(comm: hocket.Communicator) -> None:
        x = np.ones(1000, "f4")
        with hocket.stream(hocket.Stream("compute")) as stream:
            comm.all_reduce(x)
            assert stream is not None
        stream.synchronize()

    trace = traced(tmp_path, main, 2)
    for rank in range(2):
        [launch] = slices(trace, "launch", rank)
        assert (launch["name"], lane_of(trace, launch)) == ("launch all_reduce", "host")
        [execution] = slices(trace, "communication", rank)
        [(start, end)] = [one for one in arrows(trace, "launch") if one[0]["pid"] == rank]
        assert around(trace, start) == [launch] and around(trace, end) == [execution]


def test_a_message_that_comes_after_a_stream_begins_when_it_may(tmp_path: Path) -> None:
    def main(comm: hocket.Communicator) -> None:
        computing, may_end = hocket.Stream("compute"), threading.Event()
        computing.submit(may_end.wait)
        with hocket.stream(computing):
            works = [comm.isend(np.ones(3), 1 - comm.rank), comm.irecv(np.ones(3), 1 - comm.rank)]
        may_end.set()
        for work in works:
            work.wait()

    trace = traced(tmp_path, main, 2)
    for rank in range(2):
        [waited] = [one for one in slices(trace, "compute", rank) if one["name"].endswith("wait")]
        messages = slices(trace, "communication", rank)
        assert len(messages) == 2
        joined = [(start, end) for start, end in arrows(trace, "launch") if end["pid"] == rank]
        for one in messages:
            assert one["ts"] >= waited["ts"] + waited["dur"]
            assert [start for start, end in joined if (end["tid"], end["ts"]) == (one["tid"], one["ts"])]
        assert all(start["ts"] < waited["ts"] + waited["dur"] for start, _ in joined)


def test_every_communicator_has_a_lane_and_an_identity(tmp_path: Path) -> None:
    def main(comm: hocket.Communicator) -> None:
        halves, all_again = comm.split(comm.rank % 2), comm.dup()
        assert halves is not None
        for one in (comm, halves, all_again):
            one.all_reduce(np.ones(4, "f4"))

    trace = traced(tmp_path, main, 4)
    of_rank = [
        [one for one in slices(trace, "communication", rank) if one["name"] == "all_reduce"] for rank in range(4)
    ]
    titles = [[lane_of(trace, one) for one in calls] for calls in of_rank]
    assert titles[1] == ["collectives, ranks 0-3", "collectives, ranks 1, 3", "collectives, ranks 0-3 #2"]
    identities = [[one["args"]["communicator"] for one in calls] for calls in of_rank]
    assert [len({ranks[place] for ranks in identities}) for place in range(3)] == [1, 2, 1]
    assert len({one for ranks in identities for one in ranks}) == 4
    assert trace.ranks[3]["communicators"][identities[3][1]] == [1, 3]


def test_nobody_leaves_a_barrier_before_the_last_has_come(tmp_path: Path) -> None:
    file = tmp_path / "out.json.gz"
    hocket.run_ranks(_meet_often, 3, args=(str(file),), kind="process")  # each process reads its own clock
    entered, left = defaultdict(dict), defaultdict(dict)
    for one in slices(trace_file.read(file), "communication"):
        entered[one["args"]["sequence"]][one["pid"]] = one["ts"]
        left[one["args"]["sequence"]][one["pid"]] = one["ts"] + one["dur"]
    assert len(entered) == 200
    for sequence, times in entered.items():
        assert len(times) == 3
        assert min(left[sequence].values()) > max(times.values()) - 1  # microsecond


def _meet_often(file: str) -> None:
    with hocket.init() as comm, hocket.trace(file):
        for _ in range(200):
            comm.barrier()


def test_a_trace_replaces_what_another_left(tmp_path: Path) -> None:
    file = tmp_path / "out.json"

    def main() -> None:
        with hocket.init() as comm:
            for count in range(1, 3):
                with hocket.trace(file):
                    for _ in range(count):
                        comm.barrier()

    for _ in range(2):
        hocket.run_ranks(main, 2, kind="thread")
        trace = trace_file.read(file)
        assert [len(slices(trace, "communication", rank)) for rank in range(2)] == [2, 2]


def test_one_trace_at_a_time(tmp_path: Path) -> None:
    trace = hocket.trace(tmp_path / "out.json")
    with pytest.raises(RuntimeError, match="not under way"):
        trace.stop()
    with trace, pytest.raises(RuntimeError, match=r"traces into .*out\.json already"):
        hocket.trace(tmp_path / "other.json").start()
    with pytest.raises(FileNotFoundError):
        hocket.trace(tmp_path / "nowhere" / "out.json").start()
    with trace, hocket.span("alone"):  # a program that never joined others
        pass
    [alone] = slices(trace_file.read(tmp_path / "out.json"), "compute")
    assert alone["pid"] == 0


def test_a_failed_call_is_in_the_trace(tmp_path: Path) -> None:
    file = tmp_path / "out.json"

    def main() -> None:
        comm = hocket.init()
        try:
            with hocket.trace(file):
                if comm.rank == 1:
                    comm.abort("enough")
                comm.all_reduce(np.ones(3))
        except CommunicationError:
            pass

    hocket.run_ranks(main, 2, kind="thread")
    failed = [one for one in slices(trace_file.read(file), "communication", 0) if one["args"].get("failed")]
    assert [one["name"] for one in failed] == ["all_reduce"]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_rank_functions_are_traced_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HOCKET_TRACE", str(tmp_path / "out.json"))
    hocket.run_ranks(_meet, 2, kind=kind)
    trace = trace_file.read(tmp_path / "out.json")
    assert [len(slices(trace, "communication", rank)) for rank in range(2)] == [1, 1]


def _meet() -> None:
    hocket.init().barrier()


PROGRAM = """
import os, signal, sys
import numpy as np
import hocket
comm = hocket.init()
comm.barrier()
if len(sys.argv) > 1 and comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.all_reduce(np.ones(8))
except hocket.errors.PeerDied as death:
    assert death.rank == 1
if os.fork() == 0:  # a child's end is not the rank's
    sys.exit()
os.wait()
"""


@pytest.mark.parametrize("dies", [False, True])
def test_a_program_is_traced_by_its_environment(tmp_path: Path, dies: bool) -> None:
    program, file = tmp_path / "program.py", tmp_path / "out.json"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "hocket", "run", "-n", "3", "--", str(program), *(["dies"] if dies else [])]
    ended = subprocess.run(
        command, env=os.environ | {"HOCKET_TRACE": str(file)}, capture_output=True, text=True, check=False
    )
    assert (ended.returncode == 0) == (not dies), ended.stderr
    trace = trace_file.read(file)
    survivors = [0, 2] if dies else [0, 1, 2]
    assert sorted(trace.ranks) == survivors and trace.ranks[0]["size"] == 3
    for rank in survivors:
        names = [one["name"] for one in slices(trace, "communication", rank)]
        assert names[:2] == ["barrier", "all_reduce"]
    assert bool([one for one in slices(trace, "communication") if one["args"].get("failed")]) == dies


def test_a_trace_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    program = "import hocket; hocket.init()"
    variables = os.environ | {"HOCKET_TRACE": str(tmp_path / "nowhere" / "out.json")}
    ended = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False)
    assert ended.returncode != 0 and "nowhere" in ended.stderr and "HOCKET_TRACE asks for" in ended.stderr


def test_what_writes_a_trace_is_loaded_when_the_trace_begins(tmp_path: Path) -> None:
    """The first rank that stops would hold up other ranks of its process, which are still traced."""
    program = "import sys, hocket; hocket.trace(sys.argv[1]).start(); print(*sys.modules)"
    command = [sys.executable, "-c", program, str(tmp_path / "out.json")]
    loaded = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert "hocket.runtime.traces.trace_events" in loaded


def test_the_name_of_a_span_is_a_text() -> None:
    with pytest.raises(TypeError, match="span: expected its name in traces as text, found 3"):
        hocket.span(3)


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_long_trace_is_written_in_little_memory(tmp_path: Path, name: str) -> None:
    """There may be millions of records, so their text goes to the file piece by piece."""
    num_calls = 10_000
    x = np.ones(1, "f4")
    with hocket.init() as comm:
        trace = hocket.trace(tmp_path / name).start()
        for _ in range(num_calls):
            comm.all_reduce(x)
        tracemalloc.start()
        trace.stop()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(slices(trace_file.read(tmp_path / name), "communication")) == num_calls
    assert peak < 500 * num_calls
