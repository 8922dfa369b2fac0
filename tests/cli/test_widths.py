"""What commands print for people fits the terminal: no line is wider, except one word alone."""

import io
import re
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest

from hocket.cli import main
from tests.cli.test_demo import FOUND, run

WIDTH = 80
HELPS = ["", "demo", "run", "bench", "show", "verify", "new", "simulate", "tune", "explain", "trace", "doctor"]
COMMANDS = [
    *(f"{name} --help" for name in HELPS),
    *(f"trace {name} --help" for name in ("summary", "view", "plot", "export")),
    "show topology",
    "show topology dgx-a100:2",
    "show topology torus:4x4",
    "show topology fat-tree:64",
    "show choice",
    "show choice --ranks 4",
    "show mesh --axes pp=2,dp=2,tp=4 --nodes 4",
    "show pipeline zb-h1",
    "show pipeline",
    "verify --pipeline 1f1b",
    "show ring",
    "show broadcast",
    "show direct --collective all_to_all -n 8",
    "show hierarchical --groups 4,4",
    "verify ring --ranks 2",
    "simulate all_reduce -b 1M --topology dgx-h100:2 --link nic:bandwidth=25GB/s,latency=2us",
    "explain all_reduce -b 1M --topology torus:4x4",
    "doctor",
    "show ring --collective broadcast --ranks 4 --axes a=2",  # the others end in an error
    "show topology circle:4",
    "simulate all_reduce --topology ring:4 --link nowhere:bandwidth=1GB/s",
    "simulate all_reduce --topology ring:4 --algorithm ring --colour red --size large --format paper",
    "run -n 4 -- a-program-of-which-there-is-no-file",
]


class Screen(io.StringIO):
    """A terminal that remembers what is printed."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", self.getvalue()).splitlines()

    def too_wide(self) -> list[str]:
        assert self.lines()
        return [line for line in self.lines() if len(line) > WIDTH and " " in line.strip()]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "xterm")
    return Screen()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_line_of_a_command_fits_the_terminal(command: str, screen: Screen) -> None:
    with redirect_stdout(screen), redirect_stderr(screen), suppress(SystemExit):
        main(command.split())
    assert screen.too_wide() == []


def test_what_a_text_speaks_of_is_in_a_table_on_a_narrow_terminal_too(screen: Screen) -> None:
    with redirect_stdout(screen):
        main(["explain", "all_reduce", "-b", "64M", "--topology", "dgx-h100:2"])
    heads = [line for line in screen.lines() if line.split()[:1] == ["algorithm"]]
    assert len(heads) == 2 and {"bandwidth", "reduction", "contention"} <= {*" ".join(heads).split()}


def test_the_report_of_the_demo_fits_the_terminal(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    with redirect_stdout(screen):
        assert run(monkeypatch, [], FOUND) == 0
    assert screen.too_wide() == []


def test_what_is_printed_about_files_fits_the_terminal(screen: Screen, trace: Path, tmp_path: Path) -> None:
    with redirect_stdout(screen), redirect_stderr(screen):
        assert main(["trace", "summary", str(trace)]) == 0
        assert main(["new", str(tmp_path / "my_own.py")]) == 0
        assert main(["simulate", "all_reduce", "-b", "1K", "--topology", str(tmp_path / "none.yaml")]) == 2
    assert screen.too_wide() == []
