"""All kinds of networks by name, and `parse`, which makes a network from a text "KIND:ARGS".

For example "torus:4x4,bandwidth=50GB/s,latency=1us": sizes first, then options by name. `bandwidth`, `latency` and
`link` (a name of `links.LINKS`) set the constants of the links. "dgx-h100:1@torus:4x4" has a pod at each torus rank.
"""

from dataclasses import replace

from hocket.errors import TopologyError, did_you_mean
from hocket.network.kinds import regular
from hocket.network.kinds.composition import compose
from hocket.network.kinds.dragonfly import Dragonfly
from hocket.network.kinds.fat_tree import fat_tree
from hocket.network.kinds.hosts import AFFINITIES, FABRICS, pod
from hocket.network.kinds.kind_arguments import KindArguments, NetworkKind
from hocket.network.kinds.pods import PODS
from hocket.network.links import LINKS
from hocket.network.topology import Topology


def _grid(arguments: KindArguments, *, closed: bool) -> Topology:
    shape = arguments.dims()
    return regular.grid(shape, [closed] * len(shape), arguments.link(), name=arguments.text)


def _line(arguments: KindArguments, *, closed: bool) -> Topology:
    return regular.grid(arguments.integers(1), [closed], arguments.link(), name=arguments.text)


def _hypercube(arguments: KindArguments) -> Topology:
    [dimensions] = arguments.integers(1)
    if not 1 <= dimensions <= 24:
        raise arguments.wrong(f"expected 1 to 24 dimensions, found {dimensions}")
    return regular.grid([2] * dimensions, [False] * dimensions, arguments.link(), name=arguments.text)


def _fully_connected(arguments: KindArguments) -> Topology:
    [num_ranks] = arguments.integers(1)
    return regular.fully_connected(num_ranks, arguments.link(), name=arguments.text)


def _one_switch(arguments: KindArguments) -> Topology:
    [num_ranks] = arguments.integers(1)
    reduces = arguments.choice("reduces", "no", "yes") == "yes"
    return regular.one_switch(num_ranks, arguments.link(), name=arguments.text, reduces=reduces)


def _fat_tree(arguments: KindArguments) -> Topology:
    [num_ranks] = arguments.integers(1)
    return fat_tree(
        num_ranks,
        arguments.link(),
        name=arguments.text,
        levels=int(arguments.choice("levels", "3", "2")),
        radix=arguments.integer("radix", 0) or None,
        oversubscription=arguments.number("oversubscription", 1),
        spread=arguments.choice("routing", "dmodk", "ecmp"),
        reduces=arguments.choice("reduces", "no", "yes") == "yes",
    )


def _dragonfly(arguments: KindArguments) -> Topology:
    a, p, h, g = arguments.integers(4)
    return _draw_dragonfly(arguments, Dragonfly(a, p, h, g, 0, arguments.choice("routing", *_DETOURS)))


def _dragonfly_plus(arguments: KindArguments) -> Topology:
    leaves, hosts, spines, h, g = arguments.integers(5)
    if not spines:
        raise arguments.wrong("0 spines")
    return _draw_dragonfly(arguments, Dragonfly(leaves, hosts, h, g, spines, arguments.choice("routing", *_DETOURS)))


def _draw_dragonfly(arguments: KindArguments, dragonfly: Dragonfly) -> Topology:
    link = arguments.link()
    return dragonfly.draw(link, arguments.link(prefix="global-", default=link), arguments.text)


def _pod(arguments: KindArguments) -> Topology:
    host = PODS[arguments.kind.name][0]
    [count] = arguments.integers(1)
    pcie = host.pcie and arguments.link(host.pcie, "pcie-")
    if pcie is not None:
        pcie = {"yes": pcie, "no": None}[arguments.choice("pcie", "yes", "no")]
    memory = arguments.link(host.memory or LINKS["ddr4-3200x8"], "memory-")
    staged = arguments.choice("gpu-direct", *(("yes", "no") if host.memory is None else ("no", "yes"))) == "no"
    changed = replace(
        host,
        gpus=host.gpus if host.lanes else arguments.integer("gpus", host.gpus),
        nics=arguments.integer("nics", host.nics),
        sockets=arguments.integer("sockets", host.sockets),
        switches=arguments.integer("switches", host.switches),
        affinity=arguments.choice("affinity", host.affinity, *(each for each in AFFINITIES if each != host.affinity)),
        nic=arguments.link(host.nic, "nic-"),
        pcie=pcie,
        socket=arguments.link(host.socket, "socket-"),
        direct=host.direct and arguments.link(host.direct, "direct-"),
        memory=memory if staged else None,
        reduces=arguments.choice("reduces", "no", "yes") == "yes",
    )
    return pod(changed, count, arguments.choice("fabric", *FABRICS), arguments.text)


