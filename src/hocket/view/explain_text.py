"""The text that `hocket explain` prints."""

from typing import TYPE_CHECKING, Any

from hocket.view.words import name_amount, name_bytes, name_count, name_range, name_seconds

if TYPE_CHECKING:
    from hocket.view.terminal import Terminal

_ROUGHLY = 1.3  # rough predictions whose ratio is smaller count as equal
_WORTH_SAYING = 0.1  # share of the winner's time; smaller differences are not mentioned
_PARTS = (("latency", "steps"), ("bandwidth", "sent"), ("reduction", "reduced"))


def print_explanation(console: "Terminal", found: dict[str, Any]) -> None:
    """Prints the table of candidates and sentences about their numbers."""
    from rich.markup import escape

    size = "" if found["collective"] == "barrier" else f", {name_bytes(found['num_bytes'])}"
    call = f"{found['collective']}, {name_count(found['num_ranks'], 'rank')}{size}"
    console.print(f"{call}: [bold]{escape(found['algorithm'])}[/] runs, {escape(decided(found))}.")
    console.print()
    console.print_table(_table(found))
    console.print()
    for paragraph in (*reasons(found), *_where(found)):
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
            name_amount(row["sent"]),
            name_amount(row["reduced"]),
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
    """Returns what decided the choice: HOCKET_ALGO, the tuner file or the table."""
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


def reasons(found: dict[str, Any]) -> list[str]:
    """Returns how each algorithm that was asked about compares with the chosen one, and why that one wins."""
    compared = _compared(found)
    told = (found["algorithm"], compared and compared["algorithm"])
    return list(dict.fromkeys([*(_beside(found, name) for name in found["asked"] if name not in told), why(found)]))


