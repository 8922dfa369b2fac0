"""`hocket run -n 4 -- script.py ...`: the command line of `supervisor`."""

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket run`."""
    from hocket.cli.argument_types import time_limit

    parser.usage = "hocket run -n RANKS [--label] [--timeout SECONDS] -- PROGRAM [ARGUMENT ...]"
    parser.epilog = (
        "PROGRAM is a Python file, `-m MODULE`, or any executable; one of PyTorch finds the variables that torchrun "
        "sets. Each rank is bound to its share of the cores, or neighbours to the same one where there are fewer. If a "
        "rank fails, the others have 5 s to end by themselves; the exit code is that of the first rank that failed."
    )
    parser.add_argument("-n", "--ranks", type=_positive_int, required=True, metavar="RANKS", help="how many ranks")
    parser.add_argument("--label", action="store_true", help="put [rank] in front of each line of output")
    parser.add_argument("--timeout", type=time_limit, metavar="SECONDS", help="end the run after this time")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="what each rank runs")


def run(arguments: argparse.Namespace) -> int:
    """Runs the program as ranks; the exit code is the program's."""
    from hocket.runtime.launch import supervisor

    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        print("hocket run: which program? For example: hocket run -n 4 -- script.py", file=sys.stderr)
        return 2
    try:
        return supervisor.run_command(
            arguments.ranks, _command(program), label=arguments.label, timeout=arguments.timeout
        )
    except OSError as error:
        print(
            f"hocket run: cannot start {program[0]!r}: {error.strerror}; expected a Python file, `-m MODULE` or an "
            f"executable, as seen from {Path.cwd()}",
            file=sys.stderr,
        )
        return 127 if isinstance(error, FileNotFoundError) else 126


def _command(program: list[str]) -> list[str]:
    if program[0] == "-m" or program[0] == "-c":
        return [sys.executable, *program]
    if program[0].endswith(".py"):
        if not Path(program[0]).is_file():
            raise FileNotFoundError(2, "no such file", program[0])
        return [sys.executable, *program]
    return program


def _positive_int(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of ranks; expected 1 or more")
    return number
