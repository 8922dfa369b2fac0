"""Files that describe networks: what they mean, and what is wrong with them, by line or entry."""

import builtins
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.errors import TopologyError
from hocket.network import links, load, parse
from tests.network.ways import all_ways, hops

ASTRA = """\
topology: [ Ring, FullyConnected, Switch ]
npus_count: [ 2, 8, 4 ]
bandwidth: [ 200.0, 100.0, 50.0 ]  # GB/s
latency: [ 50.0, 500.0, 2000.0 ]   # ns
"""
SIMAI = """\
6 2 1 1 8 H100
4 5
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
2 3 2880Gbps 0.000025ms 0
0 5 400Gbps 0.0005ms 0
1 5 400Gbps 0.0005ms 0
2 5 400Gbps 0.0005ms 0
3 5 400Gbps 0.0005ms 0
4 5 400Gbps 0.0005ms 0
"""
SLURM = """\
# two leaves
SwitchName=s0 Nodes=tux[08-10]
SwitchName=s1 Nodes=tux[11,13],login LinkSpeed=100

SwitchName=s2 Switches=s[0-1]  # above both
"""
OURS = """\
nodes: {gpu: [g0, g1, g2], switch: [s]}
reducing: [s]
links:
  - {between: [g0, s], class: nic, bandwidth: 25GB/s, latency: 1us}
  - {between: [g1, s], link: roce-100g, latency: 2us}
  - {from: g2, to: s, link: roce-100g}
  - {from: s, to: g2, link: roce-200g}
"""


def test_astra_counts_npus_by_the_first_dimension_and_gb_in_powers_of_two() -> None:
    topology = load(ASTRA)
    all_ways(topology)
    assert topology.num_ranks == 64
    first = topology.paths(np.array([0, 0, 0]), np.array([1, 2, 16]))
    assert hops(first) == [1, 1, 2]
    assert topology.bytes_per_second[first.links].tolist() == [200 * 2.0**30, 100 * 2.0**30, *[50 * 2.0**30] * 2]
    assert np.allclose(first.seconds, [50e-9, 500e-9, 4000e-9])


def test_astra_rings_send_up_half_way_round() -> None:
    ring = load("topology: [Ring]\nnpus_count: [16]\nbandwidth: [50]\nlatency: [500]\n")
    ranks = np.arange(16)
    links_up = ring.paths(ranks, (ranks + 8) % 16).links
    assert (ring.link_target[links_up] == (ring.link_source[links_up] + 1) % 16).all()


def test_astra_names_blocks_in_upper_or_lower_case() -> None:
    for other in (ASTRA.lower(), ASTRA.replace("FullyConnected", "fullyconnected")):
        assert load(other).link_names(range(50)) == load(ASTRA).link_names(range(50))


def test_simai_has_gpus_then_switches_and_cables() -> None:
    topology = load(SIMAI)
    all_ways(topology)
    assert (topology.num_ranks, topology.num_nodes, topology.num_links) == (4, 6, 16)
    assert sorted(set(topology.link_class)) == ["nic", "nvlink", "nvswitch"]
    assert topology.bytes_per_second[topology.link_class == "nic"][0] == 50e9
    assert topology.seconds[topology.link_class == "nic"][0] == pytest.approx(0.5e-6)


def test_simai_may_break_its_lines_anywhere() -> None:
    numbers = "".join(f"{line}\n" for line in SIMAI.split())
    for text in (SIMAI.replace("4 5\n", "4\n5\n"), SIMAI.replace("2 1 1 8 H100\n", "2 1\n1 8 H100 "), numbers):
        assert load(text).link_names(range(16)) == load(SIMAI).link_names(range(16))


@pytest.mark.parametrize("kind", ["A800", "RTX-4090", "H100-SXM5_80GB"])
def test_simai_may_have_no_switch_at_all_and_any_type_of_gpu(kind: str) -> None:
    ends = [(one, other) for one in range(4) for other in range(one)]
    cables = "".join(f"{one} {other} 1481Gbps 0.000025ms 0\n" for one, other in ends)
    topology = load(f"4 4 0 0 6 {kind}\n\n{cables}")
    assert (topology.num_nodes, topology.num_links, set(topology.link_class)) == (4, 12, {"nvlink"})


