"""Runs the whole matrix and writes docs/reports/matrix.md; exit status 1 if any cell is wrong.

python -m tests.matrix [--output FILE]
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from tests.matrix.cells import RANKS, Cell, Exchange, everything, sample
from tests.matrix.kernels import Kernel, check, kernels
from tests.matrix.report import write
from tests.matrix.runner import Outcome, run

IN_PROCESSES = 500  # about so many cases run a second time, with processes as ranks
SEED = 1


def run_kernels() -> list[Outcome]:
    return [kernel_outcome(kernel) for kernel in kernels()]


def kernel_outcome(kernel: Kernel) -> Outcome:
    verdict = check(kernel)
    if verdict in ("right", "refused"):
        return Outcome(kernel, "one process", verdict)
    return Outcome(kernel, "one process", "wrong", verdict)


def run_cases(cases: Sequence[Cell | Exchange], kind: str) -> list[Outcome]:
    """Runs all cases, in one group of ranks for each rank count."""
    outcomes: list[Outcome] = []
    for num_ranks in RANKS:
        mine = [case for case in cases if case.num_ranks == num_ranks]
        began = time.monotonic()
        outcomes += run_apart(mine, num_ranks, kind)
        seconds = time.monotonic() - began
        print(f"{kind:>12}, {num_ranks} ranks: {len(mine)} cases, {seconds:.0f} s", file=sys.stderr, flush=True)
    return outcomes


def run_apart(cases: Sequence[Cell | Exchange], num_ranks: int, kind: str) -> list[Outcome]:
    """Does the same as run in a new process. If that crashes, it tries halves until the guilty case is alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(run, cases, num_ranks, kind).result()
        except BrokenProcessPool:
            if len(cases) == 1:
                return [Outcome(cases[0], kind, "wrong", "the process that ran it crashed")]
    half = len(cases) // 2
    outcomes = run_apart(cases[:half], num_ranks, kind) + run_apart(cases[half:], num_ranks, kind)
    if all(outcome.verdict != "wrong" for outcome in outcomes):
        outcomes[0] = Outcome(
            cases[0], kind, "wrong", f"the process crashed, but only with the {len(cases)} from here on"
        )
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[2] / "docs" / "reports" / "matrix.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["HOCKET_CACHE"] = cache  # every schedule is proved again, and the user's own cache stays as it is
        outcomes = run_kernels()
        outcomes += run_cases(everything(), "thread")
        outcomes += run_cases(sample(everything(), IN_PROCESSES, SEED), "process")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(write(outcomes))
    wrong = [outcome for outcome in outcomes if outcome.verdict == "wrong"]
    for outcome in wrong[:40]:
        print(f"wrong: {outcome.case}, {outcome.kind}: {outcome.reason}", file=sys.stderr)
    print(f"{len(outcomes)} cases, {len(wrong)} wrong: {arguments.output}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
