"""The text that `hocket explain --topology` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hocket.view.words import name_amount, name_bytes, name_count, name_layout, name_range, name_seconds

if TYPE_CHECKING:
    from hocket.view.terminal import Terminal

_PARTS = ("bandwidth", "latency", "reduction", "contention")


_WORTH_SAYING = 0.05  # share of the winner's time; smaller differences are not mentioned


_MOST_LISTED = 8  # messages of a step, and kinds of steps


def reasons(found: dict[str, Any]) -> list[str]:
    """Returns how each algorithm that was asked about compares with the fastest one, and why that one wins."""
    best, *others = found["candidates"]
    asked = [row for row in others[1:] if row["algorithm"] in found["asked"] and best["seconds"]]
    return [*(_beside(best, row, "") for row in asked), why(found["candidates"]), *_default(found)]


def _default(found: dict[str, Any]) -> list[str]:
    """Returns what runs in a job on such hosts, and its time; nothing if the network has no hosts."""
    return [
        f"In a job on these hosts {row['algorithm']} runs by default: {name_seconds(row['seconds'])}."
        for row in found["candidates"]
        if row["algorithm"] == found["default"]
    ]


def why(rows: Sequence[dict[str, Any]]) -> str:
    """Returns why the first row is faster than the second, from the parts of their times."""
    best = rows[0]
    if not best["seconds"]:
        return f"{best['algorithm']} has nothing to send."
    if len(rows) == 1:
        return f"{_takes(best)}; no other algorithm does this collective."
    return _beside(best, rows[1], "the next best, ")


def _takes(best: dict[str, Any]) -> str:
    text = f"{best['algorithm']} takes {name_seconds(best['seconds'])}"
    return text if best["ratio"] is None else f"{text}, {best['ratio']:.2f} times the lower bound"


def _beside(best: dict[str, Any], other: dict[str, Any], called: str) -> str:
    """Returns the times of the fastest row and another one, which is `called` for example the next best, and why."""
    took, ratio = name_seconds(other["seconds"]), other["seconds"] / best["seconds"]
    after = "," if called else ""
    text = f"{_takes(best)}; {called}{other['algorithm']}{after} takes {took}, {ratio:.2f} times as long."
    differences = []
    for part in _PARTS:
        more = other[part] - best[part]
        if abs(more) >= _WORTH_SAYING * best["seconds"]:
            differences.append(f"{name_seconds(abs(more))} {'more' if more > 0 else 'less'} for {part}")
    if differences:
        text += f" The difference: {', '.join(differences)}."
    return text


def print_network_explanation(console: "Terminal", found: dict[str, Any]) -> None:
    """Prints the candidates with their costs, why the first one wins, its messages, and the fastest per size."""
    from rich.markup import escape

    from hocket.view.networks.simulation_text import compared, print_changes, print_layouts, sentences

    rows = found["candidates"]
    size = "" if found["collective"] == "barrier" else f", {name_bytes(found['num_bytes'])}"
    where = f"{found['collective']}{size} on {escape(found['topology'])}, {name_count(found['num_ranks'], 'rank')}"
    layout = name_layout(rows[0]["groups"], rows[0]["dims"])
    console.print(f"{where}: [bold]{escape(found['algorithm'])}[/]{layout and f' in {layout}'} is the fastest.")
    print_changes(console, rows[0]["changes"])
    console.print()
    console.print_table(compared(rows))
    print_layouts(console, rows)
    console.print()
    for paragraph in reasons(found):
        console.print(paragraph, markup=False)
    console.print(
        "Bandwidth is the time of the bottleneck link; contention is waiting for shared links and for other ranks.",
        style="dim",
    )
    for line in sentences(rows[0]):
        console.print(line, markup=False)
    if found["fastest"]:
        parts = (f"{one['algorithm']} {name_range(one['min_bytes'], one['max_bytes'])}" for one in found["fastest"])
        console.print(f"Fastest by size: {'; '.join(parts)}. Times within 1% count as equal.", markup=False)
    if not found["steps"]:
        return
    console.print(f"\nMessages of {found['algorithm']}, source>target:", markup=False)
    for step in found["steps"][:_MOST_LISTED]:
        console.print(f"  {_step(step)}", markup=False)
    if len(found["steps"]) > _MOST_LISTED:
        console.print(f"  ... and {len(found['steps']) - _MOST_LISTED} more kinds of steps; --json has all")


def _step(step: dict[str, Any]) -> str:
    number = f"step {step['first']}" if step["first"] == step["last"] else f"steps {step['first']}-{step['last']}"
    by_size: dict[float, list[str]] = {}
    for one in step["messages"]:
        by_size.setdefault(one["bytes"], []).append(f"{one['source']}>{one['target']}")
    texts = []
    for size, pairs in sorted(by_size.items()):
        more = f" and {len(pairs) - _MOST_LISTED} more" if len(pairs) > _MOST_LISTED else ""
        texts.append(f"{name_amount(size)}: {' '.join(pairs[:_MOST_LISTED])}{more}")
    return f"{number}: " + "; ".join(texts)
