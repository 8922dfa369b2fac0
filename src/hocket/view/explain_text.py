"""The words of `hocket explain`."""

from typing import Any

from hocket.view.words import name_bytes, name_count, name_range, name_seconds

_ROUGHLY = 1.3  # of two rough predictions: what is closer is not told apart
_WORTH_SAYING = 0.1  # of the winner's time: smaller differences explain nothing
_PARTS = (("latency", "steps"), ("bandwidth", "sent"), ("reduction", "reduced"))


def print_explanation(found: dict[str, Any]) -> None:
    """The table of candidates, and sentences made of their numbers."""
    from rich.markup import escape

    from hocket.view.terminal import Terminal

    console = Terminal(soft_wrap=True)
    size = "" if found["collective"] == "barrier" else f", {name_bytes(found['num_bytes'])}"
    call = f"{found['collective']}, {name_count(found['num_ranks'], 'rank')}{size}"
    console.print(f"{call}: [bold]{escape(found['algorithm'])}[/] runs, {escape(decided(found))}.")
    console.print()
    console.print(_table(found))
    console.print()
    for paragraph in (why(found), *_where(found)):
        console.print(paragraph, markup=False)


def _table(found: dict[str, Any]) -> Any:
    from rich.markup import escape
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
        predicted = (row[name] for name in ("predicted", "latency", "bandwidth", "reduction"))
        bold = "bold" if found["algorithm"] in (row["algorithm"], *row["twins"]) else None
        table.add_row(
            escape(row["algorithm"]),
            str(row["steps"]),
            name_bytes(row["sent"]),
            name_bytes(row["reduced"]),
            *("-" if seconds is None else _name_predicted(found, seconds) for seconds in predicted),
            "-" if row["measured"] is None else name_seconds(row["measured"]),
            str(row["rounds"] or "-"),
            style=bold,
        )
    return table


def _name_predicted(found: dict[str, Any], seconds: float) -> str:
    return name_seconds(seconds) if found["tuned"] else f"~{name_seconds(seconds, 2)}"


def _took(found: dict[str, Any], row: dict[str, Any], kind: str) -> str:
    return name_seconds(row[kind]) if kind == "measured" else _name_predicted(found, row[kind])


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
        return _dropped(found, mine, rows[0])
    kind = "measured" if mine["complete"] else "predicted"
    known = [row for row in rows if (row["complete"] if mine["complete"] else row["predicted"] is not None)]
    if mine[kind] is None:
        return _unmeasured(found, mine)
    others = sorted((row for row in known if row is not mine), key=lambda row: row[kind])
    if not others:
        return _alone(found, mine, kind)
    other = others[0]
    rough = kind == "predicted" and found["tuned"] is None
    ratio = other[kind] / mine[kind] if mine[kind] else 1.0
    took_other = _took(found, other, kind)
    names = f"{mine['algorithm']} takes {_took(found, mine, kind)} ({kind})"
    and_other = f"{other['algorithm']} {took_other}"
    if _overlap(mine, other, kind):
        text = f"{names}, and {and_other}: the spread of the rounds hides the difference."
    elif rough and 1 / _ROUGHLY < ratio < _ROUGHLY:
        text = f"{names}, and {and_other}: rough costs do not tell them apart."
    elif ratio >= 1:
        text = f"{names}; the next best, {other['algorithm']}, {took_other}, {ratio:.2f} times as long."
    elif rough:
        text = f"{names}, but {and_other}: whether that is so, only times tell."
    else:
        text = (
            f"{names}, but {and_other}, {ratio:.2f} times as long: a tuner file would choose it if it wins as clearly "
            f"in `hocket tune`."
        )
    return " ".join([text, *_differences(found, mine, other)])


def _alone(found: dict[str, Any], mine: dict[str, Any], kind: str) -> str:
    """Where nothing is left to compare with, of what was dropped the one that seemed the best."""
    text = f"{mine['algorithm']} takes {_took(found, mine, kind)} ({kind})"
    best = next((row for row in found["candidates"] if row["measured"] is not None and row is not mine), None)
    if best is None:
        return f"{text}; nothing else does what it does."
    text += f"; all others were dropped as slower, {best['algorithm']} at about {name_seconds(best['measured'])}."
    return " ".join([text, *_differences(found, mine, best)])


