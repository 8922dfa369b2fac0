"""Pictures of sweeps: time and busbw over size, the best algorithm over size and ranks, heat of links on a network."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hocket.view.words import name_bytes

if TYPE_CHECKING:
    from hocket.network import Result

_COLUMNS = (("time", "seconds"), ("busbw", "busbw"))
_MOST_DRAWN = 4096  # links of a picture
_MOST_BESIDE = 3  # panels in a row
_MOST_NAMED = 64  # nodes with their names


def require_matplotlib() -> Any:
    """matplotlib's pyplot, drawing into files; ValueError where it is absent (the extra `plot`)."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("pictures need matplotlib: pip install 'hocket[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw_all(
    stem: str, rows: Sequence[dict[str, Any]], networks: Sequence[str], result_of: Callable[[int], "Result"]
) -> list[str]:
    """Draws what the rows have something for, and returns the files.

    networks: of each row, the network as it was asked for. result_of(i): the simulation of row i, with its links.
    """
    drawn = []
    sizes, counts = {row["num_bytes"] for row in rows}, {row["num_ranks"] for row in rows}
    if len(sizes) > 1 and any(row["busbw"] for row in rows):
        drawn += [over(f"{stem}-{name}.svg", rows, "num_bytes", column) for name, column in _COLUMNS]
    if len(sizes) > 1 and len(counts) > 1:
        drawn.append(best_map(f"{stem}-best.svg", rows, networks))
    largest = [(row["num_bytes"], row["num_ranks"], -row["seconds"]) for row in rows]
    last = largest.index(max(largest))
    result = result_of(last)
    if np.count_nonzero(result.link_bytes) <= _MOST_DRAWN:
        drawn.append(heat(f"{stem}-heat.svg", result, f"{rows[last]['collective']} {rows[last]['algorithm']}"))
    return drawn


def over(file: str, rows: Sequence[dict[str, Any]], abscissa: str, ordinate: str) -> str:
    """Seconds or busbw over num_bytes or num_ranks: a line for each algorithm, and the bound of the time.

    Over bytes there is a panel for each topology and rank count, over ranks one for each size.
    """
    pyplot = require_matplotlib()
    over_bytes = abscissa == "num_bytes"

    def panel_of(row: dict[str, Any]) -> str:
        return f"{row['topology']}, {row['num_ranks']} ranks" if over_bytes else name_bytes(row["num_bytes"])

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
    scale = 1e-9 if ordinate == "busbw" else 1e6
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.grid(alpha=0.3)
        here = [row for row in rows if panel_of(row) == panel]
        for number, name in enumerate(names):
            points = sorted((row[abscissa], row[ordinate] * scale) for row in here if row["algorithm"] == name)
            if points:
                axes.plot(*zip(*points, strict=True), marker=".", color=f"C{number % 10}", label=name, lw=1.3)
        if ordinate == "seconds":
            bound = sorted({(row[abscissa], row["bound_seconds"] * scale) for row in here})
            axes.plot(*zip(*bound, strict=True), color="black", ls="--", lw=1, label="lower bound")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        named = name_bytes if over_bytes else str
        axes.xaxis.set_major_formatter(lambda value, _, named=named: named(round(value)))
        axes.tick_params("x", rotation=45)
        axes.set_title(panel)
        axes.set_xlabel("" if over_bytes else "ranks")
    for axes in grid[:, 0]:
        axes.set_ylabel("busbw in GB/s" if ordinate == "busbw" else "microseconds")
    grid.flat[len(panels) - 1].legend(fontsize="small")
    return saved(figure, file)


def best_map(file: str, rows: Sequence[dict[str, Any]], networks: Sequence[str]) -> str:
    """Which algorithm takes the least time, over size and rank count: a panel for each network as it was asked for."""
    pyplot = require_matplotlib()
    sizes, counts = (sorted({row[column] for row in rows}) for column in ("num_bytes", "num_ranks"))
    best: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row, network in zip(rows, networks, strict=True):
        key = (network, row["num_ranks"], row["num_bytes"])
        if key not in best or row["seconds"] < best[key]["seconds"]:
            best[key] = row
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
        axes.imshow(cells, cmap=colours, vmin=0, vmax=20, origin="lower", aspect="auto")
        axes.set_xticks(range(len(sizes)), [name_bytes(num_bytes) for num_bytes in sizes], rotation=45)
        axes.set_yticks(range(len(counts)), [str(count) for count in counts])
        axes.set_title(network)
    grid[0][0].set_ylabel("ranks")
    patches = [pyplot.Rectangle((0, 0), 1, 1, color=colours(number)) for number in range(len(names))]
    figure.legend(patches, names, loc="outside right center", title="least time")
    return saved(figure, file)


def heat(file: str, result: "Result", title: str) -> str:
    """The network, its links as thick and red as they are busy."""
    pyplot = require_matplotlib()
    from matplotlib.collections import LineCollection

    network, busy = result.topology, result.link_seconds
    places = positions(network)
    share = busy / result.seconds if result.seconds else busy
    figure, axes = pyplot.subplots(figsize=(7, 6), layout="constrained")
    begin, end = places[network.link_source], places[network.link_target]
    # The two directions of a cable side by side: each a little to its right.
    along = end - begin
    length = np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9)
    aside = 0.008 * np.ptp(places) * np.stack((along[:, 1], -along[:, 0]), axis=1) / length
    order = np.argsort(share, kind="stable")
    lines = LineCollection(
        _curves(begin + aside, end + aside)[order],
        array=share[order],
        cmap="YlOrRd",
        clim=(0, 1),
        linewidths=0.6 + 3 * share[order],
    )
    axes.add_collection(lines)
    is_rank = np.zeros(network.num_nodes, bool)
    is_rank[network.ranks] = True
    axes.scatter(*places[is_rank].T, s=36, color="#24292f", zorder=3)
    axes.scatter(*places[~is_rank].T, s=30, marker="s", color="#8c959f", zorder=3)
    if network.num_nodes <= _MOST_NAMED:
        for (x, y), name in zip(places.tolist(), network.node_names, strict=True):
            axes.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=6)
    figure.colorbar(lines, label="busy, of the whole time", shrink=0.7)
    axes.set_title(f"{title} on {network.name}")
    axes.set_axis_off()
    return saved(figure, file)


