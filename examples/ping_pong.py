"""Latency and bandwidth of messages between two ranks: ping-pong.

    hocket run -n 2 -- examples/ping_pong.py

Rank 0 sends, rank 1 sends the same back. The latency is half of a round trip (the median of many). The bandwidth is the
size divided by the latency. Other ranks wait. Plain `python` starts only one rank, which is not enough.
"""

import time

import numpy as np

import hocket

SIZES = [8 * 8**power for power in range(8)]  # 8 bytes to 16 MiB
BYTES_PER_SIZE = 64 << 20  # at most: it limits the number of round trips of a large message
MAX_ROUNDS, NUM_WARM_UP = 500, 5


def in_words(num_bytes: int) -> str:
    """Returns the bytes with a unit: 8 B, 512 KiB."""
    power = (num_bytes.bit_length() - 1) // 10
    return f"{num_bytes >> 10 * power} {('B', 'KiB', 'MiB')[power]}"


def round_trips(comm: hocket.Communicator, size: int) -> list[float]:
    """Returns the seconds of each round trip of `size` bytes between ranks 0 and 1, as this rank measures them."""
    message = np.full(size, comm.rank, "uint8")
    peer = 1 - comm.rank
    seconds = []
    for _ in range(NUM_WARM_UP + max(10, min(MAX_ROUNDS, BYTES_PER_SIZE // size))):
        started = time.perf_counter()
        if comm.rank == 0:
            comm.send(message, peer)
            comm.recv(message, peer)
        else:
            comm.recv(message, peer)
            comm.send(message, peer)
        seconds.append(time.perf_counter() - started)
    if message.any():
        raise SystemExit(f"rank {comm.rank}: expected the zeros of rank 0 back, found {message.max()}")
    return seconds[NUM_WARM_UP:]


def main() -> None:
    with hocket.init() as comm:
        if comm.size == 1:
            print("ping-pong needs two ranks: hocket run -n 2 -- examples/ping_pong.py")
            return
        if comm.rank == 0:
            print(f"{'size':>8} {'latency':>13} {'bandwidth':>14}")
        for size in SIZES:
            seconds = float(np.median(round_trips(comm, size))) / 2 if comm.rank < 2 else 0.0
            if comm.rank == 0:
                print(f"{in_words(size):>8} {seconds * 1e6:>10.1f} µs {size / seconds / 1e9:>9.3f} GB/s")
        comm.barrier()


if __name__ == "__main__":
    main()
