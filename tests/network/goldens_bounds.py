"""Published optima, cuts and proofs, and what Hocket's bounds and searched schedules give."""

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path

from hocket.network import (
    Lanes,
    ShortestPath,
    Topology,
    find_optimum,
    lanes_of,
    lower_bound,
    parse,
    rounds_of,
    search_tuple,
)
from hocket.network.bounds.network_bound import carried_seconds_per_byte
from hocket.network.drawing import Drawing
from hocket.network.links import Link
from hocket.network.synthesis.throughput import optimum_with_trees
from hocket.schedule import Schedule, verify

Entry = tuple[str, float, float, float, str]
"""Name, ours, published, relative tolerance or AT_MOST, parameters."""

GOLDENS = json.loads((Path(__file__).parent / "goldens.json").read_text())
OPTIMA = GOLDENS["optimum_allgather_algbw"]
SCCL = GOLDENS["sccl_dgx1_tuples_C_S_R"]
TECCL = GOLDENS["teccl_published_finish_s_total_bytes_1e9_style"]
AT_MOST = -1.0  # instead of a tolerance: Hocket's value is a bound, so at most the published one

_A100 = "dgx-a100:{},pcie=no,direct-bandwidth=300GB/s,nic-bandwidth=25GB/s"
_H100 = "dgx-h100:{},pcie=no,direct-bandwidth=450GB/s,nic-bandwidth=50GB/s"
_MI250 = "mi250:1,direct-bandwidth=50GB/s"
_DGX_1V = "dgx-1v:1,direct-bandwidth=25GB/s"
_UNIT_KINDS = {"ring": "ring:", "torus": "torus:", "mesh": "mesh:", "hypercube": "hypercube:"}
# How the rounds of a tuple are spread over its steps.
_ROUNDS = {
    (1, 2, 2): (1, 1),
    (2, 2, 3): (1, 2),
    (3, 3, 4): (1, 1, 2),
    (4, 3, 5): (1, 2, 2),
    (5, 3, 6): (1, 2, 3),
    (6, 3, 7): (2, 2, 3),
    (1, 2, 3): (1, 2),
    (1, 4, 4): (1, 1, 1, 1),
    (2, 4, 7): (2, 2, 2, 1),
}
_HALVES = (4, 5, 6, 7, 0, 1, 2, 3)  # DGX-1V is the same with its halves exchanged


def entries() -> Iterator[Entry]:
    """Returns every entry of the optima, of SCCL and of TE-CCL."""
    yield from _optima()
    yield from _satisfiable()
    yield from _unsatisfiable()
    yield from finish_times()


def _optima() -> Iterator[Entry]:
    yield _optimum("A100 1x8", _A100.format(1), OPTIMA["A100_1x8_nvl300"])
    yield from _with_trees("A100 2x8", parse(_A100.format(2)), OPTIMA["A100_2x8_nvl300_ib25x8"], _A100.format(2))
    yield _optimum("A100 4x8", _A100.format(4), OPTIMA["A100_4x8"])
    yield from _with_trees("MI250 1x16", parse(_MI250).only("nvlink"), OPTIMA["MI250_1x16"], _MI250)
    yield from _with_trees("DGX-1V", parse(_DGX_1V).only("nvlink"), OPTIMA["DGX1V_25GBps_links"], _DGX_1V + ", NVLinks")
    for hosts, published in OPTIMA["DGX_H100_nvl450_nic50_rail"].items():
        yield _optimum(f"DGX-H100 {hosts}x8", _H100.format(hosts), published)
    two = _best(dgx2_chassis())
    text = "125 GB/s to the switch, 8 cross cables of 12.5 GB/s"
    yield "optimum 2 DGX-2", two, OPTIMA["DGX2_2chassis_teccl_125_12.5x8"], 1e-6, text
    for name, published in OPTIMA["unit_links"].items():
        kind = name.rstrip("0123456789x")
        text = f"{_UNIT_KINDS[kind]}{name[len(kind) :]},bandwidth=1GB/s"
        yield _optimum(name, text, published)


def _optimum(name: str, text: str, published: float) -> Entry:
    return f"optimum {name}", _best(parse(text)), published, 1e-6, text


def _best(topology: Topology) -> float:
    return find_optimum(topology, "all_gather").bytes_per_second / 1e9


def _with_trees(name: str, topology: Topology, published: dict[str, float], text: str) -> Iterator[Entry]:
    yield f"optimum {name}", _best(topology), published["algbw"], 1e-6, text
    yield f"optimum {name}, trees per root", find_optimum(topology, "all_gather").num_trees, published["k"], 1e-6, text
    for key in sorted(published.keys() - {"algbw", "k"}):
        reached = optimum_with_trees(topology, int(key[1:])) / 1e9
        yield f"optimum {name} with {key[1:]} trees per root", reached, published[key], 1e-6, text


def dgx2_chassis(epoch: float = 0.0) -> Topology:
    """Two DGX-2 as in TE-CCL: odd GPUs of each have a cable to the even ones of the other."""
    drawing = Drawing("2 DGX-2")
    gpus = drawing.nodes("gpu", 32, forwards=False).reshape(2, 16)
    drawing.cable(gpus, drawing.nodes("nvswitch", 2)[:, None], Link("nvswitch", 125e9, _whole(0.35e-6, epoch)))
    drawing.one_way(gpus[:, 1::2], gpus[::-1, 0::2], Link("nic", 12.5e9, _whole(2.6e-6, epoch)))
    return drawing.topology(gpus.ravel(), ShortestPath())


