"""What the tests of engines need on each host: programs by their names, and what ranks print."""

import os
import re
from pathlib import Path

from tests.hosts.lab import ROOT

EXAMPLES = ROOT / "examples" / "engines"
PREAMBLE = "import os, socket, sys, numpy, hocket\nfrom pathlib import Path\n"
HOSTS = PREAMBLE + (
    "with hocket.init() as comm:\n"
    "    x = numpy.full(200_000, comm.rank + 1.0)\n"
    "    comm.all_reduce(x)\n"
    "    sys.stdout.write(f'rank {comm.rank} on {socket.gethostname()}: {x.max()} {comm.context.hosts}\\n')\n"
)
"""Ranks tell where they are, and which of them they believe to share a host."""
MISTAKE = PREAMBLE + (
    "with hocket.init() as comm:\n"
    "    comm.barrier()\n"
    "    if comm.rank == comm.size - 1:\n"
    "        raise KeyError('the mistake')\n"
    "    comm.barrier()\n"
)


class Programs:
    """A folder of programs that comes first in PATH. It is also the home folder, which all hosts share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.more: dict[str, str] = {}  # variables
        self._path = [folder]

    @property
    def variables(self) -> dict[str, str]:
        """The variables with which hosts find them, and `more`."""
        return {**self.more, "HOME": str(self.folder), "PATH": ":".join([*map(str, self._path), os.environ["PATH"]])}

    def add(self, name: str, script: str) -> Path:
        """Add a program that is this shell script."""
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        return file

    def add_folder(self, folder: Path) -> None:
        """Add the programs of another folder."""
        self._path.append(folder)

    def write(self, program: str) -> Path:
        """Return the file of a Python program."""
        file = self.folder / "program.py"
        file.write_text(program)
        return file


def check_sums(printed: str, size: int) -> None:
    """Check that first_program.py has run as so many ranks."""
    found = re.findall(r"rank (\d+) of (\d+): sum \[([\d.]+), [^]]*\], ranks (\[[^]]*\])", printed)
    expected = (str(size), f"{size * (size + 1) / 2:.1f}", str([*range(size)]))
    assert sorted(found, key=lambda each: int(each[0])) == [(str(rank), *expected) for rank in range(size)], printed


def check_hosts(printed: str, places: list[int]) -> None:
    """Check that the ranks of HOSTS are on the hosts with these numbers, know it, and have added up their arrays."""
    found = re.findall(r"rank (\d+) on host(\d): ([\d.]+) (\([^)]*\))", printed)
    size, numbers = len(places), list(dict.fromkeys(places))
    known, total = tuple(numbers.index(place) for place in places), f"{size * (size + 1) / 2:.1f}"
    expected = [(str(rank), str(place), total, str(known)) for rank, place in enumerate(places)]
    assert sorted(found, key=lambda each: int(each[0])) == expected, printed
