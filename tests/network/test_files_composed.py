from pathlib import Path

import pytest

from hocket.errors import TopologyError
from hocket.network import load


def test_two_racks_are_a_few_lines() -> None:
    text = (
        "nodes: {gpu: [a0..a63, b00..63], switch: [s, t, u0..u63]}\nranks: [b00..b63, a1]\nlinks:\n"
        "- {each: a0..a63, to: s, link: roce-400g}\n- {each: b00..b63, to: u0..u63, link: roce-400g}\n"
        "- {each: gpu, to: t, link: roce-400g}\n"
    )
    found = load(text)
    assert found.num_ranks == 65 and [found.node_names[node] for node in found.ranks[[0, 63, 64]]] == [
        "b00",
        "b63",
        "a1",
    ]
    assert found.num_links == 2 * (64 + 64 + 128) and found.link_names([63, 64 + 64]) == ["a63->s", "b00->u0"]
    with pytest.raises(TopologyError, match="to: expected one node, or 64 as in each; found 2"):
        load(text.replace("to: u0..u63", "to: u0..u1"))
    with pytest.raises(TopologyError, match=r"expected the name of one node, found 'a0\.\.a1'"):
        load("nodes: {gpu: [a0, a1], switch: [s]}\nlinks: [{between: [a0..a1, s], link: qpi}]\n")


def test_a_file_is_on_either_side_of_another_network(tmp_path: Path) -> None:
    file = tmp_path / "rack.yaml"
    file.write_text("nodes: {gpu: [g0..g3], switch: [s]}\nlinks: [{each: gpu, to: s, link: roce-400g}]\n")
    assert load(f"{file}@fat-tree:8").num_ranks == 32
    assert load(f"dgx-h100:1@{file}").num_ranks == 32
    both = tmp_path / "both.yaml"
    both.write_text("outer: rack.yaml\ninner: [rack.yaml, dgx-h100:1, rack.yaml, rack.yaml]\n")
    assert load(both).num_ranks == 20, "files lie beside the one that names them"
    with pytest.raises(TopologyError, match="expected INNER@OUTER, each KIND:ARGS or a file; found '@ring:4'"):
        load("@ring:4")


@pytest.mark.parametrize("name", ["g0...7", "g0..h7", "'g[0-7]'", "'g{0..7}'", "g[0-7]", "g{0..7}"])
def test_a_range_of_nodes_is_refused_and_never_one_node(name: str) -> None:
    told = (
        "; ranges such as .* are not read: write each name, as in gpu: .g0, g1., or a range as g0..g7, in links as each"
    )
    for nodes, end in ((name, "s"), ("a", name)):
        with pytest.raises(TopologyError, match=told):
            load(f"nodes: {{gpu: [{nodes}], switch: [s]}}\nlinks: [{{between: [a, {end}], link: qpi}}]\n")
    with pytest.raises(TopologyError, match=told):
        load(f"topology: ring:4\nranks: [{name}]\n")
    assert load("nodes: {gpu: [r0-1, v2.10]}\nlinks: [{between: [r0-1, v2.10], link: qpi}]\n").num_ranks == 2
