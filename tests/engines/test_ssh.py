"""`hocket run --hosts` by the real ssh."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_run import PREAMBLE, STAY
from tests.cli.test_run_hosts import ENDS_SECONDS, IGNORE
from tests.engines.programs import EXAMPLES, HOSTS, MISTAKE, Programs, check_hosts, check_sums
from tests.engines.sshd import serving
from tests.hosts.lab import ROOT, Lab
from tests.waiting import numbers_left, wait_for_end

pytestmark = pytest.mark.long("starts ssh")


@pytest.fixture
def ssh(lab: Lab, tmp_path: Path) -> Iterator[str]:
    with serving(lab.hosts, tmp_path) as command:
        yield command


def command(ssh: str, program: Path, hosts: str = "host0,host1") -> list[str]:
    return ["hocket", "run", "--hosts", hosts, "-n", "2", "--ssh", ssh, "--", str(program)]


def test_the_example_starts_two_ranks_on_each_host(lab: Lab, programs: Programs, ssh: str) -> None:
    line = ["sh", EXAMPLES / "ssh.sh", "host0,host1", "--ssh", ssh]
    done = lab.hosts[0].run(line, env=programs.variables, cwd=ROOT)
    check_sums(done.stdout, 4)
    assert sorted(line[:4] for line in done.stdout.splitlines()) == [f"[{rank}] " for rank in range(4)]


def test_ranks_know_who_shares_a_host(lab: Lab, programs: Programs, ssh: str) -> None:
    done = lab.hosts[0].run(command(ssh, programs.write(HOSTS)), env=programs.variables)
    check_hosts(done.stdout, [0, 0, 1, 1])


def test_ranks_get_the_address_at_which_ssh_reached_rank_0(lab: Lab, programs: Programs, ssh: str) -> None:
    program = PREAMBLE + "print(os.environ['HOCKET_ADDRESS'].rpartition(':')[0])"
    first = lab.hosts[1]
    for address, written in ((first.address, first.address), (first.address6, f"[{first.address6}]")):
        done = lab.hosts[0].run(command(ssh, programs.write(program), f"{address},host0"), env=programs.variables)
        assert sorted(done.stdout.splitlines()) == [f"[{rank}] {written}" for rank in range(4)]


def test_the_mistake_of_a_rank_is_told_once(lab: Lab, programs: Programs, ssh: str) -> None:
    done = lab.hosts[0].run(command(ssh, programs.write(MISTAKE)), env=programs.variables, check=False)
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1, done.stderr
    assert "hocket run: rank 3 of 4 failed first, with exit code 1 on host1:\n[3] Traceback" in done.stderr


def test_nothing_remains_on_hosts(lab: Lab, programs: Programs, ssh: str) -> None:
    run = lab.hosts[0].popen(command(ssh, programs.write(IGNORE + STAY)), env=programs.variables)
    ranks = numbers_left(programs.folder, range(4))
    began = time.monotonic()
    run.kill()
    for process in ranks:
        wait_for_end(process)
    assert time.monotonic() - began < ENDS_SECONDS


def test_a_host_whose_cable_is_cut_is_lost_and_its_ranks_end(lab: Lab, programs: Programs, ssh: str) -> None:
    run = lab.hosts[0].popen(
        command(ssh, programs.write(STAY)), env=programs.variables, stderr=-1, text=True, process_group=0
    )
    ranks = numbers_left(programs.folder, range(4))
    lab.cut(lab.hosts[1])
    for process in ranks:
        wait_for_end(process)
    assert "hocket run: lost host1 with ranks 2, 3 of 4: ssh ended with exit code 255" in run.communicate()[1]
    assert run.returncode not in (0, -signal.SIGKILL)
