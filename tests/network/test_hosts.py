"""Hosts and pods: where devices are attached, how near they are, and which network card and memory traffic uses."""

import numpy as np
import pytest

from hocket.errors import TopologyError
from hocket.network import Topology, affinity, load, parse
from hocket.network.kinds.pods import PODS
from hocket.network.links import LINKS
from tests.network.ways import all_ways, hops

# nvidia-smi topo -m on a DGX-1V.
DGX_1V = """\
X   NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X   NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X   NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X   SYS SYS SYS NV1
NV2 SYS SYS SYS X   NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X   NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X   NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""


def way(topology: Topology, source: int, target: int) -> list[str]:
    paths = topology.paths(np.array([source]), np.array([target]))
    return [topology.node_names[topology.link_target[link]] for link in paths.links]


@pytest.mark.parametrize("name", PODS)
def test_every_pod_routes_within_and_between_hosts(name: str) -> None:
    unknown = ",direct-latency=1us" if name == "npu8" else ""
    for count in (1, 2):
        topology = parse(f"{name}:{count}{unknown}")
        all_ways(topology)
        assert topology.num_ranks == count * PODS[name][0].gpus


def test_the_matrix_is_that_of_nvidia_smi() -> None:
    found = affinity(parse("dgx-1v:1"))
    rows = [list(row[:8]) for row in found.ways[:8]]
    assert rows == [line.split() for line in DGX_1V.splitlines()]
    assert found.devices[8:] == ("nic0", "nic1", "nic2", "nic3")
    assert found.ways[0][8:] == ("PIX", "PHB", "SYS", "SYS")
    assert found.sockets == ("root0",) * 4 + ("root1",) * 4 + ("root0",) * 2 + ("root1",) * 2


@pytest.mark.parametrize(
    ("text", "between"),
    [
        ("dgx-a100:1", "NV12"),
        ("dgx-h100:1", "NV18"),
        ("npu8:1,direct-latency=1us", "UB1"),
        ("pcie:1", "PIX"),
        ("pcie:1,switches=4", "PHB"),
        ("ring:4", "NET1"),
        ("dgx-1v:1,pcie=no", "NV1"),
    ],
)
def test_how_the_first_two_devices_reach_each_other(text: str, between: str) -> None:
    assert affinity(parse(text)).ways[0][1] == between


@pytest.mark.parametrize(
    "text",
    [
        "dgx-h100:2",
        "dgx-h100:2,fabric=rail-only",
        "dgx-1v:2",
        "pcie:2,nics=2",
        "dgx-h100:1@torus:2x2",
        "fat-tree:16",
        "dragonfly:4,2,2,3,routing=valiant",
        "torus:4x4",
    ],
)
def test_the_matrix_counts_the_links_that_a_simulation_uses(text: str) -> None:
    topology = parse(text)
    found, paths = affinity(topology), all_ways(topology)
    is_nic = topology.link_class == "nic"
    for flow, (source, target) in enumerate(np.ndindex(topology.num_ranks, topology.num_ranks)):
        links = paths.links[paths.offsets[flow] : paths.offsets[flow + 1]]
        crossed, entry = int(is_nic[links].sum()), found.ways[source][target]
        assert entry == f"NET{crossed}" if crossed else not entry.startswith("NET"), (source, target)


def test_the_matrix_says_by_which_card_a_rank_leaves() -> None:
    found = affinity(parse("dgx-h100:2"))
    assert found.cards == (*(f"nic{gpu}" for gpu in range(16)), *[""] * 16)
    assert (found.ways[0][8], found.ways[0][9]) == ("NET2", "NET4"), "the second card is on another rail"
    shared = affinity(parse("pcie:2,gpus=4,nics=2"))
    assert shared.cards[:8] == ("nic0", "nic0", "nic1", "nic1", "nic2", "nic2", "nic3", "nic3") and shared.staged
    several = affinity(parse("dgx-h100:2,gpus=4,nics=8,pcie=no"))
    assert several.cards[0] == "nic0,nic1" and not several.staged
    assert not any(affinity(parse("dgx-h100:1")).cards)


def test_a_path_that_the_user_gives_is_in_the_matrix() -> None:
    chain = (
        "nodes: {gpu: [g0, g1, g2]}\nlinks: [{between: [g0, g1], link: nvlink4}, {between: [g1, g2], link: nvlink4}]\n"
    )
    assert affinity(load(chain)).ways[0] == ("X", "NV1", "-"), "an accelerator forwards nothing by itself"
    assert affinity(load(chain + "routes: [[g0, g1, g2]]\n")).ways[0] == ("X", "NV1", "NV1")


def test_the_way_to_a_card_stays_inside_the_host() -> None:
    found = affinity(parse("dgx-h100:2"))
    cards = [found.devices.index(f"nic{card}") for card in (0, 1, 2, 4, 8)]
    assert [found.ways[0][card] for card in cards] == ["PIX", "PIX", "PHB", "SYS", "NET2"]
    assert [found.ways[cards[0]][card] for card in cards] == ["X", "PIX", "PHB", "SYS", "NET2"]


@pytest.mark.parametrize("where", ["PIX", "PXB", "PHB", "SYS"])
def test_a_card_hangs_where_it_is_asked_for(where: str) -> None:
    topology = parse(f"pcie:2,affinity={where},gpu-direct=yes")
    found = affinity(topology)
    assert found.ways[0][found.devices.index("nic0")] == where
    assert all_ways(topology) is not None
    assert ("root1" in way(topology, 0, 8)) == (where == "SYS")


def test_each_accelerator_leaves_by_its_own_card() -> None:
    topology = parse("dgx-h100:2")
    for gpu in range(8):
        assert f"nic{gpu}" in way(topology, gpu, 8 + gpu)
        assert f"rail{gpu}" in way(topology, gpu, 8 + gpu)
    assert way(topology, 0, 15)[-5:] == ["spine0", "rail7", "nic15", "pcie-switch7", "gpu15"]
    without = parse("dgx-h100:2,fabric=rail-only")
    assert "spine" not in set(without.node_kinds)
    assert way(without, 0, 15)[2:4] == ["rail0", "nic8"]
    shared = parse("pcie:2,gpus=4,nics=2,gpu-direct=yes")
    assert ["nic0" in way(shared, gpu, 4) for gpu in range(4)] == [True, True, False, False]
    several = parse("dgx-h100:2,gpus=4,nics=8,pcie=no")
    flows = np.zeros(100, np.int64)
    used = several.link_target[several.paths(flows, flows + 4, np.arange(100)).links]
    assert {"nic0", "nic1"} == {
        several.node_names[node] for node in used if several.node_names[node] in ("nic0", "nic1", "nic2")
    }


def test_without_gpudirect_traffic_is_staged_in_host_memory() -> None:
    staged, direct = parse("pcie:2,gpus=2"), parse("pcie:2,gpus=2,gpu-direct=yes")
    names = way(staged, 0, 2)
    assert names.index("memory0") < names.index("nic0") < names.index("memory2") < names.index("gpu2")
    assert not {"memory0", "memory2"} & set(way(direct, 0, 2))
    assert way(staged, 0, 1) == [
        "pcie-switch0",
        "root0",
        "memory0",
        "root0",
        "root1",
        "memory1",
        "root1",
        "pcie-switch2",
        "gpu1",
    ]
    by_nvlink = parse("dgx-a100:1,gpu-direct=no")
    assert way(by_nvlink, 0, 1) == ["nvswitch0", "gpu1"]


def test_pcie_can_be_left_out() -> None:
    topology = parse("dgx-a100:2,pcie=no")
    assert "pcie" not in set(topology.link_class)
    assert way(topology, 0, 9)[:2] == ["nic0", "rail0"]
    assert hops(all_ways(topology))[1] == 2


def test_links_are_sourced_or_unknown() -> None:
    for name, link in LINKS.items():
        assert link.source, name
    with pytest.raises(TopologyError, match="the latency of ub links is unknown: set direct-latency="):
        parse("npu8:1")
    assert parse("npu8:1,direct-latency=1us").num_ranks == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dgx-h100:0", "expected at least 1 host"),
        ("dgx-h100:1,nics=3", "3 network cards cannot serve 8 accelerators evenly"),
        ("dgx-h100:1,affinity=NEAR", "affinity=NEAR is none of PIX"),
        ("dgx-1v:1,gpus=4", "unknown option gpus"),
        ("home:2,nic-link=token-ring", "expected a link, one of ethernet-1g"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse(text)
