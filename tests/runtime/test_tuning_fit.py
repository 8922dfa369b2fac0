"""Costs fitted to times, and what an algorithm's steps and bytes are."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.runtime import Costs, Traits
from hocket.runtime.tuning.fit import fit, traits_of

SIZES = [8 << shift for shift in range(0, 24, 2)]


@pytest.mark.parametrize(
    ("collective", "name", "num_ranks", "expected"),
    [
        ("all_reduce", "direct", 4, Traits(1, 3.0, 3.0)),
        ("all_reduce", "ring", 4, Traits(6, 1.5, 0.75)),
        ("reduce_scatter", "ring", 8, Traits(7, 0.875, 0.875)),
        ("all_gather", "ring", 8, Traits(7, 0.875, 0.0)),
        ("broadcast", "binomial", 8, Traits(3, 3.0, 0.0)),
        ("reduce", "binomial", 8, Traits(3, 1.0, 3.0)),
        ("all_to_all", "pairwise", 4, Traits(3, 0.75, 0.0)),
    ],
)
def test_what_a_schedule_does(collective: str, name: str, num_ranks: int, expected: Traits) -> None:
    assert traits_of(ALGORITHMS[collective, name].build(num_ranks)) == expected


@pytest.mark.parametrize("name", [name for collective, name in ALGORITHMS if collective == "all_reduce"])
def test_steps_and_sent_are_those_that_are_proved(name: str) -> None:
    one = ALGORITHMS["all_reduce", name]
    for p in filter(one.allows, (2, 3, 8)):
        declared, traits = one.declared(p), traits_of(one.build(p))
        assert (traits.steps, traits.sent) == (declared.steps, pytest.approx(float(declared.sent)))


def synthetic(traits: Traits, costs: Costs, noise: np.random.Generator, amount: float) -> list[tuple[int, float]]:
    return [(size, costs.seconds(traits, size) * (1 + amount * noise.uniform(-1, 1))) for size in SIZES]


@pytest.mark.parametrize("amount", [0.0, 0.05])
def test_known_costs_are_found_again(amount: float) -> None:
    noise = np.random.default_rng(1)
    truth = Costs(2e-6, 1.5e-10, 4e-11, 0.0)
    kinds = {
        name: traits_of(ALGORITHMS["all_reduce", name].build(8)) for name in ("direct", "ring", "tree", "double_tree")
    } | {"all_gather": Traits(7, 0.875, 0.0)}
    found = fit({name: (traits, synthetic(traits, truth, noise, amount)) for name, traits in kinds.items()})
    for name, traits in kinds.items():
        assert found[name].alpha == pytest.approx(truth.alpha, rel=1e-6 + amount)
        assert found[name].beta == pytest.approx(truth.beta, rel=1e-6 + 3 * amount)
        assert found[name].gamma == pytest.approx(truth.gamma, rel=1e-6 + 8 * amount)
        assert found[name].error <= 1e-9 + amount
        for size in SIZES:
            assert found[name].seconds(traits, size) == pytest.approx(truth.seconds(traits, size), rel=1e-6 + amount)
            assert sum(found[name].parts(traits, size)) == pytest.approx(found[name].seconds(traits, size))


def test_each_algorithm_has_its_own_step_and_its_own_factor() -> None:
    noise, ring, tree = np.random.default_rng(2), Traits(6, 1.5, 0.75), Traits(4, 2.0, 2.0)
    mine, other = Costs(1e-6, 1e-10, 5e-11, 0.0), Costs(3e-6, 2e-10, 1e-10, 0.0)
    found = fit({"a": (ring, synthetic(ring, mine, noise, 0.0)), "b": (tree, synthetic(tree, other, noise, 0.0))})
    for name, traits, costs in (("a", ring, mine), ("b", tree, other)):
        assert found[name].alpha == pytest.approx(costs.alpha)
        assert found[name].seconds(traits, 1 << 20) == pytest.approx(costs.seconds(traits, 1 << 20))


def test_costs_are_never_negative() -> None:
    falling = [(8, 5e-6), (4096, 4e-6), (1 << 20, 3e-6)]
    traits = (Traits(1, 1.0, 1.0), Traits(2, 1.0, 0.0), Traits(3, 0.0, 1.0), Traits(0, 1.0, 1.0))
    for some in itertools.chain.from_iterable(itertools.combinations(traits, count) for count in (1, 2, 4)):
        for costs in fit({number: (one, falling) for number, one in enumerate(some)}).values():
            assert min(costs.alpha, costs.beta, costs.gamma) >= 0


def test_little_is_enough() -> None:
    assert fit({}) == {}
    (one,) = fit({"barrier": (Traits(3, 3.0, 3.0), [(1, 6e-6)])}).values()
    assert one.seconds(Traits(3, 3.0, 3.0), 1) == pytest.approx(6e-6)
    nothing = fit({"alone": (Traits(0, 0.0, 0.0), [(8, 1e-6)])})["alone"]
    assert replace(nothing, error=0.0) == Costs(0.0, 0.0, 0.0, 0.0) and nothing.error == 1.0
