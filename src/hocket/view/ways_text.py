"""The text of `hocket explain --ways`: by which ways the data of a call travels."""

from typing import TYPE_CHECKING, Any

from hocket.view.words import name_bytes, name_count, name_counts

if TYPE_CHECKING:
    from hocket.view.terminal import Terminal

WAYS = {
    "line": "inside the cache line that announces it",
    "stage": "copied into a slot of shared memory, which all readers share",
    "lend": "read where it lies",
    "put": "written by the sender where the reader wants it",
    "halve": "each end moves one half: the sender writes it, the reader reads it",
    "fetch": "copied by the system out of the sender's private memory, on the reader's request",
    "stream": "sent through a stream of bytes",
}
_MEMORIES = (
    ("registered", "memory of hocket.empty()"),
    ("huge_pages", "other, huge pages"),
    ("small_pages", "other, small pages"),
)


def print_ways(console: "Terminal", found: dict[str, Any]) -> None:
    """Prints a line for all messages that travel alike, then what the ways mean."""
    from rich.table import Table

    cores = "sharing cores" if found["shares_cores"] else "with a core each"
    call = f"{found['collective']}, {name_count(found['num_ranks'], 'rank')} {cores}, {name_bytes(found['num_bytes'])}"
    console.print(f"{call}: how {found['algorithm']} moves the data.", markup=False)
    console.print()
    table = Table(box=None)
    for name in ("steps", "messages", "size", *(title for _, title in _MEMORIES)):
        table.add_column(name, justify="right" if name in ("messages", "size") else "left")
    for row in found["travels"]:
        ways = (row[memory] for memory, _ in _MEMORIES)
        table.add_row(name_counts(list(row["steps"])), str(row["num_messages"]), name_bytes(row["num_bytes"]), *ways)
    console.print_table(table)
    console.print()
    taken = {way for row in found["travels"] for memory, _ in _MEMORIES for way in row[memory].split(" or ")}
    for way, meaning in WAYS.items():
        if way in taken:
            console.print(f"{way}: {meaning}", markup=False)
    if any(" or " in row[memory] for row in found["travels"] for memory, _ in _MEMORIES):
        console.print("A or B: the second way is taken if the reader does not let the sender write.", markup=False)
    console.print("This is float32 without out=, and ranks that may read each other's private memory.", markup=False)
