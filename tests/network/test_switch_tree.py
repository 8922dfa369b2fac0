"""Trees of switches that reduce: their links, and networks without such a tree."""

import numpy as np
import pytest

from hocket.network import load, parse, switch_tree


@pytest.mark.parametrize(
    ("text", "switches", "height"),
    [
        ("switch:5,reduces=yes", 1, 1),
        ("fat-tree:12,levels=2,radix=8,reduces=yes", 3 + 1, 2),
        ("fat-tree:16,reduces=yes", 8 + 4 + 1, 3),
        ("switch:4,reduces=yes@switch:2,reduces=yes", None, 0),
    ],
)
def test_the_tree_is_as_high_as_it_must_be(text: str, switches: int | None, height: int) -> None:
    network = parse(text)
    tree = switch_tree(network)
    if switches is None:
        assert tree is None, "ranks of the outer network lie between its switch and the inner ones"
        return
    assert tree is not None and len(tree.parents) == network.num_ranks + switches
    assert tree.parents[network.num_ranks :].count(-1) == 1
    child = np.flatnonzero(np.array(tree.parents) >= 0)
    parent = np.array(tree.parents)[child]
    for one, other in ((child, parent), (parent, child)):
        assert (np.diff(tree.network.paths(one, other).offsets) == 1).all(), "each hangs on what it has a cable to"
    for rank in range(network.num_ranks):
        steps, at = 0, rank
        while tree.parents[at] >= 0:
            at, steps = tree.parents[at], steps + 1
        assert steps == height


def test_a_rank_beside_the_switches_has_no_place_in_a_tree() -> None:
    text = "nodes: {gpu: [a, b, c], switch: [s]}\nreducing: [s]\nlinks:\n"
    ends = (("a", "s"), ("b", "s"), ("b", "c"), ("a", "c"))
    links = (f"  - {{between: [{one}, {other}], link: nvlink4}}\n" for one, other in ends)
    assert switch_tree(load(text + "".join(links))) is None
