"""README and the guide show only what runs: code that runs as ranks, pictures that commands print, right totals."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "guide.md").read_text()


def programs(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


FIRST, ALGORITHM, OF_PYTORCH = programs(README)
SIMULATED = re.findall(r"^\$ (hocket simulate [^#\n]*)", README, re.MULTILINE)


def hocket(*arguments: str, folder: Path = ROOT) -> str:
    command = [sys.executable, "-m", "hocket", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_program_and_those_of_the_guide_run_one_after_the_other(tmp_path: Path) -> None:
    body = "".join((FIRST, ALGORITHM, 'comm.all_gather(x, algorithm="my_ring")\n', *programs(GUIDE)))
    checks = "assert y.shape == x.shape and z.shape == (6, 8) and tag == (7 if comm.rank == 1 else 0)\n"
    (tmp_path / "program.py").write_text(f"{body}{checks}print(half.group, pair and pair.group)\n")
    printed = hocket("run", "-n", "4", "--", "program.py", folder=tmp_path).splitlines()
    assert sorted(printed) == ["(0, 2) (3, 0)", "(0, 2) None", "(1, 3) (3, 0)", "(1, 3) None"]


@pytest.mark.slow("two processes import PyTorch")
def test_the_program_of_pytorch_runs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{FIRST}{OF_PYTORCH}print('done')\n")
    assert hocket("run", "-n", "2", "--", "program.py", folder=tmp_path).splitlines() == ["done"] * 2


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


def test_the_picture_of_the_cluster_is_what_its_command_draws(tmp_path: Path) -> None:
    drawn = re.search(r"`hocket (simulate [^`]* --plot )docs/pictures/cluster`", README)
    assert drawn is not None
    hocket(*drawn[1].split(), str(tmp_path / "cluster"))
    stored = ROOT / "docs" / "pictures" / "cluster-heat.svg"
    assert (tmp_path / "cluster-heat.svg").read_text() == stored.read_text(), "run `make docs-pictures`"


def test_the_picture_of_the_guide_is_what_the_command_prints() -> None:
    shown = re.search(r"^\$ hocket (show mesh .*)\n(mesh .*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    printed = hocket(*shown[1].split())
    assert printed.startswith(shown[2])


def test_its_simulated_times_are_those_of_the_command() -> None:
    command, of_a_machine = SIMULATED
    ring = json.loads(hocket(*command.split()[1:], "--json"))
    assert f"The ring takes {ring['seconds'] * 1e3:.2f} ms, {ring['ratio']:.2f} times the lower bound." in README
    best = json.loads(hocket(*re.sub("--algorithm [a-z]+ ", "", command).split()[1:], "--json"))
    assert f"`{best['algorithm']}`, takes {best['seconds'] * 1e6:.0f} µs." in README
    predicted = json.loads(hocket(*of_a_machine.split()[1:], "--json"))
    assert f"# NCCL on four such hosts: busbw {predicted['busbw'] / 1e9:.0f} GB/s, measured 365" in README


@pytest.mark.parametrize(
    ("report", "total", "claim"),
    [
        ("matrix.md", r"\*\*(\d+) cases, 0 wrong", "**{} cases, 0 wrong**"),
        ("backends.md", r"all_reduce, (\d+) combinations", "of the {} combinations"),
        ("backends.md", r"\|Hocket\|(\d+)\|0\|0\|0\|0\|0\|", "{} in Hocket"),
        ("backends.md", r"\|Gloo \(torch.distributed\)\|(\d+)\|", "{} in Gloo"),
        ("backends.md", r"\|MPI \(mpi4py\)\|(\d+)\|", "{} in Open MPI"),
    ],
)
def test_the_totals_of_the_guide_are_those_of_the_reports(report: str, total: str, claim: str) -> None:
    found = re.search(total, (ROOT / "docs" / "reports" / report).read_text())
    assert found is not None
    assert claim.format(found[1]) in GUIDE, f"docs/reports/{report} has changed: say the new total in docs/guide.md"