def _curves(begin: Any, end: Any) -> Any:
    """Each link as some points: straight, but those that would pass over nodes between their ends, bent aside."""
    along = end - begin
    length = np.linalg.norm(along, axis=1)
    bent = np.where(length > 1.6 * length.min(initial=np.inf), 0.12, 0.0)[:, None, None]
    way = np.linspace(0, 1, 12)[None, :, None]
    normal = np.stack((along[:, 1], -along[:, 0]), axis=1)[:, None, :]
    return begin[:, None, :] + way * along[:, None, :] + bent * 4 * way * (1 - way) * normal


def positions(network: Any) -> Any:
    """Where nodes are drawn: float64[num_nodes, 2].

    Nodes of a grid on it, whether or not they are ranks, axes beyond the second drawn aside; others on a circle, or
    where there are switches in a row, with switches above, each over the middle of what hangs on it.
    """
    from hocket.network import DimensionOrder

    places = np.zeros((network.num_nodes, 2))
    is_grid = isinstance(network.routing, DimensionOrder)
    ranks = network.ranks
    if is_grid and len(network.routing.shape) >= 2:
        steps = np.array([[1.0, 0.0], [0.0, 1.0], [0.37, 0.28], [0.19, -0.31]])
        at = np.unravel_index(np.arange(network.num_nodes), network.routing.shape)
        return sum(np.outer(column, steps[axis % 4]) for axis, column in enumerate(at))
    if is_grid or network.num_nodes == network.num_ranks:
        angle = 2 * math.pi * np.arange(network.num_nodes) / network.num_nodes
        return np.stack((np.sin(angle), np.cos(angle)), axis=1)
    level = _levels(network)
    places[ranks, 0] = np.arange(network.num_ranks)
    for height in range(1, int(level.max()) + 1):
        here = np.flatnonzero(level == height)
        below = level[network.link_target] == height - 1
        for node in here:
            under = network.link_target[below & (network.link_source == node)]
            places[node, 0] = places[under, 0].mean() if len(under) else 0.0
        order = here[np.argsort(places[here, 0], kind="stable")]
        spread = np.linspace(-0.5, network.num_ranks - 0.5, 2 * len(order) + 1)[1::2]
        places[order, 0] = spread if height > 1 else 0.5 * (spread + places[order, 0])
    places[:, 1] = level * max(1.0, network.num_ranks / 5)
    return places


def _levels(network: Any) -> Any:
    """How many links each node is away from the nearest rank."""
    level = np.full(network.num_nodes, -1)
    level[network.ranks] = 0
    reached = 0
    while (level < 0).any():
        new = network.link_target[level[network.link_source] == reached]
        new = new[level[new] < 0]
        if not len(new):
            break
        reached += 1
        level[new] = reached
    level[level < 0] = reached + 1
    return level


def saved(figure: Any, file: str) -> str:
    """Writes a figure and closes it; returns the file. The same numbers give the same bytes."""
    pyplot = require_matplotlib()
    # The same picture from the same numbers, and text that can be searched.
    with pyplot.rc_context({"svg.hashsalt": "hocket", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None} if file.endswith(".svg") else None, dpi=150)
    pyplot.close(figure)
    return file
