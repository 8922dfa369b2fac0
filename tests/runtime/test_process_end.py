"""Ranks of multiprocessing end like others: pending operations complete, an exception is reported."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import multiprocessing.util, os, sys, threading, time, numpy as np, hocket
    from hocket.errors import PeerAborted
    from hocket.runtime import new_address

    def main(rank, address, ending, leaving):
        comm = hocket.init(rank, 2, address=address)
        if ending == "raise" and rank == 1:
            raise ValueError("no luck")
        if ending == "raise":
            try:
                comm.barrier()
            except PeerAborted as error:
                assert error.reason == "ValueError: no luck", error
            else:
                raise AssertionError("the other has ended")
        elif rank == 1:
            comm.all_reduce(np.ones(1 << 20), async_op=True)
            comm.isend(np.full(1 << 20, 7.0), 0)
            multiprocessing.util.Finalize(None, open, (leaving, "w"), exitpriority=0)
            threading.Thread(target=lambda: comm.all_reduce(np.ones(1 << 20))).start()  # which the process awaits
        else:
            while not os.path.exists(leaving):  # the other has returned from here
                time.sleep(0.001)  # between two looks
            for _ in range(2):
                assert (comm.all_reduce(np.ones(1 << 20)) == 2).all()
            received, _, _ = comm.recv(np.empty(1 << 20), 1)
            assert (received == 7).all()

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        address = new_address()
        ranks = [context.Process(target=main, args=(rank, address, *sys.argv[2:])) for rank in range(2)]
        for rank in ranks: rank.start()
        for rank in ranks: rank.join()
        codes = [rank.exitcode for rank in ranks]
        assert codes == ([0, 1] if sys.argv[2] == "raise" else [0, 0]), codes
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("ending", ["raise", "return"])
def test_a_process_of_multiprocessing_ends_as_any_other(method: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, tmp_path / "program.py", method, ending, tmp_path / "leaving"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ, check=False)
    assert result.returncode == 0, result.stderr
    assert ("ValueError: no luck" in result.stderr) == (ending == "raise")
