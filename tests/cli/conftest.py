"""Runs `hocket bench` with threads as ranks."""

from collections.abc import Callable
from typing import Any

import pytest

from hocket.cli import main
from hocket.runtime import run_ranks


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
