"""Deaths, stops, signals, exits and forks: every surviving rank is told which rank and why, and nothing remains.

KILLS=100 pytest tests/runtime/test_faults.py makes the drill longer.
"""

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveTimeout, PeerAborted, PeerDied
from hocket.runtime import new_address, run_ranks
from hocket.runtime.ranks.environment import rank_variables
from tests.waiting import wait_for_sleep

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
NUM_KILLS = int(os.environ.get("KILLS", "20"))

# The start of every program below. A line on standard output tells the test how far a rank is.
BEGIN = """
import json, os, signal, sys, threading, time
import numpy as np
import hocket
from hocket.errors import *

def tell(**what):
    print(json.dumps(what), flush=True)

def until_told():
    return sys.stdin.readline()

def failing(call):
    try:
        call()
    except CommunicationError as error:
        tell(error=type(error).__name__, rank=getattr(error, "rank", None), reason=getattr(error, "reason", None),
             missing=list(getattr(error, "missing", ())), at=time.monotonic())
    else:
        tell(error=None)

"""


class Ranks:
    """The same program as several ranks, each a process that the test can kill, stop or signal."""

    def __init__(self, program: str, size: int, *, starters: dict[int, list[str]] | None = None) -> None:
        address = new_address()
        command = [sys.executable, "-c", BEGIN + program]
        self.processes = [
            subprocess.Popen(
                [*(starters or {}).get(rank, []), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | rank_variables(rank, size, address),
            )
            for rank in range(size)
        ]

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def told(self, rank: int) -> dict[str, Any]:
        """Returns the next line of a rank."""
        stream = self.processes[rank].stdout
        assert stream is not None
        line = stream.readline()
        if not line:
            _, errors = self.processes[rank].communicate()
            raise AssertionError(f"rank {rank} ended with {self.processes[rank].returncode}:\n{errors}")
        found: dict[str, Any] = json.loads(line)
        return found

    def tell(self, rank: int) -> None:
        stream = self.processes[rank].stdin
        assert stream is not None
        stream.write("go on\n")
        stream.flush()

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Sends a signal; returns the time just before."""
        now = time.monotonic()
        self.processes[rank].send_signal(number)
        return now

    def end(self, rank: int) -> tuple[int, str]:
        """Returns exit code and standard error after a rank has ended by itself."""
        _, errors = self.processes[rank].communicate(timeout=PATIENCE_SECONDS)
        return self.processes[rank].returncode, errors


def content(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def child_processes() -> set[str]:
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found |= set((task / "children").read_text().split())
    return found


@pytest.fixture(autouse=True)
def nothing_remains() -> Iterator[None]:
    """Asserts that no child, no file in shared memory and no descriptor is left."""
    shared, open_before, children = content("/dev/shm"), content("/proc/self/fd"), child_processes()
    yield
    assert child_processes() <= children
    assert {name for name in content("/dev/shm") if not name.startswith("sem.mp-")} <= shared  # multiprocessing's
    gc.collect()  # a caught exception holds the frames that it passed
    assert len(content("/proc/self/fd")) <= len(open_before)


# --- death ---------------------------------------------------------------------------------------------------------


def drill(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.runtime.drill", *arguments]
    it = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert it.stdout, it.stderr
    found: dict[str, Any] = json.loads(it.stdout)
    print(found)
    return found


@pytest.mark.timeout(120 + 2 * NUM_KILLS)
def test_every_survivor_of_a_kill_names_the_victim_within_a_second() -> None:
    found = drill("--kills", str(NUM_KILLS))
    assert found["wrong"] == [] and found["kills"] == NUM_KILLS and found["max_seconds"] <= 1.0


def test_survivors_of_two_kills_at_once_name_a_victim() -> None:
    found = drill("--kills", "6", "--victims", "2")
    assert found["wrong"] == [] and found["kills"] == 12


def test_a_kill_before_the_first_call_is_told_at_the_first_call() -> None:
    program = "comm = hocket.init(); tell(ready=1); until_told(); failing(comm.barrier); comm.close()"
    with Ranks(program, 3) as ranks:
        for rank in range(3):
            ranks.told(rank)
        ranks.signal(1, signal.SIGKILL)
        ranks.processes[1].wait()
        for rank in (0, 2):
            ranks.tell(rank)
            found = ranks.told(rank)
            assert (found["error"], found["rank"]) == ("PeerDied", 1)
            assert ranks.end(rank) == (0, "")


def test_a_kill_of_all_ranks_leaves_nothing() -> None:
    program = """
comm = hocket.init()
x = hocket.empty(1 << 20)
comm.barrier()
tell(ready=1)
while True:
    comm.all_reduce(x)
"""
    with Ranks(program, 3) as ranks:
        for rank in range(3):
            ranks.told(rank)
        # Other programs use /dev/shm too; a file that no rank has opened there cannot be left by a rank.
        for process in ranks.processes:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            assert "memfd:hocket" in maps and "/dev/shm" not in maps
            links = [str(path.readlink()) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
            assert not any(link.startswith("/dev/shm") for link in links)
        # Stopped first; otherwise the last ones to be killed begin to report the death of the first.
        for rank in range(3):
            ranks.signal(rank, signal.SIGSTOP)
        while not all(is_stopped(process.pid) for process in ranks.processes):
            pass
        for rank in range(3):
            ranks.signal(rank, signal.SIGKILL)
        for rank in range(3):
            assert ranks.end(rank) == (-signal.SIGKILL, "")


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_kill_while_others_wait_on_the_stream() -> None:
    program = """
comm = hocket.init()
comm.barrier()
tell(ready=1)
if comm.rank == 0:
    until_told()
works = [comm.all_reduce(np.ones(10), async_op=True) for _ in range(5)]
for work in works:
    failing(work.wait)
comm.close()
"""
    with Ranks(program, 3) as ranks:
        for rank in range(3):
            ranks.told(rank)
        ranks.signal(0, signal.SIGKILL)
        for rank in (1, 2):
            for _ in range(5):
                found = ranks.told(rank)
                assert (found["error"], found["rank"]) == ("PeerDied", 0)
            assert ranks.end(rank) == (0, "")


# --- stop ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 1 << 18])
def test_a_stopped_rank_is_not_dead(count: int) -> None:
    program = f"""
with hocket.init() as comm:
    x = np.empty({count})
    for turn in range(300):
        x[:] = turn + comm.rank
        if turn == 20 and comm.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        assert (comm.all_reduce(x, timeout=60) == 3 * turn + 3).all(), turn
    tell(right=True)
"""
    with Ranks(program, 3) as ranks:
        os.waitid(os.P_PID, ranks.processes[1].pid, os.WSTOPPED)
        time.sleep(0.5)  # the time it is stopped, long enough for a mistake to show
        assert [ranks.processes[rank].poll() for rank in range(3)] == [None] * 3
        ranks.signal(1, signal.SIGCONT)
        for rank in range(3):
            assert ranks.told(rank) == {"right": True}
            assert ranks.end(rank) == (0, "")


def test_a_rank_that_stays_stopped_is_named_when_the_time_is_over() -> None:
    program = """
comm = hocket.init()
comm.barrier()
tell(ready=1)
failing(lambda: [comm.all_reduce(np.ones(1000), timeout=0.5) for _ in range(10**9)])
comm.close()
"""
    with Ranks(program, 3) as ranks:
        for rank in range(3):
            ranks.told(rank)
        ranks.signal(2, signal.SIGSTOP)
        for rank in (0, 1):
            found = ranks.told(rank)
            assert (found["error"], found["missing"]) == ("CollectiveTimeout", [2])
        for rank in (0, 1):
            assert ranks.end(rank) == (0, "")
        ranks.signal(2, signal.SIGCONT)
        assert ranks.told(2)["error"] == "CollectiveTimeout"
        assert ranks.end(2) == (0, "")


def test_a_rank_that_stops_in_the_middle_is_named_by_one_that_waits_for_another() -> None:
    """Rank 1 waits for rank 0, which waits for rank 2, which has made the call."""
    program = """
import os, signal
comm = hocket.init()

def add(left, right):
    if comm.rank == 2 and len(left) > 3:
        os.kill(os.getpid(), signal.SIGSTOP)
    return left + right

comm.barrier()
add = hocket.op(add, commutative=True)
failing(lambda: comm.all_reduce(np.ones(1000), op=add, algorithm="tree", timeout=1 if comm.rank == 1 else 60))
comm.close()
"""
    with Ranks(program, 4) as ranks:
        for rank in (0, 1, 3):
            found = ranks.told(rank)
            assert (found["error"], found["missing"]) == ("CollectiveTimeout", [2])
            assert ranks.end(rank) == (0, "")
        ranks.signal(2, signal.SIGCONT)
        assert ranks.told(2)["error"] == "CollectiveTimeout"
        assert ranks.end(2) == (0, "")


# --- time-outs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [None, "ring", "direct", "direct_two_shot", "halving_doubling"])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("count", [2, 50_000])
def test_a_rank_that_never_calls_is_named(count: int, size: int, algorithm: str | None) -> None:
    """For every position in the algorithm, and for every chain of waiting ranks."""
    for absent in range(size):
        over = threading.Barrier(size)

        def main(absent: int = absent, over: threading.Barrier = over) -> None:
            comm = hocket.init()
            comm.all_reduce(np.ones(count), algorithm=algorithm)
            if comm.rank != absent:
                for _ in range(2):  # the second time gives the same
                    with pytest.raises(CollectiveTimeout, match=r"has not come within 0\.05 s") as caught:
                        comm.all_reduce(np.ones(count), algorithm=algorithm, timeout=0.05)
                    assert caught.value.missing == (absent,) and caught.value.seconds == 0.05
                    assert caught.value.sequence == 2
            over.wait(PATIENCE_SECONDS)
            if comm.rank == absent:
                with pytest.raises(CollectiveTimeout) as late:
                    comm.all_reduce(np.ones(count), algorithm=algorithm)
                assert late.value.missing == (absent,)
            comm.close()

        run_ranks(main, size, kind="thread")


def test_a_rank_that_never_comes_to_a_barrier_is_named() -> None:
    over = threading.Event()

    def main() -> None:
        comm = hocket.init()
        if comm.rank == 3:
            assert over.wait(PATIENCE_SECONDS)
            with pytest.raises(CollectiveTimeout):
                comm.close()
            return
        with pytest.raises(CollectiveTimeout) as caught:
            comm.barrier(timeout=0.1)
        assert caught.value.missing == (3,)
        over.set()
        comm.close()

    run_ranks(main, 4, kind="thread")


# --- signals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "blocked",
    [
        "comm.all_reduce(np.ones(3))",
        "comm.all_reduce(np.ones(10**5))",
        "comm.barrier()",  # a repeated call, which waits without Python
        "comm.all_reduce(np.ones(3), async_op=True).wait()",
    ],
)
def test_ctrl_c_in_a_blocked_call_is_a_keyboard_interrupt(blocked: str) -> None:
    """Rank 0 is interrupted; rank 1 waits in the call too; rank 2 comes later."""
    program = f"""
comm = hocket.init()
comm.barrier()
tell(ready=1)
def call():
    with comm:
        {blocked}
if comm.rank == 2:
    until_told()
try:
    failing(call)
except KeyboardInterrupt:
    tell(interrupted=time.monotonic())
"""
    with Ranks(program, 3) as ranks:
        for rank in range(3):
            ranks.told(rank)
        wait_for_sleep(ranks.processes[0].pid)  # in the call; an earlier interrupt would give the same
        began = ranks.signal(0, signal.SIGINT)
        assert ranks.told(0)["interrupted"] - began < 5.0  # the timeout is 300 s
        found = ranks.told(1)
        assert (found["error"], found["rank"]) == ("PeerAborted", 0) and "nterrupt" in found["reason"]
        ranks.tell(2)
        found = ranks.told(2)
        assert (found["error"], found["rank"]) == ("PeerAborted", 0) and "nterrupt" in found["reason"]
        for rank in range(3):
            assert ranks.end(rank) == (0, "")


def test_ctrl_c_after_the_failure_of_a_later_call_is_a_keyboard_interrupt() -> None:
    """Rank 1 has failed in the second call; rank 0's first call still waits for an earlier action in its stream."""
    program = """
comm = hocket.init()
x = np.ones(3)
comm.barrier()
if comm.rank == 1:
    comm.broadcast(x, root=1)
    failing(lambda: comm.all_reduce(x, timeout=0.2))
    until_told()
else:
    stream = hocket.Stream()
    stream.submit(until_told)
    with hocket.stream(stream):
        work = comm.broadcast(x, root=1, async_op=True)
    try:
        with comm:
            tell(ready=1)
            comm.all_reduce(x)
    except KeyboardInterrupt:
        tell(interrupted=time.monotonic())
    failing(work.wait)
comm.close()
"""
    with Ranks(program, 2) as ranks:
        ranks.told(0)
        assert ranks.told(1)["error"] == "CollectiveTimeout"
        began = ranks.signal(0, signal.SIGINT)
        assert ranks.told(0)["interrupted"] - began < 5.0  # its message never comes
        found = ranks.told(0)
        assert (found["error"], found["missing"]) == ("CollectiveTimeout", [0])
        for rank in range(2):
            ranks.tell(rank)
            assert ranks.end(rank) == (0, "")


def test_ctrl_c_while_closing_with_work_outstanding() -> None:
    program = """
comm = hocket.init()
comm.barrier()
if comm.rank == 1:
    tell(ready=1)
    until_told()
    failing(comm.barrier)
    sys.exit()
comm.all_reduce(np.ones(3), async_op=True)
try:
    tell(ready=1)
    comm.close()
except KeyboardInterrupt:
    tell(interrupted=time.monotonic())
"""
    with Ranks(program, 2) as ranks:
        for rank in range(2):
            ranks.told(rank)
        wait_for_sleep(ranks.processes[0].pid)  # in close
        began = ranks.signal(0, signal.SIGINT)
        assert ranks.told(0)["interrupted"] - began < 5.0
        ranks.tell(1)
        assert ranks.told(1)["error"] == "PeerAborted"
        for rank in range(2):
            assert ranks.end(rank) == (0, "")


def test_a_signal_with_a_handler_of_its_own_disturbs_nothing() -> None:
    program = """
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
with hocket.init() as comm:
    comm.barrier()
    tell(ready=1)
    if comm.rank == 1:
        until_told()
    assert (comm.all_reduce(np.ones(1000)) == 2).all()
    tell(seen=len(seen) > 0)
"""
    with Ranks(program, 2) as ranks:
        for rank in range(2):
            ranks.told(rank)
        for _ in range(20):
            ranks.signal(0, signal.SIGUSR1)
            time.sleep(0.005)  # so that signals come one by one
        ranks.tell(1)
        assert ranks.told(0) == {"seen": True} and ranks.told(1) == {"seen": False}
        for rank in range(2):
            assert ranks.end(rank) == (0, "")


# --- leaving -------------------------------------------------------------------------------------------------------


def test_an_exception_inside_with_is_told_to_the_others() -> None:
    def main() -> None:
        try:
            with hocket.init() as comm:
                comm.barrier()
                if comm.rank == 1:
                    raise LookupError("no such file: weights.npz")
                comm.all_reduce(np.ones(3))
        except PeerAborted as error:
            assert comm.rank != 1 and error.rank == 1
            assert error.reason == "LookupError: no such file: weights.npz" and error.reason in str(error)
        except LookupError:
            assert comm.rank == 1
        else:
            raise AssertionError(f"rank {comm.rank} went on")

    run_ranks(main, 4, kind="thread")


def test_a_long_reason_is_cut_between_characters() -> None:
    def main() -> str:
        try:
            with hocket.init() as comm:
                if comm.rank == 0:
                    raise ValueError("ü" * 5000)
                comm.barrier()
        except PeerAborted as error:
            return error.reason
        except ValueError:
            pass
        return ""

    reason = run_ranks(main, 2, kind="thread")[1]
    assert reason.startswith("ValueError: üüü") and len(reason) > 80


def test_abort_is_told_and_the_own_calls_fail_too() -> None:
    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            comm.abort("bad data")
        with pytest.raises(PeerAborted, match="gave up: bad data") as caught:
            comm.barrier()
        assert (caught.value.rank, caught.value.reason) == (0, "bad data")
        comm.close()

    run_ranks(main, 3, kind="thread")


def test_a_rank_that_closes_early_is_named_by_those_who_need_it() -> None:
    def main() -> None:
        comm = hocket.init()
        comm.barrier()
        if comm.rank != 0:
            with pytest.raises(PeerAborted) as caught:
                comm.all_reduce(np.ones(3))
            assert (caught.value.rank, caught.value.reason) == (0, "it closed its communicator")
            what = r"rank 0 left without all_reduce \(call 2\), which ranks 1, 2 \(.*test_faults\.py:\d+\) are in"
            assert re.search(what + r": does every rank call it\?", str(caught.value)), caught.value
        comm.close()

    run_ranks(main, 3, kind="thread")


def test_a_root_that_waits_to_close_is_named_by_those_who_wait_for_it() -> None:
    def main() -> None:
        comm = hocket.init()
        if comm.rank == 0:
            comm.broadcast(np.ones(3))  # which the others do not call
        else:
            with pytest.raises(PeerAborted, match=r"rank 0 closed the communicator before that: does every rank make"):
                comm.recv(np.ones(1), 0, timeout=PATIENCE_SECONDS)
        comm.close()

    run_ranks(main, 3, kind="thread")


LEAVE = """
comm = hocket.init()
comm.barrier()
tell(ready=1)
if comm.rank == 0:
    until_told()  # the others have left the barrier
    {leave}
failing(lambda: comm.all_reduce(np.ones(3)))
comm.close()
"""


@pytest.mark.parametrize(
    ("leave", "error", "reason", "code", "errors"),
    [
        # Without a message.
        ("os._exit(7)", "PeerDied", None, 7, ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", "PeerDied", None, -signal.SIGTERM, ""),
        # Correctly, but too early.
        ("sys.exit(0)", "PeerAborted", "it closed its communicator", 0, ""),
        ("sys.exit(3)", "PeerAborted", "it closed its communicator", 3, ""),
        # By an exception that was not caught.
        ("raise ValueError('lost')", "PeerAborted", "ValueError: lost", 1, "ValueError: lost"),
    ],
)
def test_a_rank_that_ends_without_close(leave: str, error: str, reason: str | None, code: int, errors: str) -> None:
    with Ranks(LEAVE.format(leave=leave), 3) as ranks:
        for rank in range(3):
            ranks.told(rank)
        ranks.tell(0)
        for rank in (1, 2):
            found = ranks.told(rank)
            assert (found["error"], found["rank"], found["reason"]) == (error, 0, reason)
            assert ranks.end(rank) == (0, "")
        found_code, found_errors = ranks.end(0)
        assert found_code == code and errors in found_errors and ("Traceback" in found_errors) is bool(errors)


def test_ranks_that_end_together_without_close_end_well() -> None:
    program = """
comm = hocket.init()
work = comm.all_reduce(np.ones(10**5), async_op=True)
tell(done=float(comm.broadcast(np.full(3, comm.rank + 1.0))[0]))
"""
    with Ranks(program, 3) as ranks:
        for rank in range(3):
            assert ranks.told(rank) == {"done": 1.0}
        for rank in range(3):
            assert ranks.end(rank) == (0, "")


def test_a_rank_that_died_after_it_closed_is_not_missed() -> None:
    program = """
comm = hocket.init()
other = hocket.init(address=os.environ["HOCKET_ADDRESS"] + "-other")
if comm.rank == 0:
    comm.broadcast(np.ones(3))
    comm.close()
    tell(closed=1)
    until_told()
else:
    tell(closed=0)
    until_told()
    assert (comm.broadcast(np.zeros(3)) == 1).all()
    comm.close()
    tell(right=True)
"""
    with Ranks(program, 2) as ranks:
        # Rank 0 cannot close before the other has called, so it is told to call first.
        assert ranks.told(1) == {"closed": 0}
        ranks.tell(1)
        assert ranks.told(0) == {"closed": 1}
        assert ranks.told(1) == {"right": True}
        ranks.signal(0, signal.SIGKILL)


# --- fork ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["", "comm.barrier(async_op=True).wait()"], ids=["inline", "stream"])
@pytest.mark.parametrize("ending", ["sys.exit(5)", "os._exit(5)", "del comm; gc.collect(); sys.exit(5)"])
def test_a_forked_child_may_not_use_the_communicator_and_ends_cleanly(stream: str, ending: str) -> None:
    program = f"""
import gc
comm = hocket.init()
registered = hocket.empty(10_000)
registered[:] = 1
comm.barrier()
{stream}
child = os.fork()
if child == 0:
    for call in (comm.barrier, lambda: comm.all_reduce(np.ones(3)), lambda: comm.broadcast(np.ones(3), async_op=True),
                 lambda: comm.abort("child")):
        try:
            call()
        except ForkedUse:
            continue
        os._exit(1)
    comm.close()
    del registered
    {ending}
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 5, status
assert (registered == 1).all(), "the child gave the parent's memory back"
assert (comm.all_reduce(registered) == 2).all()
{stream}
comm.close()
tell(unharmed=True)
"""
    with Ranks(program, 2) as ranks:
        for rank in range(2):
            assert ranks.told(rank) == {"unharmed": True}
            assert ranks.end(rank) == (0, "")


def test_a_forked_child_may_have_a_communicator_of_its_own() -> None:
    program = """
comm = hocket.init()
comm.barrier()
child = os.fork()
with hocket.init(address=os.environ["HOCKET_ADDRESS"] + f"-{child == 0}") as own:
    x = hocket.empty(5000)
    x[:] = 1
    assert (own.all_reduce(x) == 2).all()
    own.barrier()
if child == 0:
    sys.exit(4)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 4, status
comm.barrier()
comm.close()
tell(unharmed=True)
"""
    with Ranks(program, 2) as ranks:
        for rank in range(2):
            assert ranks.told(rank) == {"unharmed": True}
            assert ranks.end(rank) == (0, "")


def test_a_child_that_outlives_its_parent_does_not_hide_the_death() -> None:
    """A forked child shares the parent's memory, but is not a rank."""
    program = """
comm = hocket.init()
comm.barrier()
if comm.rank == 0 and os.fork() == 0:
    sys.stdout = sys.stderr = None
    for descriptor in (1, 2):
        os.close(descriptor)
    sys.stdin.readline()  # ends when the test closes the pipe
    os._exit(0)
tell(ready=1)
failing(lambda: [comm.all_reduce(np.ones(10)) for _ in range(10**9)])
comm.close()
"""
    with Ranks(program, 3) as ranks:
        for rank in range(3):
            ranks.told(rank)
        killed = ranks.signal(0, signal.SIGKILL)
        for rank in (1, 2):
            found = ranks.told(rank)
            assert (found["error"], found["rank"]) == ("PeerDied", 0)
            assert found["at"] - killed < 1.0
            assert ranks.end(rank) == (0, "")


# --- run_ranks -----------------------------------------------------------------------------------------------------


def kill_the_last() -> None:
    with hocket.init() as comm:
        for turn in range(10**9):
            if turn == 50 and comm.rank == comm.size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.all_reduce(np.ones(100))


def test_run_ranks_raises_the_death_that_the_others_report() -> None:
    with pytest.raises(PeerDied, match=r"rank 2 of 3 \(process \d+\) was killed by SIGKILL"):
        run_ranks(kill_the_last, 3, kind="process")
