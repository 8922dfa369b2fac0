"""What it costs to exist: setting up, memory, waiting."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from comparison.contenders import BENCHMARKS, DEFAULT, Setting
from comparison.groups import Group
from comparison.measuring import say

MIB = 1 << 20
STARTS = 3  # with everything cached; the best counts, as others disturb and nothing helps
LATE_SECONDS = 1.0
COMMUNICATORS_SECONDS = 600.0


def late(build: Path) -> float:
    """CPU seconds for each second that a rank waits in an all_reduce."""
    group = Group("hocket", DEFAULT, 2, build)
    try:
        first, _ = group.ask("late", seconds=LATE_SECONDS)
    finally:
        group.close()
    return float(first["burnt"] / first["waited"])


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
    return found | {"first cold": seconds[0], "first": min(seconds[1:])}


def communicators(rank_counts: tuple[int, ...], rounds: int) -> str:
    """What benchmarks/communicators.py says of one more communicator."""
    command = [sys.executable, BENCHMARKS / "communicators.py", "--ranks", ",".join(map(str, rank_counts))]
    command += ["--rounds", str(rounds)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMUNICATORS_SECONDS)
    failed = [found.stderr.strip().splitlines()[-1]] if found.returncode else []
    return "\n".join([*found.stdout.strip().splitlines(), *failed])


def measure(build: Path, rank_counts: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """All of them, by the names that goals use; `communicators` is text, of so many rounds for each rank count."""
    say("costs of existing")
    return {"late": late(build), **starting(build), "communicators": communicators(rank_counts, rounds)}
