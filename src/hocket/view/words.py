"""Formats numbers for readers: lists of rank counts, sizes, ranges of sizes, layouts; times and bandwidths."""

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.errors import name_count as name_count
from hocket.network import name_bandwidth as name_bandwidth
from hocket.network import name_seconds as name_seconds

_MOST_SIZES = 8  # of groups


def name_counts(counts: list[int]) -> str:
    """Returns sorted rank counts in short, such as "1-16" or "2, 4, 8"; long regular lists become "2, 4, ..., 64"."""
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


def name_bytes(num_bytes: int) -> str:
    """Returns for example "64 KiB" or "100 B": the exact size in the largest unit without a fraction."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit and num_bytes % unit == 0:
            return f"{num_bytes // unit} {name}"
    return f"{num_bytes} B"


def name_amount(num_bytes: float) -> str:
    """Returns for example "64 KiB", "1.47 MiB" or "545 GiB": three digits. For what is sent, not for what is asked."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= unit:
            value = num_bytes / unit
            return f"{value:.3g} {name}" if value < 999.5 else f"{value:.0f} {name}"
    return f"{num_bytes:.0f} B"


def name_case(row: Mapping[str, Any]) -> str:
    """Returns the simulated call of a row, for example "all_reduce ring, 64 KiB"; a barrier has no size."""
    size = "" if row["collective"] == "barrier" else f", {name_bytes(row['num_bytes'])}"
    return f"{row['collective']} {row['algorithm']}{size}"


def name_range(first: int, last: int | None) -> str:
    """Returns the range of sizes from first to last, both included; last=None means no upper end."""
    if first == last:
        return name_bytes(first)
    above, at_least = f"above {name_bytes(first - 1)}", f"from {name_bytes(first)}"
    begin = "" if first == 0 else min(above, at_least, key=len)
    end = "" if last is None else min(f"up to {name_bytes(last)}", f"below {name_bytes(last + 1)}", key=len)
    return " ".join(part for part in (begin, end) if part) or "any"


def name_layout(groups: Sequence[int] | None, dims: Sequence[int] | None) -> str:
    """Returns for example "2 groups of 8", "groups of 3, 2" or "a grid of 2x4"; "" without groups and dims."""
    if dims:
        return f"a grid of {'x'.join(map(str, dims))}"
    if not groups:
        return ""
    if len(set(groups)) == 1:
        return f"{name_count(len(groups), 'group')} of {groups[0]}"
    more = f" and {len(groups) - _MOST_SIZES} more" if len(groups) > _MOST_SIZES else ""
    return f"groups of {', '.join(map(str, groups[:_MOST_SIZES]))}{more}"
