"""Fixtures: `hocket bench` with threads as ranks, and a trace with known times."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.cli import main
from hocket.runtime import run_ranks
from hocket.runtime.traces import trace_file
from tests.cli.traces import COLLECTIVES, HOST, arrow, collective, event, part


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command with threads as ranks, which start at once; returns what it printed."""

    def threads(*arguments: Any, kind: str, **more: Any) -> list[Any]:
        assert kind == "process"
        return run_ranks(*arguments, kind="thread", **more)

    def run(*arguments: str) -> str:
        monkeypatch.setattr("hocket.runtime.run_ranks", threads)
        assert main(["bench", *arguments]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Rank 0 computes until 100 and communicates from 20 to 140, so 80 are hidden; rank 1 is late."""
    file = tmp_path / "trace.json"
    zero = part(
        0,
        event(0, HOST, 0, 100, "forward", "compute"),
        event(0, HOST, 10, 40, "inner", "compute"),
        event(0, HOST, 20, 21, "launch all_reduce", "launch"),
        event(0, HOST, 100, 140, "wait for all_reduce", "wait"),
        collective(0, 20, 140, 1),
        collective(0, 150, 160, 2),
        *arrow(1, (0, HOST, 20), (0, COLLECTIVES, 20)),
    )
    one = part(
        1,
        event(1, HOST, 0, 200, "forward", "compute"),
        event(1, HOST, 50, 140, "all_reduce", "blocking"),
        collective(1, 50, 140, 1),
        collective(1, 155, 160, 2),
    )
    trace_file.write(file, "run", zero + one)
    return file
