"""A lecture's workload: 96 layers of 12 gradients; each takes 1 ms to compute and 500 ms to communicate. How long?

    python examples/lecture_workload.py --fixed 1.0 --buckets 25

The processor and the link are two workers; each does one thing after another. `fixed` is the part of the 500 ms that
a collective takes at any length, for example over a link with high latency; the rest grows with the bytes. A bucket of
n gradients takes 500 ms x (fixed + n (1 - fixed)). Buckets save the fixed part. Overlap hides the shorter of computing
and communicating behind the longer one.
"""

import argparse
import itertools

NUM_GRADIENTS = 96 * 12
COMPUTING, COMMUNICATING = 0.001, 0.500  # seconds of one gradient


def finished(sizes: list[int], fixed: float, overlaps: bool) -> float:
    """Returns when the last bucket has been communicated; sizes: gradients in each bucket."""
    computed = communicated = 0.0
    for size in sizes:
        computed += size * COMPUTING
        duration = COMMUNICATING * (fixed + size * (1 - fixed))
        begins = max(computed, communicated)
        communicated = begins + duration
        if not overlaps:
            computed = communicated
    return communicated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fixed", type=float, default=1.0, help="part of the 500 ms that does not depend on bytes (1)")
    parser.add_argument("--buckets", type=int, default=25, help="number of buckets (25)")
    arguments = parser.parse_args()
    if not 0 <= arguments.fixed <= 1 or not 1 <= arguments.buckets <= NUM_GRADIENTS:
        parser.error(f"expected --fixed from 0 to 1, and --buckets from 1 to {NUM_GRADIENTS}")
    cuts = [NUM_GRADIENTS * number // arguments.buckets for number in range(arguments.buckets + 1)]
    buckets = [after - before for before, after in itertools.pairwise(cuts)]
    singly = [1] * NUM_GRADIENTS
    print(f"{NUM_GRADIENTS} gradients, {arguments.fixed:.0%} of the communication of each does not depend on bytes")
    for name, sizes, overlaps in (
        ("one after the other", singly, False),
        ("one after the other, overlapped", singly, True),
        (f"{arguments.buckets} buckets", buckets, False),
        (f"{arguments.buckets} buckets, overlapped", buckets, True),
    ):
        print(f"  {name:<32} {finished(sizes, arguments.fixed, overlaps):>9.3f} s")


if __name__ == "__main__":
    main()
