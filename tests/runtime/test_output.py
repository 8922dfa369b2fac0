import os
from collections.abc import Iterator

import pytest

from hocket.runtime.launch.output import Sink, Source


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
def test_whole_lines_are_passed_on(parts: list[bytes], label: bytes, passed_on: list[bytes]) -> None:
    sink = Sink(-1)
    source = Source(sink, label)
    for part, expected in zip(parts, passed_on, strict=True):
        source.take_in(part)
        assert bytes(sink.pending) == expected
        sink.pending.clear()


@pytest.mark.parametrize(("label", "passed_on"), [(b"", b"rest"), (b"[0] ", b"[0] rest\n")])
def test_what_is_left_at_the_end_is_passed_on(label: bytes, passed_on: bytes) -> None:
    sink = Sink(-1)
    source = Source(sink, label)
    source.take_in(b"rest")
    assert not sink.pending
    source.take_in(b"")
    assert bytes(sink.pending) == passed_on


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


TRACEBACK = b"Traceback (most recent call last):\nValueError: x\n"


@pytest.mark.parametrize(
    ("parts", "passed_on", "held"),
    [
        ([b"a\n" + TRACEBACK], b"a\n", TRACEBACK),
        ([b"a\n", TRACEBACK, b"more\n"], b"a\n", TRACEBACK + b"more\n"),
        ([TRACEBACK[:9], TRACEBACK[9:]], b"", TRACEBACK),
        ([b"[rank1]: " + TRACEBACK], b"", b"[rank1]: " + TRACEBACK),
        ([b"[rank1]: [rank1]: " + TRACEBACK], b"", b"[rank1]: [rank1]: " + TRACEBACK),
        ([b"no " + TRACEBACK], b"no " + TRACEBACK, b""),
        # Output without an end is not held for ever.
        (
            [TRACEBACK, b"x" * 60_000 + b"\n", b"y" * 60_000 + b"\n"],
            TRACEBACK + b"x" * 60_000 + b"\n" + b"y" * 60_000 + b"\n",
            b"",
        ),
    ],
)
def test_a_traceback_and_what_comes_after_it_are_held(parts: list[bytes], passed_on: bytes, held: bytes) -> None:
    sink = Sink(-1)
    source = Source(sink, b"", holds=True)
    for part in parts:
        source.take_in(part)
    assert (bytes(sink.pending), bytes(source.held)) == (passed_on, held)
    source.release()
    assert bytes(sink.pending) == passed_on + held and not source.held
