"""`hocket bench all_reduce -b 8 -e 64M -f 2`: times a collective, with the flags and columns of NCCL's tests.

Each time is printed with its lower bound, which no algorithm can beat on this machine. If the command is itself
started as a rank (by `hocket run`, torchrun, MPI or Slurm), it uses those ranks; else it starts --ranks processes.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.cli.bench.bench_settings import BenchSettings

_FORMATS = ("nccl", "osu", "json", "csv")
_ORDERS = ("fast", "rank", "invariant")  # those of hocket.runtime.choice.select, which is not loaded for --help


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `hocket bench`."""
    from hocket.cli.argument_types import add_layout

    parser.description = "Measure a collective with the flags and columns of NCCL's tests, plus a lower bound."
    parser.epilog = (
        "Sizes are in bytes, with K, M or G. They are those of the larger of input and output, rounded down to whole "
        "blocks of elements (NCCL's tests: to 16 bytes). Every iteration uses the same buffers. sendrecv is a "
        "ping-pong; its time is one way. With --format osu, sizes of all_gather, all_to_all, gather and scatter are "
        "per rank, as in the OSU benchmarks. "
        "A bound below 20 ns is not printed, because reading the clock takes as long. "
        "The exit code is 1 if a result was wrong."
    )
    parser.add_argument("collective", metavar="COLLECTIVE", help="all_reduce, all_gather ..., barrier or sendrecv")
    ranks_help = "processes to start; NCCL's tests use one GPU each (default: one per core)"
    parser.add_argument("-g", "--ngpus", "--ranks", dest="ranks", type=_count(1), metavar="N", help=ranks_help)
    parser.add_argument("-t", "--nthreads", type=_threads, help=argparse.SUPPRESS)
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("-b", "--minbytes", type=_size, default="32M", metavar="SIZE", help="the smallest (default 32M)")
    sizes.add_argument("-e", "--maxbytes", type=_size, metavar="SIZE", help="the largest (default 32M, or --minbytes)")
    sizes.add_argument(
        "-f", "--stepfactor", type=_count(1), default=1, metavar="F", help="each size is F times the last"
    )
    sizes.add_argument(
        "-i",
        "--stepbytes",
        type=_size,
        default="1M",
        metavar="SIZE",
        help="or each size is larger by SIZE (default 1M)",
    )
    calls = parser.add_argument_group("calls")
    calls.add_argument("-o", "--op", default="sum", help="reduction, or all (default sum)")
    calls.add_argument("-d", "--datatype", default="float32", metavar="TYPE", help="Hocket's or NCCL's name, or all")
    calls.add_argument("-r", "--root", type=_root, default=0, metavar="RANK", help="the root, or all (default 0)")
    calls.add_argument(
        "--memory", choices=("private", "registered"), default="private", help="memory of the buffers (default private)"
    )
    algorithm_help = "a registered name or FILE.py:NAME (default: by size); several are compared side by side"
    calls.add_argument("--algorithm", metavar="NAME,...", help=algorithm_help)
    add_layout(calls)
    calls.add_argument("--order", choices=_ORDERS, help="the order of reduction (default fast)")
    timing = parser.add_argument_group("timing")
    timing.add_argument(
        "-n",
        "--iters",
        type=_count(1),
        metavar="N",
        help="iterations (default: 20, or for short operations as many as take 50 ms)",
    )
    timing.add_argument(
        "-w", "--warmup_iters", type=_count(0), default=5, metavar="N", help="iterations before (default 5)"
    )
    timing.add_argument(
        "-m", "--agg_iters", type=_count(1), default=1, metavar="N", help="operations launched at once (default 1)"
    )
    timing.add_argument(
        "-a",
        "--average",
        type=int,
        choices=range(4),
        default=3,
        help="time: 0 rank 0's, 1 average, 2 minimum, 3 maximum over ranks (default 3; 1 in NCCL's tests)",
    )
    timing.add_argument("-z", "--blocking", type=int, choices=(0, 1), default=0, help="1: barrier after each")
    timing.add_argument(
        "-T", "--timeout", type=_count(0), default=0, metavar="SECONDS", help="timeout of each operation (default 300)"
    )
    timing.add_argument("-c", "--check", type=_count(0), default=1, metavar="N", help="result checks (default 1)")
    output = parser.add_argument_group("output")
    output.add_argument("--percentiles", action="store_true", help="also print p50 and p99 of single iterations")
    output.add_argument("--format", choices=_FORMATS, default="nccl", help="format (default nccl)")
    output.add_argument("--json", action="store_true", help="print one JSON object; same as --format json")
    output.add_argument("-J", dest="json_file", metavar="FILE", help="also write JSON, with percentiles, to this file")


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints. Returns 1 if a result was wrong, else 0."""
    from hocket.answers import ranks_of_layout
    from hocket.cli.bench.bench_settings import check
    from hocket.cli.bench.measure import run_as_rank
    from hocket.cli.writable import check_writable
    from hocket.errors import PeerDied
    from hocket.runtime import discover, run_ranks

    environment = discover()
    alone = environment.source == "alone"
    # With JSON output, an error is JSON as well; among ranks that are already running, rank 0 prints it.
    arguments.format = "json" if arguments.json else arguments.format
    arguments.json = arguments.format == "json" and environment.rank == 0
    described = ranks_of_layout(arguments.groups, arguments.dims)
    settings = _settings(arguments, (described or _default_ranks()) if alone else environment.size)
    check(settings)
    if settings.json_file is not None and environment.rank == 0:
        check_writable(settings.json_file)  # fail now, not after the measurements
    try:
        if alone:
            return int(run_ranks(run_as_rank, settings.num_ranks, args=(settings,), kind="process")[0] > 0)
        return int(run_as_rank(settings) > 0)
    except KeyboardInterrupt:
        if environment.rank == 0:
            from hocket.view import print_aside

            print_aside("hocket bench: interrupted; the rows printed above are complete")
        raise
    except Exception as error:
        # Rank 0 has printed the error in its JSON, unless rank 0 itself died.
        arguments.json = arguments.json and alone and isinstance(error, PeerDied) and error.rank == 0
        raise


def _settings(arguments: argparse.Namespace, num_ranks: int) -> "BenchSettings":
    from hocket.answers import check_ranks
    from hocket.cli.bench.bench_settings import BenchSettings, find_dtypes, find_operation, find_ops
    from hocket.runtime.tuning import host_bound
    from hocket.schedule import COLLECTIVES

    collective = find_operation(arguments.collective)
    ranks = arguments.ranks or num_ranks
    if arguments.ranks is not None or arguments.groups or arguments.dims:
        check_ranks(ranks)
    rooted = collective != host_bound.MESSAGE and COLLECTIVES[collective].rooted
    reduces = collective != host_bound.MESSAGE and COLLECTIVES[collective].counts_contributions
    roots = tuple(range(ranks)) if arguments.root == -1 else (arguments.root,)
    dtypes = find_dtypes(arguments.datatype)
    if collective != host_bound.MESSAGE and not COLLECTIVES[collective].exactly_once:
        dtypes = ("uint8",)
    return BenchSettings(
        collective=collective,
        num_ranks=ranks,
        min_bytes=arguments.minbytes,
        max_bytes=max(arguments.minbytes, _size("32M")) if arguments.maxbytes is None else arguments.maxbytes,
        step_factor=arguments.stepfactor,
        step_bytes=arguments.stepbytes,
        iterations=arguments.iters,
        warm_up=arguments.warmup_iters,
        aggregated=arguments.agg_iters,
        ops=find_ops(arguments.op) if reduces else ("",),
        dtypes=dtypes,
        roots=roots if rooted else (-1,),
        num_checks=arguments.check,
        blocking=bool(arguments.blocking),
        average=arguments.average,
        timeout=arguments.timeout,
        registered=arguments.memory == "registered",
        algorithms=(None,) if arguments.algorithm is None else tuple(arguments.algorithm.split(",")),
        groups=arguments.groups,
        dims=arguments.dims,
        order=arguments.order,
        percentiles=arguments.percentiles or arguments.format in ("json", "csv") or arguments.json_file is not None,
        format=arguments.format,
        json_file=arguments.json_file,
        arguments=tuple(sys.argv[2:]),
    )


def _default_ranks() -> int:
    return max(2, len(os.sched_getaffinity(0)))


def _size(text: str) -> int:
    from hocket.answers import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _root(text: str) -> int:
    """Returns a rank, or -1 for all."""
    if text in ("all", "-1"):
        return -1
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a rank or all; found {text!r}")
    return int(text)


def _threads(text: str) -> None:
    """Accepts only 1: NCCL's tests start -t times -g ranks, Hocket starts -g."""
    if text != "1":
        raise argparse.ArgumentTypeError(f"expected 1, because each rank is a process; use -g; found {text!r}")


def _count(least: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        from hocket.answers import MOST_COUNT

        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, found {text!r}")
        if int(text) > MOST_COUNT:
            raise argparse.ArgumentTypeError(f"expected at most {MOST_COUNT}, found {text!r}")
        return int(text)

    return count
