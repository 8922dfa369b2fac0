"""`make fuzz`: gives millions of inputs to every parser of bytes from other ranks and boards.

A finding is printed with its input, and added to the corpus, whose inputs `make test` handles every time.
"""

import argparse
import os
import subprocess
import sys
import time

from tests.fuzz import inputs
from tests.fuzz.targets import ROOT, TARGETS, Target, build


def fuzz(target: Target, num_runs: int, seed: int) -> bool:
    """Give so many inputs to a target, in one process for each core. Return whether there is no finding."""
    began = time.monotonic()
    workers = os.cpu_count() or 1
    each = max(int(num_runs * target.share) // workers, 1)
    running = []
    for number in range(workers):
        command = target.command(each, seed + number)
        running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [process.communicate()[0] for process in running]
    seconds = time.monotonic() - began
    is_good = True
    for number, (process, text) in enumerate(zip(running, said, strict=True)):
        if process.returncode != 0:
            is_good = False
            report(target, text, each, seed + number, process.returncode)
    if is_good:
        print(f"{target.name:12} {workers} x {said[0].strip()}; {seconds:.0f} s, no finding", flush=True)
    return is_good


def report(target: Target, text: str, num_runs: int, seed: int, status: int) -> None:
    """Print a finding, and add its input to the corpus."""
    print(text)
    found = [line.partition(" ")[2] for line in text.splitlines() if line.startswith("input ")]
    again = f'make fuzz ARGS="--targets {target.name}'
    if not found:
        print(f"{target.name}: ended by {status}, seed {seed}; again: {' '.join(target.command(num_runs, seed))}")
        return
    inputs.add(target.name, bytes.fromhex(found[-1]), f"found with seed {seed}")
    file = inputs.file_of(target.name).relative_to(ROOT)
    print(f'{target.name}: finding {found[-1]} (seed {seed}), added to {file}; again: {again} --runs 1"', flush=True)


def main() -> int:
    """Fuzz the targets that the command line names, or all."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS), help="default: all")
    parser.add_argument(
        "--runs", type=int, default=10_000_000, help="inputs for each target; forgery gets a tenth, meeting a quarter"
    )
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9, help="default: from the clock")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    if any(TARGETS[name].handle is None for name in options.targets):
        build()
    return 0 if all([fuzz(TARGETS[name], options.runs, options.seed) for name in options.targets]) else 1


if __name__ == "__main__":
    sys.exit(main())
