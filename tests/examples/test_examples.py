"""Every example does what it says, started as its own first lines say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def shell(line: str) -> str:
    program, *arguments = line.split()
    start = [sys.executable, "-m", "hocket"] if program == "hocket" else [sys.executable]
    done = subprocess.run([*start, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands(example: str) -> list[str]:
    """The indented command lines of its docstring."""
    text = (ROOT / "examples" / example).read_text().split('"""')[1]
    return re.findall(r"^    ((?:hocket|python) .*)$", text, re.MULTILINE)


def test_first_program() -> None:
    (line,) = commands("first_program.py")
    printed = sorted(shell(line).splitlines())
    assert printed == [f"rank {rank} of 4: sum [10.0, 10.0, 10.0], ranks [0, 1, 2, 3]" for rank in range(4)]
    assert shell("python examples/first_program.py") == "rank 0 of 1: sum [1.0, 1.0, 1.0], ranks [0]\n"


def test_first_algorithm() -> None:
    verify, run = commands("first_algorithm.py")
    assert "star" in shell(verify)
    assert shell(run).splitlines() == [
        "proved for 4 ranks: rank_order, same_on_all_ranks, size_invariant",
        "the same bits as direct: [True, True, True, True]",
    ]


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_is_tested_above(example: str) -> None:
    assert f"def test_{Path(example).stem}(" in Path(__file__).read_text()