def test_inside_a_server_nothing_goes_by_the_leaf_that_joins_its_gpus_too() -> None:
    gpus = range(16)
    cables = [f"{gpu} {16 + gpu // 8} 2880Gbps 0.000025ms 0\n{gpu} 18 400Gbps 0.0005ms 0\n" for gpu in gpus]
    topology = load("19 8 2 1 32 H100\n16 17 18\n" + "".join(cables))
    paths = all_ways(topology, keys=1)
    classes = np.split(topology.link_class[paths.links], paths.offsets[1:-1])
    for one in gpus:
        for other in set(gpus) - {one}:
            expected = "nvswitch" if one // 8 == other // 8 else "nic"
            assert classes[one * 16 + other].tolist() == [expected, expected]


def test_our_own_accelerators_prefer_what_joins_them_to_a_cable_of_the_fabric() -> None:
    nodes = "nodes: {gpu: [a, b, c], nvswitch: [n], switch: [s]}\nlinks:\n"
    lines = [
        f"- {{between: [{gpu}, {end}], link: {link}}}"
        for gpu in "abc"
        for end, link in (("n", "nvswitch4"), ("s", "roce-400g"))
    ]
    topology = load(nodes + "\n".join([*lines, "- {between: [a, b], link: roce-400g}\n"]))
    assert set(topology.link_class[all_ways(topology, keys=1).links]) == {"nvswitch"}


def test_slurm_has_a_tree_of_switches() -> None:
    topology = load(SLURM)
    lengths = np.array(hops(all_ways(topology))).reshape(6, 6)
    assert topology.node_names[:6] == ("tux08", "tux09", "tux10", "tux11", "tux13", "login")
    assert lengths[0].tolist() == [0, 2, 2, 4, 4, 4]


def test_slurm_names_nodes_by_several_brackets() -> None:
    topology = load("SwitchName=s Nodes=rack[0-1]node[08-09],tux[1,3]x\n")
    racks = ("rack0node08", "rack0node09", "rack1node08", "rack1node09")
    assert topology.node_names[:6] == (*racks, "tux1x", "tux3x")


@pytest.mark.parametrize(
    "text",
    [
        SLURM.replace("s1 Nodes", "s1 \\\n  Nodes").replace("tux[11,13],login", "tux[11,13],\\\nlogin"),
        SLURM.replace("tux[08-10]", '"tux[08-10]"').replace("tux[11,13],login", '"tux[11,13], login"'),
        SLURM.replace("=", " = ").replace("SwitchName", "  switchname"),
        SLURM.replace("[08-10]", "[08-10],tux09").replace("s[0-1]", "s[0-1],s1"),
        # What `scontrol show topology` prints: a switch repeats the nodes below its switches.
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[08-10] \n"
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=login,tux[11,13] \n"
        "SwitchName=s2 Level=1 LinkSpeed=1 Nodes=login,tux[08-11,13] Switches=s[0-1] \n",
    ],
    ids=["continued lines", "quotes", "blanks", "a name twice", "scontrol"],
)
def test_all_that_slurm_itself_reads_and_prints_gives_the_same_network(text: str) -> None:
    found, expected = load(text), load(SLURM)
    assert sorted(found.link_names(range(found.num_links))) == sorted(expected.link_names(range(expected.num_links)))


def test_our_own_nodes_and_links() -> None:
    topology = load(OURS)
    all_ways(topology)
    assert topology.num_ranks == 3
    assert topology.reducing.tolist() == [False, False, False, True]
    figures = dict(zip(topology.link_names(range(6)), topology.bytes_per_second.tolist(), strict=True))
    assert figures == {
        **{"g0->s": 25e9, "s->g0": 25e9, "g1->s": 12e9, "s->g1": 12e9},
        **{"g2->s": 12e9, "s->g2": 23.5e9},
    }
    assert topology.seconds.max() == 2e-6


