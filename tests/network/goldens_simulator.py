"""Numbers from the tests of other simulators. Hocket simulates each schedule with the same options."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from hocket.algorithms import ALGORITHMS
from hocket.network import SimulationOptions, Topology, match_links, parse, simulate
from hocket.network.files.astra import from_astra
from hocket.network.routing import Supplied
from hocket.network.simulation.max_min import max_min
from hocket.network.simulation.simulate import Run, simulate_together

Entry = tuple[str, float, float, float, str]
"""Name, ours, published, relative tolerance, parameters."""

GOLDENS = json.loads((Path(__file__).parent / "goldens.json").read_text())
EXACT = GOLDENS["exact"]
MIB, GIB = 2.0**20, 2.0**30
WHOLE = SimulationOptions(piece_bytes=math.inf)
STORED = SimulationOptions(piece_bytes=math.inf, store_and_forward_bytes=math.inf, tick_seconds=1e-9)
DIGITS = 1e-12  # the same whole number


def entries() -> Iterator[Entry]:
    """Every entry of "exact" and "maxmin_unit"."""
    yield from _max_min()
    yield from _stored()
    yield from _flowing()
    yield _with_endpoints()
    yield _acknowledged()
    yield from _matched()


def _max_min() -> Iterator[Entry]:
    """SimGrid, maxmin_test: rates of a few flows."""
    for number, case in enumerate(GOLDENS["maxmin_unit"]):
        offsets = np.cumsum([0, *(len(flow["w"]) for flow in case["flows"])])
        links = np.array([int(link) for flow in case["flows"] for link in flow["w"]])
        weights = np.array([weight for flow in case["flows"] for weight in flow["w"].values()], float)
        penalties = np.array([flow["pen"] for flow in case["flows"]], float)
        rates = max_min(np.array(case["cap"], float), offsets, links, weights, penalties)
        for flow, (ours, published) in enumerate(zip(rates.tolist(), case["rates"], strict=True)):
            yield f"SimGrid max-min {number}, flow {flow}", ours, published, 1e-6, f"capacities {case['cap']}"


def network(kind: str, gib_per_second: float = 50, nanoseconds: float = 500) -> Topology:
    """A network whose links have the units of ASTRA-sim: 2^30 bytes per second."""
    return parse(f"{kind},bandwidth={gib_per_second * GIB}B/s,latency={nanoseconds}ns")


def _message(topology: Topology, options: SimulationOptions) -> float:
    """Returns the nanoseconds of 1 MiB between the two ranks of a network: a broadcast of two ranks."""
    return simulate(ALGORITHMS["broadcast", "binomial"].build(2), topology, MIB, options=options).seconds * 1e9


def _stored() -> Iterator[Entry]:
    """ASTRA-sim's congestion-aware backend: nodes store chunks and forward them, links are first in first out."""
    text = "1 MiB, 50 GiB/s, 500 ns; store and forward, whole ns"
    for kind, ranks in (("ring", [1, 4]), ("fc", [1, 4]), ("switch", [1, 4])):
        name = f"astra_aware_{kind}16{'_1to4' if kind == 'ring' else ''}_1MiB_50_500"
        full = {"fc": "fully-connected"}.get(kind, kind)
        yield name, _message(network(f"{full}:16").place(ranks), STORED), EXACT[name], DIGITS, text
    name = "astra_aware_ring16_direct_allgather_1MiB_50_500"
    ring = network("ring:16")
    nodes = ring.node_names
    halfway = {(nodes[i], nodes[i - 8]): tuple(nodes[(i + hop) % 16] for hop in range(9)) for i in range(16)}
    clockwise = replace(ring, routing=Supplied(halfway, otherwise=ring.routing))
    schedule = ALGORITHMS["all_gather", "direct"].build(16)
    ours = simulate(schedule, clockwise, 16 * MIB, options=STORED).seconds * 1e9
    yield name, ours, EXACT[name], DIGITS, f"{text}; 1 MiB from each rank to each other, 8 hops clockwise"


