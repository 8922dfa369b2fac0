"""Every folder has its ring, and the first ring needs nothing compiled and starts nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FOLDERS, MAX_QUICK_CASES, RINGS

ROOT = Path(__file__).parents[1]
BARE = """
import sys, pytest
sys.modules["hocket._core"] = sys.modules["hocket._simulator"] = None  # as before anything is compiled
sys.exit(pytest.main(["-p", "no:cacheprovider", "-q", *sys.argv[1:]]))
"""


def bare_pytest(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", BARE, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_folder_has_its_ring() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/*.py")} - {"core"}  # which is tested in C++
    assert set(FOLDERS) == folders
    assert sum(len(folders) for folders in RINGS.values()) == len(FOLDERS)


def test_the_first_ring_needs_nothing_compiled() -> None:
    folders = [f"tests/{folder}" for folder in sorted(RINGS["ring1"])]
    collected = bare_pytest("--quick", "--collect-only", *folders)
    assert collected.returncode == 0, collected.stdout
    done = bare_pytest("--quick", "tests/schedule/test_ir.py", "tests/network/test_max_min.py")
    assert done.returncode == 0, done.stdout


def test_long_tests_run_only_when_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import pytest\n\n@pytest.mark.long('why')\ndef test_long():\n    pass\n\ndef test_other():\n    pass\n"
    )
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    assert "1 passed, 1 deselected" in bare_pytest(*options, str(file)).stdout
    assert "2 passed" in bare_pytest(*options, "--long", str(file)).stdout


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run(['true'])",
        "os.fork()",
        "os.system('true')",
        "multiprocessing.get_context('spawn').Process(target=print).start()",
    ],
)
def test_a_quick_test_that_starts_a_process_fails(start: str, tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import multiprocessing, os, subprocess, pytest\n\n@pytest.mark.ring1\n"
        f"@pytest.mark.parametrize('case', range({2 * MAX_QUICK_CASES}))\ndef test_it(case):\n    {start}\n"
    )
    done = bare_pytest("-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest", "--quick", str(file))
    assert done.returncode == 1 and "a quick test starts no process" in done.stdout, done.stdout
    assert f"{MAX_QUICK_CASES} failed, {MAX_QUICK_CASES} deselected" in done.stdout
