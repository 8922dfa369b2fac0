import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.network.simulation.max_min import filled, max_min

FLOWS = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=4, unique=True), st.floats(0.5, 4)), min_size=1, max_size=12
)


def arrays(flows):
    offsets = np.cumsum([0, *(len(links) for links, _ in flows)])
    links = np.array([link for links, _ in flows for link in links], np.int64)
    return offsets, links, np.array([penalty for _, penalty in flows])


def test_two_flows_share_a_link_by_their_penalties() -> None:
    offsets, links = np.array([0, 1, 2]), np.array([0, 0])
    assert max_min(np.array([3.0]), offsets, links, penalties=np.array([1.0, 2.0])).tolist() == [2.0, 1.0]


def test_a_flow_without_links_is_as_fast_as_it_likes() -> None:
    assert max_min(np.array([3.0]), np.array([0, 0, 1]), np.array([0])).tolist() == [np.inf, 3.0]


@pytest.mark.slow("200 random networks")
@settings(max_examples=200, deadline=None)
@given(flows=FLOWS, capacity=st.lists(st.floats(0.5, 8), min_size=6, max_size=6), seed=st.integers(0, 9))
def test_rates_are_max_min_fair_compiled_or_not(flows, capacity, seed) -> None:
    offsets, links, penalties = arrays(flows)
    weights = np.random.default_rng(seed).uniform(0.5, 2, len(links))
    rates = max_min(np.array(capacity), offsets, links, weights, penalties)
    assert rates == pytest.approx(filled(np.array(capacity), offsets, links, weights, penalties), rel=1e-9)
    flow = np.repeat(np.arange(len(flows)), np.diff(offsets))
    load = np.bincount(links, weights * rates[flow], 6)
    assert (load <= np.array(capacity) * (1 + 1e-9)).all()
    level = rates * penalties
    for one in range(len(flows)):  # Each flow crosses a full link on which no other flow has a higher rate.
        own = links[offsets[one] : offsets[one + 1]]
        full = [link for link in own if load[link] >= capacity[link] * (1 - 1e-9)]
        assert not len(own) or any(level[one] >= level[flow[links == link]].max() * (1 - 1e-9) for link in full)


@pytest.mark.ring2  # the compiled engine alone
@pytest.mark.parametrize(
    "bad",
    [
        {"offsets": np.array([0, 2])},  # beyond the links
        {"offsets": np.array([1, 1])},  # not from 0
        {"links": np.array([1])},  # no such link
        {"weights": np.ones(2)},  # not one for each
        {"penalties": np.ones(2)},
        {"rates": np.ones(2)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(bad) -> None:
    from hocket import _simulator

    good = {
        "capacity": np.ones(1),
        "offsets": np.array([0, 1]),
        "links": np.array([0]),
        "weights": np.zeros(0),
        "penalties": np.zeros(0),
        "rates": np.zeros(1),
    }
    _simulator.max_min(**good)
    with pytest.raises(ValueError, match="max_min: "):
        _simulator.max_min(**(good | bad))
