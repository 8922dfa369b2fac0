"""The scripts of examples/engines start what they say. Programs of this test stand for the engines themselves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def place(folder: Path, name: str, script: str) -> Path:
    """Put a program into a folder that comes first in PATH, and return its file."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def engine(folder: Path, script: str, *arguments: str, **variables: str) -> str:
    """Return what a script of examples/engines prints."""
    place(folder, "hocket", f'exec {sys.executable} -m hocket "$@"')
    paths = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder)}
    done = subprocess.run(
        ["bash", str(ROOT / "examples" / "engines" / script), *arguments],
        cwd=ROOT if script == "ssh.sh" else folder,
        env=os.environ | paths | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ssh(tmp_path: Path) -> None:
    ssh = place(tmp_path, "connect", 'shift; exec setsid sh -c "$*"')
    printed = sorted(engine(tmp_path, "ssh.sh", "localhost,localhost", "--ssh", str(ssh)).splitlines())
    assert printed == [f"[{rank}] rank {rank} of 4: sum [10.0, 10.0, 10.0], ranks [0, 1, 2, 3]" for rank in range(4)]


def test_torchrun(tmp_path: Path) -> None:
    place(tmp_path, "torchrun", 'echo "$HOCKET_KEY_FILE" "$@"')
    assert engine(tmp_path, "torchrun.sh", "node1", "1").split() == [
        f"{tmp_path}/hocket.key",
        *["--nnodes=2", "--nproc-per-node=4", "--node-rank=1", "--master-addr=node1", "--master-port=29500"],
        "examples/first_program.py",
    ]


def test_the_command_of_the_documents_gives_torchrun_a_key(tmp_path: Path) -> None:
    place(tmp_path, "torchrun", 'echo "$HOCKET_KEY_FILE"')
    (command,) = re.findall(r"`([^`]*torchrun --nnodes[^`]*)`", (ROOT / "docs" / "hosts.md").read_text())
    paths = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=paths, capture_output=True, text=True, check=True)
    assert done.stdout == "job.key\n"


def test_examples_are_short() -> None:
    lengths = [len(example.read_text().splitlines()) for example in (ROOT / "examples" / "engines").glob("*.*")]
    assert len(lengths) == 5 and max(lengths) <= 20


@pytest.mark.parametrize(
    ("script", "program", "arguments", "told"),
    [
        ("slurm.sh", "srun", [], "python examples/first_program.py"),
        (
            "mpirun.sh",
            "mpirun",
            ["node1,node2"],
            "--host node1:4,node2:4 -x HOCKET_ADDRESS -x HOCKET_KEY_FILE python examples/first_program.py",
        ),
    ],
)
def test_a_key_is_made_that_only_its_user_can_read(
    script: str, program: str, arguments: list[str], told: str, tmp_path: Path
) -> None:
    place(tmp_path, program, 'stat -c "%a %s" "$HOCKET_KEY_FILE"; echo "$@"')
    assert engine(tmp_path, script, *arguments, SLURM_JOB_ID="7").splitlines() == ["600 32", told]
    assert not [*tmp_path.glob(".hocket-key*")], "the key is removed at the end"
