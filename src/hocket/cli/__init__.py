"""The `hocket` command: one module per sub-command, imported only when that sub-command is used.

Each module has `add_arguments(parser)` and `run(arguments) -> int`; the integer is the exit code. A HocketError, a
missing file or a bad argument prints one line on standard error and, with --json, an object {"error": ...}. The exit
code is then 2, or 1 if an algorithm breaks a law; after Ctrl-C it is 130. Every rank started from the command line
imports this module, so it imports as little as possible.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from hocket.errors import did_you_mean

_COMMANDS = {
    "demo": "train a small network on handwritten digits; a proved algorithm sums every gradient",
    "train": "train on several ranks with a strategy, and compare it with training in one process",
    "run": "start a program as several ranks, on this host or on others by ssh",
    "bench": "measure a collective with the flags and columns of NCCL's tests, plus a lower bound",
    "show": "show the steps of an algorithm, a collective, the table of choices, a mesh, a pipeline, or a network",
    "verify": "prove that algorithms are correct, built-in ones or your own, or a pipeline",
    "new": "write a file with a working algorithm of your own, ready to be changed",
    "simulate": "predict how long a collective takes on a network, and its bottleneck link",
    "optimum": "print the best bandwidth of a collective on a network, and write a schedule that reaches it",
    "tune": "time the algorithms on this machine and write the fastest per size",
    "calibrate": "fit a machine to the times in logs of nccl-tests, OSU or hocket bench",
    "expect": "compare the times in a log with what a machine predicts, and name what may slow calls down",
    "explain": "explain which algorithm runs for a call, what it costs, and why",
    "trace": "summarise, draw or convert the trace of a program",
    "doctor": "check this machine and suggest fixes",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a sub-command and returns its exit code. argv does not hold the program's name (default: sys.argv[1:])."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _CommandParser(
        prog="hocket",
        description="Collective communication by small Python programs that are proved, predicted, run and explained.",
        epilog="`hocket COMMAND --help` describes one command. Try first: hocket demo",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    # Import only the chosen sub-command; for the others the name and summary are enough.
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    module = importlib.import_module(f"hocket.cli.{chosen}") if chosen in _COMMANDS else None
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen and module is not None:
            module.add_arguments(command)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        used = parser if module is None else commands.choices[parsed.command]
        options = [one.partition("=")[0] for one in unknown if one.startswith("-")]
        hints = (_elsewhere(one) or did_you_mean(one, re.findall(r"--[\w-]+", used.format_help())) for one in options)
        used.error(f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, hints), '')}")
    if parsed.version:
        return _run(_print_version, parsed)
    if module is None:
        parser.print_help()
        return 2
    return _run(module.run, parsed)


class _CommandParser(argparse.ArgumentParser):
    """Says which choice is near a wrong one, and takes -1us for a value. Sub-commands have such parsers too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # argparse takes -1 for the value of an option, but -1us for another option.
        self._negative_number_matcher = re.compile(r"-[\d.]")

    def error(self, message: str) -> NoReturn:
        """Prints the message and where to read more, and exits with code 2."""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        near = did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2])) if wrong else ""
        bare = re.search(r"argument ([^:/]+).*: expected one argument$", message)
        if bare:
            action = self._option_string_actions[bare[1]]
            near = f": {bare[1]} {self._get_formatter()._format_args(action, action.dest.upper())}"
        _print_aside(f"{self.prog}: error: {message}{near}\nsee {self.prog} --help")
        sys.exit(2)


def _elsewhere(option: str) -> str:
    """Returns which commands have an option, as the end of an error; "" if none has it."""
    having = []
    for name in _COMMANDS:
        command = argparse.ArgumentParser(add_help=False)
        importlib.import_module(f"hocket.cli.{name}").add_arguments(command)
        if option in command._option_string_actions:
            having.append(f"hocket {name}")
    return f"; {option} belongs to {', '.join(having)}" if having else ""


def _print_version(_arguments: argparse.Namespace) -> int:
    import hocket

    print(f"hocket {hocket.__version__}")
    return 0


def _run(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    from hocket.errors import HocketError, InternalError, VerifyError

    try:
        code = run(arguments)
        print(end="", flush=True)  # detect a closed pipe here, not at interpreter exit
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader closed the pipe (for example `| head`). Nothing may be flushed to it at exit.
        sys.stdout = None
        return 141
    except InternalError:
        raise
    except (HocketError, OSError, ValueError, TypeError) as error:
        report = {"error": str(error)} if getattr(arguments, "json", False) else None
        unwritten = _end_output(report)
        where = "expected a writable standard output, found: " if str(unwritten) == str(error) else ""
        _print_aside(f"hocket {arguments.command or '--version'}: {where}{error}")
        return 1 if isinstance(error, VerifyError) else 2


def _print_aside(text: str) -> None:
    from hocket.view import print_aside

    print_aside(text)


def _end_output(report: dict[str, str] | None) -> OSError | None:
    """Writes the report of an error to standard output. Returns the error if standard output cannot be written."""
    try:
        print("" if report is None else json.dumps(report) + "\n", end="", flush=True)
    except OSError as error:
        sys.stdout = None  # nothing may be flushed at exit either
        return error
    return None
