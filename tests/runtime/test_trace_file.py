"""Trace files: parts are added without reading the others, and the file is always complete; other files are refused."""

import fcntl
import gzip
import json
from pathlib import Path

import pytest

from hocket.runtime.traces import trace_file
from hocket.runtime.traces.trace_file import Event


def part(rank: int, *names: str, boot: str = "b") -> list[Event]:
    said = {"rank": rank, "size": 2, "boot": boot, "ended_early": False, "communicators": {}}
    slices = [{"ph": "X", "pid": rank, "tid": 0, "ts": 1.5, "dur": 2, "name": name, "cat": "compute"} for name in names]
    return [{"ph": "M", "pid": rank, "tid": 0, "name": "rank", "args": said}, *slices]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_ranks_add_their_parts(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    for rank in range(3):
        trace_file.append(file, "run", part(rank, f"of {rank}"))
        found = trace_file.read(file)
        assert sorted(found.ranks) == list(range(rank + 1))
        assert [one["name"] for one in found.events if one["ph"] == "X"] == [f"of {one}" for one in range(rank + 1)]
    data = file.read_bytes()
    document = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
    assert document["otherData"]["run"] == "run" and len(document["traceEvents"]) == 6


def test_a_rank_that_is_stopped_while_it_writes_holds_nobody_up_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "_PATIENCE_SECONDS", 0.05)
    file = tmp_path / "trace.json"
    trace_file.append(file, "run", part(0, "a"))
    with file.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"kept it locked for 0.05 seconds; is a rank stopped\?: .*trace\.json"):
            trace_file.append(file, "run", part(1, "b"))
    trace_file.append(file, "run", part(2, "c"))
    assert sorted(trace_file.read(file).ranks) == [0, 2]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize("left", [b"", b"something else", b"\x1f\x8b\x08 no gzip"])
def test_another_run_begins_anew(tmp_path: Path, name: str, left: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(left)
    trace_file.append(file, "one", part(0, "a"))
    trace_file.append(file, "two", part(1, "b"))
    assert sorted(trace_file.read(file).ranks) == [1]
    trace_file.write(file, "two", part(0, "c"))
    assert sorted(trace_file.read(file).ranks) == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "truncated"),
        ("3", "which has no list of traceEvents"),
        ('{"traceEvents": 3}', "which has no list of traceEvents"),
        ("[]", "which has no event with a duration"),
        ('{"traceEvents": []}', "which has no event with a duration"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=rf"expected a trace; found .*other\.json.*{message}"):
        trace_file.read(tmp_path / "other.json")


SLICE = {"ph": "X", "pid": 0, "tid": 0, "ts": 1.5, "dur": 2, "name": "work", "cat": "compute"}
ARROW = {"ph": "s", "pid": 0, "tid": 0, "ts": 1.5, "id": 1, "name": "launch", "cat": "launch"}
RANK = {"ph": "M", "pid": 0, "tid": 0, "name": "rank", "args": {"size": 1}}


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (3, "expected an object, found 3"),
        ({**SLICE, "ph": None}, "expected 'ph' as text, found None"),
        *(
            ({name: value for name, value in event.items() if name != key}, f"expected '{key}' as a number")
            for event in (SLICE, ARROW)
            for key in ("pid", "tid", "ts", "id")
            if key in event
        ),
        ({**SLICE, "ts": "soon"}, "expected 'ts' as a number of microseconds, found 'soon'"),
        ({**SLICE, "ts": True}, "expected 'ts' as a number of microseconds, found True"),
        ({**SLICE, "dur": "long"}, "expected 'dur' as a number of microseconds, found 'long'"),
        ({**SLICE, "tid": [1]}, r"expected 'tid' as a number or a text, found \[1\]"),
        ({"ph": "M", "pid": 0, "tid": [1], "name": "thread_name"}, "expected 'tid' as a number or a text"),
        ({**SLICE, "args": [1]}, r"expected 'args' as an object, found \[1\]"),
        ({**RANK, "pid": "zero"}, "expected 'pid' as the number of a rank, found 'zero'"),
        ({**RANK, "args": {"size": "2"}}, "expected 'size' as a number of ranks, found '2'"),
        ({**RANK, "args": {"communicators": {"c": 1}}}, "expected 'c' as a list of ranks, found 1"),
    ],
)
def test_an_event_without_what_it_needs_is_named_with_its_number_and_the_key(
    tmp_path: Path, event: object, message: str
) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"traceEvents": [RANK, SLICE, event]}))
    with pytest.raises(ValueError, match=rf"other\.json, event 2: {message}"):
        trace_file.read(file)


def test_a_damaged_file_is_refused_and_written_over(tmp_path: Path) -> None:
    file = tmp_path / "trace.json.gz"
    trace_file.write(file, "run", part(0, *map(str, range(1000))))
    data = bytearray(file.read_bytes())
    data[20:60] = bytes([255]) * 40
    file.write_bytes(data)
    with pytest.raises(ValueError, match="expected a trace; found"):
        trace_file.read(file)
    trace_file.append(file, "run", part(1, "a"))
    assert sorted(trace_file.read(file).ranks) == [1]


def test_files_of_different_ranks_become_one(tmp_path: Path) -> None:
    files = [tmp_path / f"{rank}.json" for rank in range(2)]
    for rank, file in enumerate(files):
        trace_file.write(file, f"run {rank}", part(rank, "work"))
    (tmp_path / "foreign.json").write_text(json.dumps([SLICE]))
    with pytest.raises(ValueError, match=r"found .*foreign\.json, which names no ranks"):
        trace_file.merge([files[0], tmp_path / "foreign.json"])
    merged = trace_file.merge(files)
    assert sorted(merged.ranks) == [0, 1] and len(merged.events) == 4
    with pytest.raises(ValueError, match=r"each rank in one file; found rank 0 in .*0\.json"):
        trace_file.merge([*files, files[0]])
    trace_file.write(files[1], "run", part(1, boot="another"))
    with pytest.raises(ValueError, match="one host without a restart in between"):
        trace_file.merge(files)
