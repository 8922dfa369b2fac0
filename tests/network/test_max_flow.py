"""Maximum flows and minimum cuts, against SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import maximum_flow

from hocket.network.bounds.max_flow import MaxFlow, PlainMaxFlow, make_max_flow

MAKERS = [PlainMaxFlow, make_max_flow]


@pytest.mark.parametrize("make", MAKERS)
@given(st.data())
@settings(max_examples=80, deadline=None)
def test_flows_are_those_of_scipy_and_cuts_are_as_narrow(make: type[PlainMaxFlow], data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(2, 12))
    node = st.integers(0, num_nodes - 1)
    links = data.draw(st.lists(st.tuples(node, node, st.integers(0, 50)), min_size=1, max_size=60))
    source, target, capacity = (np.array(column, np.int64) for column in zip(*links, strict=True))
    begin, end = data.draw(st.permutations(range(num_nodes)))[:2]
    flow: MaxFlow = make(num_nodes, source, target)
    shape = (num_nodes, num_nodes)
    for scale in (1, 3):  # capacities may change from run to run
        found = flow.run(capacity * scale, begin, end)
        matrix = csr_array(coo_array(((capacity * scale).astype(np.int32), (source, target)), shape=shape))
        assert found == maximum_flow(matrix, begin, end).flow_value
        before = np.empty(num_nodes, bool)
        flow.mark_before_cut(before)
        assert before[begin]
        assert not before[end]
        assert (capacity * scale)[before[source] & ~before[target]].sum() == found


@pytest.mark.ring2  # the compiled one alone
@pytest.mark.parametrize(
    "arguments",
    [
        (3, np.array([0, 5]), np.array([1, 2])),
        (3, np.array([0, 1]), np.array([1, -1])),
        (3, np.array([0, 1]), np.array([1])),
    ],
)
def test_the_compiled_one_checks_links(arguments: tuple[int, np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make_max_flow(*arguments)


@pytest.mark.ring2  # the compiled one alone
@pytest.mark.parametrize(
    "arguments", [(np.array([1]), 0, 1), (np.array([1, -1]), 0, 1), (np.array([1, 1]), 0, 3), (np.array([1, 1]), 1, 1)]
)
def test_the_compiled_one_checks_runs(arguments: tuple[np.ndarray, int, int]) -> None:
    with pytest.raises(ValueError, match=r"MaxFlow(\.run)?: "):
        make_max_flow(3, np.array([0, 1]), np.array([1, 2])).run(*arguments)


def test_large_capacities_add_up() -> None:
    flow = make_max_flow(2, np.zeros(2, np.int64), np.ones(2, np.int64))
    assert flow.run(np.array([2**60, 2**60]), 0, 1) == 2**61
