"""The text that `hocket calibrate` and `hocket expect` print."""

from typing import TYPE_CHECKING, Any

from hocket.network import named_constant
from hocket.view.words import name_bytes, name_count, name_range, name_seconds

if TYPE_CHECKING:
    from hocket.view.terminal import Terminal


def print_calibration(console: "Terminal", found: dict[str, Any]) -> None:
    """Prints the fitted constants, those that the logs do not determine, and each call with its prediction."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("constant", box=None)
    for name in ("base", "fitted", "standard error"):
        table.add_column(name, justify="right")
    table.add_column("")
    for one in found["constants"]:
        note = "at its limit: the machine is faster than its base" if one["at_limit"] else ""
        note = f"not determined: {one['undetermined']}" if one["undetermined"] else note
        value = "" if one["undetermined"] else named_constant(one["key"], one["value"])
        error = "" if one["error"] is None else named_constant(one["key"], one["error"])
        table.add_row(one["key"], named_constant(one["key"], one["before"]), value, error, note)
    console.print_table(table)
    console.print()
    rows = Table("log", "call", "size", box=None)
    for name in ("measured", "fitted", "error"):
        rows.add_column(name, justify="right")
    rows.add_column("by the fit")
    for call in found["calls"]:
        rows.add_row(
            escape(call["log"]),
            f"{call['collective']}, {name_count(call['num_ranks'], 'rank')}",
            name_bytes(call["num_bytes"]),
            name_seconds(call["measured_seconds"]),
            name_seconds(call["predicted_seconds"]),
            f"{call['error']:+.0%}",
            f"{call['algorithm']} {call['protocol']}",
        )
    console.print_table(rows)
    console.print()
    worst = max(found["calls"], key=lambda call: abs(call["error"]))
    console.print(
        f"median error {found['median_error']:.1%}; largest {worst['error']:+.0%}, at {name_bytes(worst['num_bytes'])}",
        markup=False,
    )


def print_expectation(console: "Terminal", found: dict[str, Any]) -> None:
    """Prints each table with predictions and bounds, and the verdicts below it."""
    from rich.table import Table

    for number, one in enumerate(found["tables"]):
        if number:
            console.print()
        ranks = name_count(one["num_ranks"], "rank")
        on = name_count(one["num_hosts"], "host")
        title = f"{one['log']}: {one['collective']}, {ranks} on {on}, against {found['machine']} ({found['title']})"
        console.print(title, style="bold", markup=False)
        table = Table("size", box=None)
        for name in ("measured", "predicted", "of it", "bound"):
            table.add_column(name, justify="right")
        table.add_column("predicted to run")
        for call in one["calls"]:
            table.add_row(
                name_bytes(call["num_bytes"]),
                name_seconds(call["measured_seconds"]),
                name_seconds(call["predicted_seconds"]),
                f"{call['ratio']:.0%}",
                name_seconds(call["bound_seconds"]),
                f"{call['algorithm']} {call['protocol']}",
            )
        console.print_table(table)
        console.print()
        last = one["calls"][-1]["num_bytes"]
        for verdict in one["verdicts"]:
            for line in verdict_lines(verdict, last, found["machine"]):
                console.print(line, markup=False)


def verdict_lines(verdict: dict[str, Any], last_bytes: int, machine: str) -> list[str]:
    """Returns the verdict on a range of sizes in words, and a line for each cause. last_bytes: the largest call."""
    ends = None if verdict["last_bytes"] == last_bytes else verdict["last_bytes"]
    sizes, ratio = name_range(verdict["first_bytes"], ends), f"{verdict['ratio']:.0%}"
    kind = verdict["kind"]
    if kind == "as predicted":
        return [f"{sizes}: {ratio} of the prediction, as expected"]
    if kind == "fast":
        return [f"{sizes}: {ratio} of the prediction; this host is faster than {machine}: calibrate it with this log"]
    if kind == "impossible":
        return [
            f"{sizes}: faster than any algorithm can be on {machine}; the log is of another machine, or of other hosts"
        ]
    later = f", {name_seconds(verdict['later_seconds'], 2)} more for each call" if kind == "slow start" else ""
    lines = [f"{sizes}: {ratio} of the prediction{later}"]
    for number, cause in enumerate(verdict["causes"]):
        match = "best match" if number == 0 else "or"
        lines.append(f"  {match}, which gives {cause['ratio']:.0%} (median error {cause['error']:.0%}):")
        lines += [f"  - {text}" for text in cause["texts"]]
    if not verdict["causes"]:
        lines.append("  none of the causes that were simulated explains it")
    return lines
