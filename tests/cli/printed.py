"""Runs a command, and returns what it prints: its answer if it must succeed, or the error of its arguments."""

import json
from typing import Any

import pytest

from hocket.cli import main


def text_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main([*command]) == 0
    return capsys.readouterr().out


def json_of(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text_of(capsys, *command, "--json"), parse_constant=refuse)


def error_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    try:
        code: object = main([*command])
    except SystemExit as ended:  # argparse
        code = ended.code
    assert code == 2
    return capsys.readouterr().err
