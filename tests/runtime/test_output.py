import os
from collections.abc import Iterator

import pytest

from hocket.runtime.launch.output import Sink, Source, last_traceback, reports_another


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(writing)


@pytest.mark.parametrize(
    ("parts", "label", "passed_on"),
    [
        ([b"one\n"], b"", [b"one\n"]),
        ([b"on", b"e\ntw", b"o\n"], b"", [b"", b"one\n", b"two\n"]),
        ([b"on", b"e\ntw", b"o\n"], b"[1] ", [b"", b"[1] one\n", b"[1] two\n"]),
        ([b"a\n\nb\n"], b"[1] ", [b"[1] a\n[1] \n[1] b\n"]),
        ([b"not\xffutf-8\r\n"], b"", [b"not\xffutf-8\r\n"]),
        # A line without an end does not grow forever.
        ([b"x" * 60000, b"y" * 60000], b"", [b"", b"x" * 60000 + b"y" * 60000]),
    ],
)
def test_whole_lines_are_passed_on(
    parts: list[bytes], label: bytes, passed_on: list[bytes], pipe: tuple[int, int]
) -> None:
    sink = Sink(-1)
    source = Source(pipe[0], sink, label)
    for part, expected in zip(parts, passed_on, strict=True):
        os.write(pipe[1], part)
        source.read()
        assert bytes(sink.pending) == expected
        sink.pending.clear()
    source.close()


@pytest.mark.parametrize(("label", "passed_on"), [(b"", b"rest"), (b"[0] ", b"[0] rest\n")])
def test_what_is_left_at_the_end_is_passed_on(label: bytes, passed_on: bytes) -> None:
    reading, writing = os.pipe()
    sink = Sink(-1)
    source = Source(reading, sink, label)
    os.write(writing, b"rest")
    os.close(writing)
    source.read()
    assert not source.ended and not sink.pending
    source.read()
    assert source.ended and bytes(sink.pending) == passed_on


def test_a_sink_writes_what_its_reader_takes(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    sink = Sink(pipe[1])
    sink.put(b"x" * 200_000)
    for _ in range(100):
        sink.write()
    taken = os.read(pipe[0], 1 << 20)
    assert 0 < len(taken) < 200_000 and len(sink.pending) == 200_000 - len(taken)
    os.close(pipe[0])
    sink.write()
    assert sink.broken and not sink.pending
    sink.put(b"more")
    assert not sink.pending


ONE = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: x'
CAUSE = "\n\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
GROUP = (
    "  + Exception Group Traceback (most recent call last):\n"
    "  | ExceptionGroup: two (2 sub-exceptions)\n"
    "  +-+---------------- 1 ----------------\n"
    "    | Traceback (most recent call last):\n"
    "    | ValueError: x\n"
    "    +------------------------------------"
)
CRASH = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x0 (most recent call first):\n  File "a.py", line 3'


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("", ""),
        ("nothing of the kind\n", ""),
        (f"before\n{ONE}\n", ONE),
        (f"{ONE}\nlogged and gone on\n{ONE}\n", ONE),
        (f"before\n{ONE}{CAUSE}{ONE}{CONTEXT}{ONE}\n", ONE + CAUSE + ONE + CONTEXT + ONE),
        (f"before\n{GROUP}\n", GROUP),
        (f"before\n{CRASH}\n", CRASH),
    ],
)
def test_the_last_traceback_is_found(said: str, found: str) -> None:
    assert last_traceback(said) == found


def test_a_report_of_anothers_failure_is_recognised() -> None:
    following = ONE.replace("ValueError", "hocket.errors.PeerDied")
    assert not reports_another(ONE)
    assert reports_another(following)
    assert reports_another(following + CAUSE + ONE)
    assert not reports_another(ONE.replace("x", "hocket.errors.PeerDied is what I expected"))
