"""Compares what compare.py does not, with Open MPI and Intel MPI: exchanges, many messages, counts, works.

    python benchmarks/lab/other_calls.py [--ranks 2] [--sizes 64,4K,64K,1M] [--rounds 3] [--peers openmpi,impi]

The table shows microseconds of one call on rank 0: the median over batches of four calls, then the median over rounds.
Each round starts every library again. The last column is the fastest MPI over Hocket. Buffers are not rewritten between
calls. The size is that of a rank's larger buffer, or of one message:

- `exchange`: sendrecv with one other rank;
- `8 messages each way`: irecv and isend, and a wait for all;
- `batch of the same`: Hocket with `batch`, the MPIs as above;
- `all_gather_v`, `reduce_scatter_v`, `all_to_all_v`: always with the same counts, all equal;
- `all_reduce, as a work`: started asynchronously, and waited for at once;
- `all_gather, to a new array`: Hocket without `out`, the MPIs with a new `numpy.empty`.

The peers have virtual environments under build/peers/, made on the first run, and their default settings. With more
ranks than cores, Intel MPI yields.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, os.fspath(Path(__file__).parents[1]))
import peers
from arguments import listed, num_bytes, one_of, whole

NUM_MESSAGES = 8
CALLS, BATCHES, BATCHES_OF_LONG, LONG = 4, 60, 15, 2 << 20
SECONDS = 300  # limit for one run of a library
Calls = dict[str, Callable[[], object]]


class Buffers:
    """The buffers of a rank's calls."""

    def __init__(self, rank: int, size: int, nbytes: int) -> None:
        part = max(1, nbytes // 4 // size)
        self.peer = rank ^ 1
        self.message, self.answer = (np.full(nbytes // 4, rank, np.float32) for _ in range(2))
        self.answers = [np.empty_like(self.message) for _ in range(NUM_MESSAGES)]
        self.block, self.whole, self.other = (np.ones(part * n, np.float32) for n in (1, size, size))
        self.counts = [part] * size
        self.displacements = [part * at for at in range(size)]


def hocket_calls() -> tuple[int, Callable[[], object], Callable[[int], Calls]]:
    """Returns the rank, its barrier, and its calls for a size."""
    import hocket

    comm = hocket.init()

    def calls(nbytes: int) -> Calls:
        b = Buffers(comm.rank, comm.size, nbytes)

        def each_way() -> None:
            works = [comm.irecv(x, b.peer, tag=at) for at, x in enumerate(b.answers)]
            works += [comm.isend(b.message, b.peer, tag=at) for at in range(NUM_MESSAGES)]
            for work in works:
                work.wait()

        def batch() -> None:
            received = [hocket.Recv(x, b.peer, at) for at, x in enumerate(b.answers)]
            comm.batch([*received, *(hocket.Send(b.message, b.peer, at) for at in range(NUM_MESSAGES))])

        return {
            "exchange": lambda: comm.sendrecv(b.message, b.peer, b.answer, b.peer),
            "8 messages each way": each_way,
            "batch of the same": batch,
            "all_gather_v": lambda: comm.all_gather_v(b.block, b.counts, out=b.whole),
            "reduce_scatter_v": lambda: comm.reduce_scatter_v(b.whole, b.counts, out=b.block),
            "all_to_all_v": lambda: comm.all_to_all_v(b.whole, b.counts, b.counts, out=b.other),
            "all_reduce, as a work": lambda: comm.all_reduce(b.whole, async_op=True).wait(),
            "all_gather, to a new array": lambda: comm.all_gather(b.block),
        }

    return comm.rank, comm.barrier, calls


def mpi_calls() -> tuple[int, Callable[[], object], Callable[[int], Calls]]:
    """Returns the same for an MPI."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def calls(nbytes: int) -> Calls:
        b = Buffers(comm.rank, comm.size, nbytes)
        rows, whole, other = (b.counts, b.displacements), b.whole, b.other

        def each_way() -> None:
            requests = [comm.Irecv(x, b.peer, at) for at, x in enumerate(b.answers)]
            MPI.Request.Waitall([*requests, *(comm.Isend(b.message, b.peer, at) for at in range(NUM_MESSAGES))])

        return {
            "exchange": lambda: comm.Sendrecv(b.message, b.peer, 0, b.answer, b.peer, 0),
            "8 messages each way": each_way,
            "batch of the same": each_way,
            "all_gather_v": lambda: comm.Allgatherv(b.block, [whole, rows, MPI.FLOAT]),
            "reduce_scatter_v": lambda: comm.Reduce_scatter(whole, b.block, b.counts),
            "all_to_all_v": lambda: comm.Alltoallv([whole, rows, MPI.FLOAT], [other, rows, MPI.FLOAT]),
            "all_reduce, as a work": lambda: comm.Iallreduce(MPI.IN_PLACE, whole).Wait(),
            "all_gather, to a new array": lambda: comm.Allgather(b.block, np.empty(whole.shape, np.float32)),
        }

    return comm.rank, comm.Barrier, calls


def measure(library: str, sizes: list[int]) -> None:
    """Runs one rank: measures its calls; rank 0 prints the results."""
    rank, barrier, calls_of = hocket_calls() if library == "hocket" else mpi_calls()
    found = []
    for nbytes in sizes:
        for name, call in calls_of(nbytes).items():
            for _ in range(CALLS):
                call()
            seconds = []
            for _ in range(BATCHES if nbytes < LONG else BATCHES_OF_LONG):
                barrier()
                began = perf_counter()
                for _ in range(CALLS):
                    call()
                seconds.append((perf_counter() - began) / CALLS)
            found.append((name, nbytes, statistics.median(seconds) * 1e6))
    if rank == 0:
        print(json.dumps(found))


def start(library: str, ranks: int, sizes: list[int]) -> dict[tuple[str, int], float]:
    """Returns microseconds by call and size. Raises peers.Absent if the library is not there or fails."""
    python = Path(sys.executable) if library == "hocket" else peers.interpreter(library)
    launcher = [python.with_name("hocket"), "run"] if library == "hocket" else [python.with_name("mpiexec")]
    script = [__file__, "--measure", library, "--sizes", ",".join(map(str, sizes))]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | peers.mpi_environment(Path(folder))
        if ranks > (os.cpu_count() or 1):
            environment["I_MPI_THREAD_YIELD"] = "2"
        command = [*launcher, "-n", str(ranks), *([] if library == "hocket" else [python]), *script]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as launched:
            try:
                out, err = launched.communicate(timeout=SECONDS)
            except BaseException as error:
                launched.terminate()  # not killed: it must end its ranks, which would outlive it
                launched.communicate()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                raise peers.Absent(f"no answer within {SECONDS} s") from None
    if launched.returncode:
        raise peers.Absent(f"it failed: {peers.last_line(err)}")
    return {(name, nbytes): found for name, nbytes, found in json.loads(out.splitlines()[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=whole(2, 64), default=2, help="an even number (2)")
    parser.add_argument("--sizes", type=listed(num_bytes), default=[64, 4096, 65536, 1 << 20], help="(64,4K,64K,1M)")
    parser.add_argument("--rounds", type=whole(1), default=3, help="(3)")
    parser.add_argument("--peers", type=listed(one_of(peers.MPIS)), default=["openmpi", "impi"], help="(openmpi,impi)")
    parser.add_argument("--measure", choices=("hocket", *peers.MPIS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ranks % 2:
        parser.error("--ranks: expected an even number, because each rank needs a peer")
    if options.measure:
        return measure(options.measure, options.sizes)
    names = ["hocket", *options.peers]
    rounds: dict[str, list[dict[tuple[str, int], float]]] = {name: [] for name in names}
    for _ in range(options.rounds):
        for name in list(rounds):
            try:
                rounds[name].append(start(name, options.ranks, options.sizes))
            except peers.Absent as reason:
                print(f"{name} is absent: {reason}", file=sys.stderr)
                del rounds[name]
    print(f"{'us of a call, ' + str(options.ranks) + ' ranks':28}{'bytes':>9}" + "".join(f"{n:>10}" for n in rounds))
    for cell in next(iter(rounds.get("hocket", [])), {}):
        medians = [statistics.median(one[cell] for one in found) for found in rounds.values()]
        ratio = f"{min(medians[1:]) / medians[0]:10.2f}" if len(medians) > 1 else ""
        print(f"{cell[0]:28}{cell[1]:>9}" + "".join(f"{median:10.2f}" for median in medians) + ratio)


if __name__ == "__main__":
    main()