def _row(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the row of an algorithm, which may be that of one with the same schedule."""
    rows: list[dict[str, Any]] = found["candidates"]
    return next(row for row in rows if name in (row["algorithm"], *row["twins"]))


def _beside(found: dict[str, Any], name: str) -> str:
    """Returns how an algorithm compares with the chosen one: by measured times if both have them, else predictions."""
    mine, other = _row(found, found["algorithm"]), _row(found, name)
    if other is mine:
        return f"{name} has the same schedule as {found['algorithm']}, which runs."
    if name != other["algorithm"]:
        text = f"{name} has the same schedule as {other['algorithm']}."
        return text if other is _compared(found) else f"{text} {_beside(found, other['algorithm'])}"
    kind = "measured" if mine["complete"] and other["measured"] is not None else "predicted"
    if mine[kind] is None or other[kind] is None:
        return _unmeasured(found, mine if mine[kind] is None else other)
    if kind == "measured" and not other["complete"]:
        took, about = _took(found, mine, kind), _took(found, other, kind)
        text = f"{mine['algorithm']} takes {took} (measured); {name} was dropped as slower, at about {about}."
    else:
        text = _ratio(found, mine, other, kind, "")
    return " ".join([text, *_differences(found, mine, other)])


def why(found: dict[str, Any]) -> str:
    """Returns why the chosen algorithm wins, or which one would be faster.

    Compares the measured times of algorithms timed to the end, else the predictions.
    """
    mine, other = _row(found, found["algorithm"]), _compared(found)
    kind = "measured" if mine["complete"] else "predicted"
    if mine["measured"] is not None and not mine["complete"]:
        assert other is not None, "the algorithm that it lost against was timed to the end"
        text = _dropped(mine, other)
    elif mine[kind] is None:
        return _unmeasured(found, mine)
    elif other is None:
        return (
            f"{mine['algorithm']} takes {_took(found, mine, kind)} ({kind}); no other algorithm does this collective."
        )
    elif mine["complete"] and not other["complete"]:
        text = _alone(mine, other)
    else:
        text = _ratio(found, mine, other, kind, "the next best, ")
    return " ".join([text, *_differences(found, mine, other)])


def _compared(found: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the row with which `why` compares the chosen algorithm; None if there is none.

    The best of the others that have a time of the same kind; else the best of those that were dropped as slower.
    """
    mine = _row(found, found["algorithm"])
    others: list[dict[str, Any]] = [row for row in found["candidates"] if row is not mine]
    if mine["complete"]:
        timed = [row for row in others if row["measured"] is not None]
        return min(timed, key=lambda row: (not row["complete"], row["measured"]), default=None)
    if mine["measured"] is not None:
        return others[0]
    known = [row for row in others if row["predicted"] is not None]
    return None if mine["predicted"] is None else min(known, key=lambda row: row["predicted"], default=None)


def _ratio(found: dict[str, Any], mine: dict[str, Any], other: dict[str, Any], kind: str, called: str) -> str:
    """Returns the times of the chosen algorithm and of another one, which is `called` for example the next best."""
    rough = kind == "predicted" and found["tuned"] is None
    ratio = other[kind] / mine[kind] if mine[kind] else 1.0
    took_other = _took(found, other, kind)
    names = f"{mine['algorithm']} takes {_took(found, mine, kind)} ({kind})"
    and_other = f"{other['algorithm']} {took_other}"
    if _overlap(mine, other, kind):
        return f"{names}, and {and_other}: the spread of the rounds hides the difference."
    if rough and 1 / _ROUGHLY < ratio < _ROUGHLY:
        return f"{names}, and {and_other}: rough estimates cannot separate the two."
    if ratio >= 1:
        after = "," if called else ""
        return f"{names}; {called}{other['algorithm']}{after} takes {took_other}, {ratio:.2f} times as long."
    if rough:
        return f"{names}, but {and_other}: only a measurement can confirm this estimate."
    by = f"algorithm={other['algorithm']!r} in the call runs it" if other["algorithm"] in found["asked"] else ""
    return (
        f"{names}, but {and_other}, only {ratio:.2f} times as long: "
        f"{by or '`hocket tune` selects it if it wins as clearly there'}."
    )


def _alone(mine: dict[str, Any], best: dict[str, Any]) -> str:
    """Returns the text if no other algorithm was timed to the end: compares with the best of the dropped ones."""
    return (
        f"{mine['algorithm']} takes {name_seconds(mine['measured'])} (measured); all others were dropped as slower, "
        f"{best['algorithm']} at about {name_seconds(best['measured'])}."
    )


def _dropped(mine: dict[str, Any], best: dict[str, Any]) -> str:
    return (
        f"{mine['algorithm']} was dropped after {name_count(mine['rounds'], 'round')} of about "
        f"{name_seconds(mine['measured'])}, because {best['algorithm']} takes only "
        f"{name_seconds(best['measured'])} (measured)."
    )


def _overlap(mine: dict[str, Any], other: dict[str, Any], kind: str) -> bool:
    """Returns whether the middle halves of the rounds of both overlap."""
    return kind == "measured" and bool(mine["low"] <= other["high"] and other["low"] <= mine["high"])


def _differences(found: dict[str, Any], mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Returns a sentence on the parts of the predictions that differ."""
    if mine["predicted"] is None or other["predicted"] is None:
        return []
    parts = []
    for part, amount in _PARTS:
        more = other[part] - mine[part]
        if more and abs(more) >= _WORTH_SAYING * mine["predicted"]:
            kind = "more" if more > 0 else "less"
            amounts = _amounts(found, mine, other, part, amount)
            parts.append(f"{_name_predicted(found, abs(more))} {kind} for {part} ({amounts})")
    if not parts:
        return [f"By the predictions, {other['algorithm']} costs the same in each part."]
    return [f"By the predictions, {other['algorithm']} costs {', '.join(parts)}."]


def _amounts(found: dict[str, Any], mine: dict[str, Any], other: dict[str, Any], part: str, amount: str) -> str:
    """Returns what two algorithms do at different costs: steps, or bytes; for equal amounts also why costs differ."""
    if amount == "steps":
        theirs, own = name_count(other[amount], "step"), str(mine[amount])
    else:
        theirs, own = f"{name_amount(other[amount])} {amount}", name_amount(mine[amount])
    if other[amount] != mine[amount]:
        return f"{theirs} against {own}"
    if not mine[part]:
        return f"{theirs} in both"
    times = f"{other[part] / mine[part]:.2g} times as"
    if found["tuned"] or amount == "steps":
        said = ", as measured" if found["tuned"] else ""
        return f"{theirs} in both; a {'step' if amount == 'steps' else 'byte'} takes {times} long here{said}"
    does, work = ("reduces", "add") if part == "reduction" else ("sends", "copy")
    # Rough costs are those of all work on a core.
    return (
        f"the busiest rank {does} {name_amount(mine[amount])} in both; but here the ranks that share a core {work} "
        f"{times} many bytes together"
    )


def _unmeasured(found: dict[str, Any], mine: dict[str, Any]) -> str:
    fewest = min(found["candidates"], key=lambda row: (row["steps"], row["sent"]))
    least = min(found["candidates"], key=lambda row: (row["sent"], row["steps"]))
    return (
        f"{mine['algorithm']} was not measured on this machine, so the choice cannot be compared: {_times_by(found)}. "
        f"It takes {name_count(mine['steps'], 'step')} and sends {name_amount(mine['sent'])}; the fewest steps are "
        f"{fewest['steps']} ({fewest['algorithm']}), the least sent is {name_amount(least['sent'])} "
        f"({least['algorithm']})."
    )


def _times_by(found: dict[str, Any]) -> str:
    if found["num_ranks"] == 1:  # one rank has no choice of algorithm, so tuning is not possible
        return "add --measure"
    return f"run `hocket tune --collective {found['collective']} --ranks {found['num_ranks']}`, or add --measure"


def _where(found: dict[str, Any]) -> list[str]:
    """Returns lines on the sizes where the fastest algorithm changes, and on the accuracy of the costs."""
    lines = []
    costs = "Fastest by size, predicted" if found["tuned"] else "Fastest by size, roughly predicted"
    for name, text in (("fastest_measured", "Fastest by size, measured"), ("fastest_predicted", costs)):
        if found[name]:
            ranges = (f"{one['algorithm']} {name_range(one['min_bytes'], one['max_bytes'])}" for one in found[name])
            lines.append(f"{text}: {'; '.join(ranges)}.")
    if any(row["rounds"] and not row["complete"] for row in found["candidates"]):
        lines.append("Algorithms with fewer rounds were dropped because they are slower: their times are only rough.")
    rows = [row for row in found["candidates"] if row["predicted"] is not None]
    if found["tuned"] and any(row["reduced"] for row in rows) and not any(row["reduction"] for row in rows):
        lines.append("These times cannot separate sending from reducing: bandwidth is the cost of both.")
    if not found["tuned"]:
        lines.append(
            f"~: a rough prediction from the speed of this machine's cores and memory, usually too low. For measured "
            f"times, {_times_by(found)}."
        )
    errors = sorted(row["error"] for row in rows if row["error"] is not None)
    if found["tuned"]:
        fit = f"; half of the predictions are within {errors[len(errors) // 2]:.0%} of the times" if errors else ""
        lines.append(f"Measured {found['tuned']}{fit}.")
    return lines