def test_a_file_changes_links_by_class_and_by_kinds_of_nodes() -> None:
    base = "topology: dgx-h100:2\nchange: "
    cards = load(base + "[{link: nic, bandwidth: 10GB/s}]\n")
    assert set(cards.bytes_per_second[cards.link_class == "nic"].tolist()) == {10e9}
    trunks = load(base + "[{link: rail<->spine, bandwidth: 10GB/s}]\n")
    assert (trunks.bytes_per_second == 10e9).sum() == 16


def test_our_own_changes_groups_and_ways(tmp_path: Path) -> None:
    file = tmp_path / "slow.yaml"
    file.write_text(
        "topology: torus:2x2\n"
        "change: [{link: rank0->rank1, bandwidth: 1GB/s, latency: 5us}]\n"
        "ranks: [rank0, rank3]\n"
        "routes: [[rank0, rank2, rank3]]\n"
    )
    topology = load(file)
    assert topology.name == "slow.yaml"
    assert topology.ranks.tolist() == [0, 3]
    assert topology.link_names(topology.paths(np.array([0]), np.array([1])).links) == ["rank0->rank2", "rank2->rank3"]
    assert topology.bytes_per_second.min() == 1e9


def test_our_own_composition() -> None:
    topology = load("name: mixed\nouter: ring:3\ninner: [dgx-h100:1, 'dgx-a100:1,gpus=4,nics=4', home:1]\n")
    assert (topology.name, topology.num_ranks) == ("mixed", 13)
    assert load("outer: ring:3\ninner: home:1\n").num_ranks == 3


def test_our_own_entries_are_taken_over_by_reference() -> None:
    text = "links: [&one {between: [a, b], link: qpi}, {<<: *one, between: [b, c]}]\nnodes: {root: [a, b, c]}\n"
    assert load(text).num_links == 4


