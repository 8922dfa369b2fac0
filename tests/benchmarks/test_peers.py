"""If a library cannot be installed, benchmarks run without it."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import peers


@pytest.mark.parametrize(
    ("failing", "said", "expected"),
    [
        ("venv", "no ensurepip\nFailing command: x\n", "no virtual environment, .*ensurepip: Failing command: x"),
        ("pip", "ERROR: no route\n", "mpi4py, mpich, numpy cannot be installed: ERROR: no route"),
        ("pip", "", "cannot be installed: no reason given"),
    ],
)
def test_what_cannot_be_installed_is_absent(
    failing: str, said: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str | Path], check: bool, **_: object) -> subprocess.CompletedProcess[str]:
        assert not check
        failed = failing in command
        return subprocess.CompletedProcess(command, failed, said if failed else "")

    monkeypatch.setattr(peers, "ROOT", tmp_path)
    monkeypatch.setattr(peers, "FOLDER", tmp_path / "peers")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(peers.Absent, match=expected):
        peers.interpreter("mpich")
