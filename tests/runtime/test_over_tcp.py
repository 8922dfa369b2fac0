"""Collectives and messages over TCP between ranks of this machine: a sample of what `make tcp` runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLE = [
    "tests/runtime/test_collectives.py",
    "tests/runtime/test_uneven.py",
    "tests/runtime/test_point_to_point.py",
    "tests/torch_backend/test_collectives.py",
]


@pytest.mark.slow("it runs some hundred other tests")
@pytest.mark.timeout(300)
def test_collectives_and_messages_pass_over_tcp_too(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'tests'}",
        *SAMPLE,
    ]
    environment = os.environ | {"HOCKET_TRANSPORT": "tcp"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
