"""PyTorch's own suite passes on Hocket, every test of it that runs without a GPU."""

import faulthandler
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_TESTS = 127  # of torch 2.13.0; Gloo passes 123 of them


@pytest.mark.slow("PyTorch's suite has 127 tests of four processes each")
@pytest.mark.timeout(900)
def test_pytorch_s_own_suite(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # of pytest, which would report a hang after 100 s
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "tests.conformance.suite", "--json", str(result), "--logs", str(tmp_path / "logs")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(result.read_text())["counts"]["passed"] == NUM_TESTS
