"""Reads rank counts, sizes, times, groups of ranks and grids from a command line."""

import argparse
import math
import re
from collections.abc import Callable, Iterable

from hocket.answers import parse_size, read_rank_counts

_MOST_RANKS_OF_LAYOUT = 1 << 20  # above, a schedule takes minutes


def rank_counts(text: str) -> list[int]:
    """Returns the rank counts in "4", "1-16" or "2,4,8-16", sorted; for argparse."""
    try:
        return read_rank_counts(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def collective_name(text: str) -> str:
    """Returns Hocket's spelling of a collective, all_reduce for AllReduce; for argparse. Keeps unknown names."""
    from hocket.schedule import find_collective_name

    return find_collective_name(text) or text


def byte_count(text: str) -> int:
    """Returns the bytes, at least one, in "8", "64K" or "1M"; for argparse."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1 byte; found {text!r}")
    return size


def byte_counts(text: str) -> list[int]:
    """Returns the sizes in "8,64K,16M", sorted; for argparse."""
    return sorted({byte_count(part) for part in text.split(",")})


def time_limit(text: str) -> float:
    """Returns a number of seconds above 0; for argparse."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds; expected a number above 0")
    return seconds


def host_and_port(text: str) -> tuple[str, int]:
    """Returns host and port of "HOST:PORT" or "[HOST]:PORT"; for argparse."""
    from hocket.runtime.network import addresses

    try:
        return addresses.read_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def job_count(text: str) -> int:
    """Returns how many processes may work at once, -1 for one per core; for argparse."""
    jobs = int(text) if re.fullmatch(r"-?\d{1,9}", text) else 0
    if jobs < -1 or jobs == 0:
        raise argparse.ArgumentTypeError(f"expected 1 or more, or -1 for one per core; found {text!r}")
    return jobs


def operation_times(text: str) -> dict[str, float]:
    """Returns the times in "F=1,B=1,W=0.5,message=0.1", in any one unit; for argparse."""
    times: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        try:
            times[name] = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{part!r} is not a name with a time; expected for example F=1,B=1,W=1,message=0"
            ) from None
    return times


def add_pipeline(parser: argparse._ActionsContainer) -> None:
    """Declares -m and --chunks, the counts of a pipeline beside its ranks."""
    parser.add_argument("-m", "--microbatches", type=int, metavar="M", help="number of micro-batches (default 8)")
    parser.add_argument(
        "--chunks", type=int, metavar="V", help="stages on each rank, for schedules that take any number"
    )


def add_layout(parser: argparse._ActionsContainer) -> None:
    """Declares --groups and --dims, which some algorithms take."""
    groups_help = "sizes of the groups of ranks, for algorithms that take them, for example 3,2"
    parser.add_argument("--groups", type=_group_sizes, metavar="N,...", help=groups_help)
    dims_help = "lengths of a grid of all ranks, for algorithms that take them, for example 2x3"
    parser.add_argument("--dims", type=_grid_lengths, metavar="NxN", help=dims_help)


def add_hosts(parser: argparse._ActionsContainer, ranks: str) -> None:
    """Declares --hosts; `ranks` says what gives the number of ranks."""
    parser.add_argument(
        "--hosts",
        type=lambda text: _numbers(text, ",", "a number of hosts, or the ranks on each, for example 2 or 3,1"),
        metavar="N|N,...",
        help=f"{ranks}: number of hosts over which the ranks are spread, or how many ranks each has",
    )


def _group_sizes(text: str) -> tuple[int, ...]:
    return _fitting(_numbers(text, ",", "sizes of groups, for example 3,2"), sum, text)


def _grid_lengths(text: str) -> tuple[int, ...]:
    return _fitting(_numbers(text, "x", "lengths of a grid, for example 2x3"), math.prod, text)


def _fitting(numbers: tuple[int, ...], count: Callable[[Iterable[int]], int], text: str) -> tuple[int, ...]:
    if count(numbers) > _MOST_RANKS_OF_LAYOUT:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_RANKS_OF_LAYOUT} ranks in all; found {text!r}")
    return numbers


def _numbers(text: str, separator: str, expected: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(separator)]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"expected {expected}; found {text!r}")
    return tuple(map(int, parts))
