"""Rank counts, sizes, times, groups of ranks and grids on a command line."""

import argparse
import math

from hocket.cli.limits import MOST_COUNT

_MOST_COUNTS = 1 << 16  # of ranks, in one range


def rank_counts(text: str) -> list[int]:
    """Rank counts from "4", "1-16" or "2,4,8-16", sorted; for argparse."""
    counts: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise argparse.ArgumentTypeError(f"{part!r} is no rank count; expected for example 4, 1-16 or 2,4,8-16")
        if int(last) > MOST_COUNT or int(last) - int(first) >= _MOST_COUNTS:
            raise argparse.ArgumentTypeError(
                f"{part!r} is too much; expected at most {_MOST_COUNTS} rank counts, of at most {MOST_COUNT} ranks"
            )
        counts.update(range(int(first), int(last) + 1))
    return sorted(counts)


def name_counts(counts: list[int]) -> str:
    """Sorted rank counts in short, the reverse of rank_counts: "1-16", "2, 4, 8". For reading only: "2, 4, ..., 64"."""
    parts, rest = [], counts
    while rest:
        apart = rest[1] - rest[0] if len(rest) > 1 else 0
        length = 1
        while apart and length < len(rest) and rest[length] - rest[length - 1] == apart:
            length += 1
        if length < (2 if apart == 1 else 5):
            length = 1
        first, last = rest[0], rest[length - 1]
        parts.append(
            str(first) if length == 1 else f"{first}-{last}" if apart == 1 else f"{first}, {first + apart}, ..., {last}"
        )
        rest = rest[length:]
    return ", ".join(parts)


def collective_name(text: str) -> str:
    """Our spelling of a collective that is AllReduce or allreduce elsewhere; for argparse. Others stay as they are."""
    from hocket.runtime.spelling import find_collective_name

    return find_collective_name(text) or text


def root_of(collective: str, root: int | None) -> int:
    """The root that --root gives, 0 without it. ValueError where the collective has none."""
    from hocket.schedule.collective import find_collective

    if root is not None and not find_collective(collective).rooted:
        raise ValueError(f"expected no --root, as {collective} has none; found {root}")
    return root or 0


def name_count(number: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def byte_count(text: str) -> int:
    """Bytes, at least one, from "8", "64K" or "1M"; for argparse."""
    from hocket.cli.bench_settings import parse_size

    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1 byte; found {text!r}")
    return size


def byte_counts(text: str) -> list[int]:
    """Sizes from "8,64K,16M", sorted; for argparse."""
    return sorted({byte_count(part) for part in text.split(",")})


def time_limit(text: str) -> float:
    """Seconds above 0; for argparse."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds; expected a number above 0")
    return seconds


def name_bytes(num_bytes: int) -> str:
    """64 KiB, 100 B: exact, in the largest unit that is."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"


def name_range(first: int, last: int | None) -> str:
    """Sizes from first to last, both included; None: without end."""
    if first == last:
        return name_bytes(first)
    above, at_least = f"above {name_bytes(first - 1)}", f"from {name_bytes(first)}"
    begin = "" if first == 0 else min(above, at_least, key=len)
    end = "" if last is None else f"up to {name_bytes(last)}"
    return " ".join(part for part in (begin, end) if part) or "any"


def name_seconds(seconds: float, digits: int = 3) -> str:
    """12.3 us, 4.56 ms, 1.50 s."""
    scaled, unit = (seconds * 1e6, "us") if seconds < 1e-3 else (seconds * 1e3, "ms") if seconds < 1 else (seconds, "s")
    decimals = max(0, digits - 1 - math.floor(math.log10(scaled))) if scaled >= 0.01 else digits - 1
    return f"{scaled:.{decimals}f} {unit}"


def add_layout(parser: argparse.ArgumentParser) -> None:
    """Declares --groups and --dims, for algorithms that take them."""
    groups_help = "sizes of groups of ranks, where the algorithm takes them, as 3,2"
    parser.add_argument("--groups", type=_group_sizes, metavar="N,...", help=groups_help)
    dims_help = "lengths of a grid of all ranks, where the algorithm takes them, as 2x3"
    parser.add_argument("--dims", type=_grid_lengths, metavar="NxN", help=dims_help)


def ranks_of_layout(arguments: argparse.Namespace) -> int | None:
    """How many ranks --groups or --dims are about; None without them."""
    groups: tuple[int, ...] | None = arguments.groups
    dims: tuple[int, ...] | None = arguments.dims
    if groups is not None:
        return sum(groups)
    return None if dims is None else math.prod(dims)


def _group_sizes(text: str) -> tuple[int, ...]:
    return _numbers(text, ",", "sizes of groups, for example 3,2")


def _grid_lengths(text: str) -> tuple[int, ...]:
    return _numbers(text, "x", "lengths of a grid, for example 2x3")


def _numbers(text: str, separator: str, expected: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(separator)]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"expected {expected}; found {text!r}")
    return tuple(map(int, parts))
