"""`hocket expect`: each time of a log beside what a machine predicts, with a verdict and what may slow calls down."""

import argparse
import json

from hocket.cli.calibrate import add_log_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket expect`."""
    parser.description = (
        "Compare the times in a log of nccl-tests, of the OSU benchmarks or of `hocket bench` with what a machine "
        "predicts. For each range of sizes that is slower, simulate what may be the cause: idle network cards, slow "
        "links, PCIe instead of NVLink, a late start of calls."
    )
    parser.epilog = "For example: hocket expect all_reduce.log --machine h100"
    parser.add_argument("log", metavar="LOG", help="a file of output")
    add_log_options(parser, "the machine to compare with")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw measured times, predictions and bounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Compares and prints. Raises ValueError with the line of a damaged log, TopologyError for a wrong machine."""
    import hocket
    from hocket.cli.writable import check_writable, say_written
    from hocket.view import Terminal, saving

    if arguments.plot is not None:
        check_writable(arguments.plot)
    found = hocket.expect(arguments.log, machine=arguments.machine, ranks=arguments.ranks, hosts=arguments.hosts)
    if arguments.plot is not None:
        saving.write(arguments.plot, found.svg())
        say_written(arguments.plot)
    if arguments.json:
        print(json.dumps(found.as_json()))
    else:
        found.print(Terminal())
    return 0
