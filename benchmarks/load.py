"""Measures the other load of this machine during a measurement."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

QUIET = 0.05  # of all cores' time; above this, a measurement cannot be trusted


class Load:
    """The CPU time of the machine and of `processes`, from /proc; this process always counts as one of them."""

    def __init__(self, processes: Iterable[int]) -> None:
        self._ids = [os.getpid(), *processes]
        self._ticks: dict[int, int] = {}  # last known ticks of each process: it may have ended
        self._before = self._read()

    def _read(self) -> np.ndarray:
        """Returns CPU seconds: the total, busy ones, those stolen by the host, and those of `processes`."""
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen = ticks
        busy = user + nice + system + interrupts + soft_interrupts
        for process in self._ids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                self._ticks[process] = int(fields[11]) + int(fields[12])
        ours = sum(self._ticks.values())
        return np.array([busy + idle + waiting + stolen, busy, stolen, ours]) / os.sysconf("SC_CLK_TCK")

    def since(self) -> dict[str, float]:
        """Returns fractions of all cores' time since the start."""
        passed, busy, stolen, ours = self._read() - self._before
        passed = max(passed, 1 / os.sysconf("SC_CLK_TCK"))  # the clock of /proc is coarse
        return {"other_load": max(0.0, float((busy - ours) / passed)), "stolen": float(stolen / passed)}
