"""The text that `hocket explain --hosts` prints."""

from typing import TYPE_CHECKING, Any

from hocket.view.explain_text import decided
from hocket.view.words import name_amount, name_bytes, name_count

if TYPE_CHECKING:
    from hocket.view.terminal import Terminal

_FLAT = "ring"  # of those that know no hosts, what most libraries run


def print_hosts_explanation(console: "Terminal", found: dict[str, Any]) -> None:
    """Prints the table of candidates, and sentences about what the chosen one carries between hosts."""
    from rich.markup import escape
    from rich.table import Table

    size = "" if found["collective"] == "barrier" else f", {name_bytes(found['num_bytes'])}"
    sizes = found["hosts"]
    where = (
        f"{name_count(len(sizes), 'host')} of {sizes[0]}"
        if len(set(sizes)) == 1
        else f"hosts of {', '.join(map(str, sizes))}"
    )
    call = f"{found['collective']}, {name_count(found['num_ranks'], 'rank')} on {where}{size}"
    console.print(f"{call}: [bold]{escape(found['algorithm'])}[/] runs, {escape(decided(found))}.")
    console.print()
    table = Table(box=None)
    for name in ("algorithm", "steps", "across", "messages", "bytes across", "sent"):
        table.add_column(name, justify="left" if name == "algorithm" else "right")
    for row in found["candidates"]:
        numbers = [str(row[name]) for name in ("steps", "steps_across", "messages")]
        amounts = [name_amount(row[name]) for name in ("across", "sent")]
        bold = "bold" if found["algorithm"] in (row["algorithm"], *row["twins"]) else None
        table.add_row(escape(row["algorithm"]), *numbers, *amounts, style=bold)
    console.print_table(table)
    console.print()
    for sentence in reasons(found):
        console.print(sentence, markup=False)
    console.print(
        "Across: steps that carry something between hosts. Messages and bytes across: of the host that sends or "
        "receives most. Sent: by the busiest rank. For times, simulate such a network: hocket explain --topology.",
        style="dim",
    )


def reasons(found: dict[str, Any]) -> list[str]:
    """Returns what the chosen algorithm carries between hosts, and how others compare."""
    rows = {name: row for row in found["candidates"] for name in (row["algorithm"], *row["twins"])}
    mine = rows[found["algorithm"]]
    texts = [f"{found['algorithm']}: {_carries(mine)}."]
    others = {found["on_one_host"]: " runs where all ranks are on one host"} | {_FLAT: ""}
    for name in (*others, *found["asked"]):
        row = rows.get(name, mine)
        if row is not mine:
            more = row["across"] != mine["across"] and mine["across"]
            times = f", {row['across'] / mine['across']:.2f} times as many bytes" if more else ""
            texts.append(f"{name}{others.get(name, '')}: {_carries(row)}{times}.")
    return list(dict.fromkeys(texts))


def _carries(row: dict[str, Any]) -> str:
    """Returns what an algorithm carries between hosts."""
    steps, messages = name_count(row["steps_across"], "step"), name_count(row["messages"], "message")
    return f"{name_amount(row['across'])} leave or enter a host, in {messages} and {steps} across"
