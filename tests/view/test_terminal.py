"""What fits into a terminal: texts go on in the next line, names are whole, columns come in blocks."""

import io
import re

import pytest
from rich.table import Table

from hocket.view import Terminal, num_fitting
from hocket.view.words import name_amount

HEADERS = ("collective", "ranks", "algorithm", "time (us)")
ROWS = (("all_reduce", "4", "nonuniform_hierarchical_ring", "12.5"), ("barrier", "16", "direct", "1.25"))


def terminal(width: int, monkeypatch: pytest.MonkeyPatch, *, piped: bool = False) -> Terminal:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    if not piped:
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes any file for a terminal then
    console = Terminal()
    console.file = io.StringIO()
    return console


def lines_of(console: Terminal) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    plain = re.sub(r"\x1b\[[\d;]*m", "", console.file.getvalue())
    return [line.rstrip() for line in plain.splitlines()]


def printed(width: int, monkeypatch: pytest.MonkeyPatch, *, piped: bool = False) -> list[str]:
    console = terminal(width, monkeypatch, piped=piped)
    table = Table(*HEADERS, box=None, show_header=True, header_style="", pad_edge=False)
    for row in ROWS:
        table.add_row(*row)
    console.print_table(table)
    return lines_of(console)


def test_columns_that_do_not_fit_come_in_blocks_that_begin_with_the_first_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert printed(49, monkeypatch) == [
        "collective  ranks  algorithm",
        "all_reduce  4      nonuniform_hierarchical_ring",
        "barrier     16     direct",
        "",
        "collective  time (us)",
        "all_reduce  12.5",
        "barrier     1.25",
    ]
    narrow = printed(20, monkeypatch)
    assert narrow[:3] == ["collective  ranks", "all_reduce  4", "barrier     16"]
    assert narrow[4] == "collective  algorithm" and narrow[8] == "collective  time (us)"


@pytest.mark.parametrize(("width", "piped"), [(120, False), (20, True)])
def test_all_columns_are_there_if_they_fit_or_nobody_looks(
    width: int, piped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = printed(width, monkeypatch, piped=piped)
    assert len(found) == 3 and found[1].split() == list(ROWS[0])


def test_the_first_column_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(4, monkeypatch)[:3] == ["collective", "all_reduce", "barrier"]


@pytest.mark.parametrize(("width", "number"), [(None, 3), (19, 3), (18, 2), (13, 2), (12, 1), (1, 1)])
def test_how_many_columns_fit(width: int | None, number: int) -> None:
    assert num_fitting([6, 5, 4], 2, width) == number


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three four", ["one two", "three four"]),
        ("one\n\ntwo three four", ["one", "", "two three", "four"]),
        ("  step 1: two three", ["  step 1:", "    two", "    three"]),
        ("OK  two three four", ["OK  two", "    three", "    four"]),
        ("a-long-word-is-whole and on", ["a-long-word-is-whole", "and on"]),
        ("tree:N[,link=][,b=]", ["tree:N", "[,link=]", "[,b=]"]),
    ],
)
def test_a_text_goes_on_in_the_next_line_between_words(
    text: str, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = terminal(10, monkeypatch)
    console.print(text, markup=False)
    assert lines_of(console) == lines
    monkeypatch.delenv("FORCE_COLOR")
    piped = terminal(10, monkeypatch, piped=True)
    piped.print(text, markup=False)
    assert lines_of(piped) == text.splitlines()


def test_styles_stay_with_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    console = terminal(10, monkeypatch)
    console.print("one [bold]two three[/] \\[four]", style="dim")
    assert lines_of(console) == ["one two", "three", "[four]"]
    assert isinstance(console.file, io.StringIO) and console.file.getvalue().count("\x1b[1;2m") == 2


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1000, "1000 B"),
        (1537911, "1.47 MiB"),
        (558336 << 20, "545 GiB"),
        (1023 << 10, "1023 KiB"),
        (1 << 20, "1 MiB"),
    ],
)
def test_an_amount_has_three_digits_and_no_exponent(num_bytes: int, text: str) -> None:
    assert name_amount(num_bytes) == text
