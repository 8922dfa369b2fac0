"""sbatch and srun of the real Slurm start ranks on two hosts."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.engines import slurm
from tests.engines.programs import EXAMPLES, HOSTS, MISTAKE, Programs, check_hosts, check_sums
from tests.hosts.lab import ROOT, Lab

pytestmark = pytest.mark.long("starts Slurm")


@pytest.fixture(autouse=True)
def key(lab: Lab, programs: Programs, tmp_path: Path) -> Path:
    """A file with the key of the job. Slurm runs on the hosts."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    slurm.start(lab.hosts, programs, folder)
    file = tmp_path / "job.key"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)
    return file


def srun(lab: Lab, programs: Programs, key: Path, program: str, *options: str) -> "subprocess.CompletedProcess[str]":
    variables = programs.variables | {"HOCKET_KEY_FILE": str(key)}
    line = ["srun", "--nodes=2", *options, "python", str(programs.write(program))]
    return lab.hosts[0].run(line, env=variables, check=False)


def test_the_example_starts_eight_ranks(lab: Lab, programs: Programs, tmp_path: Path) -> None:
    line = ["sbatch", "--wait", f"--output={tmp_path}/output", EXAMPLES / "slurm.sh"]
    done = lab.hosts[0].run(line, env=programs.variables, cwd=ROOT, check=False)
    printed = (tmp_path / "output").read_text()
    assert done.returncode == 0, done.stderr + printed
    check_sums(printed, 8)
    assert "has waited" not in printed, "nobody looks at the wrong ports for seconds"
    assert not [*ROOT.glob(".hocket-key*")], "the key is removed at the end"


@pytest.mark.parametrize(
    ("options", "places"),
    [
        (["--ntasks-per-node=2"], [0, 0, 1, 1]),
        (["--ntasks-per-node=2", "--distribution=cyclic"], [0, 1, 0, 1]),
        (["--ntasks=3"], [0, 0, 1]),
        (["--ntasks-per-node=2", "--mpi=pmi2"], [0, 0, 1, 1]),
    ],
    ids=["block", "cyclic", "uneven", "PMI"],
)
def test_ranks_know_who_shares_a_host(
    options: list[str], places: list[int], lab: Lab, programs: Programs, key: Path
) -> None:
    done = srun(lab, programs, key, HOSTS, *options)
    assert done.returncode == 0, done.stderr
    check_hosts(done.stdout, places)


def test_the_mistake_of_a_rank_is_told_and_ends_the_step(lab: Lab, programs: Programs, key: Path) -> None:
    done = srun(lab, programs, key, MISTAKE, "--ntasks-per-node=2")
    assert done.returncode == 1 and "KeyError: 'the mistake'" in done.stderr, done.stderr
    words = "barrier: rank 3 on host host1 (fd77::2) gave up: KeyError: 'the mistake'. This communicator can only be"
    assert all(f"PeerAborted: rank {rank}, {words}" in done.stderr for rank in range(3)), done.stderr


def test_rank_0_on_another_host_than_the_first_says_what_to_do(lab: Lab, programs: Programs, key: Path) -> None:
    hosts = key.with_name("hosts")
    hosts.write_text("host1\nhost0\n")
    programs.more["SLURM_HOSTFILE"] = str(hosts)
    done = srun(lab, programs, key, HOSTS, "--ntasks=2", "--distribution=arbitrary", "--kill-on-bad-exit")
    assert "rank 0 is on host number 1 of SLURM_STEP_NODELIST" in done.stderr, done.stderr


def test_two_steps_that_run_at_once_do_not_meet(lab: Lab, programs: Programs, key: Path) -> None:
    step = f"srun --ntasks=2 --overlap python {programs.write(HOSTS)}"
    job = programs.add("job", f"{step} &\n{step}\nwait")
    line = ["sbatch", "--wait", "--nodes=2", f"--output={key.with_name('output')}", job]
    done = lab.hosts[0].run(line, env=programs.variables | {"HOCKET_KEY_FILE": str(key)}, check=False)
    printed = key.with_name("output").read_text()
    assert (done.returncode, printed.count("rank 0 on host0: 3.0"), printed.count("rank 1 on host1: 3.0")) == (0, 2, 2)
