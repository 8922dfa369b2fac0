"""The words of `hocket explain`."""

from typing import Any

from hocket.cli.selection import name_bytes, name_range, name_seconds

_WORTH_SAYING = 0.1  # of the winner's time: smaller differences explain nothing
_PARTS = (("latency", "steps"), ("bandwidth", "sent"), ("reduction", "reduced"))


def print_explanation(found: dict[str, Any]) -> None:
    """The table of candidates, and sentences made of their numbers."""
    from hocket.cli.terminal import Terminal

    console = Terminal(soft_wrap=True)
    size = "" if found["collective"] == "barrier" else f", {name_bytes(found['num_bytes'])}"
    call = f"{found['collective']}, {found['num_ranks']} ranks{size}"
    console.print(f"{call}: [bold]{found['algorithm']}[/] runs, {decided(found)}.")
    console.print()
    console.print(_table(found))
    console.print()
    for paragraph in (why(found), *_where(found)):
        console.print(paragraph, markup=False)


def _table(found: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None)
    for name in (
        "algorithm",
        "steps",
        "sent",
        "reduced",
        "predicted",
        "= latency",
        "+ bandwidth",
        "+ reduction",
        "measured",
        "rounds",
    ):
        table.add_column(name, justify="left" if name == "algorithm" else "right")
    for row in found["candidates"]:
        costs = (row[name] for name in ("predicted", "latency", "bandwidth", "reduction", "measured"))
        bold = "bold" if found["algorithm"] in (row["algorithm"], *row["twins"]) else None
        table.add_row(
            row["algorithm"],
            str(row["steps"]),
            name_bytes(row["sent"]),
            name_bytes(row["reduced"]),
            *("-" if seconds is None else name_seconds(seconds) for seconds in costs),
            str(row["rounds"] or "-"),
            style=bold,
        )
    return table


def decided(found: dict[str, Any]) -> str:
    """Which of HOCKET_ALGO, tuner file and table decided."""
    if found["by"] != "table":
        return (
            f"chosen by {'the ' if found['by'] == 'tuner file' else ''}{found['by']}; the table says {found['table']}"
        )
    others = []
    if found["algo"]:
        others.append(f"HOCKET_ALGO ({found['algo']}) allows it")
    if found["tuner_file_lines"]:
        others.append("no line of the tuner file says otherwise")
    return "; ".join(["chosen by the table", *others])


def why(found: dict[str, Any]) -> str:
    """Why what runs wins, or what would be faster, from the numbers: times of those that were timed to the end."""
    rows = found["candidates"]
    mine = next(row for row in rows if found["algorithm"] in (row["algorithm"], *row["twins"]))
    if mine["measured"] is not None and not mine["complete"]:
        return _dropped(mine, rows[0])
    kind = "measured" if mine["complete"] else "predicted"
    known = [row for row in rows if (row["complete"] if mine["complete"] else row["predicted"] is not None)]
    if mine[kind] is None:
        return _unmeasured(found, mine)
    others = sorted((row for row in known if row is not mine), key=lambda row: row[kind])
    if not others:
        rest = "all others were dropped as slower" if len(rows) > 1 else "nothing else does what it does"
        return f"{mine['algorithm']} takes {name_seconds(mine[kind])} ({kind}); {rest}."
    other = others[0]
    ratio = other[kind] / mine[kind]
    names = f"{mine['algorithm']} takes {name_seconds(mine[kind])} ({kind})"
    if _overlap(mine, other, kind):
        took = name_seconds(other[kind])
        text = f"{names}, and {other['algorithm']} {took}: the spread of the rounds hides the difference."
    elif ratio >= 1:
        text = f"{names}; the next best, {other['algorithm']}, {name_seconds(other[kind])}, {ratio:.2f} times as long."
    else:
        text = (
            f"{names}, but {other['algorithm']} {name_seconds(other[kind])}, {ratio:.2f} times as long: a tuner file "
            f"would choose it if it wins as clearly in `hocket tune`."
        )
    return " ".join([text, *_differences(mine, other)])


def _dropped(mine: dict[str, Any], best: dict[str, Any]) -> str:
    text = (
        f"{mine['algorithm']} was dropped after {mine['rounds']} rounds, of about {name_seconds(mine['measured'])}, as "
        f"slower than {best['algorithm']}, {name_seconds(best['measured'])} (measured)."
    )
    return " ".join([text, *_differences(mine, best)])


def _overlap(mine: dict[str, Any], other: dict[str, Any], kind: str) -> bool:
    """Whether the middle halves of the rounds of both have times in common."""
    return kind == "measured" and bool(mine["low"] <= other["high"] and other["low"] <= mine["high"])


def _differences(mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Which parts of the predictions make the difference."""
    if mine["predicted"] is None or other["predicted"] is None:
        return []
    parts = []
    for part, amount in _PARTS:
        more = other[part] - mine[part]
        if abs(more) >= _WORTH_SAYING * mine["predicted"]:
            amounts = [f"{row[amount]}" if amount == "steps" else name_bytes(row[amount]) for row in (other, mine)]
            against = f"{amount} in both" if amounts[0] == amounts[1] else f"{amount} against {amounts[1]}"
            kind = "more" if more > 0 else "less"
            parts.append(f"{name_seconds(abs(more))} {kind} for {part} ({amounts[0]} {against})")
    if not parts:
        return [f"By their costs {other['algorithm']} pays as much in each part."]
    return [f"By their costs {other['algorithm']} pays {', '.join(parts)}."]


def _unmeasured(found: dict[str, Any], mine: dict[str, Any]) -> str:
    fewest = min(found["candidates"], key=lambda row: (row["steps"], row["sent"]))
    least = min(found["candidates"], key=lambda row: (row["sent"], row["steps"]))
    tune = f"hocket tune --collective {found['collective']} --ranks {found['num_ranks']}"
    return (
        f"{mine['algorithm']} was not measured on this machine, so the choice cannot be judged: run `{tune}`, or add "
        f"--measure. It takes {mine['steps']} steps and sends {name_bytes(mine['sent'])}; the fewest steps are "
        f"{fewest['steps']} ({fewest['algorithm']}), the least sent is {name_bytes(least['sent'])} "
        f"({least['algorithm']})."
    )


def _where(found: dict[str, Any]) -> list[str]:
    """Where the fastest changes, and how far the costs are to be trusted."""
    lines = []
    for name, text in (("fastest_measured", "Fastest by size, measured"), ("fastest_predicted", "By the costs")):
        if found[name]:
            ranges = (f"{one['algorithm']} {name_range(one['min_bytes'], one['max_bytes'])}" for one in found[name])
            lines.append(f"{text}: {'; '.join(ranges)}.")
    if any(row["rounds"] and not row["complete"] for row in found["candidates"]):
        lines.append("What has fewer rounds than others was dropped as slower: its time is rough, and not compared.")
    rows = [row for row in found["candidates"] if row["predicted"] is not None]
    if any(row["reduced"] for row in rows) and not any(row["reduction"] for row in rows):
        lines.append("These times do not tell bytes reduced from bytes sent: bandwidth is the price of both.")
    errors = sorted(row["error"] for row in rows)
    if errors:
        typical = errors[len(errors) // 2]
        lines.append(f"Measured {found['tuned']}; half of the costs fit their times within {typical:.0%}.")
    return lines
