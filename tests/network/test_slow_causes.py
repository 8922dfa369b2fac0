"""Times that are predicted with something wrong are explained by what is wrong."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from hocket.network import Machine, PlacedRanks, Topology, fastest_call, load_machine, placed_as, slow_causes

Bools = npt.NDArray[np.bool_]

LONG = [1 << power for power in (26, 28, 30, 32)]
SHORT = [1 << power for power in (3, 8, 12, 14)]
H100, A100 = load_machine("h100"), load_machine("a100")


def measured(machine: Machine, hosts: tuple[int, ...], sizes: list[int]) -> list[tuple[int, float]]:
    placed = placed_as(machine, hosts)
    return [(size, fastest_call(machine, placed, "all_reduce", size).seconds) for size in sizes]


@pytest.mark.parametrize(
    ("usual", "wrong", "hosts", "sizes", "says"),
    [
        (
            H100,
            replace(H100, topology="dgx-h100:HOSTS,reduces=yes,nic-bandwidth=24.25GB/s"),
            (8, 8),
            LONG,
            "4 of 8 network cards of each host idle",
        ),
        (
            H100,
            replace(H100, topology="dgx-h100:HOSTS,reduces=yes,nic-bandwidth=42.4375GB/s", algorithms=("ring",)),
            (8, 8),
            LONG,
            "1 of 8 network cards of each host idle, and only rings (NCCL_ALGO)",
        ),
        (
            A100,
            replace(A100, topology="dgx-a100:HOSTS,direct-bandwidth=24GB/s"),
            (8,),
            LONG,
            "PCIe instead of NVLink or xGMI between GPUs",
        ),
        (H100, replace(H100, algorithms=("ring", "tree")), (8,), LONG, "the library does not use nvls"),
        (
            A100,
            replace(A100, launch_seconds=A100.launch_seconds + 90e-6),
            (8,),
            SHORT,
            "each call begins 90 us later: no CUDA graph, or a busy host",
        ),
        (
            H100,
            replace(H100, fabric_seconds=15e-6),
            (8, 8),
            SHORT,
            "a fabric with 15 us more per hop; EFA has about 15 us, sockets (TCP) 25 us",
        ),
        (
            A100,
            replace(A100, fabric_seconds=40e-6),
            (8, 8),
            SHORT,
            "a fabric with 40 us more per hop; EFA has about 15 us, sockets (TCP) 25 us",
        ),
    ],
    ids=["cards", "card and rings", "nvlink", "nvls", "launch", "fabric", "slow fabric"],
)
def test_what_is_wrong_is_the_best_match(
    usual: Machine, wrong: Machine, hosts: tuple[int, ...], sizes: list[int], says: str
) -> None:
    calls = measured(wrong, hosts, sizes)
    found = slow_causes(usual, placed_as(usual, hosts), "all_reduce", calls, starting=sizes is SHORT)
    assert found[0].error < 1e-3 and says in [text for one in found if one.error < 1e-3 for text in one.texts]
    assert found[0].ratio < 0.95 and found[0].seconds == pytest.approx(calls[-1][1], rel=1e-3)


def test_times_as_predicted_need_no_cause() -> None:
    assert slow_causes(H100, placed_as(H100, (8,)), "all_reduce", measured(H100, (8,), LONG), starting=False) == []


def test_times_that_nothing_explains_have_no_cause() -> None:
    calls = [
        (size, times * seconds)
        for (size, seconds), times in zip(measured(H100, (8, 8), LONG), (10, 40, 10, 40), strict=True)
    ]
    assert slow_causes(H100, placed_as(H100, (8, 8)), "all_reduce", calls, starting=False) == []


def slowed(usual: Machine, hosts: tuple[int, ...], links: Callable[[Topology], Bools], share: float) -> PlacedRanks:
    network = placed_as(usual, hosts).network
    rates = np.where(links(network), network.bytes_per_second * share, network.bytes_per_second)
    return PlacedRanks(replace(network, bytes_per_second=rates))


def cards(network: Topology) -> Bools:
    found: Bools = network.link_class == "nic"
    return found


def one_card(network: Topology) -> Bools:
    card = np.flatnonzero(network.node_kinds == "nic")[3]
    found: Bools = cards(network) & ((network.link_source == card) | (network.link_target == card))
    return found


def between_gpus(network: Topology) -> Bools:
    return np.isin(network.link_class, ["nvlink", "nvswitch"])


@pytest.mark.parametrize(
    ("usual", "hosts", "links", "share", "fabric", "says"),
    [
        (A100, (8,), between_gpus, 0.5, 0.0, "all links between GPUs at 50% of their speed (120 GB/s each)"),
        (H100, (8,), between_gpus, 0.7, 0.0, "all links between GPUs at 70% of their speed (260 GB/s each)"),
        (H100, (8,), between_gpus, 0.1, 0.0, "all links between GPUs at 10% of their speed (37.1 GB/s each)"),
        (A100, (8, 8), cards, 0.5, 0.0, "all network cards at 50% of their speed (11."),
        (A100, (8, 8), one_card, 0.5, 0.0, "one network card of one host at half speed, or idle, so that another"),
        (H100, (8, 8), cards, 0.03, 25e-6, "sockets (TCP) instead of InfiniBand or RoCE, with 11.6 GB/s for each"),
    ],
    ids=["half of nvlink", "most of nvlink", "little of nvlink", "cards", "one card", "sockets"],
)
def test_a_simulated_fault_is_found(
    usual: Machine,
    hosts: tuple[int, ...],
    links: Callable[[Topology], Bools],
    share: float,
    fabric: float,
    says: str,
) -> None:
    placed, sizes = slowed(usual, hosts, links, share), [1 << power for power in range(22, 34, 2)]
    wrong = replace(usual, fabric_seconds=usual.fabric_seconds + fabric)
    calls = [(size, fastest_call(wrong, placed, "all_reduce", size).seconds) for size in sizes]
    found = slow_causes(usual, placed_as(usual, hosts), "all_reduce", calls, starting=False)
    [cause] = [one for one in found if any(text.startswith(says) for text in one.texts)]
    assert cause.error < 0.01


def test_causes_that_calls_do_not_tell_apart_stand_together() -> None:
    placed = slowed(A100, (8, 8), cards, 0.5)
    calls = [(size, fastest_call(A100, placed, "all_reduce", size).seconds) for size in LONG]
    first, *_ = slow_causes(A100, placed_as(A100, (8, 8)), "all_reduce", calls, starting=False)
    assert [text[:25] for text in first.texts] == [
        "4 of 8 network cards of e",
        "one network card of one h",
        "all network cards at 50% ",
    ]


def test_only_rings_are_named_where_the_library_would_run_others() -> None:
    for usual, says in ((A100, False), (H100, True)):
        rings, placed = replace(usual, algorithms=("ring",)), slowed(usual, (8,), between_gpus, 0.5)
        calls = [(size, fastest_call(rings, placed, "all_reduce", size).seconds) for size in LONG]
        found = slow_causes(usual, placed_as(usual, (8,)), "all_reduce", calls, starting=False)
        assert any("only rings" in text for one in found for text in one.texts) == says
