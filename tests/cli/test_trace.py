"""`hocket trace`: what it finds in traces with known times, and in real ones."""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.runtime.traces import trace_file
from hocket.runtime.traces.trace_file import Event
from hocket.view import Timeline
from hocket.view.traces.trace_timeline import length, union, without
from tests.cli.traces import HOST, collective, event, part


def summary(file: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["trace", "summary", str(file), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_intervals() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]
    assert without([(0, 10), (20, 30)], [(2, 3), (9, 21), (25, 40)]) == [(0, 2), (3, 9), (21, 25)]
    assert without([(0, 1)], []) == [(0, 1)] and without([], [(0, 1)]) == [] and length([(0, 1), (2, 4)]) == 3


def test_time_by_name(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {(row["category"], row["name"]): row for row in summary(trace, capsys)["names"]}
    forward, inner = rows["compute", "forward"], rows["compute", "inner"]
    assert forward["wall_seconds"] == pytest.approx(300e-6)
    assert forward["self_seconds"] == pytest.approx(300e-6 - 30e-6 - 90e-6)
    assert (forward["occurrences"], forward["average_seconds"]) == (2, pytest.approx(150e-6))
    assert inner["self_seconds"] == pytest.approx(29e-6)  # the launch is inside it
    assert rows["communication", "all_reduce"]["occurrences"] == 4


def test_what_is_hidden_and_what_exposed(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    zero, one = summary(trace, capsys)["ranks"]
    assert zero["computing_seconds"] == pytest.approx(100e-6)
    assert zero["communicating_seconds"] == pytest.approx(130e-6)
    assert zero["hidden_seconds"] == pytest.approx(80e-6)
    assert zero["exposed_seconds"] == pytest.approx(50e-6)
    assert one["computing_seconds"] == pytest.approx(110e-6)  # the wait inside it is not computing
    assert (one["hidden_seconds"], one["exposed_seconds"]) == (pytest.approx(5e-6), pytest.approx(90e-6))


def test_a_hidden_share_is_an_upper_limit_because_no_trace_sees_every_wait_in_a_span(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    in_backward = [event(0, HOST, 0, 100, "backward", "compute"), collective(0, 40, 90, 1)]
    alone = [event(1, HOST, 0, 30, "forward", "compute"), collective(1, 40, 90, 1)]
    trace_file.write(file, "run", [*part(0, *in_backward), *part(1, *alone)])
    assert main(["trace", "summary", str(file)]) == 0
    printed = capsys.readouterr().out
    shares = [line.split("│")[6].strip() for line in printed.splitlines() if re.match(r"│ +[01] │", line)]
    assert shares == ["at most 100%", "0%"]  # where nothing is hidden, nothing is uncertain
    assert "hidden <=" in printed and "exposed >=" in printed and "The hidden time is an upper limit" in printed
    assert main(["trace", "view", str(file)]) == 0
    page = file.with_suffix(".html").read_text()
    assert '"limit":"The hidden time is an upper limit' in page and '"hidden <=", "exposed >="' in page


def test_who_comes_late(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = summary(trace, capsys)["stragglers"]
    assert (row["name"], row["ranks"], row["calls"], row["rank"], row["times_last"]) == ("all_reduce", [0, 1], 2, 1, 2)
    assert (row["mean_seconds"], row["most_seconds"]) == (pytest.approx(17.5e-6), pytest.approx(30e-6))


def test_a_summary_fits_into_a_narrow_terminal(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    assert main(["trace", "summary", str(trace)]) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert all(len(line) <= 60 and "…" not in line for line in lines)
    assert any(re.search("launch all_reduce +│ launch", line) for line in lines)  # what tells rows apart is whole
    assert any(re.search("rank +┃.* hidden share", line) for line in lines), "what does not fit comes below"


def test_summary_for_a_person(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "summary", str(trace)]) == 0
    printed = capsys.readouterr().out
    for expected in ("2 ranks, 200 us", "forward", "130 us", "62%", "rank 1", "17.5 us"):
        assert expected in printed
    assert "No trace" not in printed and "ends early" not in printed
    alone = tmp_path / "alone.json"
    trace_file.write(alone, "run", part(1, collective(1, 0, 1, 1), ended_early=True))
    assert main(["trace", "summary", str(alone)]) == 0
    printed = capsys.readouterr().out
    assert "No trace of rank 0" in printed and "The trace of rank 1 ends early" in printed
    assert 'A rank with "-" has recorded no computation' in printed and "hocket.span" in printed
    [row] = [line for line in printed.splitlines() if line.count(" - ") > 2]
    assert row.replace("│", " ").split() == ["1", "-", "1.00", "us", "-", "-", "-"]


def test_brackets_in_the_name_of_a_span_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    spans = [event(0, HOST, 10 * at, 10 * at + 5, name, "compute") for at, name in enumerate(("grad[w1]", "a[/b]"))]
    trace_file.write(file, "run", part(0, *spans))
    assert main(["trace", "summary", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "grad[w1]" in printed
    assert "a[/b]" in printed


def test_merge(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = trace_file.read(trace).events
    for rank in range(2):
        trace_file.write(tmp_path / f"{rank}.json", "run", [one for one in events if one["pid"] == rank])
    files = [str(tmp_path / f"{rank}.json") for rank in range(2)]
    assert main(["trace", "merge", *files, "-o", str(tmp_path / "merged.json.gz")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "merged.json.gz")
    assert trace_file.read(tmp_path / "merged.json.gz") == trace_file.read(trace)
    assert main(["trace", "merge", files[0], files[0], "-o", str(tmp_path / "twice.json")]) == 2
    assert "found rank 0" in capsys.readouterr().err


def test_bad_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert main(["trace", "summary", str(other), "--json"]) == 2
    assert "other.json" in json.loads(capsys.readouterr().out)["error"]
    for none, why in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory")):
        assert main(["trace", "view", str(none)]) == 2
        told = capsys.readouterr().err
        assert f"expected a trace; found '{none}': {why}" in told
        assert "HOCKET_TRACE=FILE" in told and "Errno" not in told


@pytest.mark.parametrize("action", [["merge", "-o"], ["plot", "-o"], ["view", "-o"], ["export", "--hta"]])
def test_where_nothing_can_be_written_is_told(
    trace: Path, tmp_path: Path, action: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command, option = action
    for place in (trace / "x.svg", tmp_path / "none" / "x.svg"):
        if command == "export" and place.parent != trace:
            continue  # the command makes the folder
        assert main(["trace", command, str(trace), option, str(place)]) == 2
        told = capsys.readouterr().err
        assert "expected a" in told and str(place) in told and "Errno" not in told


def all_commands(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """What the summary says, where all commands read the file."""
    for action in (["plot"], ["view"], ["export", "--hta", str(folder / "hta")]):
        assert main(["trace", action[0], str(file), *action[1:]]) == 0, capsys.readouterr().err
    assert main(["trace", "summary", str(file)]) == 0
    capsys.readouterr()
    return summary(file, capsys)


@pytest.mark.parametrize("kept", [{"cat"}, set()], ids=["category", "nothing"])
def test_a_trace_that_went_through_other_programs_needs_no_more_than_lanes_and_times(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: set[str]
) -> None:
    def reduced(event: Event) -> Event:
        if event["ph"] == "M":
            return event if event["name"] != "rank" else {**event, "args": {}}
        needed = {"ph", "pid", "tid", "ts", *(("dur", "name") if event["ph"] == "X" else ("id",)), *kept}
        left = {key: value for key, value in event.items() if key in needed}
        return {**left, "name": 7} if event["name"] == "forward" else left

    whole = all_commands(trace, tmp_path, capsys)
    events = [reduced(event) for event in trace_file.read(trace).events]
    events += [{"ph": "M", "pid": 0}, {"ph": "C"}, {"ph": "B", "name": 1}]  # nobody asks for these
    trace.write_text(json.dumps(events))  # a list of events is a trace, too
    left = all_commands(trace, tmp_path, capsys)
    times = [{row["name"]: row["wall_seconds"] for row in one["names"]} for one in (whole, left)]
    assert times[1]["7"] == times[0]["forward"] and times[1]["inner"] == times[0]["inner"]
    assert (left["ended_early"], left["missing"], left["stragglers"]) == ([], [], [])
    assert [row["rank"] for row in left["ranks"]] == [0, 1]
    assert [row["communicating_seconds"] > 0 for row in left["ranks"]] == [bool(kept)] * 2


def test_a_trace_of_pytorchs_profiler_is_summarised_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    file = tmp_path / "torch.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.nn.Linear(8, 8)(torch.ones(4, 8)).sum().backward()
    profiler.export_chrome_trace(str(file))
    assert "aten::addmm" in {row["name"] for row in summary(file, capsys)["names"]}
    assert main(["trace", "summary", str(file)]) == 0
    assert "rank" not in capsys.readouterr().out
    for action in ("plot", "view"):
        assert main(["trace", action, str(file)]) == 0
    timeline = Timeline.read(file)
    assert "python CPU" in timeline.processes.values() and timeline.arrows
    assert any(one.name == "[memory]" for lane in timeline.lanes for one in lane.instants)
    assert main(["trace", "export", str(file), "--hta", str(tmp_path / "hta")]) == 2
    assert "found one that names no ranks" in capsys.readouterr().err


def test_a_simulated_trace_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "simulated.json"
    command = ["simulate", "all_reduce", "--algorithm", "ring", "--topology", "ring:4", "--trace", str(file)]
    assert main(command) == 0
    assert main(["trace", "view", str(file)]) == 0
    page = (tmp_path / "simulated.html").read_text()
    assert '"processes":["ranks","links"]' in page and '"title":"rank 0 sends"' in page
    assert main(["trace", "summary", str(file)]) == 0
    assert "communication" in capsys.readouterr().out


# Other tools -----------------------------------------------------------------------------------------------------


def exported(trace: Path, folder: Path) -> list[Any]:
    assert main(["trace", "export", str(trace), "--hta", str(folder)]) == 0
    return [json.loads(gzip.decompress((folder / f"rank_{rank}.json.gz").read_bytes())) for rank in range(2)]


def test_export_has_what_hta_asks_for(trace: Path, tmp_path: Path) -> None:
    zero, one = exported(trace, tmp_path / "hta")
    assert zero["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 2}
    assert one["distributedInfo"]["rank"] == 1
    kernels = [event for event in zero["traceEvents"] if event["cat"] == "kernel"]
    communicating = [event for event in kernels if event["name"].startswith("ncclKernel_AllReduce")]
    assert [(event["ts"], event["dur"]) for event in communicating] == [(20, 120), (150, 10)]
    said = communicating[0]["args"]
    assert (said["Collective name"], said["In msg nelems"], said["Group size"]) == ("all_reduce", 100, 2)
    assert (said["Process Group Ranks"], said["dtype"], said["Seq"]) == ("[0, 1]", "float32", 1)
    computing = [event for event in kernels if event not in communicating]
    assert {event["args"]["stream"] for event in computing} == {7} != {said["stream"]}
    assert sum(event["dur"] for event in computing if event["name"] == "forward") == 70
    launches = {event["args"]["correlation"]: event for event in zero["traceEvents"] if event["cat"] == "cuda_runtime"}
    assert all(launches[event["args"]["correlation"]]["ts"] <= event["ts"] for event in kernels)
    assert [event["name"] for event in zero["traceEvents"] if event["cat"] == "user_annotation"] == ["ProfilerStep#0"]


def test_hta_reads_the_export(trace: Path, tmp_path: Path) -> None:
    reason = "HolisticTraceAnalysis, which brings Jupyter along, is not among what make test installs"
    analysis = pytest.importorskip("hta.trace_analysis", reason=reason)
    exported(trace, tmp_path / "hta")
    analyzer = analysis.TraceAnalysis(trace_dir=str(tmp_path / "hta"))
    overlap = analyzer.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    assert overlap[0] == pytest.approx(100 * 80 / 130, abs=2)
    broken_down = analyzer.get_temporal_breakdown(visualize=False).set_index("rank")
    assert broken_down["compute_time_pctg"][0] > 50


def test_plot(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "plot", str(trace)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "trace.svg")
    picture = (tmp_path / "trace.svg").read_text()
    for expected in ("rank 0: host", "rank 1: collectives, ranks 0-1", "forward", "communication"):
        assert f"<!-- {expected} -->" in picture
    for name in ("trace.txt", "trace"):
        assert main(["trace", "plot", str(trace), "-o", str(tmp_path / name)]) == 2
        assert f"expected a name that ends in .svg, .png, .pdf; found '{tmp_path / name}'" in capsys.readouterr().err


def moment(time: float, name: str, number: int) -> Event:
    return {"ph": "i", "s": "t", "pid": 0, "tid": HOST, "ts": 1e9 + time, "name": name, "cat": "event",
            "args": {"event": number}}  # fmt: skip


def test_plot_names_the_moments_of_events_and_none_hides_another(tmp_path: Path) -> None:
    names = ("record event on compute", "query event: not ready", "query event: ready")
    moments = [moment(time, name, 7) for time, name in zip((1, 2, 99), names, strict=True)]
    file = tmp_path / "events.json"
    trace_file.write(file, "run", part(0, event(0, HOST, 0, 100, "forward", "compute"), *moments))
    assert main(["trace", "plot", str(file)]) == 0
    picture = (tmp_path / "events.svg").read_text()
    places = {}
    for expected in ("record event 7 on compute", "query event 7: not ready", "query event 7: ready"):
        found = re.search(rf"<!--  {expected} -->\n *<g style=[^>]*translate\(([\d.]+) ([\d.]+)\)", picture)
        assert found, expected
        places[expected] = (float(found[1]), float(found[2]))
    (first, high), (second, low), (last, also_low) = places.values()
    assert high < low == also_low and first < second < last  # y grows downwards
    crowd = [moment(1 + number / 10, "record event", 1 + number) for number in range(9)]
    trace_file.write(file, "run", part(0, event(0, HOST, 0, 100, "forward", "compute"), *crowd))
    assert main(["trace", "plot", str(file)]) == 0
    assert "record event" not in (tmp_path / "events.svg").read_text()


def test_plot_names_what_is_waited_for_where_the_name_fits(tmp_path: Path) -> None:
    waits = [event(0, HOST, 0, 50, "wait for event", "wait", event=7), event(0, HOST, 60, 100, "forward", "compute")]
    waits += [event(0, HOST, 51, 53, "wait for all_reduce", "wait")]
    file = tmp_path / "waits.json"
    trace_file.write(file, "run", part(0, *waits))
    assert main(["trace", "plot", str(file)]) == 0
    picture = (tmp_path / "waits.svg").read_text()
    assert "<!-- wait for event 7 -->" in picture and "all_reduce" not in picture


def test_plot_without_matplotlib_names_the_extra(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.patches"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["trace", "plot", str(trace)]) == 2
    assert 'pip install "hocket[plot]"' in capsys.readouterr().err


# The page --------------------------------------------------------------------------------------------------------
