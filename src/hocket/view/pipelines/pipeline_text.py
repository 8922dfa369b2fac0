"""The text that `hocket show pipeline` and `hocket verify --pipeline` print."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hocket.view.pipelines.pipeline_bars import (
    MAX_OPERATIONS,
    MAX_RANKS,
    PipelineBar,
    bars_of,
    is_drawn,
    pipeline_headline,
    pipeline_legend,
    pipeline_sums,
    ticks,
)
from hocket.view.schedules.chunk_colours import ink_on
from hocket.view.words import name_count

if TYPE_CHECKING:
    from rich.text import Text

    from hocket.training import pipeline as tables
    from hocket.view.terminal import Terminal

_WIDEST = 40  # characters of the longest operation, however short others are
_MOST_ACROSS = 20_000  # characters, however long messages take
_SHORTEST = 1e-9  # a time that is not 0
_TICK = 10  # characters from one time on the ruler to the next, at least
_MOST_NAMED = 16  # ranks
_LAWS = ("complete", "ordered", "channels", "memory", "promise")


def print_pipeline(
    console: "Terminal",
    table: "tables.PipelineTable",
    timing: "tables.PipelineTiming | None",
    facts: dict[str, Any],
) -> None:
    """Prints the picture of a table, then its times, memory and messages; `facts` are those of --json.

    On a terminal the picture goes on below where it is too wide; elsewhere lines stay whole.
    """
    console.print(pipeline_headline(facts), style="bold", markup=False)
    if is_drawn(table):
        _print_picture(console, bars_of(table, timing))
        for line in pipeline_legend(table, timing):
            console.print(line, style="dim", markup=False)
    else:
        most = f"{MAX_RANKS} ranks, or {MAX_OPERATIONS} operations on a rank"
        console.print(f"The picture is not shown: there are more than {most}.", style="dim", markup=False)
    console.print()
    for line in pipeline_sums(facts):
        console.print(line, markup=False)
    if facts["idle"] is not None:
        _print_ranks(console, facts)
    if facts["breach"]:
        console.print(facts["breach"], style="red", markup=False)


def _print_picture(console: "Terminal", bars: Sequence[Sequence[PipelineBar]]) -> None:
    from rich.text import Text

    blocks = [_blocks(rank) for rank in bars]
    end = max((bar.end for rank in bars for bar in rank), default=0.0)
    scale = _scale([block for rank in blocks for block in rank], end)
    names = ["time", *(f"rank {rank}" for rank in range(len(bars)))]
    lines = [_ruler(end, scale), *(_line(rank, scale) for rank in blocks)]
    margin, total = max(map(len, names)) + 2, max(map(len, lines))
    across = max(_TICK, console.width - margin) if console.is_terminal else total
    for begin in range(0, total, across):
        if begin:
            console.print()
        for name, line in zip(names, lines, strict=True):
            part = line[begin : min(begin + across, len(line))] if begin < len(line) else Text()
            part.rstrip()
            console.print(Text.assemble((f"{name:<{margin}}", "dim"), part))


def _blocks(bars: Sequence[PipelineBar]) -> list[list[PipelineBar]]:
    """Returns the bars with those that overlap together, without those that take no time."""
    blocks: list[list[PipelineBar]] = []
    for bar in bars:
        if bar.joined and blocks:
            blocks[-1].append(bar)
        else:
            blocks.append([bar])
    return [block for block in blocks if block[0].end > block[0].start]


def _label(block: Sequence[PipelineBar]) -> str:
    return "+".join(bar.label for bar in block)


def _scale(blocks: Sequence[Sequence[PipelineBar]], end: float) -> float:
    """Returns the characters of a unit of time: every label fits, unless an operation or all would be too wide."""
    lengths = [block[0].end - block[0].start for block in blocks]
    needed = [(len(_label(block)) + 1) / length for block, length in zip(blocks, lengths, strict=True)]
    return min(max(needed, default=1.0), _WIDEST / max(lengths, default=1.0), _MOST_ACROSS / max(end, _SHORTEST))


def _ruler(end: float, scale: float) -> "Text":
    from rich.text import Text

    line = Text(style="dim")
    for time in ticks(end, int(end * scale / _TICK)):
        line.append(" " * (round(time * scale) - len(line)) + f"{time:g}")
    return line


def _line(blocks: Sequence[Sequence[PipelineBar]], scale: float) -> "Text":
    """Returns the line of a rank: labels, each followed by - until its end, and by a blank if there is room."""
    from rich.text import Text

    line = Text()
    for block in blocks:
        begin, end = round(block[0].start * scale), round(block[0].end * scale)
        label, room = _label(block), end - begin
        room -= room > len(label)
        line.append(" " * (begin - len(line)))
        text, at = f"{label:-<{room}}"[:room], 0
        for number, bar in enumerate(block, 1):
            stop = room if number == len(block) else at + len(bar.label)
            line.append(text[at:stop], style=f"{ink_on(bar.colour)} on {bar.colour}")
            at = stop
    return line


def _print_ranks(console: "Terminal", facts: dict[str, Any]) -> None:
    from rich.table import Table

    columns = {
        "idle": [f"{time:g}" for time in facts["idle"]],
        "peak activations": facts["peak_activations"],
        "until weight": facts["peak_until_weight"],
    }
    known = {title: column for title, column in columns.items() if column is not None}
    if facts["num_ranks"] > MAX_RANKS:
        ranges = (f"{title} {_range(facts, title)}" for title in known)
        console.print(f"by rank: {', '.join(ranges)}; --json has all", markup=False)
        return
    table = Table("rank", box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for title in known:
        table.add_column(title, justify="right")
    for rank, cells in enumerate(zip(*known.values(), strict=True)):
        table.add_row(str(rank), *map(str, cells))
    console.print_table(table)


def _range(facts: dict[str, Any], title: str) -> str:
    key = {"idle": "idle", "peak activations": "peak_activations", "until weight": "peak_until_weight"}[title]
    return f"{min(facts[key]):g} to {max(facts[key]):g}"


def print_pipeline_proof(console: "Terminal", table: "tables.PipelineTable", facts: dict[str, Any]) -> None:
    """Prints a line for each law that holds, or the breach; `facts` are those of --json."""
    counts = pipeline_headline(facts).partition(";")[0]
    console.print(f"{counts}; {facts['num_operations']} operations", markup=False)
    if facts["breach"]:
        console.print(facts["breach"], style="red", markup=False)
        return
    fewest, promise = facts["fewest_messages"], table.promise
    fifo = "no number is enough" if fewest["fifo"] is None else f"{fewest['fifo']}"
    tagged = name_count(fewest["tagged"], "tagged message")
    told = "as the schedule promises" if promise.peak_activations is not None else "the schedule promises nothing"
    in_time = "as the schedule promises" if promise.makespan is not None else "the schedule promises nothing"
    for number, found in enumerate(
        (
            f"{facts['num_stages']} stages run F, and G or B and W, once for each micro-batch",
            "no operations wait for each other in a cycle",
            f"each channel must hold {tagged}; without tags: {fifo}",
            f"peak activations by rank: {_several(facts['peak_activations'])}; {told}",
            f"makespan {facts['makespan']:g}, cost {facts['cost']:g} if F, B and W take 1; {in_time}",
        )
    ):
        console.print(f"law {number + 1} {_LAWS[number]:<9} {found}", markup=False)
    if facts["deadlock"]:
        console.print(f"why channels must hold {tagged}: {facts['deadlock']}", markup=False)


def _several(numbers: Sequence[int]) -> str:
    if len(numbers) > _MOST_NAMED:
        return f"{min(numbers)} to {max(numbers)}"
    return ", ".join(map(str, numbers))
