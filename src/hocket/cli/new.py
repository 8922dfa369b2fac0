"""`hocket new FILE.py`: writes a file with a correct, runnable algorithm for the user to change (start_files.py)."""

import argparse
import builtins
import json
import keyword
import re
import shlex
import sys
from pathlib import Path

from hocket.cli.start_files import start_file
from hocket.view import Terminal, saving

_IMPORTED = ("hocket", "numpy", "msgspec")  # besides the standard library, by the new file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket new`."""
    from hocket.cli.argument_types import collective_name

    parser.add_argument("file", type=Path, metavar="FILE.py", help="the file to write; it must not exist")
    collective_help = "the collective that the algorithm is for (default all_reduce)"
    parser.add_argument(
        "--collective", type=collective_name, default="all_reduce", metavar="NAME", help=collective_help
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Writes the file and prints the next commands. Raises ValueError (exit code 2) if the file exists."""
    from hocket.schedule import find_collective

    file: Path = arguments.file
    collective = find_collective(arguments.collective).name
    if file.suffix != ".py":
        raise ValueError(f"expected the name of a new file, such as my_algorithm.py; found {str(file)!r}")
    if file.stem in sys.stdlib_module_names or file.stem in _IMPORTED:
        raise ValueError(f"expected a name other than {file.name}, which would hide the module {file.stem}")
    name, path = _name(file.stem, collective), shlex.quote(str(file))
    commands = {
        "verify": f"hocket verify {path}",
        "show": f"hocket show {path} -n 4",
        "run": f"hocket run -n 4 -- {path}",
    }
    verify = f"hocket verify {shlex.quote(file.name)}".replace("\\", "\\\\")
    saving.write(file, start_file(collective).text(collective, name, verify), new=True)
    if arguments.json:
        print(json.dumps({"file": str(file), "collective": collective, "name": name, "commands": commands}))
        return 0
    console = Terminal()
    article = "an" if collective.startswith("a") else "a"
    console.print(f"{file} contains {name!r}, {article} {collective} algorithm of your own. Next:", markup=False)
    width = max(map(len, commands.values()))
    for command, meaning in zip(commands.values(), ("prove it", "see its steps", "run it as 4 ranks"), strict=True):
        console.print(f"  {command:<{width}}  # {meaning}", markup=False)
    return 0


def _name(stem: str, collective: str) -> str:
    """Returns a name for the function and the algorithm: the file's, changed only if it is taken or not valid."""
    from hocket.algorithms import ALGORITHMS

    name = re.sub(r"\W", "_", stem)
    taken = keyword.iskeyword(name) or name in ("np", *dir(builtins)) or (collective, name) in ALGORITHMS
    return f"my_{name}" if taken or not name.isidentifier() else name