def test_kinds_are_loaded_by_name() -> None:
    assert load("ring:3").num_ranks == load("ring:1@ring:3").num_ranks == 3
    long = "@".join(["ring:1,bandwidth=25GB/s,latency=1us"] * 120)
    assert load(long).name == long, "longer than a file's name, and than a path, may be"
    with pytest.raises(TopologyError, match="is neither a file nor KIND:ARGS with KIND one of"):
        load(5000 * "x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ringg:3", "neither a file nor KIND:ARGS with KIND one of line, ring"),
        ("a: [\n", "is not YAML"),
        ("topology: ring:4\ntopology: ring:8\n", r"text is not YAML: 'topology' appears twice\n.* line 2"),
        ("nodes: {gpu: [a], gpu: [b]}\nlinks: []\n", r"'gpu' appears twice\n.* line 1, column 19"),
        ("topology: ring:4\nname: 2024-99-99\n", r"text is not YAML: month must be in 1..12\n.* line 2, column 7"),
        (
            "a: " + "[" * 5000 + "]" * 5000 + "\n",
            "text: expected YAML of a few levels, found entries nested too deeply",
        ),
        (
            "nodes: {gpu: [a, b]}\nlinks: [{between: [a, b], from: a, to: b, link: qpi}]\n",
            r"links\[0\]: .* or from: and",
        ),
        ("nodes: {gpu: [a, b]}\nlinks: [{between: [a, b], class: nic, link: qpi}]\n", r"links\[0\]: .* or class:"),
        (
            "topology: ring:4\nreducing: [rank1]\n",
            "reducing: expected switches that are not ranks; found rank 'rank1'",
        ),
        ("topology: 'switch:4,reduces=yes'\nranks: [rank0, switch0]\n", "that are not ranks; found rank 'switch0'"),
        ("name: mine\ntopology: ring:4\nranks: [rank9]\n", "text: ranks has an unknown node 'rank9'"),
        ("topology: ring:4\nranks:\n", "expected a list as ranks, found None"),
        ("- a\n- b\n", "expected YAML with entries by name, found list"),
        ("nodes: {gpu: [a]}\n", "expected topology, or nodes and links, or outer and inner"),
        ("nodes: [a, b]\nlinks: []\n", "expected nodes as names by kind"),
        ("nodes: {gpu: [a, b]}\nlinks: []\n", "disconnected: there is no path from a to b"),
        ("nodes: {gpu: [a, b]}\nlinks: [{between: [a, b], link: hdr}]\n", r"links\[0\]: expected a link, one of eth"),
        ("nodes: {gpu: [a, b]}\nlinks: [{between: [a, c], link: qpi}]\n", r"links\[0\] has an unknown node 'c'"),
        ("nodes: {gpu: [a, b]}\nlinks: [{between: [a, b]}]\n", r"links\[0\]: expected link:, or class:"),
        ("nodes: {gpu: [a, b]}\nlinks: [{between: a, link: qpi}]\n", r"links\[0\]: expected between: \[a, b\]"),
        ("nodes: {gpu: [a0, b0]}\nlinks: [{between: [a0, b7], link: qpi}]\n", "node 'b7'; the nodes are a0, b0$"),
        ("topology: ring:4\nranks: [b7]\n", "unknown node 'b7'; the nodes are rank0, rank1, rank2, rank3$"),
        ("topology: ring:14\nranks: [b7]\n", "rank11 and 2 more$"),
        ("topology: ring:4\nchnage: []\n", "found topology, chnage; 'chnage' is unknown; did you mean 'change'"),
        ("topology: ring:4\ncolour: red\n", "found topology, colour; 'colour' is unknown$"),
        (
            "nodes: {gpu: [a, b]}\nlinks: [{betwen: [a, b], link: qpi}]\n",
            r"links\[0\]: .*; 'betwen' is unknown; did you mean 'between'",
        ),
        (
            "topology: ring:4\nchange: [{link: nic, bandwith: 1GB/s}]\n",
            r"change\[0\]: .*; 'bandwith' is unknown; did you mean 'bandwidth'",
        ),
        ("nodes: {gpu: [a, b]}\nlinks: [[a, b]]\n", r"links\[0\]: expected entries by name"),
        ("nodes: {gpu: [a, b]}\nlinks: {a: b}\n", "expected a list as links"),
        (
            "nodes: {gpu: [a, b]}\nlinks: [{between: [a, b], link: qpi, latency: -1us}]\n",
            "link a->b has -1e-06 seconds of latency",
        ),
        (
            "topology: ring:4\nchange: [{link: rank0, latency: 1us}]\n",
            r"change\[0\]: ring:4: expected links by class",
        ),
        (
            "nodes: {server: [a, b], switch: [s]}\nlinks: []\n",
            "expected ranks, of the kinds gpu, npu, host, or named in ranks: .*; found server, switch",
        ),
        ("topology: ring:4\nchange: [{link: rank0->rank1}]\n", r"change\[0\]: .* with bandwidth: or latency:"),
        (
            "topology: ring:4\nchange: [{link: rank0->rank2, latency: 1us}]\n",
            r"change\[0\]: ring:4 has no link rank0->rank2",
        ),
        (
            "topology: ring:4\nchange: [{link: rank0->rank1, latency: x}]\n",
            r"change\[0\]: expected a latency with its unit, such as 500ns",
        ),
        ("topology: ring:4\nranks: [rank9]\n", "ranks has an unknown node 'rank9'"),
        ("topology: ring:4\nroutes: [[rank0, rank9]]\n", "routes has an unknown node 'rank9'"),
        ("topology: ring:4\nroutes: [[rank0, rank2]]\n", "routes: .*from rank0 to rank2, but there is no such link"),
        ("topology: [1, 2]\n", r"topology: expected KIND:ARGS, found \[1, 2\]"),
        ("topology: ring:x\n", "topology: 'ring:x'"),
        ("nodes: {gpu: g0}\nlinks: []\n", "expected a list of names as nodes of kind gpu, found 'g0'"),
        ("nodes: {gpu: 8}\nlinks: []\n", "of kind gpu, found 8; write each name, as in gpu: .g0, g1.,"),
        ("nodes: {gpus: [a, b]}\nlinks: []\n", "expected gpu, npu, host as kinds of ranks, .*'gpus'; did you mean"),
        ("nodes: {hosts: [a, b]}\nlinks: []\nranks: [a]\n", "forward nothing for others; found 'hosts'; .* 'host'"),
        ("nodes: {GPU: [a, b]}\nlinks: []\n", "found 'GPU'; did you mean 'gpu'?"),
        ("nodes: {gpu: [a, b]}\nlinks: [{between: [gpu, b], link: qpi}]\n", "'gpu' is a kind of nodes, so name its"),
        ("topology: 'switch:4,reduces=yes'\nreducing: [switch]\n", "'switch' is a kind of nodes, so name its nodes"),
        ("nodes: {gpu: [a, b]}\nlinks: [{between: [[a, b], b], link: qpi}]\n", "one node, found .'a', 'b'.; write an"),
        ("outer: ring:3\ninner: [home:1]\n", "ring:3 has 3 ranks; found 1 networks"),
        (ASTRA.replace("[ 2, 8, 4 ]", "[ 2, 8 ]"), "expected topology with one value for each dimension"),
        (ASTRA.replace("[ 2, 8, 4 ]", "16"), "expected positive whole numbers as npus_count, found 16"),
        (ASTRA.replace("[ 2, 8, 4 ]", "[ 2.5, 8, 4 ]"), "expected positive whole numbers as npus_count"),
        (ASTRA.replace("[ 2, 8, 4 ]", "[ .nan, 8, 4 ]"), "expected positive whole numbers as npus_count"),
        (ASTRA.replace("2000.0", ".nan"), "expected positive numbers as latency, found nan"),
        (
            "nodes: {gpu: [a, no]}\nlinks: [{between: [a, b], link: qpi}]\n",
            r"nodes: .* found False, .* quote such",
        ),
        ("nodes: {gpu: [a, b]}\nlinks: [{between: [a, on], link: qpi}]\n", r"links\[0\]: .* found True, .* quote"),
        ("topology: ring:4\nranks: [~]\n", "ranks: .* found None, .* quote"),
        (ASTRA.replace("Ring", "Torus"), "expected topology of Ring, FullyConnected, Switch; found 'Torus'"),
        (ASTRA.replace("50.0, 500.0", "-50.0, 500.0"), "expected positive numbers as latency, found -50.0"),
        (ASTRA.replace("200.0", "'fast'"), "expected positive numbers as bandwidth, found 'fast'"),
        (
            SIMAI.replace("4 5\n", "4\n", 1),
            "line 3: expected switches 4 to 5, given by line 1; found '0' in place of 5",
        ),
        ("2 1 0 1 0 H100\n", "line 1: expected switches 1 to 1, .*; found 'end of text'"),
        (SIMAI.replace("1 5 400", "1 9 400"), "line 7: unknown node '9'"),
        (SIMAI.replace("1 5 400Gbps", "1 5 fast"), "line 7: expected 'source target 400Gbps"),
        (SIMAI.replace("4 5 400Gbps 0.0005ms 0\n", ""), "expected 8 cables of five words, .*; found 35 words$"),
        (SIMAI.replace("1 5 400Gbps 0.0005ms 0", "1 5 400Gbps 0.0005ms"), "found 39 words; look at line 7"),
        (SIMAI.replace("6 2 1 1 8", "1 2 3 1 8"), "line 1: expected more nodes than switches"),
        (
            SIMAI.replace("1 5 400Gbps 0.0005ms", "1 5 400Gbps 5parsec"),
            "line 7: expected a latency with its unit, such as 500ns",
        ),
        (SIMAI.replace("1 5 400Gbps 0.0005ms", "1 5 400Gbps -1ms"), "line 7: .*a latency of 0 or more"),
        (SLURM.replace("[08-10]", "[10-08]"), "line 2: expected an ascending range"),
        (SLURM.replace("[08-10]", "[0-999999999999]"), "line 2: expected an ascending range of at most 1048576"),
        (SLURM.replace("[08-10]", "[08-10"), "line 2: expected a host list such as tux"),
        (SLURM.replace("[08-10]", "[08-10]x[1"), "line 2: expected a host list such as tux"),
        # Three numbers, with three in the next line, are not a first line of SimAI.
        ("8 3 5\n5 6 7\n0 5 200Gbps 0.0005ms 0\n", "expected YAML with entries by name"),
        (ASTRA.replace("[ 2, 8, 4 ]", "[ 2, 8, 99999999 ]"), "expected at most 16777216"),
        ("topology: fully-connected:131072\n", "topology: fully-connected:131072: found 17179738112 links or more"),
        (SLURM.replace("s[0-1]", "s[0-7]"), "switch s2 has an unknown switch 's3' below it|is disconnected"),
        (SLURM.replace("SwitchName=s1", "SwitchName=s0"), "line 3: switch s0 appears twice"),
        (SLURM.replace("SwitchName=s1", "BlockName=s1"), "line 3: expected SwitchName="),
        (SLURM.replace("Nodes=tux[11", "Nodes=\\\ntux[x"), "line 3: expected numbers"),
        (SLURM.replace("tux[11,13]", '"tux[11,13]'), "line 3: .* found 'SwitchName=s1 Nodes=\""),
        (
            "- topology: default\n  tree: {switches: [{switch: s, nodes: n}]}\n",
            "topology.yaml is not read; give topology.conf",
        ),
        (SLURM.replace("[08-10]", "[08-"), "line 2: expected a host list such as tux"),
        (SLURM.replace("SwitchName=s2 Switches=s[0-1]", ""), "disconnected: there is no path from tux08 to tux11"),
    ],
)
def test_a_broken_file_is_refused_by_line_or_entry(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        load(text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="cannot read the topology file"):
        load(tmp_path / "none.yaml")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="cannot read the topology file"):
        load(binary)


