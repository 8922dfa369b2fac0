"""The words of failures: the ranks, calls and messages that they name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hocket
from hocket.errors import CollectiveMismatch, CollectiveTimeout, PeerAborted
from hocket.runtime import run_ranks


def run_program(folder: Path, program: str, *command: str) -> "subprocess.CompletedProcess[str]":
    (folder / "program.py").write_text(program)
    command = (sys.executable, *command, str(folder / "program.py"))
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ, check=False)


# Each rank is the root and waits for nobody; none closes before all have returned.
CALLS = "comm.broadcast(numpy.ones(4), root=comm.rank); meeting.barrier()\n"
DIFFERS = f"import hocket, numpy\ncomm = hocket.init()\nmeeting = comm.dup()\n{CALLS}"
# Over connections, a root waits until it is connected, and finds the difference in its call.
found_at_the_end = pytest.mark.shared_memory("only there does a root that differs return from its call")
ENDINGS = {"at the end": DIFFERS, "as it is dropped": DIFFERS + "del comm\n"}


@found_at_the_end
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_difference_that_is_found_at_the_end_of_the_program_makes_it_fail(ending: str, tmp_path: Path) -> None:
    program = ENDINGS[ending] + "import atexit; atexit.register(print, 'the end')"
    done = run_program(tmp_path, program, "-m", "hocket", "run", "-n", "2", "--")
    assert done.returncode == 1 and done.stderr.count("the ranks differ in root") == 1, done.stderr
    assert done.stdout == "the end\n" * 2, "what else ends a process is done"


@found_at_the_end
def test_a_failure_at_the_end_keeps_the_exit_code_of_the_program(tmp_path: Path) -> None:
    program = DIFFERS + "import sys; sys.exit(7)"
    assert run_program(tmp_path, program, "-m", "hocket", "run", "-n", "2", "--").returncode == 7


@found_at_the_end
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_fails_if_a_difference_is_found_at_its_end(method: str, tmp_path: Path) -> None:
    program = (
        "import multiprocessing, sys, numpy, hocket\nfrom hocket.runtime import new_address\n"
        "def main(rank, address, code):\n"
        "    global comm, meeting\n    comm = hocket.init(rank, 2, address=address)\n"
        f"    meeting = comm.dup(); {CALLS}    sys.exit(code)\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context('{method}')\n"
        "    for code in (0, 5):\n"
        "        address = new_address()\n"
        "        ranks = [context.Process(target=main, args=(rank, address, code)) for rank in range(2)]\n"
        "        for rank in ranks: rank.start()\n"
        "        for rank in ranks: rank.join()\n"
        "        assert [rank.exitcode for rank in ranks] == [code or 1] * 2, [rank.exitcode for rank in ranks]\n"
    )
    done = run_program(tmp_path, program)
    assert done.returncode == 0, done.stderr


def test_errors_of_groups_name_ranks_of_the_job() -> None:
    def main() -> list[str]:
        comm = hocket.init()
        odd = comm.split(color=comm.rank % 2)
        assert odd is not None
        if comm.rank % 2 == 0:
            odd.close()
            return []
        with pytest.raises(CollectiveMismatch) as caught:
            odd.all_reduce(np.ones(comm.rank))
        assert caught.value.values == {1: 1, 3: 3}
        odd.close()
        other = comm.subgroup([3, 1])
        assert other is not None
        with pytest.raises(CollectiveTimeout) as late:
            other.recv(np.ones(1), 1 - other.rank, timeout=0.1)
        assert late.value.late in (1, 3) and late.value.missing == (4 - late.value.late,)  # whichever came first
        other.close()
        return [str(caught.value), str(late.value)]

    for rank, texts in enumerate(run_ranks(main, 4, kind="thread")):
        if texts:
            assert texts[0].startswith(f"rank {rank}, all_reduce") and "1 on rank 1" in texts[0], texts
            assert texts[0].count("3 on rank 3") == 1, texts
            assert re.match(rf"rank {rank}, recv from rank {4 - rank} ", texts[1]), texts


def test_a_work_and_a_group_print_what_they_are() -> None:
    def main() -> None:
        comm = hocket.init()
        group = comm.subgroup([2, 1])
        assert repr(comm) == f"<hocket.Communicator rank {comm.rank} of 3>"
        if group is None:
            comm.barrier()
            return
        assert repr(group) == f"<hocket.Communicator rank {group.rank} of 2, ranks (2, 1) of the job>"
        works = [group.irecv(np.ones(1), group.rank, tag=tag, timeout=600.0) for tag in range(2)]
        group.send(np.ones(1), group.rank)
        works[0].wait()
        what = f"<hocket.Work irecv on rank {comm.rank}:"
        assert [repr(work) for work in works] == [f"{what} done>", f"{what} not done>"]
        comm.barrier()  # else one might fail before the other has looked
        group.abort("enough")
        with pytest.raises(PeerAborted):
            works[1].wait()
        assert repr(works[1]) == f"{what} failed>"
        group.close()

    run_ranks(main, 3, kind="thread")


def test_a_reason_that_others_are_told_says_nothing_of_another_communicator() -> None:
    def main() -> str:
        with hocket.init() as comm:
            if comm.rank == 0:
                with pytest.raises(PeerAborted) as heard:
                    comm.barrier()
                return str(heard.value)
            group = comm.subgroup([1, 2])
            assert group is not None
            group.all_reduce(np.ones(comm.rank))
        raise AssertionError("they differ")

    def caught() -> str:
        try:
            return main()
        except CollectiveMismatch:
            return ""

    [told, *_] = run_ranks(caught, 3, kind="thread")
    assert told.count("communicator can only be closed") == 1 and "1 on rank 1" in told, told


@pytest.mark.parametrize("is_object", [True, False])
def test_a_receive_of_the_other_kind_is_told_what_came(is_object: bool) -> None:
    def main() -> str:
        with hocket.init() as comm:
            if comm.rank == 0:
                comm.send_object([1], 1) if is_object else comm.send(np.ones(1), 1)
                return ""
            with pytest.raises(PeerAborted) as caught:
                comm.recv(np.ones(1), 0) if is_object else comm.recv_object(0)
            return str(caught.value)

    told = run_ranks(main, 2, kind="thread")[1]
    sent = "an object, which recv_object() takes; rank 1 waits for an array"
    if not is_object:
        sent = "an array, which recv() takes; rank 1 waits for an object"
    assert told.startswith("rank 1, recv") and f"rank 0 has sent rank 1 {sent}" in told, told


def test_a_sender_that_has_closed_is_named_with_its_message_of_another_tag() -> None:
    def main() -> str:
        with hocket.init() as comm:
            if comm.rank == 0:
                comm.send(np.ones(1), 1, tag=7)
                return ""
            with pytest.raises(PeerAborted) as caught:
                comm.recv(np.ones(1), 0, tag=8)
            return str(caught.value)

    assert (
        "a message with tag 7, which no receive asks for; rank 1 waits for tag 8 from rank 0: use one tag"
        in (run_ranks(main, 2, kind="thread")[1])
    )


def test_waits_for_objects_have_their_own_name() -> None:
    def main() -> list[str]:
        comm = hocket.init()
        texts = []
        for source in (hocket.ANY_SOURCE, 1 - comm.rank):
            made = comm.dup()
            with pytest.raises(CollectiveTimeout) as caught:
                made.recv_object(source, timeout=0.05)
            texts.append(str(caught.value))
            made.close()
        comm.close()
        return texts

    for rank, texts in enumerate(run_ranks(main, 2, kind="thread")):
        for text, source in zip(texts, ("any rank", f"rank {1 - rank}"), strict=True):
            assert text.startswith(f"rank {rank}, recv_object from {source} (tag 0): "), text


def test_a_short_message_to_a_rank_that_has_closed_disturbs_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        comm = hocket.init()
        meeting = comm.dup()
        if comm.rank == 3:
            comm.close()
        meeting.barrier()
        if comm.rank == 0:
            with pytest.raises(PeerAborted, match=r"^rank 0, send to rank 3 \(tag 5\): rank 3 closed"):
                comm.isend(np.ones(1), 3, tag=5).wait()
        meeting.barrier()
        if comm.rank == 1:
            comm.send(np.ones(1), 2)
        elif comm.rank == 2:
            comm.recv(np.ones(1), hocket.ANY_SOURCE)
        meeting.close()
        comm.close()

    run_ranks(main, 4, kind="thread")
    told = capfd.readouterr().err
    closes = "rank 0 closes its communicator with 1 message that nobody received"
    assert f"{closes}: to rank 3, which had closed before, with tag 5" in told


def test_a_time_out_names_the_rank_that_has_not_come_on_all_ranks() -> None:
    def main() -> str:
        comm = hocket.init()
        meeting = comm.dup()
        told = ""
        if comm.rank != 2:
            with pytest.raises(CollectiveTimeout) as caught:
                comm.all_reduce(np.ones(1), timeout=0.2 if comm.rank == 0 else 30.0)
            assert caught.value.late == 2
            told = str(caught.value)
        meeting.barrier()
        meeting.close()
        if comm.rank != 2:
            comm.close()
        return told

    for rank, told in enumerate(run_ranks(main, 4, kind="thread")):
        expected = r"all_reduce.* \(call 1\): rank 2 has not come within 0\.2 s; see what it does instead"
        assert rank == 2 or re.match(rf"rank {rank}, {expected}", told), told


def test_a_rank_that_makes_one_call_more_is_the_only_one_to_be_told() -> None:
    def main() -> str:
        comm = hocket.init()
        meeting = comm.dup()
        comm.barrier()
        told = ""
        if comm.rank == 2:
            with pytest.raises(PeerAborted) as caught:
                comm.barrier()
            told = str(caught.value)
        else:
            comm._finish()  # the first half of close(), which may meet the failure in the second one
        meeting.barrier()
        meeting.close()
        comm.close()
        return told

    told = run_ranks(main, 4, kind="thread")
    assert re.search(r"rank 2 .* has made one call more than ranks [013, ]+, which closed: barrier \(call 2\)", told[2])
