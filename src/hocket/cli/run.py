"""`hocket run -n 4 -- script.py ...`: starts a program as several ranks, on this host or, by ssh, on others."""

import argparse
import shlex
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket run`."""
    from hocket.cli.argument_types import time_limit

    parser.usage = (
        "hocket run -n RANKS [--label] [--timeout SECONDS] -- PROGRAM [ARG ...]\n"
        "       hocket run --hosts A,B,... [-n RANKS_PER_HOST] [--no-label]\n"
        "                  [--timeout SECONDS] [--ssh COMMAND] [--python FILE]\n"
        "                  [--directory FOLDER] -- PROGRAM [ARG ...]"
    )
    parser.epilog = (
        "PROGRAM is a Python file, `-m MODULE`, or any executable, in PATH or in this folder. The environment "
        "variables of torchrun are set, so PyTorch programs work unchanged. Each rank is bound to its share of the "
        "cores; with fewer cores than ranks, neighbouring ranks share a core. If a rank fails, the other ranks have "
        "5 s to end; the exit code is that of the first rank that failed. Hosts need Hocket of this version and the "
        "program, at the same places as here, and a login by ssh without a password. Their ranks get the variables of "
        "Hocket that are set here, and no input."
    )
    parser.add_argument(
        "-n", "-np", "--ranks", type=_positive_int, metavar="RANKS", help="number of ranks; with --hosts, on each host"
    )
    parser.add_argument("--hosts", type=_hosts, metavar="A,B,...", help="run on these hosts; the first has rank 0")
    parser.add_argument(
        "--ssh",
        type=_words,
        metavar="COMMAND",
        help="what connects to a host, called with the host and a command line (default: ssh)",
    )
    parser.add_argument("--python", metavar="FILE", help="the Python interpreter on the hosts (default: as here)")
    parser.add_argument("--directory", metavar="FOLDER", help="the working directory on the hosts (default: as here)")
    parser.add_argument(
        "--label",
        action=argparse.BooleanOptionalAction,
        help="put [rank] in front of each line of output, or not (default: with --hosts)",
    )
    parser.add_argument("--timeout", type=time_limit, metavar="SECONDS", help="end the run after this time")
    parser.set_defaults(refuse=parser.error)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="the program that each rank runs")


def run(arguments: argparse.Namespace) -> int:
    """Runs the program as ranks and returns the program's exit code."""
    from hocket.answers import check_ranks

    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    alone = [name for name in ("ssh", "python", "directory") if getattr(arguments, name) and not arguments.hosts]
    if arguments.ranks is None and not arguments.hosts:
        arguments.refuse("the following arguments are required: -n or --hosts")
    if alone:
        arguments.refuse(f"--{alone[0]} is for other hosts; give --hosts too")
    if not program:
        _print_aside("expected a program; for example: hocket run -n 4 -- script.py")
        return 2
    check_ranks(arguments.ranks or 1)
    return _run_on_hosts(arguments, program) if arguments.hosts else _run_here(arguments, program)


def _run_here(arguments: argparse.Namespace, program: list[str]) -> int:
    from hocket.runtime.launch import program_command, supervisor

    try:
        command = program_command.command_of(program)
        return supervisor.run_command(arguments.ranks, command, label=bool(arguments.label), timeout=arguments.timeout)
    except OSError as error:
        text, code = program_command.why_not_started(program, error)
        _print_aside(text)
        return code


def _run_on_hosts(arguments: argparse.Namespace, program: list[str]) -> int:
    from hocket.runtime.launch import remote_ranks

    job = remote_ranks.HostsJob(
        arguments.hosts,
        arguments.ranks or 1,
        program,
        directory=arguments.directory or str(Path.cwd()),
        python=arguments.python or sys.executable,
        ssh=arguments.ssh or ["ssh"],
    )
    label = True if arguments.label is None else arguments.label
    return remote_ranks.run_on_hosts(job, label=label, timeout=arguments.timeout)


def _print_aside(text: str) -> None:
    from hocket.view import print_aside  # only now: ranks start sooner without it

    print_aside(f"hocket run: {text}")


def _positive_int(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks; expected 1 or more")
    return number


def _hosts(text: str) -> list[str]:
    hosts = text.split(",")
    wrong = [host for host in hosts if not host or host.startswith("-") or len(host.split()) != 1]
    if wrong:
        raise argparse.ArgumentTypeError(f"{text!r} has {wrong[0]!r} for a host; expected names such as a,b or me@a,b")
    return hosts


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no command: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("expected a command, such as 'ssh -p 2222'")
    return words
