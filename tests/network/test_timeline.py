import gzip
import json
import math
from itertools import pairwise

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.network import SimulationOptions, parse, simulate
from hocket.network.simulation.timeline import chrome_trace, write
from hocket.view import Timeline


def recorded(kind, collective, name, **options):
    topology = parse(kind)
    schedule = ALGORITHMS[collective, name].build(topology.num_ranks)
    return simulate(schedule, topology, 4e6, options=SimulationOptions(**options), record=True)


def lanes(trace, process):
    """Returns the slices of each lane of a process, and the name of each lane."""
    names = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == process
    }
    found = {lane: [] for lane in names}
    for event in trace["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == process:
            found[event["tid"]].append(event)
    return found, names


def test_every_rank_and_every_used_link_has_lanes_that_hold_all_its_messages() -> None:
    result = recorded("switch:4,bandwidth=10e9B/s,latency=1us", "all_reduce", "ring", piece_bytes=math.inf)
    trace = chrome_trace(result)
    ranks, names = lanes(trace, 1)
    assert sorted(names.values()) == sorted(
        f"rank {rank} {what}" for rank in range(4) for what in ("sends", "receives")
    )
    assert all(len(slices) == 6 for slices in ranks.values())
    links, names = lanes(trace, 2)
    assert sorted(names.values()) == sorted(
        text for rank in range(4) for text in (f"rank{rank}->switch0", f"switch0->rank{rank}")
    )
    assert sum(slice["dur"] for slice in links[next(iter(links))]) == pytest.approx(6 * 1e6 / 10e9 * 1e6)
    end = max(slice["ts"] + slice["dur"] for slices in ranks.values() for slice in slices)
    assert end == pytest.approx(result.seconds * 1e6)


def test_a_simulated_run_is_a_trace_that_the_commands_read(tmp_path) -> None:
    result = recorded("switch:4,bandwidth=10e9B/s,latency=1us", "all_reduce", "ring")
    write(result, tmp_path / "simulated.json")
    timeline = Timeline.read(tmp_path / "simulated.json")
    assert timeline.processes == {1: "ranks", 2: "links"} and timeline.ranks == {}
    assert [lane.title for lane in timeline.lanes[:2]] == ["rank 0 sends", "rank 0 receives"]
    assert timeline.seconds == pytest.approx(result.seconds)
    assert len(timeline.arrows) == len(result.messages.step)


def test_slices_of_one_lane_never_overlap_and_arrows_have_both_ends() -> None:
    trace = chrome_trace(recorded("torus:3x3", "all_to_all", "direct", piece_bytes=1e5))
    for process in (1, 2):
        for slices in lanes(trace, process)[0].values():
            slices.sort(key=lambda slice: slice["ts"])
            for before, after in pairwise(slices):
                assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
    starts = {event["id"]: event["ts"] for event in trace["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in trace["traceEvents"] if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert all(starts[number] < ends[number] for number in starts)


def test_files_are_compressed_where_their_name_says_so(tmp_path) -> None:
    result = recorded("ring:4", "broadcast", "chain")
    write(result, tmp_path / "plain.json")
    write(result, tmp_path / "small.json.gz")
    assert json.loads((tmp_path / "plain.json").read_text()) == chrome_trace(result)
    assert json.loads(gzip.decompress((tmp_path / "small.json.gz").read_bytes())) == chrome_trace(result)


def test_a_run_that_was_not_recorded_has_no_timeline() -> None:
    topology = parse("ring:4")
    with pytest.raises(ValueError, match="record=True"):
        chrome_trace(simulate(ALGORITHMS["broadcast", "chain"].build(4), topology, 1.0))
