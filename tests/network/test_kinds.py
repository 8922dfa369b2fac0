"""Every kind of network by its text: ways between all ranks, every algorithm, and no time below a bound."""

import pytest

from hocket.algorithms import ALGORITHMS
from hocket.network import KINDS, parse, simulate
from tests.network.ways import all_ways

EXAMPLES = {
    "line": "line:5",
    "ring": "ring:6",
    "mesh": "mesh:2x3",
    "torus": "torus:3x3",
    "hypercube": "hypercube:3",
    "fully-connected": "fully-connected:5",
    "switch": "switch:7",
    "fat-tree": "fat-tree:10,radix=4,routing=ecmp",
    "dragonfly": "dragonfly:2,1,1,3,routing=valiant",
    "dragonfly+": "dragonfly+:2,1,2,1,3",
    "dgx-1v": "dgx-1v:1",
    "dgx-a100": "dgx-a100:2",
    "dgx-h100": "dgx-h100:1",
    "dgx-b200": "dgx-b200:1",
    "mi300x": "mi300x:1",
    "mi250": "mi250:1",
    "npu8": "npu8:1,direct-latency=1us",
    "pcie": "pcie:2,gpus=4,affinity=SYS",
    "home": "home:4",
}


def test_there_is_an_example_of_every_kind() -> None:
    assert EXAMPLES.keys() == KINDS.keys()


@pytest.mark.slow("simulates every algorithm on every kind of network")
@pytest.mark.parametrize("text", [*EXAMPLES.values(), "dgx-a100:1,gpus=2,nics=2@ring:3"])
def test_all_algorithms_find_their_ways(text: str) -> None:
    topology = parse(text)
    all_ways(topology, keys=5)
    for (collective, name), algorithm in ALGORITHMS.items():
        if algorithm.allows(topology.num_ranks) and not collective.endswith("_v"):  # uneven ones send as even ones do
            result = simulate(algorithm.build(topology.num_ranks), topology, 1e6, level="steps")
            assert result.seconds >= result.bound_seconds * (1 - 1e-9), (collective, name)
