"""Reads a network in Hocket's YAML: a kind with changes, a network nested in another, or single nodes and cables.

topology: torus:4x4          # KIND:ARGS; or `nodes` and `links`; or `outer` and `inner`
change: [{link: rank0->rank1, bandwidth: 1GB/s, latency: 5us}]    # or a class, or kinds of nodes: edge<->core
ranks: [rank0, rank3, rank5] # use only these nodes as ranks
routes: [[rank0, rank4, rank5]]

nodes: {gpu: [g0, g1], switch: [s]}    # names by kind; reducing: [s] lists switches that reduce and multicast
links: [{between: [g0, s], class: nic, bandwidth: 25GB/s, latency: 1us}, {from: g1, to: s, link: roce-100g}]

outer: torus:2x2             # KIND:ARGS, or a file beside this one; inner and topology too
inner: [dgx-h100:1, dgx-h100:1, dgx-a100:1, home:1]    # or one for all

A range such as g0..g63 stands for the nodes in it, in `nodes`, in `ranks` and in `reducing`. {each: g0..g63, to: s,
link: roce-400g} is a cable from each of them, or from each node of a kind, to s, or to the nodes of a range in turn.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hocket.errors import TopologyError, did_you_mean
from hocket.network.files.host_list import expand_host_list
from hocket.network.files.yaml_text import EACH_NAME, ranges_in
from hocket.network.kinds.composition import compose
from hocket.network.links import Link, bytes_per_second, find_link, seconds
from hocket.network.routing import ShortestPath, Supplied
from hocket.network.topology import Topology

_BASES = ({"topology"}, {"nodes", "links"}, {"outer", "inner"})
_CHANGES = {"name", "change", "ranks", "routes", "reducing"}
_LINK_KEYS = {"between", "from", "to", "each", "link", "class", "bandwidth", "latency"}
_MOST_NAMED = 12  # nodes in an error
_RANGE_OF_NODES = re.compile(r"([^\[\]{}.]*?)(\d+)\.\.([^\[\]{}.\d]*)(\d+)")  # g0..g63, or g0..63
_ENDPOINTS = ("gpu", "npu", "host")  # kinds that do not forward traffic of others


def from_description(entries: Mapping[str, Any], name: str, load: Callable[[str], Topology]) -> Topology:
    """Returns the network of these entries. `name` (of the file) appears in errors and is the default name.
    load: makes the networks that it names, from KIND:ARGS or a file. Raises a TopologyError that names the wrong entry.
    """
    base = entries.keys() - _CHANGES
    if base not in _BASES:
        raise TopologyError(
            f"{name}: expected topology, or nodes and links, or outer and inner, with {', '.join(sorted(_CHANGES))}; "
            f"found {', '.join(map(str, entries))}{_near_key(entries, _CHANGES.union(*_BASES))}"
        )
    if "topology" in base:
        topology = _made(entries["topology"], f"{name}: topology", load)
    elif "outer" in base:
        topology = _composed(entries, name, load)
    else:
        topology = _drawn(entries, name)
    for index, change in enumerate(_list(entries, "change", name)):
        topology = _changed(topology, change, f"{name}: change[{index}]")
    if reducing := _list(entries, "reducing", name):
        marked = np.isin(topology.node_names, _known(topology, reducing, f"{name}: reducing"))
        topology = replace(topology, reducing=marked)
    if routes := _list(entries, "routes", name):
        ways = [_way(topology, way, f"{name}: routes") for way in routes]
        topology = replace(topology, routing=Supplied({(way[0], way[-1]): way for way in ways}, topology.routing))
    if "ranks" in entries:
        topology = topology.place(_known(topology, _list(entries, "ranks", name), f"{name}: ranks"))
    both = topology.ranks[topology.reducing[topology.ranks]]
    if len(both):
        raise TopologyError(
            f"{name}: reducing: expected switches that are not ranks; found rank {topology.node_names[both[0]]!r}"
        )
    return replace(topology, name=str(entries.get("name", name)))


def _composed(entries: Mapping[str, Any], name: str, load: Callable[[str], Topology]) -> Topology:
    outer, inner = _made(entries["outer"], f"{name}: outer", load), entries["inner"]
    texts = [inner] * outer.num_ranks if isinstance(inner, str) else _list(entries, "inner", name)
    made = {str(text): _made(text, f"{name}: inner", load) for text in dict.fromkeys(map(str, texts))}
    return compose(outer, [made[str(text)] for text in texts], name=name)


def _made(text: Any, where: str, load: Callable[[str], Topology]) -> Topology:
    if not isinstance(text, str):
        raise TopologyError(f"{where}: expected KIND:ARGS, found {text!r}")
    try:
        return load(text)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None


def _way(topology: Topology, names: Any, where: str) -> list[str]:
    """Returns the nodes of a path; checks that a link connects each with the next."""
    way = _known(topology, names, where)
    nodes = np.array([topology.node_numbers[node] for node in way], np.int64)
    try:
        topology.links_between(nodes[:-1], nodes[1:], np.zeros(len(nodes) - 1, np.int64))
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None
    return way


def _drawn(entries: Mapping[str, Any], name: str) -> Topology:
    if not isinstance(entries["nodes"], dict):
        raise TopologyError(f"{name}: expected nodes as names by kind, found {entries['nodes']!r}")
    names, kinds = [], []
    for kind, of_kind in entries["nodes"].items():
        if not isinstance(of_kind, list):
            raise TopologyError(
                f"{name}: expected a list of names as nodes of kind {kind}, found {of_kind!r}; {EACH_NAME}"
            )
        meant = str(kind).lower().removesuffix("s")
        if meant in _ENDPOINTS and kind != meant:
            raise TopologyError(
                f"{name}: nodes: expected {', '.join(_ENDPOINTS)} as kinds of ranks, which forward nothing for others; "
                f"found {kind!r}; did you mean {meant!r}?"
            )
        for node in of_kind:
            some = _nodes(node, f"{name}: nodes")
            names += some
            kinds += [str(kind)] * len(some)
    numbers = {node: number for number, node in enumerate(names)}
    ends: list[tuple[int, int]] = []
    links: list[Link] = []
    for index, entry in enumerate(_list(entries, "links", name)):
        where = f"{name}: links[{index}]"
        pairs, link = _link(entry, where, names, kinds)
        for node in itertools.chain(*pairs):
            if node not in numbers:
                raise TopologyError(f"{where} has an unknown node {node!r}{_near(node, names, kinds)}")
        there = [(numbers[one], numbers[other]) for one, other in pairs]
        directions = there if "from" in entry else [*there, *((other, one) for one, other in there)]
        ends += directions
        links += [link] * len(directions)
    kind = np.array(kinds, np.str_)
    endpoint = np.isin(kind, _ENDPOINTS)
    several = dict.fromkeys(kinds)
    if not endpoint.any() and len(several) > 1 and "ranks" not in entries:
        raise TopologyError(
            f"{name}: nodes: expected ranks, of the kinds {', '.join(_ENDPOINTS)}, or named in ranks: [...]; found "
            f"{', '.join(several)}"
        )
    joined = np.array(ends, np.int64).reshape(-1, 2)
    return Topology(
        name=name,
        node_kinds=kind,
        ranks=np.flatnonzero(endpoint) if endpoint.any() else np.arange(len(names)),
        link_source=joined[:, 0],
        link_target=joined[:, 1],
        bytes_per_second=np.array([link.bytes_per_second for link in links], float),
        seconds=np.array([link.seconds for link in links], float),
        link_class=np.array([link.link_class for link in links], np.str_),
        forwards=~endpoint,
        routing=ShortestPath(),
        names=tuple(names),
    )


def _link(entry: Any, where: str, names: Sequence[str], kinds: Sequence[str]) -> tuple[list[tuple[str, str]], Link]:
    """Returns the pairs of nodes that an entry of `links` joins, and the link between them."""
    if not isinstance(entry, dict):
        raise TopologyError(f"{where}: expected entries by name, found {entry!r}")
    ends = entry.get("between", [entry.get("each", entry.get("from")), entry.get("to")])
    said = entry.keys() - {"bandwidth", "latency"}
    joins: tuple[set[str], ...] = ({"between"}, {"from", "to"}, {"each", "to"})
    known = said in [joined | made for joined in joins for made in ({"link"}, {"class"}, set())]
    if not known or not isinstance(ends, list) or len(ends) != 2 or None in ends:
        raise TopologyError(
            f"{where}: expected between: [a, b], or from: and to:, or each: and to:, with link:, or class:, bandwidth: "
            f"and latency:; found {entry!r}{_near_key(entry, _LINK_KEYS)}"
        )
    if "link" in entry:
        try:
            link = find_link(str(entry["link"]))
        except TopologyError as error:
            raise TopologyError(f"{where}: {error}") from None
    elif {"class", "bandwidth", "latency"} <= entry.keys():
        link = Link(str(entry["class"]), 0.0, 0.0)
    else:
        raise TopologyError(f"{where}: expected link:, or class:, bandwidth: and latency:; found {entry!r}")
    if "each" not in entry:
        return [(_node(ends[0], where), _node(ends[1], where))], link.with_(*_figures(entry, where))
    each = [name for name, kind in zip(names, kinds, strict=True) if kind == ends[0]] or _nodes(ends[0], where)
    to = _nodes(ends[1], where)
    if len(to) not in (1, len(each)):
        raise TopologyError(f"{where}: to: expected one node, or {len(each)} as in each; found {len(to)}")
    return list(zip(each, to * (len(each) // len(to)), strict=True)), link.with_(*_figures(entry, where))


def _changed(topology: Topology, entry: Any, where: str) -> Topology:
    links = str(entry.get("link") or "") if isinstance(entry, dict) else ""
    figures = {"bandwidth", "latency"}
    if not links or entry.keys() - {"link", *figures} or not entry.keys() & figures:
        raise TopologyError(
            f"{where}: expected link: a->b, or other links, with bandwidth: or latency:; found {entry!r}"
            f"{_near_key(entry, {'link', *figures}) if isinstance(entry, dict) else ''}"
        )
    bandwidth, latency = _figures(entry, where)
    try:
        return topology.with_links(links, bytes_per_second=bandwidth, seconds=latency)
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None


def _figures(entry: Mapping[str, Any], where: str) -> tuple[float | None, float | None]:
    try:
        return (
            bytes_per_second(str(entry["bandwidth"])) if "bandwidth" in entry else None,
            seconds(str(entry["latency"])) if "latency" in entry else None,
        )
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None


def _list(entries: Mapping[str, Any], key: str, name: str) -> list[Any]:
    found = entries.get(key, [])
    if not isinstance(found, list):
        raise TopologyError(f"{name}: expected a list as {key}, found {found!r}")
    return found


def _known(topology: Topology, names: Any, where: str) -> list[str]:
    if not isinstance(names, list) or not names:
        raise TopologyError(f"{where}: expected a list of nodes, found {names!r}")
    nodes = [node for some in names for node in _nodes(some, where)]
    for node in nodes:
        if node not in topology.node_numbers:
            near = _near(node, topology.node_names, topology.node_kinds.tolist())
            raise TopologyError(f"{where} has an unknown node {node!r}{near}")
    return nodes


def _near(name: str, names: Sequence[str], kinds: Iterable[str]) -> str:
    """Returns the names of nodes, and which of them the unknown one is near; or that it is a kind of nodes."""
    if name in kinds:
        return f"; {name!r} is a kind of nodes, so name its nodes one by one"
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"; the nodes are {', '.join(names[:_MOST_NAMED])}{more}{did_you_mean(name, names)}"


def _near_key(entry: Mapping[str, Any], known: Iterable[str]) -> str:
    """Returns the first unknown key and the one that it is near, as the end of an error; "" if all are known."""
    known = sorted(known)
    return next((f"; {key!r} is unknown{did_you_mean(key, known)}" for key in entry if key not in known), "")


def _nodes(name: Any, where: str) -> list[str]:
    """Returns the nodes of a range such as g0..g63, or the one node of any other name."""
    match = _RANGE_OF_NODES.fullmatch(name) if isinstance(name, str) else None
    if match is None or match[3] not in ("", match[1]):
        return [_node(name, where)]
    return expand_host_list(f"{match[1]}[{match[2]}-{match[4]}]", where)


def _node(name: Any, where: str) -> str:
    """Returns the name of a node, a text or a number in the file."""
    if isinstance(name, list | dict):
        raise TopologyError(f"{where}: expected the name of one node, found {name!r}; write an entry for each node")
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise TopologyError(
            f"{where}: expected names of nodes, found {name!r}, which YAML makes of words such as no, on and ~: quote "
            "such a name, as in 'no'"
        )
    if several := ranges_in(str(name)):
        raise TopologyError(f"{where}: expected the name of one node, found {name!r}{several}")
    return str(name)