def _dropped(found: dict[str, Any], mine: dict[str, Any], best: dict[str, Any]) -> str:
    text = (
        f"{mine['algorithm']} was dropped after {mine['rounds']} rounds, of about {name_seconds(mine['measured'])}, as "
        f"slower than {best['algorithm']}, {name_seconds(best['measured'])} (measured)."
    )
    return " ".join([text, *_differences(found, mine, best)])


def _overlap(mine: dict[str, Any], other: dict[str, Any], kind: str) -> bool:
    """Whether the middle halves of the rounds of both have times in common."""
    return kind == "measured" and bool(mine["low"] <= other["high"] and other["low"] <= mine["high"])


def _differences(found: dict[str, Any], mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Which parts of the predictions make the difference."""
    if mine["predicted"] is None or other["predicted"] is None:
        return []
    parts = []
    for part, amount in _PARTS:
        more = other[part] - mine[part]
        if more and abs(more) >= _WORTH_SAYING * mine["predicted"]:
            if amount == "steps":
                theirs, own = name_count(other[amount], "step"), str(mine[amount])
            else:
                theirs, own = f"{name_bytes(other[amount])} {amount}", name_bytes(mine[amount])
            amounts = f"{theirs} in both" if other[amount] == mine[amount] else f"{theirs} against {own}"
            kind = "more" if more > 0 else "less"
            parts.append(f"{_name_predicted(found, abs(more))} {kind} for {part} ({amounts})")
    if not parts:
        return [f"By their costs {other['algorithm']} pays as much in each part."]
    return [f"By their costs {other['algorithm']} pays {', '.join(parts)}."]


def _unmeasured(found: dict[str, Any], mine: dict[str, Any]) -> str:
    fewest = min(found["candidates"], key=lambda row: (row["steps"], row["sent"]))
    least = min(found["candidates"], key=lambda row: (row["sent"], row["steps"]))
    return (
        f"{mine['algorithm']} was not measured on this machine, so the choice cannot be judged: {_times_by(found)}. "
        f"It takes {name_count(mine['steps'], 'step')} and sends {name_bytes(mine['sent'])}; the fewest steps are "
        f"{fewest['steps']} ({fewest['algorithm']}), the least sent is {name_bytes(least['sent'])} "
        f"({least['algorithm']})."
    )


def _times_by(found: dict[str, Any]) -> str:
    if found["num_ranks"] == 1:  # it has nothing to choose, so there is nothing to tune
        return "add --measure"
    return f"run `hocket tune --collective {found['collective']} --ranks {found['num_ranks']}`, or add --measure"


def _where(found: dict[str, Any]) -> list[str]:
    """Where the fastest changes, and how far the costs are to be trusted."""
    lines = []
    costs = "By the costs" if found["tuned"] else "By rough costs"
    for name, text in (("fastest_measured", "Fastest by size, measured"), ("fastest_predicted", costs)):
        if found[name]:
            ranges = (f"{one['algorithm']} {name_range(one['min_bytes'], one['max_bytes'])}" for one in found[name])
            lines.append(f"{text}: {'; '.join(ranges)}.")
    if any(row["rounds"] and not row["complete"] for row in found["candidates"]):
        lines.append("What has fewer rounds than others was dropped as slower: its time is rough, and not compared.")
    rows = [row for row in found["candidates"] if row["predicted"] is not None]
    if found["tuned"] and any(row["reduced"] for row in rows) and not any(row["reduction"] for row in rows):
        lines.append("These times do not tell bytes reduced from bytes sent: bandwidth is the price of both.")
    if not found["tuned"]:
        lines.append(
            f"~: predicted by what cores and memory can do here, so roughly, and rather too low. For more, "
            f"{_times_by(found)}."
        )
    errors = sorted(row["error"] for row in rows if row["error"] is not None)
    if found["tuned"]:
        fit = f"; half of the costs fit their times within {errors[len(errors) // 2]:.0%}" if errors else ""
        lines.append(f"Measured {found['tuned']}{fit}.")
    return lines
