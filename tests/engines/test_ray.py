"""hocket.ray.run on the real Ray: a cluster of two hosts."""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.engines import installed
from tests.engines.programs import EXAMPLES
from tests.hosts.lab import ROOT, Host, Lab
from tests.hosts.namespaces import Unavailable
from tests.waiting import numbers_left, wait_for_end

pytestmark = pytest.mark.long("starts Ray")
PORT, NUM_CPUS = 6399, 2
PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
import numpy, ray
import hocket, hocket.ray

folder = Path(sys.argv[0]).parent
def leave(name):
    (folder / f".{name}").write_text(str(os.getpid()))
    (folder / f".{name}").rename(folder / str(name))
"""
CALL = """
if __name__ == "__main__":
    ray.init(log_to_driver=False)
    try:
        print(hocket.ray.run(main, 4, ranks_per_host=2))
    finally:
        print("groups", [one["state"] for one in ray.util.placement_group_table().values()])
        print("free", ray.available_resources().get("CPU"))
"""


class Cluster(NamedTuple):
    """A cluster of Ray. variables: with which its programs find it."""

    hosts: Sequence[Host]
    variables: dict[str, str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    packages = installed.ray()
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # short, as the names of sockets are below it
    variables = {
        "PYTHONPATH": str(packages),
        "RAY_ADDRESS": f"host0:{PORT}",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    try:
        with Lab(2) as lab:
            for host in lab.hosts:
                words = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
                start(host, variables, words if host is lab.hosts[0] else [f"--address={lab.hosts[0].address}:{PORT}"])
            yield Cluster(lab.hosts, variables)
    except Unavailable as reason:
        pytest.skip(str(reason))
    finally:
        shutil.rmtree(folder)


def start(host: Host, variables: dict[str, str], options: list[str]) -> None:
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={host.address}"]
    ours = [f"--num-cpus={NUM_CPUS}", "--object-store-memory=100000000"]
    host.run([*ray, *ours, *options], env={name: variables[name] for name in variables if name != "RAY_ADDRESS"})


def command(folder: Path, program: str) -> list[str]:
    (folder / "program.py").write_text(PREAMBLE + program + CALL)
    return [sys.executable, str(folder / "program.py")]


def run(cluster: Cluster, folder: Path, program: str) -> "subprocess.CompletedProcess[str]":
    return cluster.hosts[0].run(command(folder, program), env=cluster.variables, check=False)


def check_nothing_is_left(printed: str) -> None:
    assert re.search(r"^groups \[('REMOVED'(, )?)*\]$", printed, re.MULTILINE), printed


def test_the_example_starts_two_ranks_on_each_host(cluster: Cluster) -> None:
    done = cluster.hosts[0].run([sys.executable, EXAMPLES / "on_ray.py"], env=cluster.variables, cwd=ROOT)
    assert done.stdout.splitlines() == [f"rank {rank} of 4: sum [10.0, 10.0, 10.0]" for rank in range(4)]


def test_results_come_in_rank_order_and_ranks_know_who_shares_a_host(cluster: Cluster, tmp_path: Path) -> None:
    done = run(
        cluster,
        tmp_path,
        """
def main():
    with hocket.init() as comm:
        x = comm.all_reduce(numpy.full(200_000, comm.rank + 1.0))
        local = [os.environ[name] for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE")]
        return comm.rank, float(x.max()), comm.context.hosts, "".join(local)
""",
    )
    hosts, total = (0, 0, 1, 1), 10.0
    expected = [(rank, total, hosts, f"{rank % 2}2{rank}4") for rank in range(4)]
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, str(expected)), done.stderr
    check_nothing_is_left(done.stdout)


def test_variables_of_hocket_reach_the_ranks(cluster: Cluster, tmp_path: Path) -> None:
    program = "def main():\n    with hocket.init() as comm: comm.barrier()\n"
    variables = cluster.variables | {"HOCKET_TRACE": str(tmp_path / "trace.json")}
    done = cluster.hosts[0].run(command(tmp_path, program), env=variables)
    assert done.stdout.startswith("[None, None, None, None]\n") and (tmp_path / "trace.json").stat().st_size > 0


def test_one_failing_rank_ends_all_and_is_the_only_one_shown(cluster: Cluster, tmp_path: Path) -> None:
    done = run(
        cluster,
        tmp_path,
        """
class OwnError(Exception):
    pass

def main():
    leave(f"{os.environ['HOCKET_RANK']}")
    with hocket.init() as comm:
        comm.barrier()
        if comm.rank == 3:
            raise OwnError("the mistake")
        if comm.rank == 2:
            time.sleep(1000)  # until it is ended
        comm.barrier()
""",
    )
    assert done.returncode == 1 and done.stderr.count("OwnError: the mistake") == 1, done.stderr
    assert "This was rank 3 of 4, at:" in done.stderr and "PeerAborted" not in done.stderr
    assert 'raise OwnError("the mistake")' in done.stderr
    check_nothing_is_left(done.stdout)
    for process in numbers_left(tmp_path, range(4)):
        wait_for_end(process)


def test_a_rank_that_is_killed_is_named(cluster: Cluster, tmp_path: Path) -> None:
    done = run(
        cluster,
        tmp_path,
        """
def main():
    with hocket.init() as comm:
        comm.barrier()
        if comm.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()
""",
    )
    assert done.returncode == 1 and "PeerDied: rank 2 of 4 on 10.77.0." in done.stderr, done.stderr
    check_nothing_is_left(done.stdout)


def test_a_result_that_cannot_be_pickled(cluster: Cluster, tmp_path: Path) -> None:
    done = run(
        cluster,
        tmp_path,
        """
import threading
def main():
    return threading.Lock()
""",
    )
    assert done.returncode == 1 and "TypeError: the rank function returned" in done.stderr
    check_nothing_is_left(done.stdout)


def started(cluster: Cluster, folder: Path) -> "tuple[subprocess.Popen[str], list[int]]":
    """Start four ranks that stay; return what started them, and their process numbers."""
    program = """
def main():
    leave(os.environ["HOCKET_RANK"])
    time.sleep(1000)  # until it is ended
"""
    run = cluster.hosts[0].popen(command(folder, program), env=cluster.variables, stdout=-1, stderr=-1, text=True)
    return run, numbers_left(folder, range(4))


def test_ctrl_c_ends_all(cluster: Cluster, tmp_path: Path) -> None:
    run, ranks = started(cluster, tmp_path)
    run.send_signal(signal.SIGINT)
    printed, errors = run.communicate()
    assert errors.splitlines()[-1] == "KeyboardInterrupt", errors
    check_nothing_is_left(printed)
    for process in ranks:
        wait_for_end(process)


def test_the_end_of_the_caller_ends_all(cluster: Cluster, tmp_path: Path) -> None:
    run, ranks = started(cluster, tmp_path)
    run.kill()
    for process in ranks:
        wait_for_end(process)


def test_a_cluster_without_room_is_told(cluster: Cluster, tmp_path: Path) -> None:
    program = """
def main():
    pass
hocket.ray.run(main, 6, ranks_per_host=3, timeout=1)
"""
    done = run(cluster, tmp_path, program)
    words = "Ray has not found 2 hosts with 3 free CPUs on each for 6 ranks within 1 s: 4 of 4 CPUs are free on 2 hosts"
    assert done.returncode == 1 and words in done.stderr, done.stderr
