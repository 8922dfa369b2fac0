"""Four ranks add up their arrays.

    hocket run -n 4 -- examples/first_program.py

Started with plain `python`, it runs as one rank alone.
"""

import numpy as np

import hocket


def main() -> None:
    with hocket.init() as comm:
        x = np.full(3, comm.rank + 1.0)
        comm.all_reduce(x)  # in place: the sum over all ranks, on every rank
        names = comm.all_gather(np.array([comm.rank]))
        print(f"rank {comm.rank} of {comm.size}: sum {x.tolist()}, ranks {names.tolist()}")


if __name__ == "__main__":
    main()