def test_a_pipe_is_read_like_a_file() -> None:
    end, begin = os.pipe()
    os.write(begin, b"topology: ring:3")
    os.close(begin)
    assert load(f"/dev/fd/{end}").num_ranks == 3
    os.close(end)


@pytest.mark.parametrize("text", [ASTRA, SIMAI, SLURM, OURS])
def test_a_byte_order_mark_is_no_part_of_a_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "marked"
    file.write_text(text.removeprefix("# two leaves\n"), encoding="utf-8-sig")
    assert load(file).num_ranks == load(text).num_ranks


def test_without_pyyaml_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(TopologyError, match=r"pip install 'hocket\[yaml\]'"):
        load(ASTRA)
    assert load(SLURM).num_ranks == 6


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25GB/s", 25e9),
        ("2GiB/s", 2.0**31),
        ("200Gbps", 25e9),
        ("8kb/s", 1e3),
        ("1.5e9 B/s", 1.5e9),
        ("1B/s", 1),
    ],
)
def test_bandwidths(text: str, value: float) -> None:
    assert links.bytes_per_second(text) == value


@pytest.mark.parametrize(("text", "value"), [("500ns", 5e-7), ("1.5us", 1.5e-6), ("2ms", 2e-3), ("1s", 1), ("0", 0)])
def test_latencies(text: str, value: float) -> None:
    assert links.seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["10", "1.5e9", "1 GB", "25G", "200Gb"])
