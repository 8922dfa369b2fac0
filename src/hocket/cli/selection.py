"""Which algorithms a command line means: the name of a built-in one, or the file of one's own; and rank counts."""

import argparse
from pathlib import Path

from hocket.algorithms import ALGORITHMS, Algorithm, load


def find_algorithms(reference: str, collective: str | None = None) -> list[Algorithm]:
    """Algorithms of this name for any collective (or the one given), or all that FILE.py or FILE.py:NAME registers.

    They are not proved here. Raises ValueError, listing what there is.
    """
    if reference.partition(":")[0].endswith(".py") or Path(reference).is_file():
        found = load(reference, prove=False)
    else:
        found = [one for one in ALGORITHMS.values() if one.name == reference]
    wanted = [one for one in found if collective in (None, one.collective)]
    if not wanted:
        pairs = ", ".join(f"{one.name} ({one.collective})" for one in found or ALGORITHMS.values())
        what = f"algorithm {reference!r}" + (f" for {collective}" if collective else "")
        raise ValueError(f"there is no {what}; found {pairs}")
    return wanted


def rank_counts(text: str) -> list[int]:
    """Rank counts from "4", "1-16" or "2,4,8-16", sorted; for argparse."""
    counts: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise argparse.ArgumentTypeError(f"{part!r} is no rank count; expected for example 4, 1-16 or 2,4,8-16")
        counts.update(range(int(first), int(last) + 1))
    return sorted(counts)


def name_counts(counts: list[int]) -> str:
    """Rank counts in short, the reverse of rank_counts: "1-16", "2, 4, 8"."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][1] == count - 1:
            runs[-1][1] = count
        else:
            runs.append([count, count])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
