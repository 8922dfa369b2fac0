"""Containers, sandboxes and small address spaces: a job runs there as elsewhere, or says why it cannot."""

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket import _core
from hocket.errors import RendezvousError
from hocket.runtime import arena_bytes, arena_size, run_ranks
from tests.runtime.test_faults import Ranks

# A container of its own: process ids and /proc are its own, the network is shared.
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
SET_ROBUST_LIST = {"x86_64": 273, "aarch64": 99}


@pytest.fixture(scope="module")
def containers() -> None:
    """Skips the test where this user cannot make containers; root can."""
    try:
        can = subprocess.run([*CONTAINER, "true"], capture_output=True, timeout=60).returncode == 0
    except FileNotFoundError:
        can = False
    if not can:
        assert os.geteuid() != 0, "root can make containers"
        pytest.skip("this user cannot make containers")


@pytest.mark.usefixtures("containers")
def test_ranks_of_two_containers_meet_and_compute() -> None:
    program = """
comm = hocket.init()
for count in (3, 1_500_004):
    x = comm.all_reduce(np.full(count, comm.rank + 1, np.float32))
    tell(sum=float(x[-1]))
comm.close()
"""
    with Ranks(program, 2, starters={1: CONTAINER}) as ranks:
        for rank in range(2):
            assert [ranks.told(rank)["sum"] for _ in range(2)] == [3, 3]
            assert ranks.end(rank) == (0, "")


@pytest.mark.usefixtures("containers")
def test_a_stopped_process_of_another_container_is_not_taken_for_a_rank() -> None:
    """In the container of rank 1, a stopped process has the number that rank 0 has outside; but rank 2 is slow."""
    program = """
comm = hocket.init()
of_rank_0 = int(comm.all_gather(np.array([os.getpid()]))[0])
if comm.rank == 1:
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(of_rank_0 - 1))
    other = os.fork()
    if other == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    assert other == of_rank_0
    os.waitpid(other, os.WUNTRACED)

told = []

def add(left, right):
    if comm.rank == 2 and len(left) > 3 and not told:
        told.append(until_told())
    return left + right

comm.barrier()
add = hocket.op(add, commutative=True)
failing(lambda: comm.reduce(np.ones(1000), root=1, op=add, algorithm="binomial", timeout=1 if comm.rank == 1 else 60))
comm.close()
"""
    with Ranks(program, 4, starters={1: CONTAINER}) as ranks:
        found = ranks.told(1)
        assert (found["error"], found["missing"]) == ("CollectiveTimeout", [2])
        ranks.tell(2)
        assert ranks.told(2)["error"] == "CollectiveTimeout"


@pytest.mark.usefixtures("containers")
def test_memory_is_shared_where_the_system_refuses_memory_that_can_be_executed() -> None:
    setting = Path("/proc/sys/vm/memfd_noexec")
    if not setting.exists():
        pytest.skip("this system does not refuse it")
    run = f"import hocket; x = hocket.empty(5); x[:] = 3; print(open({str(setting)!r}).read(), x.sum())"
    command = [*CONTAINER, "sh", "-c", f'echo 2 > {setting} && exec "$0" -c "$1"', sys.executable, run]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["2", "15.0"], "")


@pytest.mark.skipif(platform.machine() not in SET_ROBUST_LIST, reason="the number of the system call is not known")
def test_a_system_without_robust_futexes_is_refused_because_deaths_would_not_be_noticed() -> None:
    program = f"""
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
load, if_equal, end = 0x20, 0x15, 0x06
allow, no_such_call = 0x7FFF0000, 0x50000 | 38
number = {SET_ROBUST_LIST.get(platform.machine())}
steps = [(load, 0, 0, 0), (if_equal, 0, 1, number), (end, 0, 0, no_such_call), (end, 0, 0, allow)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
place = ctypes.c_ulong(ctypes.addressof(filter))
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, place, 0, 0) == 0  # PR_SET_SECCOMP
import hocket
hocket.init()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "ResourceError" in last and "set_robust_list" in last and "no rank hears" in last


def differing_builds() -> str:
    if os.environ["HOCKET_RANK"] == "1":
        _core.LAYOUT ^= 1
    with pytest.raises(RendezvousError) as caught:
        hocket.init()
    return str(caught.value)


def test_ranks_of_two_builds_refuse_each_other_and_all_hear_of_it() -> None:
    layout = f"{_core.LAYOUT:016x}"
    for text in run_ranks(differing_builds, 2, kind="process"):
        assert (
            f"rank 0 runs Hocket {hocket.__version__}, layout {layout}, rank 1" in text and "install one build" in text
        )


@pytest.mark.parametrize("num_ranks", [1, 64, 1024])
def test_the_arenas_of_all_ranks_fit_into_the_addresses_of_a_process(
    num_ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    terabytes, system = 2 << 40, os.sysconf
    pages = {"SC_PHYS_PAGES": terabytes // mmap.PAGESIZE}
    monkeypatch.setattr(arena_size.os, "sysconf", lambda name: pages.get(name, system(name)))
    capacity = arena_bytes(num_ranks)
    assert 1 << 32 < capacity <= terabytes
    arenas = [_core.Arena(capacity) for _ in range(num_ranks)]  # addresses alone: nothing is used of them
    x = np.frombuffer(bytearray(1 << 20), np.uint8)
    assert len(arenas) == num_ranks and x.sum() == 0, "and the program has addresses left"
