"""Draws sweeps: time, busbw and the distance to the bound over size or ranks, the fastest algorithm, busy links."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.view import saving
from hocket.view.networks.network_picture import draw_network
from hocket.view.words import name_bytes, name_case, name_count

if TYPE_CHECKING:
    from hocket.network import LinkLoads

_COLUMNS = (("time", "seconds"), ("busbw", "busbw"), ("bound", "ratio"))
_TITLES = {"seconds": "microseconds", "busbw": "busbw in GB/s", "ratio": "times the lower bound"}
_SCALES = {"seconds": 1e6, "busbw": 1e-9, "ratio": 1.0}
_MOST_DRAWN = 4096  # links in a picture that come with a sweep
_MOST_BESIDE = 3  # panels in a row
_COLOURS = 10  # of matplotlib's cycle; lines beyond them differ by dashes and marks
_DASHES, _MARKS = ("-", "-.", ":"), (".", "x", "+")


def require_matplotlib() -> Any:
    """Returns matplotlib's pyplot, set to draw into files. Raises ValueError without matplotlib (the extra `plot`)."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("pictures need matplotlib: pip install 'hocket[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_all(
    stem: str, rows: Sequence[dict[str, Any]], networks: Sequence[str], result_of: Callable[[int], "LinkLoads"]
) -> tuple[list[str], list[str]]:
    """Draws every picture that the rows have data for. Returns the files, and what the others would need.

    networks: for each row, the network as the user wrote it. result_of(i): the simulation of row i, with its links.
    """
    drawn, needs = [], []
    sizes, counts = {row["num_bytes"] for row in rows}, {row["num_ranks"] for row in rows}
    several = len(sizes) > 1 or len(counts) > 1
    if several and any(row["busbw"] for row in rows):
        abscissa = "num_bytes" if len(sizes) > 1 else "num_ranks"
        drawn += [over(f"{stem}-{name}.svg", rows, abscissa, column) for name, column in _COLUMNS]
    elif rows[0]["collective"] != "barrier":
        more = "two ranks or more" if several else "several sizes or rank counts, such as -b 1K,64K,4M"
        needs.append(f"{', '.join(f'{stem}-{name}.svg' for name, _ in _COLUMNS)} need {more}")
    if len(sizes) > 1 and len(counts) > 1:
        drawn.append(best_map(f"{stem}-best.svg", rows, networks))
    elif rows[0]["collective"] != "barrier":
        needs.append(f"{stem}-best.svg needs several sizes and rank counts, such as -b 1K,64K,4M -n 4,8,16")
    largest = [(row["num_bytes"], row["num_ranks"], -row["seconds"]) for row in rows]
    last = largest.index(max(largest))
    result = result_of(last)
    if np.count_nonzero(result.link_bytes) <= _MOST_DRAWN:
        file, case = f"{stem}-heat.svg", rows[last]
        saving.write(file, draw_network(result.topology, result, name_case(case)))
        drawn.append(file)
    else:
        needs.append(f"{stem}-heat.svg needs fewer ranks: more than {_MOST_DRAWN} links are busy")
    return drawn, needs


def over(file: str, rows: Sequence[dict[str, Any]], abscissa: str, ordinate: str) -> str:
    """Draws seconds, busbw or ratio over num_bytes or num_ranks: a line for each algorithm, and the bound of the time.

    Over bytes there is a panel for each topology and rank count; over ranks, one for each size.
    """
    pyplot = require_matplotlib()
    over_bytes = abscissa == "num_bytes"

    def panel_of(row: dict[str, Any]) -> str:
        where = (
            f"on {row['topology']}, {name_count(row['num_ranks'], 'rank')}"
            if over_bytes
            else f"of {name_bytes(row['num_bytes'])}"
        )
        return f"{row['collective']} {where}"

    rows = [row for row in rows if row[ordinate]]  # logarithmic axes have no 0
    panels = list(dict.fromkeys(map(panel_of, rows)))
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    across = min(len(panels), _MOST_BESIDE)
    down = -(-len(panels) // across)
    figure, grid = pyplot.subplots(
        down, across, figsize=(1.5 + 4.5 * across, 3.8 * down), squeeze=False, sharey=True, layout="constrained"
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    scale = _SCALES[ordinate]
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.grid(alpha=0.3)
        here = [row for row in rows if panel_of(row) == panel]
        for number, name in enumerate(names):
            points = sorted((row[abscissa], row[ordinate] * scale) for row in here if row["algorithm"] == name)
            if points:
                again, colour = divmod(number, _COLOURS)
                marks = {"ls": _DASHES[again % len(_DASHES)], "marker": _MARKS[again % len(_MARKS)]}
                axes.plot(*zip(*points, strict=True), color=f"C{colour}", label=name, lw=1.3, **marks)
        if ordinate == "seconds":
            bound = sorted({(row[abscissa], row["bound_seconds"] * scale) for row in here})
            axes.plot(*zip(*bound, strict=True), color="black", ls="--", lw=1, label="lower bound")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        named = name_bytes if over_bytes else str
        axes.xaxis.set_major_formatter(lambda value, _, named=named: named(round(value)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.9g}")
        axes.tick_params("x", rotation=45)
        axes.set_title(panel, fontsize=10)
        axes.set_xlabel("" if over_bytes else "ranks")
    for axes in grid[:, 0]:
        axes.set_ylabel(_TITLES[ordinate])
    grid.flat[len(panels) - 1].legend(fontsize="small")
    return saved(figure, file)


def best_map(file: str, rows: Sequence[dict[str, Any]], networks: Sequence[str]) -> str:
    """Draws the fastest algorithm over size and rank count: a panel for each network as the user wrote it.

    The number in a cell is how many times as long the next best takes, if there is one.
    """
    pyplot = require_matplotlib()
    sizes, counts = (sorted({row[column] for row in rows}) for column in ("num_bytes", "num_ranks"))
    tried: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row, network in zip(rows, networks, strict=True):
        tried.setdefault((network, row["num_ranks"], row["num_bytes"]), []).append(row)
    ahead = {key: sorted(some, key=lambda row: float(row["seconds"]))[:2] for key, some in tried.items()}
    best = {key: some[0] for key, some in ahead.items()}
    names = sorted({row["algorithm"] for row in best.values()})
    panels = list(dict.fromkeys(networks))
    size = (2.5 + (1 + 0.5 * len(sizes)) * len(panels), 1.8 + 0.42 * len(counts))
    figure, grid = pyplot.subplots(1, len(panels), figsize=size, squeeze=False, layout="constrained")
    colours = pyplot.get_cmap("tab20")
    for axes, network in zip(grid[0], panels, strict=True):
        cells = np.full((len(counts), len(sizes)), np.nan)
        for (where, count, num_bytes), row in best.items():
            if where == network:
                cells[counts.index(count), sizes.index(num_bytes)] = names.index(row["algorithm"])
                for after in ahead[where, count, num_bytes][1:]:
                    margin = after["seconds"] / row["seconds"] if row["seconds"] else 1.0
                    at = (sizes.index(num_bytes), counts.index(count))
                    axes.text(*at, f"{margin:.3g}x", ha="center", va="center", fontsize=7)
        axes.imshow(cells, cmap=colours, vmin=0, vmax=20, origin="lower", aspect="auto")
        axes.set_xticks(range(len(sizes)), [name_bytes(num_bytes) for num_bytes in sizes], rotation=45)
        axes.set_yticks(range(len(counts)), [str(count) for count in counts])
        axes.set_title(network)
    grid[0][0].set_ylabel("ranks")
    patches = [pyplot.Rectangle((0, 0), 1, 1, color=colours(number)) for number in range(len(names))]
    figure.legend(patches, names, loc="outside right center", title="fastest; times of the next")
    return saved(figure, file)


def saved(figure: Any, file: str) -> str:
    """Writes a figure, closes it and returns the file. The same numbers give the same bytes."""
    pyplot = require_matplotlib()
    # A fixed salt makes the file reproducible; fonttype "none" keeps text searchable.
    with pyplot.rc_context({"svg.hashsalt": "hocket", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None} if file.endswith(".svg") else None, dpi=150)
    pyplot.close(figure)
    return file
