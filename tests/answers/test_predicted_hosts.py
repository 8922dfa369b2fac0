"""The simulator predicts what runs by default among ranks on several hosts: the same algorithm in the same groups."""

import pytest

import hocket
from hocket.algorithms import ALGORITHMS
from hocket.network import simulate
from hocket.network.kinds.by_name import parse
from hocket.runtime import Policy, choose

LONG = 64 << 20


def seconds(topology: str, name: str, num_bytes: int, policy: Policy) -> float:
    """Returns the time of the very schedule that a communicator with this policy would run."""
    one, network = ALGORITHMS["all_reduce", name], parse(topology)
    return simulate(one.build(network.num_ranks, groups=policy.groups_for(one)), network, num_bytes).seconds


@pytest.mark.parametrize(("num_each", "factor"), [(2, 1.5), (4, 1.75)])
def test_over_1_gbit_the_default_takes_the_time_of_the_cut_and_a_flat_ring_its_factor(
    num_each: int, factor: float
) -> None:
    topology, policy = f"home:2,gpus={num_each}", Policy().on_hosts([0] * num_each + [1] * num_each)
    name = choose("all_reduce", 2 * num_each, LONG, "fast", policy)
    default, ring = (seconds(topology, one, LONG, policy) for one in (name, "ring"))
    assert ring / default == pytest.approx(factor, rel=0.01)
    gigabit = parse(topology).bytes_per_second[parse(topology).link_class == "nic"].min()
    assert default == pytest.approx(LONG / gigabit, rel=0.01), "n bytes each way"


def test_a_short_vector_takes_one_delay_between_hosts_instead_of_two() -> None:
    policy = Policy().on_hosts([0, 0, 1, 1])
    leaders, two = (
        seconds("home:2,gpus=2", name, 8, policy) for name in ("hierarchical_leaders", "hierarchical_direct")
    )
    assert choose("all_reduce", 4, 8, "fast", policy) == "hierarchical_leaders"
    assert two / leaders > 1.8


def test_on_a_network_of_hosts_groups_are_the_hosts_without_being_told() -> None:
    found = hocket.explain("all_reduce", LONG, topology="home:2,gpus=4")
    rows = {row.algorithm: row for row in found.candidates}
    assert found.default == "hierarchical_direct"
    assert rows["hierarchical_direct"].groups == (4, 4)
    policy = Policy().on_hosts([0] * 4 + [1] * 4)
    assert rows["hierarchical_direct"].seconds == seconds("home:2,gpus=4", "hierarchical_direct", LONG, policy)
    assert "In a job on these hosts hierarchical_direct runs by default: 571 ms." in str(found)
    some = hocket.explain("all_reduce", LONG, 6, topology="home:2,gpus=4")
    assert {row.groups for row in some.candidates} == {None, (4, 2)}


def test_a_network_that_is_ranks_and_links_only_has_no_hosts() -> None:
    found = hocket.explain("all_reduce", LONG, topology="torus:2x2")
    assert found.default == "" and "In a job" not in str(found)
    assert {row.groups for row in found.candidates} == {None, (2, 2)}, "an algorithm's own default"
    alone = hocket.explain("all_reduce", LONG, topology="home:3")
    assert {row.groups for row in alone.candidates} == {None, (1, 1, 1)}
