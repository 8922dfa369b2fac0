"""Networks of networks: a pod at each rank of another network, all alike or not."""

import numpy as np
import pytest

from hocket.errors import TopologyError
from hocket.network import parse
from hocket.network.kinds.composition import compose
from tests.network.ways import all_ways, hops


def test_a_pod_per_host_of_a_torus() -> None:
    topology = parse("dgx-h100:1@torus:2x2")
    assert topology.num_ranks == 32
    assert topology.axes == ("axis 0", "axis 1", "host", "gpu")
    all_ways(topology)
    links = topology.paths(np.array([1]), np.array([31])).links
    names = [topology.node_names[topology.link_target[link]] for link in links]
    assert names[:3] == ["0.pcie-switch0", "0.nic1", "rank0"]
    assert names[-4:] == ["rank3", "3.nic7", "3.pcie-switch3", "3.gpu7"]
    assert sum(name.startswith("rank") for name in names) == 3


def test_the_outer_network_finds_its_own_ways() -> None:
    torus = parse("torus:3x4")
    topology = parse("switch:2@torus:3x4")
    outer = np.array(hops(all_ways(torus))).reshape(12, 12)
    found = np.array(hops(all_ways(topology))).reshape(12, 2, 12, 2)
    between = ~np.eye(12, dtype=bool)
    assert (found[:, 0, :, 1][between] == outer[between] + 2).all()  # and a joint at either end
    assert (found[:, 0, :, 1][~between] == 2).all()


def test_unequal_groups() -> None:
    inners = [parse("dgx-a100:1"), parse("home:1,gpus=2"), parse("ring:3")]
    topology = compose(parse("switch:3"), inners, name="mixed")
    assert topology.num_ranks == 8 + 2 + 3
    all_ways(topology)
    assert topology.node_names[topology.ranks[9]] == "1.gpu1"
    assert topology.axes == ("host",)
    assert np.bincount(topology.coordinates[:, 0]).tolist() == [8, 2, 3]


def test_a_joint_carries_what_the_fastest_outer_link_does() -> None:
    topology = parse("ring:2@ring:3,bandwidth=7B/s,latency=2s")
    joint = (topology.link_source < 3) & (topology.link_target >= 3)
    assert set(topology.bytes_per_second[joint]) == {7}
    assert set(topology.seconds[joint]) == {0}


def test_a_joint_carries_no_more_than_the_card() -> None:
    topology = parse("dgx-h100:1@fat-tree:8,bandwidth=400GB/s")
    joint = np.isin(topology.link_source, topology.node_numbers["0.nic0"]) & (topology.link_class == "nic")
    assert topology.bytes_per_second[joint].tolist() == [48.5e9]


def test_networks_of_networks_of_networks() -> None:
    topology = parse("switch:2@ring:2@ring:3")
    assert topology.num_ranks == 12
    all_ways(topology)
    assert topology.node_names[topology.ranks[-1]] == "2.rank1.rank1"


def test_what_leaves_a_host_is_staged_in_its_memory_wherever_the_host_stands() -> None:
    for inner, ends in (("home:1", (0, 1)), ("pcie:1,nics=8", (0, 15))):
        alone, composed = parse(f"{inner},fabric=switch".replace(":1", ":2")), parse(f"{inner}@switch:2")
        names = [
            [network.node_kinds[node] for node in network.link_target[network.paths(*np.array([ends]).T).links]]
            for network in (alone, composed)
        ]
        assert names[0] == [kind for kind in names[1] if kind != "rank"] and names[1].count("memory") == 2


def test_there_is_one_network_for_each_rank() -> None:
    with pytest.raises(TopologyError, match="torus:2x2 has 4 ranks; found 3 networks"):
        compose(parse("torus:2x2"), [parse("ring:2")] * 3)


def test_nobody_is_at_an_outer_node() -> None:
    topology = parse("ring:2@switch:2")
    with pytest.raises(TopologyError, match="between nodes of inner networks"):
        topology.place(["rank0", "0.rank0"]).paths(np.array([0]), np.array([1]))
