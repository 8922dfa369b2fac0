"""Lists of hosts as Slurm writes them: "tux[0-3,7],login" or "rack[0-1]node[0-3]"."""

import re
from collections.abc import Iterator

from hocket.errors import TopologyError

_MOST_HOSTS = 1 << 20


def expand_host_list(text: str, where: str) -> list[str]:
    """Returns the names of a host list, in order. Raises a TopologyError that begins with `where` if it is none."""
    parts = re.split(r"[,\s]+(?![^\[]*\])", text)  # outside of brackets
    return [name for part in parts if part for name in _expand_part(part, where)]


def _expand_part(part: str, where: str) -> Iterator[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", part)
    if match is None:
        if "[" in part or "]" in part:
            raise TopologyError(f"{where}: expected a host list such as tux[0-3,7]; found {part!r}")
        yield part
        return
    behind = expand_host_list(match[3], where) or [""]
    for span in match[2].split(","):
        first, _, last = span.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()):
            raise TopologyError(f"{where}: expected numbers in {part!r}, found {span!r}")
        if not 0 <= int(last) - int(first) < _MOST_HOSTS:
            raise TopologyError(
                f"{where}: expected an ascending range of at most {_MOST_HOSTS} numbers, found {span!r}"
            )
        for number in range(int(first), int(last) + 1):
            yield from (f"{match[1]}{number:0{len(first)}}{rest}" for rest in behind)
