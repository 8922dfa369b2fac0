"""`hocket run -n 4 -- script.py ...`: starts a program as several ranks, by `hocket.runtime.launch.supervisor`."""

import argparse
import os
import shutil
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket run`."""
    from hocket.cli.argument_types import time_limit

    parser.usage = "hocket run -n RANKS [--label] [--timeout SECONDS] -- PROGRAM [ARG ...]"
    parser.epilog = (
        "PROGRAM is a Python file, `-m MODULE`, or any executable, in PATH or in this folder. The environment "
        "variables of torchrun are set, so PyTorch programs work unchanged. Each rank is bound to its share of the "
        "cores; with fewer cores than ranks, neighbouring ranks share a core. If a rank fails, the other ranks have "
        "5 s to end; the exit code is that of the first rank that failed."
    )
    parser.add_argument(
        "-n", "-np", "--ranks", type=_positive_int, required=True, metavar="RANKS", help="number of ranks"
    )
    parser.add_argument("--label", action="store_true", help="put [rank] in front of each line of output")
    parser.add_argument("--timeout", type=time_limit, metavar="SECONDS", help="end the run after this time")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="the program that each rank runs")


def run(arguments: argparse.Namespace) -> int:
    """Runs the program as ranks and returns the program's exit code."""
    from hocket.answers import check_ranks
    from hocket.runtime.launch import supervisor

    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        _print_aside("hocket run: expected a program; for example: hocket run -n 4 -- script.py")
        return 2
    check_ranks(arguments.ranks)
    try:
        return supervisor.run_command(
            arguments.ranks, _command(program), label=arguments.label, timeout=arguments.timeout
        )
    except OSError as error:
        _print_aside(
            f"hocket run: cannot start {program[0]!r}: {error.strerror}; expected a Python file, `-m MODULE` or an "
            f"executable, relative to {Path.cwd()}"
        )
        return 127 if isinstance(error, FileNotFoundError) else 126


def _print_aside(text: str) -> None:
    from hocket.view import print_aside  # only now: ranks start sooner without it

    print_aside(text)


def _command(program: list[str]) -> list[str]:
    if program[0] == "-m" or program[0] == "-c":
        return [sys.executable, *program]
    if program[0].endswith(".py"):
        if not Path(program[0]).is_file():
            raise FileNotFoundError(2, "no such file", program[0])
        return [sys.executable, *program]
    file = Path(program[0])
    if not file.is_file() or shutil.which(program[0]) is not None:
        return program
    if not os.access(file, os.X_OK) and _is_python(file):
        return [sys.executable, *program]
    return [str(file.absolute()), *program[1:]]


def _is_python(file: Path) -> bool:
    try:
        compile(file.read_bytes(), file, "exec")
    except (OSError, SyntaxError, ValueError):
        return False
    return True


def _positive_int(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks; expected 1 or more")
    return number
