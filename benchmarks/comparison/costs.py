"""Measures the costs apart from moving data: start-up, memory, waiting, and the protections of a call."""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import protections
from peers import last_line

from comparison.contenders import BENCHMARKS, DEFAULT, Setting
from comparison.groups import Failed, Group, Unsupported
from comparison.measuring import say
from comparison.results import Run

MIB = 1 << 20
STARTS = 3  # with everything cached
PROTECTION_STARTS = 7  # take about 12 seconds
RANK_COUNTS = (2, 4, 8, 16, 32, 64)
QUICK_RANK_COUNTS = (2, 8)
LATE_SECONDS = 1.0
IMPORTS = 2.0  # seconds that four ranks may take to import; more ranks in proportion
COMMUNICATORS_SECONDS = 3600.0  # limit; 64 ranks wait half a minute, six times


def late(build: Path) -> dict[str, float]:
    """Returns the CPU seconds for each second that a rank waits in an all_reduce."""
    group = Group("hocket", DEFAULT, 2, build)
    try:
        first, _ = group.ask("late", seconds=LATE_SECONDS)
    finally:
        group.close()
    return {"late": float(first["burnt"] / first["waited"])}


def starting(build: Path, num_ranks: int = 8) -> dict[str, float]:
    """Returns the seconds from hocket.init to the end of the first all_reduce, and the bytes of a rank's arena."""
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        setting = Setting("cold", environment={"HOCKET_CACHE": cache})
        seconds = []
        for number in range(1 + STARTS):
            group = Group("hocket", setting, num_ranks, build)
            try:
                seconds.append(group.first_seconds)
                if number == STARTS:
                    found["staging"] = float(max(group.ask("staging", num_bytes=16 * MIB)))
            finally:
                group.close()
    return found | {"first cold": seconds[0], "first": statistics.median(seconds[1:])}


def communicators(rank_counts: tuple[int, ...], rounds: int) -> str:
    """Returns the table of benchmarks/communicators.py."""
    command = [sys.executable, BENCHMARKS / "communicators.py", "--ranks", ",".join(map(str, rank_counts))]
    command += ["--rounds", str(rounds), "--imports", str(IMPORTS)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMUNICATORS_SECONDS)
    failed = [last_line(found.stderr)] if found.returncode else []
    return "\n".join([*found.stdout.strip().splitlines(), *failed])


def protections_of_a_call(build: Path) -> dict[str, float]:
    """Returns the seconds that protections take in a call of 8 bytes, and their fraction of a large call."""
    small, large = protections.timed(protections.build(), build, PROTECTION_STARTS).values()
    return {
        "protections": statistics.median(small.more),
        "protections of bandwidth": statistics.median(large.more) / statistics.median(large.safe),
    }


def measure(run: Run, build: Path, rank_counts: tuple[int, ...], rounds: int) -> None:
    """Measures all costs into run.costs, by the names that goals use. A part that fails is absent; the rest is valid.

    `communicators` is text, with `rounds` rounds for each rank count.
    """
    say("costs apart from moving data")
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "waiting": lambda: late(build),
        "start and staging": lambda: starting(build),
        "protections": lambda: protections_of_a_call(build),
        "communicators": lambda: {"communicators": communicators(rank_counts, rounds)},
    }
    for name, part in parts.items():
        try:
            run.costs |= part()
        except (Failed, Unsupported, RuntimeError, subprocess.TimeoutExpired) as error:
            run.absent[f"costs, {name}"] = str(error)
