"""What it costs to exist: setting up, memory, waiting; and what the protections of a call cost."""

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
PROTECTION_STARTS = 7  # in some 12 seconds
RANK_COUNTS = (2, 4, 8, 16, 32, 64)
QUICK_RANK_COUNTS = (2, 8)
LATE_SECONDS = 1.0
IMPORTS = 2.0  # seconds for which four ranks wait until all have imported; with more in proportion
COMMUNICATORS_SECONDS = 3600.0  # of which 64 ranks wait half a minute, six times


def late(build: Path) -> dict[str, float]:
    """CPU seconds for each second that a rank waits in an all_reduce."""
    group = Group("hocket", DEFAULT, 2, build)
    try:
        first, _ = group.ask("late", seconds=LATE_SECONDS)
    finally:
        group.close()
    return {"late": float(first["burnt"] / first["waited"])}


def starting(build: Path, num_ranks: int = 8) -> dict[str, float]:
    """Seconds from hocket.init to the end of the first all_reduce, and bytes that a rank's arena takes in use."""
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
    """What benchmarks/communicators.py says of one more communicator."""
    command = [sys.executable, BENCHMARKS / "communicators.py", "--ranks", ",".join(map(str, rank_counts))]
    command += ["--rounds", str(rounds), "--imports", str(IMPORTS)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMUNICATORS_SECONDS)
    failed = [last_line(found.stderr)] if found.returncode else []
    return "\n".join([*found.stdout.strip().splitlines(), *failed])


def protections_of_a_call(build: Path) -> dict[str, float]:
    """Seconds of a call of 8 bytes that are protections, and the part of the time of a large one."""
    small, large = protections.timed(protections.build(), build, PROTECTION_STARTS).values()
    return {
        "protections": statistics.median(small.more),
        "protections of bandwidth": statistics.median(large.more) / statistics.median(large.safe),
    }


def measure(run: Run, build: Path, rank_counts: tuple[int, ...], rounds: int) -> None:
    """All of them, into run.costs, by the names that goals use; what fails is absent, as the rest stays true.

    `communicators` is text, of so many rounds for each rank count.
    """
    say("costs of existing")
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
