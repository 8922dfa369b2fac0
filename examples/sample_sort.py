"""Sample sort: ranks together sort numbers that no single rank could hold.

    hocket run -n 4 -- examples/sample_sort.py

1. Each rank sorts its own numbers and sends a regular sample of them to rank 0 (gather).
2. Rank 0 sorts the samples and cuts them into one equal part per rank. The cuts are the splitters; all ranks get them
   (broadcast). In the end, rank r has all numbers between splitter r - 1 and splitter r.
3. Each rank tells each other rank how many numbers will come (all_to_all), then sends them (all_to_all_v).
4. Each rank has received one sorted run from every rank, and merges them.

After H. Shi and J. Schaeffer, "Parallel sorting by regular sampling", J. Parallel Distrib. Comput. 14 (1992).
"""

import numpy as np

import hocket

NUM_NUMBERS = 100_000  # of each rank, before
SAMPLES_PER_RANK = 64


def sample_sort(comm: hocket.Communicator, numbers: np.ndarray) -> np.ndarray:
    """Sorts the numbers of all ranks and returns this rank's part: above those of rank - 1, below those of rank + 1."""
    numbers = np.sort(numbers)
    places = np.linspace(0, len(numbers) - 1, SAMPLES_PER_RANK).astype(int)
    samples = comm.gather(numbers[places], root=0)

    splitters = np.empty(comm.size - 1, numbers.dtype)
    if samples is not None:  # at rank 0
        cuts = np.arange(1, comm.size) * SAMPLES_PER_RANK
        splitters[:] = np.sort(samples)[cuts]
    comm.broadcast(splitters, root=0)

    ends = np.searchsorted(numbers, splitters)
    send_counts = np.diff(ends, prepend=0, append=len(numbers))
    recv_counts = comm.all_to_all(send_counts)
    received = comm.all_to_all_v(numbers, send_counts, recv_counts)
    return np.sort(received, kind="stable")  # a stable sort finds the sorted runs and merges them


def check_order(comm: hocket.Communicator, numbers: np.ndarray) -> None:
    """Passes the largest number so far from rank to rank; each rank compares it with its own smallest."""
    largest = np.full(1, np.iinfo(numbers.dtype).min, numbers.dtype)
    if comm.rank > 0:
        comm.recv(largest, comm.rank - 1)
    if np.any(numbers[1:] < numbers[:-1]) or np.any(numbers[:1] < largest):
        raise SystemExit(f"rank {comm.rank}: out of order")
    if len(numbers):
        largest[0] = numbers[-1]
    if comm.rank + 1 < comm.size:
        comm.send(largest, comm.rank + 1)


def count_and_sums(comm: hocket.Communicator, numbers: np.ndarray) -> list[int]:
    """Returns, over all ranks, the count of the numbers, their sum, and the sum of their squares, modulo 2^64."""
    values = numbers.astype("uint64")
    sums = np.array([len(values), values.sum(), (values * values).sum()], np.uint64)
    return list(map(int, comm.all_reduce(sums)))


def main() -> None:
    with hocket.init() as comm:
        numbers = np.random.default_rng(comm.rank).integers(0, 1_000_000, NUM_NUMBERS)
        before = count_and_sums(comm, numbers)
        numbers = sample_sort(comm, numbers)
        check_order(comm, numbers)
        if count_and_sums(comm, numbers) != before:
            raise SystemExit(f"rank {comm.rank}: numbers were lost or changed")
        shown = f"{len(numbers)} numbers from {numbers[0]} to {numbers[-1]}" if len(numbers) else "no numbers"
        print(f"rank {comm.rank} of {comm.size}: {shown}")
        if comm.rank == 0:
            print(f"{before[0]} numbers are in order, and none is lost")


if __name__ == "__main__":
    main()
