"""hocket simulate --sweep without --plot: a table on a terminal, CSV elsewhere, and which files were written."""

from contextlib import redirect_stdout
from pathlib import Path

import pytest

from hocket.cli import main
from tests.cli.printed import text_of
from tests.cli.test_widths import Screen

SWEEP = ("simulate", "all_reduce", "--sweep", "--algorithm", "ring,direct", "-b", "1K,64M", "--topology", "ring:4")


def test_a_terminal_gets_a_table_and_a_pipe_gets_csv(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text_of(capsys, *SWEEP).startswith("collective,algorithm,topology,")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    with redirect_stdout(screen):
        assert main([*SWEEP]) == 0
    head, titles, *rows = screen.lines()
    assert head == "all_reduce, ring:4, 4 ranks" and titles.split() == [
        "size",
        "algorithm",
        "time",
        "x",
        "bound",
        "busbw",
    ]
    assert [row.split()[:3] for row in rows] == [
        ["1", "KiB", "ring"],
        ["1", "KiB", "direct"],
        ["64", "MiB", "ring"],
        ["64", "MiB", "direct"],
    ]
    assert max(map(len, screen.lines())) <= 80


@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("--csv", SWEEP),
        ("--trace", ("simulate", "all_reduce", "--algorithm", "ring", "-b", "1K", "--topology", "ring:4")),
        ("--svg", ("show", "ring")),
        ("--msccl", ("show", "ring")),
        ("--svg", ("show", "topology", "ring:4")),
        ("--tuner-file", ("show", "choice", "--ranks", "4")),
    ],
)
def test_each_file_that_is_written_is_named_on_standard_error(
    option: str, command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "written"
    assert main([*command, option, str(file)]) == 0
    assert file.stat().st_size and capsys.readouterr().err == f"wrote {file}\n"
