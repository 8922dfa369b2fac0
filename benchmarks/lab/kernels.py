"""Measures reductions in the core: GB/s read and written by sums of 2, 4 and 8 sources, in cache and in memory.

python benchmarks/lab/kernels.py --dtypes float32,bfloat16 --kernels avx2

Next to each number are its ratios to float32 and to NumPy's copy, for the same number of bytes in the same round.
Rounds are interleaved, and the output shows medians of GB/s and of ratios. The time of an empty call from Python is
subtracted.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from hocket import _core
from hocket.schedule import DTYPES, REDUCTIONS, numpy_dtype

Array = npt.NDArray[np.uint8]
NUM_SOURCES, SIZES = (2, 4, 8), {"64 KiB": 64 << 10, "16 MiB": 16 << 20}
Case = tuple[str, int, str]
"""dtype or "copy"; number of sources; size"""


def time_of(call: Callable[[], object], seconds: float) -> float:
    """Returns the mean seconds of the calls that fit into about `seconds`, at least one."""
    call()
    started, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - started < seconds:
        call()
        calls += 1
    return (time.perf_counter() - started) / calls


def measure(dtypes: list[str], op: str, kernel_set: int, rounds: int, seconds: float) -> dict[Case, list[float]]:
    """Returns the GB/s of each case in each round."""
    number, found = REDUCTIONS.index(op), dict[Case, list[float]]()
    # NumPy's large arrays begin 16 bytes into a cache line; pages are touched before the clock runs.
    arrays = [np.full(max(SIZES.values()) + 64, i % 3, np.uint8) for i in range(max(NUM_SOURCES) + 1)]
    for _ in range(rounds):
        for label, size in SIZES.items():
            out, *sources = (array[:size] for array in arrays)
            copying = time_of(lambda out=out, x=sources[0]: np.copyto(out, x), seconds)  # type: ignore[misc]
            found.setdefault(("copy", 1, label), []).append(2 * size / copying / 1e9)
            for num_sources in NUM_SOURCES:
                for dtype in dtypes:
                    kind = numpy_dtype(dtype)
                    arguments = out.view(kind), [x.view(kind) for x in sources[:num_sources]]
                    nothing = out[:0].view(kind), [out[:0].view(kind)] * num_sources
                    taken, called = (
                        time_of(lambda given=given: _core.fold(*given, number, kernel_set=kernel_set), seconds)  # type: ignore[misc]
                        for given in (arguments, nothing)
                    )
                    rate = (num_sources + 1) * size / (taken - called) / 1e9
                    found.setdefault((dtype, num_sources, label), []).append(rate)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="separated by commas (all)")
    parser.add_argument("--op", default="sum", help="reduction (sum)")
    parser.add_argument("--kernels", choices=_core.KERNEL_SETS, default=_core.KERNEL_SETS[0], help="set of kernels")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--seconds", type=float, default=0.01, help="per case and round (0.01)")
    given = parser.parse_args()
    dtypes = list(dict.fromkeys(["float32", *given.dtypes.split(",")]))
    found = measure(dtypes, given.op, _core.KERNEL_SETS.index(given.kernels), given.rounds, given.seconds)

    def ratio(case: Case, other: Case) -> float:
        return statistics.median(one / two for one, two in zip(found[case], found[other], strict=True))

    table = Table(title=f"{given.op} with the kernels {given.kernels}: GB/s read and written (x float32, x copy)")
    table.add_column("dtype")
    for label in SIZES:
        for num_sources in NUM_SOURCES:
            table.add_column(f"{num_sources} x {label}", justify="right")
    for dtype in dtypes:
        cells = []
        for label in SIZES:
            for n in NUM_SOURCES:
                case = (dtype, n, label)
                plain, copy = ratio(case, ("float32", n, label)), ratio(case, ("copy", 1, label))
                cells.append(f"{statistics.median(found[case]):.1f} ({plain:.2f}, {copy:.2f})")
        table.add_row(dtype, *cells)
    Console(width=140).print(table)
    rates = ", ".join(f"{statistics.median(found['copy', 1, label]):.1f} GB/s at {label}" for label in SIZES)
    print(f"copy: {rates}; medians of {given.rounds} rounds")


if __name__ == "__main__":
    main()
