"""Answers the questions of docs/networks.md: runs the commands of each question, draws its picture, tabulates the rows.

python docs/pictures/networks.py [NAME ...]

A question is a section of docs/networks.md that shows docs/pictures/NAME.svg. Its commands begin with "$ hocket
simulate". FORMS says how to draw their rows. All rows go to docs/reports/networks.md.
"""

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import Any

from hocket.cli import simulate
from hocket.cli.simulate.command import cases_asked
from hocket.cli.simulate.sweep import sweep
from hocket.view import name_bandwidth, name_bytes, name_seconds, require_matplotlib
from hocket.view.networks.simulation_plots import over, saved

DOCUMENT = Path(__file__).parents[1] / "networks.md"
REPORT = Path(__file__).parents[1] / "reports" / "networks.md"
PICTURES = Path(__file__).parent
FORMS = {
    "ring_or_tree": "ranks",
    "oversubscription": "bars",
    "torus_or_dragonfly": "bars",
    "hypercube": "bars",
    "pcie_root": "bars",
    "slow_link": "bars",
    "rails": "bars",
    "home_or_data_centre": "bytes",
}
HEAD = """\
# The numbers behind the pictures of networks

`make docs-pictures` wrote this page with the commands that it shows; do not edit it. [networks.md](../networks.md) has
the pictures and the answers.

- *x bound*: time divided by the lower bound, which no algorithm can beat on this network.
- *busbw*: bus bandwidth, as NCCL's tests define it.
- *bottleneck link, busy*: the link that is busy for the largest share of the time, and this share.
"""
TABLES = re.compile(r"<!-- (\w+) -->\n(.*?)<!-- end -->\n", re.DOTALL)

Row = dict[str, Any]


def rows_of(command: str) -> list[Row]:
    """What a command line finds; rows of several --link say so in their topology."""
    words = shlex.split(command)[2:]
    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser)
    arguments = parser.parse_args(words)
    changed = "".join(f" {change}" for change in arguments.link)
    return [row | {"topology": row["topology"] + changed} for row in sweep(cases_asked(arguments)[0])]


def questions(document: str) -> dict[str, str]:
    """The sections that show a picture of FORMS, by its name."""
    sections = re.split(r"^(?=## )", document, flags=re.MULTILINE)
    return {name: section for section in sections for name in FORMS if f"(pictures/{name}.svg)" in section}


def commands_of(section: str) -> list[str]:
    """The commands of a section, each in one line."""
    return re.findall(r"^\$ (hocket simulate .*)$", section.replace("\\\n", ""), re.MULTILINE)


def report(sections: dict[str, str], tables: dict[str, str]) -> str:
    """The page with a table for each question."""
    text = HEAD
    for name, section in sections.items():
        title = section.partition("\n")[0]
        commands = "".join(re.findall(r"^```\n\$ .*?^```\n", section, re.MULTILINE | re.DOTALL))
        text += f"\n{title}\n\n{commands}\n<!-- {name} -->\n{tables[name]}<!-- end -->\n"
    return text


def draw(name: str, rows: list[Row]) -> None:
    """The picture of a question."""
    file = str(PICTURES / f"{name}.svg")
    form = FORMS[name]
    if form == "bars":
        bars(file, rows)
    else:
        over(file, rows, f"num_{form}", "seconds")


def bars(file: str, rows: list[Row]) -> None:
    """A panel for each call; times of each topology and algorithm, and the lower bound as a mark on each."""
    pyplot = require_matplotlib()
    calls = list(dict.fromkeys((row["collective"], row["num_bytes"]) for row in rows))
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    height = 1.2 + 0.24 * len(rows) / len(calls)
    size = (2 + 4.2 * len(calls), height)
    figure, panels = pyplot.subplots(1, len(calls), figsize=size, squeeze=False, layout="constrained")
    for axes, call in zip(panels[0], calls, strict=True):
        axes.grid(alpha=0.3)
        here = [row for row in rows if (row["collective"], row["num_bytes"]) == call]
        networks = [row["topology"] for row in here]
        labels = [name if name not in networks[:number] else "" for number, name in enumerate(networks)]
        times = [row["seconds"] * 1e3 for row in here]
        colours = [f"C{names.index(row['algorithm'])}" for row in here]
        axes.barh(range(len(here)), times, color=colours, height=0.75)
        bounds = [row["bound_seconds"] * 1e3 for row in here]
        axes.scatter(bounds, range(len(here)), marker="|", s=90, color="black", zorder=3)
        axes.set_yticks(range(len(here)), labels, fontsize=8)
        axes.invert_yaxis()
        axes.set_xlabel("milliseconds")
        axes.set_title(f"{call[0]}, {name_bytes(call[1])}", fontsize=10)
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=f"C{number}") for number in range(len(names))]
    handles.append(pyplot.Line2D([], [], color="black", marker="|", ls="", markersize=9))
    figure.legend(handles, [*names, "lower bound"], fontsize=7, loc="outside right center")
    saved(figure, file)


def table(rows: list[Row]) -> str:
    """The rows as a table, with the bottleneck link."""
    lines = ["|call|topology|algorithm|time|x bound|busbw|bottleneck link, busy|", "|---|---|---|--:|--:|--:|---|"]
    for row in rows:
        links = row["binding_links"]
        binding = f"{links[0]}, {row['binding_share']:.0%}" if links else "-"
        cells = [
            f"{row['collective']}, {name_bytes(row['num_bytes'])}",
            row["topology"],
            row["algorithm"],
            name_seconds(row["seconds"]),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
            name_bandwidth(row["busbw"]),
            binding,
        ]
        lines.append(f"|{'|'.join(cells)}|")
    return "\n".join(lines) + "\n"


def main(wanted: list[str]) -> None:
    """Draws these pictures, or all, and updates their tables."""
    sections = questions(DOCUMENT.read_text())
    tables = dict(TABLES.findall(REPORT.read_text()))
    for name in wanted or sections:
        rows = [row for command in commands_of(sections[name]) for row in rows_of(command)]
        draw(name, rows)
        tables[name] = table(rows)
        print(PICTURES / f"{name}.svg")
    REPORT.write_text(report(sections, tables))


if __name__ == "__main__":
    main(sys.argv[1:])
