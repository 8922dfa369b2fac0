"""`hocket calibrate`: fits a machine to the times in logs of benchmarks, and writes its machine file."""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket calibrate`."""
    parser.description = (
        "Read logs of nccl-tests (text or JSON), of the OSU benchmarks or of `hocket bench`; fit the constants of a "
        "machine to their times; write a machine file for `hocket simulate`, `explain` and `expect --machine`."
    )
    parser.epilog = "For example: hocket calibrate all_reduce.log --machine h100 -o my.yaml --plot fit.svg"
    parser.add_argument("logs", nargs="+", metavar="LOG", help="a file of output; several are fitted together")
    add_log_options(parser, "the machine to start from")
    parser.add_argument("-o", "--output", metavar="FILE.yaml", help="write the machine file")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw measured times against fitted ones")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_log_options(parser: argparse.ArgumentParser, machine: str) -> None:
    """Declares --machine, --ranks and --hosts; `machine` says what the first is for."""
    parser.add_argument(
        "--machine",
        required=True,
        metavar="NAME",
        help=f"{machine}: v100, a100, h100, h200, b200, mi300x, or a YAML file (docs/networks.md)",
    )
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="number of ranks, if a log does not say it")
    parser.add_argument(
        "--hosts", type=int, metavar="N", help="number of hosts, if a log does not say it (default: as few as fit)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Fits, writes and prints. Raises ValueError with the line of a damaged log, TopologyError for a wrong machine."""
    import hocket
    from hocket.answers import check_no_base
    from hocket.cli.writable import check_writable, say_written
    from hocket.view import Terminal, saving

    files = [file for file in (arguments.output, arguments.plot) if file is not None]
    for file in files:
        check_writable(file)
    if arguments.output is not None:
        check_no_base(arguments.machine, arguments.output)
    found = hocket.calibrate(arguments.logs, machine=arguments.machine, ranks=arguments.ranks, hosts=arguments.hosts)
    if arguments.output is not None:
        found.write(arguments.output)
    if arguments.plot is not None:
        saving.write(arguments.plot, found.svg())
    say_written(*files)
    if arguments.json:
        print(json.dumps(found.as_json()))
    else:
        found.print(Terminal())
    return 0