def _flowing() -> Iterator[Entry]:
    """ASTRA-sim's congestion-unaware backend: one message, cut-through, the time cut to whole ns."""
    text = "1 MiB; cut-through, whole ns"
    for kind, suffix in (("ring", "_1to4"), ("fc", ""), ("switch", "")):
        name = f"astra_unaware_{kind}16{suffix}"
        full = {"fc": "fully-connected"}.get(kind, kind)
        ours = math.floor(_message(network(f"{full}:16").place([1, 4]), WHOLE))
        yield name, ours, EXACT[name], DIGITS, f"{text}, 50 GiB/s, 500 ns"
    entries = {"topology": ["Ring", "FullyConnected", "Switch"], "npus_count": [2, 8, 4]}
    cube = from_astra({**entries, "bandwidth": [200, 100, 50], "latency": [50, 500, 2000]}, "2x8x4")
    for name, neighbour in (("dim1_ring_200_50", 1), ("dim2_fc_100_500", 2), ("dim3_switch_50_2000", 16)):
        ours = math.floor(_message(cube.place([0, neighbour]), WHOLE))
        published = EXACT["astra_unaware_3d_2x8x4"][name]
        yield f"astra_unaware_3d_2x8x4 {name}", ours, published, DIGITS, f"{text}, within one dimension"


def _with_endpoints() -> Entry:
    """ASTRA-sim's full stack: four chunks one after the other, 10 ns at each end of each message."""
    name = "astra_sim_ring16_allgather_1MiB_4chunks_cycles"
    options = SimulationOptions(
        piece_bytes=math.inf,
        store_and_forward_bytes=math.inf,
        tick_seconds=1e-9,
        launch_seconds=10e-9,
        receive_seconds=10e-9,
    )
    schedule = ALGORITHMS["all_gather", "ring"].build(16)
    ring, seconds = network("ring:16"), 0.0
    for _ in range(4):
        [result] = simulate_together(ring, [Run(schedule, 16 * MIB / 4, start_seconds=seconds)], options)
        seconds += result.seconds
    text = "4 all_gathers of 1 MiB / 4 per rank, launch and receive 10 ns"
    return name, round(seconds * 1e9, 3), EXACT[name], DIGITS, text


def _acknowledged() -> Entry:
    """SimGrid's LV08: latency x 13.01, bandwidth x 0.97, and acknowledgements of 5 % that share the link."""
    name = "simgrid_lv08_100kB_10ms_1Mbps_s"
    link = f"bandwidth={1e6 / 8 * 0.97 / 1.05}B/s,latency={0.01 * 13.01}s"
    ours = simulate(ALGORITHMS["broadcast", "binomial"].build(2), parse(f"line:2,{link}"), 1e5, options=WHOLE).seconds
    return name, round(ours, 6), EXACT[name], DIGITS, "100 kB over 10 ms, 1 Mb/s x 0.97 / 1.05, 10 ms x 13.01"


def _matched() -> Iterator[Entry]:
    """TACOS: all_gathers that keep every link busy in every step, at the level "steps"."""
    published = EXACT["tacos_allgather_us_(alpha_us,GiBps,total_MiB,chunks_per_npu)"]
    for name, microseconds in published.items():
        kind, _, parameters = name.partition("(")
        latency, bandwidth, mib, chunks = (float(one) for one in parameters.rstrip(")").split(","))
        shape = kind.replace("torus", "torus:").replace("mesh", "mesh:")
        topology = network(shape, bandwidth, latency * 1e3)
        schedule = match_links(topology, "all_gather", int(chunks), attempts=200)
        ours = simulate(schedule, topology, mib * MIB, level="steps", options=WHOLE).seconds * 1e6
        text = f"{latency:g} us, {bandwidth:g} GiB/s, {mib:g} MiB in all, {schedule.num_steps} steps"
        yield f"TACOS {name}", ours, microseconds, 1e-6, text
