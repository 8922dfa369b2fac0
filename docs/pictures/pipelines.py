"""Draws the pictures of docs/pipelines.md, and writes its table and the deadlock of 1F1B.

python docs/pictures/pipelines.py
"""

import re
from pathlib import Path

import hocket
from hocket.training import pipeline as tables

DOCUMENT = Path(__file__).parents[1] / "pipelines.md"
PICTURES = Path(__file__).parent
DRAWN = ("1f1b", "zb-h1")
NUM_RANKS, NUM_MICROBATCHES = 4, 8
HEAD = """\
| schedule | stages on a rank | bubble rate | peak activations, by rank | tagged messages | FIFO |
|---|---|---|---|---|---|
"""


def family() -> str:
    """The table of all schedules."""
    lines = []
    for name in tables.SCHEDULES:
        shown = hocket.pipeline(name, NUM_RANKS, NUM_MICROBATCHES)
        assert shown.fewest_messages and shown.peak_activations and shown.bubble_rate is not None, shown.breach
        chunks = shown.table.placement.size // shown.num_ranks
        # An activation is that of the model's part for one rank, though stages may be smaller.
        parts = shown.num_stages // shown.num_ranks
        peak = ", ".join(f"{count / parts:g}" for count in shown.peak_activations)
        fifo = "impossible" if shown.fewest_messages.fifo is None else shown.fewest_messages.fifo
        lines.append(
            f"| `{name}` | {chunks} | {shown.bubble_rate:.1%} | {peak} | {shown.fewest_messages.tagged} | {fifo} |\n"
        )
    return HEAD + "".join(lines)


def main() -> None:
    """Writes the pictures, and what stands between the marks of the document."""
    for name in DRAWN:
        picture = hocket.pipeline(name, NUM_RANKS, NUM_MICROBATCHES).svg()
        (PICTURES / f"pipeline-{name}.svg").write_text(picture)
    deadlock = hocket.pipeline("1f1b", NUM_RANKS, NUM_MICROBATCHES).deadlock().replace("; ", ";\n")
    parts = {"family": family(), "deadlock": f"```text\n{deadlock}\n```\n"}
    text = DOCUMENT.read_text()
    for name, part in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, part=part: found[1] + part + found[2], text, flags=re.DOTALL)
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
