"""torchrun starts ranks on two hosts: an agent on each, which the first one's store joins."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.engines.programs import EXAMPLES, HOSTS, MISTAKE, PREAMBLE, Programs, check_hosts, check_sums
from tests.hosts.lab import ROOT, Host, Lab

pytestmark = pytest.mark.long("starts torchrun")
AGAIN = (
    PREAMBLE
    + (
        "with hocket.init() as comm:\n"
        "    comm.barrier()\n"
        "    if comm.rank == 3 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        os._exit(1)\n"
        "    comm.barrier()\n"
    )
    + HOSTS.removeprefix(PREAMBLE)
)


@pytest.fixture(autouse=True)
def key(programs: Programs) -> None:
    programs.add("torchrun", f'exec {sys.executable} -m torch.distributed.run "$@"')
    file = programs.folder / "hocket.key"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)


def run(lab: Lab, programs: Programs, program: Path, *options: str) -> tuple[int, str]:
    """Return the greatest exit code of both agents, and what all have printed."""

    def command(number: int) -> list[str]:
        where = [f"--node-rank={number}", "--master-addr=host0", "--master-port=29500"]
        chosen = options if "--rdzv-backend=c10d" in options else [*where, *options]
        return ["torchrun", "--nnodes=2", "--nproc-per-node=2", *chosen, str(program)]

    variables = programs.variables | {"HOCKET_KEY_FILE": str(programs.folder / "hocket.key")}
    return run_both(lab.hosts, [command(0), command(1)], variables)


def run_both(hosts: list[Host], commands: list[list[str]], variables: dict[str, str]) -> tuple[int, str]:
    second = hosts[1].popen(commands[1], env=variables, cwd=ROOT, stdout=-1, stderr=-2, text=True)
    first = hosts[0].run(commands[0], env=variables, cwd=ROOT, check=False)
    printed = second.communicate()[0]
    return max(first.returncode, second.returncode), first.stdout + first.stderr + printed


def test_the_example_starts_eight_ranks(lab: Lab, programs: Programs) -> None:
    commands = [["sh", str(EXAMPLES / "torchrun.sh"), "host0", number] for number in "01"]
    code, printed = run_both(lab.hosts, commands, programs.variables)
    assert code == 0, printed
    check_sums(printed, 8)


def test_ranks_know_who_shares_a_host(lab: Lab, programs: Programs) -> None:
    code, printed = run(lab, programs, programs.write(HOSTS))
    assert code == 0, printed
    check_hosts(printed, [0, 0, 1, 1])


def test_agents_that_number_themselves(lab: Lab, programs: Programs) -> None:
    options = ["--rdzv-backend=c10d", "--rdzv-endpoint=host0:29500", "--rdzv-id=7"]
    code, printed = run(lab, programs, programs.write(HOSTS), *options)
    assert code == 0, printed
    check_hosts(printed, [1, 1, 0, 0] if "rank 0 on host1" in printed else [0, 0, 1, 1])


def test_ranks_that_are_started_again_meet_again(lab: Lab, programs: Programs) -> None:
    code, printed = run(lab, programs, programs.write(AGAIN), "--max-restarts=1")
    assert code == 0, printed
    check_hosts(printed, [0, 0, 1, 1])


def test_the_mistake_of_a_rank_is_told_and_ends_both_agents(lab: Lab, programs: Programs) -> None:
    code, printed = run(lab, programs, programs.write(MISTAKE))
    assert code == 1 and "KeyError: 'the mistake'" in printed, printed
    assert re.search(r"rank [01], barrier: rank 3 on host host1 \(.*\) gave up: KeyError: 'the mistake'", printed)
