"""Times that are predicted with something wrong are explained by what is wrong."""

from dataclasses import replace

import pytest

from hocket.network import Machine, fastest_call, load_machine, placed_as, slow_causes

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
            "4 of 8 network cards of each host idle, or all at half speed",
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
            "PCIe instead of NVLink between GPUs",
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
            "a fabric with 15 us more per hop, such as EFA",
        ),
    ],
    ids=["cards", "card and rings", "nvlink", "nvls", "launch", "fabric"],
)
def test_what_is_wrong_is_the_best_match(
    usual: Machine, wrong: Machine, hosts: tuple[int, ...], sizes: list[int], says: str
) -> None:
    calls = measured(wrong, hosts, sizes)
    found = slow_causes(usual, placed_as(usual, hosts), "all_reduce", calls, starting=sizes is SHORT)
    assert found[0].error < 1e-3 and says in [one.text for one in found if one.error < 1e-3]
    assert found[0].ratio < 0.95 and found[0].seconds == pytest.approx(calls[-1][1], rel=1e-3)


def test_times_as_predicted_need_no_cause() -> None:
    assert slow_causes(H100, placed_as(H100, (8,)), "all_reduce", measured(H100, (8,), LONG), starting=False) == []


def test_times_that_nothing_explains_have_no_cause() -> None:
    calls = [(size, 40 * seconds) for size, seconds in measured(H100, (8, 8), LONG)]
    assert slow_causes(H100, placed_as(H100, (8, 8)), "all_reduce", calls, starting=False) == []