_DETOURS = ("minimal", "valiant")
_LINK = "[,link=NAME][,bandwidth=,latency=]"
_HOST = (
    f"[,gpus=,nics=,sockets=,switches=][,affinity={'|'.join(AFFINITIES)}][,fabric={'|'.join(FABRICS)}]"
    "[,gpu-direct=yes|no][,reduces=no|yes][,pcie=yes|no]"
    "[,nic-link=,nic-bandwidth=,nic-latency=; the same for pcie-, socket-, direct- and memory-]"
)

KINDS = {
    kind.name: kind
    for kind in (
        NetworkKind("line", f"RANKS{_LINK}", "ranks in a row", lambda arguments: _line(arguments, closed=False)),
        NetworkKind("ring", f"RANKS{_LINK}", "ranks in a ring", lambda arguments: _line(arguments, closed=True)),
        NetworkKind("mesh", f"NxM...{_LINK}", "a grid of ranks", lambda arguments: _grid(arguments, closed=False)),
        NetworkKind(
            "torus", f"NxM...{_LINK}", "a grid with closed axes", lambda arguments: _grid(arguments, closed=True)
        ),
        NetworkKind("hypercube", f"DIMENSIONS{_LINK}", "2^DIMENSIONS ranks, linked if one bit differs", _hypercube),
        NetworkKind("fully-connected", f"RANKS{_LINK}", "a cable between every two ranks", _fully_connected),
        NetworkKind("switch", f"RANKS[,reduces=no|yes]{_LINK}", "all ranks on one switch", _one_switch),
        NetworkKind(
            "fat-tree",
            f"RANKS[,levels=3|2][,radix=][,oversubscription=][,routing=dmodk|ecmp][,reduces=no|yes]{_LINK}",
            "a tree of switches with equal bandwidth up and down",
            _fat_tree,
        ),
        NetworkKind(
            "dragonfly",
            f"a,p,h,g[,routing=minimal|valiant][,global-link=...]{_LINK}",
            "g groups of a routers with p hosts and h global cables each",
            _dragonfly,
        ),
        NetworkKind(
            "dragonfly+",
            f"LEAVES,p,SPINES,h,g[,routing=minimal|valiant][,global-link=...]{_LINK}",
            "g groups of leaves with p hosts each, and of spines with h global cables each",
            _dragonfly_plus,
        ),
        *(NetworkKind(name, f"HOSTS{_HOST}", about, _pod) for name, (_, about) in PODS.items()),
    )
}
"""All kinds, by name."""


def parse(text: str) -> Topology:
    """Returns the network of a text "KIND:ARGS", for example "torus:4x4".

    "INNER@OUTER" puts the network INNER at each rank of OUTER, for example "dgx-h100:1@torus:4x4".
    Raises a TopologyError that lists the valid kinds or arguments.
    """
    inner, at, beyond = text.partition("@")
    if at:
        if not inner or not beyond:
            raise TopologyError(f"expected INNER@OUTER, each KIND:ARGS; found {text!r}")
        outer = parse(beyond)
        return compose(outer, [parse(inner)] * outer.num_ranks, name=text)
    name = text.partition(":")[0]
    if name not in KINDS:
        raise TopologyError(
            f"expected KIND:ARGS, KIND one of {', '.join(KINDS)}; found {text!r}{did_you_mean(name, KINDS)}"
        )
    arguments = KindArguments(text, KINDS[name])
    topology = KINDS[name].make(arguments)
    arguments.check_all_read()
    return topology