def test_a_bandwidth_without_a_unit_per_second_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match=f"expected a bandwidth with its unit per second.*; found '{text}'"):
        links.bytes_per_second(text)


@pytest.mark.parametrize("text", ["2", "5e-7", "0.5u"])
def test_a_latency_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match=f"expected a latency with its unit.*; found '{text}'"):
        links.seconds(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torus:4y4", "'4y4' is not a whole number; expected torus:NxM"),
        ("torus:100000x100000", "torus:100000x100000: found 10000000000 nodes or more; expected at most 16777216"),
        ("torus:4294967296x4294967296", "found 18446744073709551616 nodes or more"),
        ("hypercube:24", "hypercube:24: found 25165824 links or more"),
        ("fat-tree:16,oversubscription=0.0001", "nodes or more; expected at most 16777216"),
        ("dragonfly:1,1,1000000000,2", "links or more; expected at most 16777216"),
        ("dragonfly:100000,1,1,2", "links or more; expected at most 16777216"),
        ("fully-connected:2000@ring:1000", "links or more; expected at most 16777216"),
        ("torus", "found 0 sizes"),
        ("ring:3,foo=1", "unknown option foo; the options of ring and their defaults are link=inf"),
        ("ring:3,latency=1us,latency=2us", "latency appears twice"),
        ("ring:3,latency=fast", "latency=fast: expected a latency with its unit, such as 500ns or 1.5us"),
        ("ring:3,bandwidth=fast", "bandwidth=fast: expected a bandwidth with its unit per second, such as 25GB/s"),
        ("ring:3,latency=-1us", "seconds of latency; expected 0 or more"),
        ("dgx-h100:1,nic-latency=5parsec", "'dgx-h100:1,nic-latency=5parsec': nic-latency=5parsec: expected a latency"),
        ("fat-tree:16,oversubscription=nan", "oversubscription=nan is not a positive number"),
        (
            "fat-tree:16,oversubscription=1e308",
            "4 ports leave no cable up, or none down, with an oversubscription of 1e",
        ),
        ("fat-tree:16,radix=1" + 25 * "0", "0' has more than 18 digits; expected fat-tree:RANKS"),
        ("ring:" + 5000 * "9", "9' has more than 18 digits; expected ring:RANKS"),
        (
            "ring:4,bandwidth=1e-320B/s",
            "rank0->rank1 has .* bytes_per_second; expected a positive number, 1e-100 to 1e+",
        ),
        ("ring:4,bandwidth=1e308B/s", "rank0->rank1 has 1e.308 bytes_per_second; expected a positive number"),
        ("ring:4,latency=1e308s", "rank0->rank1 has 1e.308 seconds of latency; expected 0 or more, to 1e"),
        ("fat-tree:16,oversubscription=inf", "oversubscription=inf is not a positive number"),
        ("ring:4,link=core,latency=1us", "the bandwidth of core links is unknown: set bandwidth="),
        ("dgx-h100:2,memory-foo=3", "memory-latency=0.100us, .*nic-link=infiniband-ndr, .*did you mean 'memory-link'?"),
        ("npu8:1,direct-latency=1us,nic=3", "direct-link=ub, direct-bandwidth=28GB/s, direct-latency=, reduces=no"),
        ("fat-tree:4,x=", "link=infiniband-ndr, bandwidth=48.5GB/s, .*radix=, oversubscription=1, routing=dmodk"),
        ("ring:4@", "expected INNER@OUTER, each KIND:ARGS; found 'ring:4@'"),
        ("ring:3@circle:4", "expected KIND:ARGS, KIND one of"),
    ],
)
def test_a_wrong_text_is_refused_with_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.5, "0.5 B/s"),
        (23.46e9, "23.5 GB/s"),
        (999.6e6, "1 GB/s"),
        (999.4e6, "999 MB/s"),
        (4.56e15, "4560 TB/s"),
    ],
)
def test_a_bandwidth_is_written_with_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert links.name_bandwidth(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.00 us"),
        (1e-20, "0.00 us"),
        (0.02e-9, "0.0200 ns"),
        (9.99e-9, "9.99 ns"),
        (9.996e-9, "0.0100 us"),
        (12.34e-6, "12.3 us"),
        (999.6e-6, "1.00 ms"),
        (0.9996, "1.00 s"),
        (6107955.1, "6107955 s"),
    ],
)
def test_a_time_is_written_with_three_digits_in_the_unit_that_fits(value: float, text: str) -> None:
    assert links.name_seconds(value) == text