def ndv2_chassis(epoch: float = 0.0) -> Topology:
    """Two NDv2 as in TE-CCL's shipped results: GPU 0 of the 16 only forwards, like a switch; the other 15 are ranks."""
    nvlinks = parse("dgx-1v:1").only("nvlink")
    drawing = Drawing("2 NDv2")
    gpus = drawing.nodes("gpu", 16).reshape(2, 8)
    for source, target, lanes in zip(nvlinks.link_source, nvlinks.link_target, nvlinks.lanes, strict=True):
        link = Link("nvlink", 25e9, _whole(0.7e-6, epoch)).times(int(lanes))
        drawing.one_way(gpus[:, source], gpus[:, target], link)
    drawing.one_way([8, 0], [1, 9], Link("nic", 12.5e9, _whole(1.3e-6, epoch)))
    return drawing.topology(gpus.ravel()[1:], ShortestPath())


def _whole(seconds: float, epoch: float) -> float:
    return seconds if epoch == 0 else math.floor(seconds / epoch) * epoch


def finish_times() -> Iterator[Entry]:
    """TE-CCL: finish times of its schedules, and Hocket's bound, with latencies rounded down to whole epochs as there.

    Sizes are of all chunks, including GPU 0 of the two NDv2. An epoch is the time of a chunk on the fastest link.
    """
    for table, collective, make, chunks, fastest in (
        ("DGX2x2_AG_fast", "all_gather", dgx2_chassis, 32, 125e9),
        ("DGX2x2_A2A_fast", "all_to_all", dgx2_chassis, 32, 125e9),
        ("NDv2x2_AG_fast", "all_gather", ndv2_chassis, 16, 50e9),
        ("NDv2x2_A2A_fast", "all_to_all", ndv2_chassis, 16, 50e9),
    ):
        for size, published in TECCL[table].items():
            chunk = float(size[:-2]) * {"KB": 1e3, "MB": 1e6, "GB": 1e9}[size[-2:]] / chunks
            topology = make(chunk / fastest)
            bound = lower_bound(topology, collective, chunk * topology.num_ranks).seconds
            yield (
                f"TE-CCL {table} {size}",
                bound,
                published,
                AT_MOST,
                f"s; a bound, by {make.__doc__.split(' as')[0]}",
            )


def lanes_named(name: str) -> Lanes:
    """The lanes of DGX-1V's NVLinks, or of a ring of eight with one each."""
    return lanes_of(parse("dgx-1v:1" if name == "DGX-1V" else "ring:8"))


@functools.cache
def found(network: str, collective: str, chunks: int, steps: int, rounds: int) -> Schedule | None:
    """Returns a proved schedule for the tuple, or None if there is none."""
    turn = _HALVES if network == "DGX-1V" and collective in ("all_gather", "reduce_scatter") else ()
    spread = _ROUNDS[chunks, steps, rounds][:: -1 if collective == "reduce_scatter" else 1]
    schedule = search_tuple(collective, lanes_named(network), 8, chunks, steps, rounds, spread=spread, turn=turn)
    if schedule is not None:
        verify(schedule)
    return schedule


def _satisfiable() -> Iterator[Entry]:
    tables = (
        ("Allgather", "DGX-1V"),
        ("ReduceScatter", "DGX-1V"),
        ("Alltoall", "DGX-1V"),
        ("ring8_Allgather", "ring-8"),
    )
    for table, network in tables:
        wanted = SCCL[table]
        tuples = {tuple(each) for each in (wanted["latency"], wanted.get("bandwidth"), *wanted.get("sat", ())) if each}
        collective = {"Allgather": "all_gather", "ReduceScatter": "reduce_scatter", "Alltoall": "all_to_all"}[
            table.removeprefix("ring8_")
        ]
        for chunks, steps, rounds in sorted(tuples):
            schedule = found(network, collective, chunks, steps, rounds)
            ours = math.nan
            if schedule is not None and (schedule.chunks_per_block, schedule.num_steps) == (chunks, steps):
                ours = rounds_of(schedule, lanes_named(network))
            name = f"SCCL {network} {collective} {(chunks, steps, rounds)}: rounds"
            yield name, ours, rounds, 0.0, "a schedule found by z3, and proved"


def _unsatisfiable() -> Iterator[Entry]:
    """Returns the number of schedules, 0."""
    for chunks, steps, rounds in SCCL["Allgather"]["unsat"]:
        number = search_tuple("all_gather", lanes_named("DGX-1V"), 8, chunks, steps, rounds) is not None
        for collective in ("all_gather", "reduce_scatter"):
            text = "z3 over all spreads of rounds" + (", backwards" if collective == "reduce_scatter" else "")
            yield f"SCCL DGX-1V {collective} {(chunks, steps, rounds)}: schedules", number, 0, 0.0, text
    unit = parse("dgx-1v:1,direct-bandwidth=1B/s,direct-latency=0s").only("nvlink")
    for chunks, steps, rounds in SCCL["Alltoall"]["unsat"]:
        least = lower_bound(unit, "all_to_all", 8 * chunks).seconds
        name = f"SCCL DGX-1V all_to_all {(chunks, steps, rounds)}: schedules"
        yield name, float(least <= rounds), 0, 0.0, f"the cut between the halves asks for {least:.3g} rounds"
    over, under = map(int, SCCL["Alltoall"]["bound_R_over_C"].split("/"))
    hops = 8 * carried_seconds_per_byte(unit)
    yield "SCCL DGX-1V all_to_all: rounds for each chunk", hops, over / under, 1e-6, "hops of all chunks over all lanes"
