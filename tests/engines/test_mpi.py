"""mpirun of three MPIs starts ranks on two hosts. No rank uses MPI."""

import subprocess

import pytest

from tests.engines import installed
from tests.engines.installed import peers
from tests.engines.programs import EXAMPLES, HOSTS, MISTAKE, Programs, check_hosts, check_sums
from tests.hosts.lab import ROOT, Lab

pytestmark = pytest.mark.long("starts MPI")
HYDRA = ("mpich", "impi")
"""Those that tell ranks where rank 0 is."""


def run(lab: Lab, programs: Programs, library: str, *command: str) -> "subprocess.CompletedProcess[str]":
    programs.add_folder(installed.mpi(library))
    agent = str(lab.agent)
    launching = {
        **{"HYDRA_LAUNCHER": "ssh", "HYDRA_LAUNCHER_EXEC": agent, "HYDRA_IFACE": "eth0"},
        **{"I_MPI_HYDRA_BOOTSTRAP": "ssh", "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent, "I_MPI_HYDRA_IFACE": "eth0"},
        **{"PRTE_MCA_plm_ssh_agent": agent, "PRTE_MCA_hwloc_default_binding_policy": "none"},
    }
    as_any_user = peers.mpi_environment(programs.folder)
    del as_any_user["PRTE_MCA_rmaps_default_mapping_policy"]  # which would put all ranks on the first host
    variables = {**as_any_user, **launching, **programs.variables}
    return lab.hosts[0].run(command, env=variables, cwd=ROOT, check=False)


def where(library: str, layout: str = "2") -> list[str]:
    """Return the arguments that put four ranks on two hosts, two on each or alternating ("1")."""
    if library in HYDRA:
        return ["-hosts", "host0,host1", "-n", "4", "-ppn", layout]
    by = [] if layout == "2" else ["--map-by", "node"]
    return ["--host", "host0:2,host1:2", *by, "-x", "HOCKET_ADDRESS=host0:29400", "-x", f"HOCKET_KEY={'ab' * 32}"]


@pytest.mark.parametrize("library", HYDRA)
def test_the_command_of_the_documents_starts_eight_ranks(library: str, lab: Lab, programs: Programs) -> None:
    command = "mpirun -hosts host0,host1 -n 8 -ppn 4 python examples/first_program.py"
    assert (
        f"`{command.replace('examples/first_program', 'train').replace('host0,host1', 'a,b')}`"
        in (ROOT / "docs" / "hosts.md").read_text()
    )
    done = run(lab, programs, library, *command.split())
    assert done.returncode == 0, done.stderr
    check_sums(done.stdout, 8)


def test_the_example_starts_eight_ranks_by_open_mpi(lab: Lab, programs: Programs) -> None:
    done = run(lab, programs, "openmpi", "sh", str(EXAMPLES / "mpirun.sh"), "host0,host1")
    assert done.returncode == 0, done.stderr
    check_sums(done.stdout, 8)
    assert not [*programs.folder.glob(".hocket-key*")], "the key is removed at the end"


@pytest.mark.parametrize("library", peers.MPIS)
@pytest.mark.parametrize(("layout", "places"), [("2", [0, 0, 1, 1]), ("1", [0, 1, 0, 1])], ids=["block", "cyclic"])
def test_ranks_know_who_shares_a_host(
    library: str, layout: str, places: list[int], lab: Lab, programs: Programs
) -> None:
    done = run(lab, programs, library, "mpirun", *where(library, layout), "python", str(programs.write(HOSTS)))
    assert done.returncode == 0, done.stderr
    check_hosts(done.stdout, places)


@pytest.mark.parametrize("library", peers.MPIS)
def test_the_mistake_of_a_rank_is_told_and_ends_the_job(library: str, lab: Lab, programs: Programs) -> None:
    done = run(lab, programs, library, "mpirun", *where(library), "python", str(programs.write(MISTAKE)))
    assert done.returncode != 0 and "KeyError: 'the mistake'" in done.stderr, (done.stdout, done.stderr)


def test_open_mpi_without_an_address_says_what_to_pass(lab: Lab, programs: Programs) -> None:
    command = ["mpirun", "--host", "host0:1,host1:1", "python", str(programs.write(HOSTS))]
    done = run(lab, programs, "openmpi", *command)
    assert done.returncode != 0 and "pass it on with `mpirun -x HOCKET_ADDRESS`" in done.stderr, done.stderr
