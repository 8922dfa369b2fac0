"""Rank counts on a command line."""

import argparse


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
