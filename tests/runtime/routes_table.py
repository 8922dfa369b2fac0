"""Writes docs/reports/routes.md: by which way each kind of message travels, as the core chooses it.

python -m tests.runtime.routes_table
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hocket import _core
from hocket.view.ways_text import WAYS

DOCUMENT = Path(__file__).parents[2] / "docs" / "reports" / "routes.md"
HEAD = """\
# Routes

`make docs-pictures` wrote this page: it asks `choose` (`csrc/route/route.h`), which decides how a message travels; do
not edit it. `hocket explain all_reduce -n 2 -b 1M --ways` prints the routes of one call.

|way|meaning|
|---|---|
"""
TABLES = """
A cell tells from which length on a message takes which way. Up to 4 KiB all messages are copied: up to {line} B as
*line*, else as *stage*. *put or lend*: the second way is taken where the reader does not let the sender write. Each
call has two ranks, whose vectors are twice as long as the message; of a message, both ends and slots count. Pages that
the system does not tell, or that nobody has written yet, count as small.

## The profile of a processor

`HOCKET_PROFILE` is the name of a processor ({names}), or a TOML file. Rank 0 reads
it for all ranks. If a file leaves a length out, that of this machine's processor holds:

```toml
own_cache = 1_048_576     # bytes that the second level of a core's caches holds
all_caches = 16_777_216   # from here on no cache holds a chunk until it is read next
fetch_huge = 524_288      # from here on private memory in huge pages is fetched
fetch_small = "never"     # the same in small pages
halve = 786_432           # from here on each end moves one half of what goes one way
```
"""
TRANSFERS: dict[str, dict[str, Any]] = {
    "a chunk that one reader copies": {"only_copied": True},
    "a chunk that several readers copy": {"only_copied": True, "num_readers": 3},
    "all that a rank does: it gives one reader a chunk to copy": {"only_copied": True, "one_way": True},
    "a chunk that readers fold": {},
    "a chunk that the reader folds and writes back": {"comes_back": True},
    "a chunk that this rank has just folded": {"is_fresh": True},
    "a chunk that is overwritten in the same step": {"overwritten": True},
    "a message": {"only_copied": True, "one_way": True, "may_be_given": False, "factor": 4},
}
MEMORIES = {
    "registered": "memory of `hocket.empty`",
    "same_process": "memory of a thread's own process",
    "huge_pages": "private memory, huge pages",
    "small_pages": "private memory, small pages",
}
OWN_CACHE = 1 << 20  # the same on each machine, so that this page is
PLACES = {
    "a core each, Zen 5 or Intel with fast short string moves": ("zen5", False, {}),
    "the same, on cores that share no cache": ("zen5", False, {"is_far": True}),
    "shared cores, the same processors": ("zen5", True, {}),
    "a core each, Zen 3 or 4": ("zen3", False, {}),
    "shared cores, Zen 3 or 4": ("zen3", True, {}),
    "a core each, another processor": ("generic", False, {}),
    "a byte stream": ("generic", False, {"is_stream": True}),
}
MOST = 1 << 27


def sizes() -> Iterator[int]:
    """Yields lengths on both sides of each power of two, from the first that is not staged in any case."""
    for power in range(12, MOST.bit_length()):
        for begin in (1 << power, 3 << power - 1):
            yield from (begin - 1, begin, begin + 1)


def profile_of(name: str, shares_cores: bool) -> Any:
    """Returns a profile of a machine with OWN_CACHE."""
    return _core.profile_of(name, shares_cores, OWN_CACHE)


def way(transfer: dict[str, Any], memory: str, place: str, num_bytes: int) -> str:
    """Returns the way of such a message, with the second one if there are two."""
    name, shares_cores, reach = PLACES[place]
    facts = dict(transfer)
    factor = facts.pop("factor", 2)
    first, otherwise, *_ = _core.choose(
        num_bytes=num_bytes,
        here=factor * num_bytes,
        of_all_ranks=max(4, factor) * num_bytes,
        source=getattr(_core.MemoryKind, memory),
        reach=_core.Reach(**reach),
        profile=profile_of(name, shares_cores),
        **facts,
    )
    return str(first) if first == otherwise else f"{first} or {otherwise}"


def cell(transfer: dict[str, Any], memory: str, place: str) -> str:
    """Returns the ways of a kind of message by its length: "stage; from 512 KiB fetch"."""
    from hocket.view import name_bytes

    parts: list[str] = []
    last = ""
    for num_bytes in sizes():
        now = way(transfer, memory, place, num_bytes)
        if now != last:
            parts.append(now if num_bytes <= 4096 else f"from {name_bytes(num_bytes)} {now}")
            if num_bytes < 4096:
                parts.clear()
                now = ""
        last = now
    return "; ".join(parts)


def page() -> str:
    """Returns the whole document."""
    lines = [HEAD, *(f"|{name}|{meaning}|\n" for name, meaning in WAYS.items())]
    lines.append(TABLES.format(line=_core.LINE_BYTES, names=", ".join(f"`{name}`" for name in _core.PROFILES)))
    for place in PLACES:
        lines.append(
            f"\n## {place[0].upper()}{place[1:]}\n\n|message|{'|'.join(MEMORIES.values())}|\n|---|---|---|---|---|\n"
        )
        for name, transfer in TRANSFERS.items():
            lines.append(f"|{name}|{'|'.join(cell(transfer, memory, place) for memory in MEMORIES)}|\n")
    return "".join(lines)


if __name__ == "__main__":
    DOCUMENT.write_text(page())
