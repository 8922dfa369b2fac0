"""What the object calls cost, beside the array calls that move the same data: 1 MiB of float32 between two processes.

python benchmarks/objects.py [--ranks N] [--bytes B]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import hocket

_WARM, _ROUNDS = 20, 200


def main(num_bytes: int) -> dict[str, tuple[float, float]]:
    """Returns for each call the median seconds of the array call and of the object call, of the slowest rank."""
    comm = hocket.init()
    at_root = comm.rank == 0
    x = np.ones(num_bytes // 4, np.float32)
    parts, part = np.ones((comm.size, len(x)), np.float32), np.empty((1, len(x)), np.float32)

    def seconds(call: Callable[[], object]) -> float:
        times = []
        for turn in range(_WARM + _ROUNDS):
            comm.barrier()
            begin = time.perf_counter()
            call()
            if turn >= _WARM:
                times.append(time.perf_counter() - begin)
        return statistics.median(comm.all_reduce(np.array(times), op="max").tolist())

    def message(send: Callable[[], object], receive: Callable[[], object]) -> Callable[[], object]:
        return (send, receive, lambda: None)[min(comm.rank, 2)]

    return {
        "broadcast": (
            seconds(lambda: comm.broadcast(x)),
            seconds(lambda: comm.broadcast_object(x if at_root else None)),
        ),
        "all_gather": (seconds(lambda: comm.all_gather(x)), seconds(lambda: comm.all_gather_object(x))),
        "gather": (seconds(lambda: comm.gather(x)), seconds(lambda: comm.gather_object(x))),
        "scatter": (
            seconds(lambda: comm.scatter(parts if at_root else None, out=part)),
            seconds(lambda: comm.scatter_object(list(parts) if at_root else None)),
        ),
        "send": (
            seconds(message(lambda: comm.send(x, 1), lambda: comm.recv(x, 0))),
            seconds(message(lambda: comm.send_object(x, 1), lambda: comm.recv_object(0))),
        ),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare object calls with array calls of the same data.")
    parser.add_argument("--ranks", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="bytes of each rank's array (default 1 MiB)")
    arguments = parser.parse_args()
    found = hocket.run_ranks(main, arguments.ranks, args=(arguments.bytes,))[0]
    print("call        array (us)  object (us)  ratio")
    for name, (array, made) in found.items():
        print(f"{name:10}  {array * 1e6:10.0f}  {made * 1e6:11.0f}  {made / array:5.2f}")
