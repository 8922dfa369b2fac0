"""`hocket new FILE.py`: an algorithm of one's own to begin with, which is right and runs as it is."""

import argparse
import builtins
import json
import keyword
import re
import shlex
import sys
from pathlib import Path

from hocket.view import saving

_FILE = '''\
"""An all_reduce of my own. After each change of it: {verify}."""

import hocket
import numpy as np


@hocket.algorithm(
    "all_reduce",
    name="{name}",
    chunks=lambda p: p,  # into how many the vector is cut, for p ranks
    steps=lambda p: 2 * (p - 1),
    sent=lambda p: 2 * (p - 1) / p,  # by each rank; 1 is the whole vector
)
def {name}(schedule):
    """Each rank adds up one chunk for all, and then sends all others the sum."""
    p = schedule.num_ranks
    rank = schedule.ranks  # numpy.arange(p): one line speaks for all of them
    for distance in range(1, p):
        peer = (rank + distance) % p
        with schedule.step():
            schedule.reduce(src=rank, dst=peer, chunk=peer)
    for distance in range(1, p):
        with schedule.step():
            schedule.copy(src=rank, dst=(rank + distance) % p, chunk=rank)


if __name__ == "__main__":
    with hocket.init() as comm:
        x = np.full(1000, comm.rank + 1.0)
        comm.all_reduce(x, algorithm="{name}")
        print(f"rank {{comm.rank}} of {{comm.size}}: the sum is {{x[0]}}")
'''
_IMPORTED = ("hocket", "numpy", "msgspec")  # beside the standard library, by a program that runs it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket new`."""
    parser.add_argument("file", type=Path, metavar="FILE.py", help="the file to write; it must not exist yet")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Writes the file and says what to do next. ValueError, which is exit code 2, if there is such a file already."""
    file: Path = arguments.file
    if file.suffix != ".py":
        raise ValueError(f"expected the name of a new file, as my_algorithm.py; found {str(file)!r}")
    if file.stem in sys.stdlib_module_names or file.stem in _IMPORTED:
        raise ValueError(f"expected another name than {file.name}, which would hide the module {file.stem}")
    name, path = _name(file.stem), shlex.quote(str(file))
    commands = {
        "verify": f"hocket verify {path}",
        "show": f"hocket show {path} -n 4",
        "run": f"hocket run -n 4 -- {path}",
    }
    text = _FILE.format(name=name, verify=f"hocket verify {shlex.quote(file.name)}".replace("\\", "\\\\"))
    saving.write(file, text, new=True)
    if arguments.json:
        print(json.dumps({"file": str(file), "collective": "all_reduce", "name": name, "commands": commands}))
        return 0
    print(f"{file} has all_reduce {name!r}, an algorithm of your own. Next:")
    width = max(map(len, commands.values()))
    for command, meaning in zip(commands.values(), ("prove it", "see its steps", "run it as 4 ranks"), strict=True):
        print(f"  {command:<{width}}  # {meaning}")
    return 0


def _name(stem: str) -> str:
    """A name for function and algorithm that is nobody else's, as near to the file's as can be."""
    from hocket.algorithms import ALGORITHMS

    name = re.sub(r"\W", "_", stem)
    taken = keyword.iskeyword(name) or name in ("np", *dir(builtins)) or ("all_reduce", name) in ALGORITHMS
    return f"my_{name}" if taken or not name.isidentifier() else name
