"""README shows only what runs: its code as four ranks, its picture as the command prints it, its totals as measured."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
ALGORITHM = next(program for program in PROGRAMS if "@hocket.algorithm" in program)


def hocket(*arguments: str, folder: Path = ROOT) -> str:
    command = [sys.executable, "-m", "hocket", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_programs_run_one_after_the_other(tmp_path: Path) -> None:
    first, *others = [program for program in PROGRAMS if program is not ALGORITHM]
    assert "with hocket.init() as comm:" in first
    # Those that follow are written flat: they go on inside the block of the first.
    body = "".join(f"    {line}\n" for program in others for line in program.splitlines())
    checks = "    assert y.shape == x.shape and z.shape == (6, 8) and tag == (7 if comm.rank == 1 else 0)\n"
    (tmp_path / "program.py").write_text(f"{first}{body}{checks}    print(half.group, pair and pair.group)\n")
    printed = hocket("run", "-n", "4", "--", "program.py", folder=tmp_path).splitlines()
    assert sorted(printed) == ["(0, 2) (3, 0)", "(0, 2) None", "(1, 3) (3, 0)", "(1, 3) None"]


def test_its_algorithm_is_proved_and_runs(tmp_path: Path) -> None:
    (tmp_path / "my_ring.py").write_text(ALGORITHM)
    assert "my_ring" in hocket("verify", "my_ring.py", "--ranks", "1-16", folder=tmp_path)
    call = re.search(r"`(comm\.all_gather\(x, algorithm=.*?\))`", README)
    assert call is not None
    program = (
        f"import hocket\nimport numpy as np\nwith hocket.init() as comm:\n    x = np.ones(2)\n    print({call[1]})\n"
    )
    (tmp_path / "program.py").write_text(program)
    printed = hocket("run", "-n", "3", "--", "program.py", folder=tmp_path)
    assert printed.splitlines() == ["[1. 1. 1. 1. 1. 1.]"] * 3


def test_its_picture_is_what_the_command_prints() -> None:
    shown = re.search(r"^\$ hocket (show mesh .*)\n(mesh .*?)^```", README, re.MULTILINE | re.DOTALL)
    assert shown is not None
    printed = hocket(*shown[1].split())
    assert printed.startswith(shown[2])


@pytest.mark.parametrize(
    ("document", "total", "claim"),
    [
        ("docs/reports/matrix.md", r"\*\*(\d+) cases, 0 wrong", "**{} cases, 0 wrong**"),
        ("docs/reports/backends.md", r"all_reduce, (\d+) combinations", "of the {}\ncombinations"),
        ("docs/reports/backends.md", r"\|Hocket\|(\d+)\|0\|0\|0\|0\|0\|", "{} in Hocket"),
        ("docs/reports/backends.md", r"\|Gloo \(torch.distributed\)\|(\d+)\|", "{} in Gloo"),
        ("docs/reports/backends.md", r"\|MPI \(mpi4py\)\|(\d+)\|", "{} in Open MPI"),
    ],
)
def test_its_totals_are_those_of_the_tables(document: str, total: str, claim: str) -> None:
    found = re.search(total, (ROOT / document).read_text())
    assert found is not None
    assert claim.format(found[1]) in README, f"{document} has changed: say the new total in README.md"
