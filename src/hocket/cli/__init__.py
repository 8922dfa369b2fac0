"""The `hocket` command: one module per sub-command, imported when it is asked for.

Each module has `add_arguments(parser)` and `run(arguments) -> int`, the exit code. A HocketError, a missing file or
a bad argument ends in one line on standard error (and with --json in an object {"error": ...}) and exit code 2, or 1
where an algorithm breaks a law; Ctrl-C in 130. n ranks start at once, so what `import hocket.cli` costs is counted.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Sequence

_COMMANDS = {
    "demo": "train a small network on handwritten digits, every gradient summed by a proved algorithm",
    "run": "start a program as n ranks on this host",
    "bench": "measure a collective, with NCCL's flags and columns and a lower bound beside",
    "show": "print the steps of an algorithm, the table of choices, or the groups of a mesh",
    "verify": "prove algorithms, built-in ones or your own",
    "new": "write an algorithm of your own to begin with",
    "simulate": "say how long a collective takes on a network, and which link binds",
    "tune": "time the algorithms on this machine, and write which is the quickest for what",
    "explain": "say which algorithm runs for a call, what it costs, and why",
    "trace": "summarise, draw or show what a traced program did",
    "doctor": "look at this host and say what is in the way",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a sub-command and returns its exit code. argv is without the program's name (default: sys.argv[1:])."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="hocket",
        description="Collective communication whose algorithms are small Python programs: proved, explained, run.",
        epilog="`hocket COMMAND --help` says more. A first try: hocket demo",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    # Only the sub-command that is meant has to be imported; the others are known by name.
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    module = importlib.import_module(f"hocket.cli.{chosen}") if chosen in _COMMANDS else None
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen and module is not None:
            module.add_arguments(command)
    parsed = parser.parse_args(arguments)
    if parsed.version:
        return _run(_print_version, parsed)
    if module is None:
        parser.print_help()
        return 2
    return _run(module.run, parsed)


def _print_version(_arguments: argparse.Namespace) -> int:
    import hocket

    print(f"hocket {hocket.__version__}")
    return 0


def _run(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    from hocket.errors import HocketError, InternalError, VerifyError

    try:
        code = run(arguments)
        print(end="", flush=True)  # a reader that has gone is noticed here rather than at exit
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (as with `| head`). Nothing may be flushed to it at exit.
        sys.stdout = None
        return 141
    except InternalError:
        raise
    except (HocketError, OSError, ValueError, TypeError) as error:
        report = {"error": str(error)} if getattr(arguments, "json", False) else None
        unwritten = _end_output(report)
        where = "expected standard output to be written to, found: " if str(unwritten) == str(error) else ""
        print(f"hocket {arguments.command or '--version'}: {where}{error}", file=sys.stderr)
        return 1 if isinstance(error, VerifyError) else 2


def _end_output(report: dict[str, str] | None) -> OSError | None:
    """Writes what there is to report where something went wrong: perhaps that standard output cannot be written."""
    try:
        print("" if report is None else json.dumps(report) + "\n", end="", flush=True)
    except OSError as error:
        sys.stdout = None  # nor what is left of it at exit
        return error
    return None
