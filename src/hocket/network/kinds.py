"""Every kind of network by name, and the text "KIND:ARGS" that makes one.

"torus:4x4,bandwidth=50GB/s,latency=1us": sizes first, then options by name. `bandwidth`, `latency` and `link` (a name
of `links.LINKS`) say what the links of a kind are made of. "dgx-h100:1@torus:4x4" has a pod at each rank of a torus.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hocket.errors import TopologyError
from hocket.network import links, regular
from hocket.network.composition import compose
from hocket.network.dragonfly import Dragonfly
from hocket.network.fat_tree import fat_tree
from hocket.network.hosts import AFFINITIES, FABRICS, pod
from hocket.network.links import LINKS, Link
from hocket.network.pods import PODS
from hocket.network.topology import Topology

T = TypeVar("T")

_MOST_DIGITS = 18  # of a whole number: more are no int64


@dataclass
class Arguments:
    """What stands behind the colon; each part is asked for once, and what nobody asked for is refused."""

    text: str
    kind: "Kind"
    sizes: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _, _, behind = self.text.partition(":")
        for part in filter(None, behind.split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                self.sizes.append(part)
            elif key in self.options:
                raise self.wrong(f"{key} stands twice")
            else:
                self.options[key] = value

    def dims(self) -> list[int]:
        """The only size, as in "4x4"."""
        [text] = self._sizes(1)
        return [self._integer(part, text) for part in text.split("x")]

    def integers(self, count: int) -> list[int]:
        """So many sizes, one after the other."""
        return [self._integer(text, text) for text in self._sizes(count)]

    def integer(self, key: str, default: int) -> int:
        """An option that is a whole number."""
        text = self.options.pop(key, None)
        return default if text is None else self._integer(text, f"{key}={text}")

    def number(self, key: str, default: float) -> float:
        """An option that is a positive number."""
        text = self.options.pop(key, None)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise self.wrong(f"{key}={text} is no positive number")
        return value

    def choice(self, key: str, *choices: str) -> str:
        """An option that is one of these words; the first is what it is where nothing is said."""
        value = self.options.pop(key, choices[0])
        if value not in choices:
            raise self.wrong(f"{key}={value} is none of {', '.join(choices)}")
        return value

    def link(self, default: Link = LINKS["infiniband-ndr"], prefix: str = "") -> Link:
        """What the links are made of: options link, bandwidth and latency, with a prefix where there are several."""
        link = self._read(f"{prefix}link", links.find_link) or default
        bandwidth = self._read(f"{prefix}bandwidth", links.bytes_per_second)
        link = link.with_(bandwidth, self._read(f"{prefix}latency", links.seconds))
        for figure, value in (("bandwidth", link.bytes_per_second), ("latency", link.seconds)):
            if math.isnan(value):
                raise self.wrong(f"the {figure} of {link.link_class} links is unknown: give {prefix}{figure}=")
        return link

    def wrong(self, what: str) -> TopologyError:
        """The error for a text that cannot be read."""
        return TopologyError(f"{self.text!r}: {what}; expected {self.kind.name}:{self.kind.usage}")

    def _read(self, key: str, read: Callable[[str], T]) -> T | None:
        text = self.options.pop(key, None)
        try:
            return None if text is None else read(text)
        except TopologyError as error:
            raise self.wrong(f"{key}={text}: {error}") from None

    def _sizes(self, count: int) -> list[str]:
        sizes, self.sizes = self.sizes, []
        if len(sizes) != count:
            raise self.wrong(f"found {len(sizes)} sizes")
        return sizes

    def _integer(self, text: str, where: str) -> int:
        if not (text.isascii() and text.isdecimal()):
            raise self.wrong(f"{where!r} is no whole number")
        if len(text) > _MOST_DIGITS:
            raise self.wrong(f"{where!r} has more than {_MOST_DIGITS} digits")
        return int(text)


@dataclass(frozen=True)
class Kind:
    """One kind of network. usage: what stands behind the colon. make: from the arguments to the network."""

    name: str
    usage: str
    about: str
    make: Callable[[Arguments], Topology]


def _grid(arguments: Arguments, *, closed: bool) -> Topology:
    shape = arguments.dims()
    return regular.grid(shape, [closed] * len(shape), arguments.link(), name=arguments.text)


def _line(arguments: Arguments, *, closed: bool) -> Topology:
    return regular.grid(arguments.integers(1), [closed], arguments.link(), name=arguments.text)


def _hypercube(arguments: Arguments) -> Topology:
    [dimensions] = arguments.integers(1)
    if not 1 <= dimensions <= 24:
        raise arguments.wrong(f"{dimensions} dimensions are not 1 to 24")
    return regular.grid([2] * dimensions, [False] * dimensions, arguments.link(), name=arguments.text)


def _fully_connected(arguments: Arguments) -> Topology:
    [num_ranks] = arguments.integers(1)
    return regular.fully_connected(num_ranks, arguments.link(), name=arguments.text)


def _one_switch(arguments: Arguments) -> Topology:
    [num_ranks] = arguments.integers(1)
    reduces = arguments.choice("reduces", "no", "yes") == "yes"
    return regular.one_switch(num_ranks, arguments.link(), name=arguments.text, reduces=reduces)


def _fat_tree(arguments: Arguments) -> Topology:
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


def _dragonfly(arguments: Arguments) -> Topology:
    a, p, h, g = arguments.integers(4)
    return _draw_dragonfly(arguments, Dragonfly(a, p, h, g, 0, arguments.choice("routing", *_DETOURS)))


def _dragonfly_plus(arguments: Arguments) -> Topology:
    leaves, hosts, spines, h, g = arguments.integers(5)
    if not spines:
        raise arguments.wrong("0 spines")
    return _draw_dragonfly(arguments, Dragonfly(leaves, hosts, h, g, spines, arguments.choice("routing", *_DETOURS)))


def _draw_dragonfly(arguments: Arguments, dragonfly: Dragonfly) -> Topology:
    link = arguments.link()
    return dragonfly.draw(link, arguments.link(prefix="global-", default=link), arguments.text)


def _pod(arguments: Arguments) -> Topology:
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
    "[,gpu-direct=yes|no][,reduces=no|yes][,pcie=yes|no][,direct-bandwidth=,nic-latency=,pcie-link=,memory-...,socket-...]"
)

KINDS = {
    kind.name: kind
    for kind in (
        Kind("line", f"RANKS{_LINK}", "ranks in a row", lambda arguments: _line(arguments, closed=False)),
        Kind("ring", f"RANKS{_LINK}", "ranks in a ring", lambda arguments: _line(arguments, closed=True)),
        Kind("mesh", f"NxM...{_LINK}", "a grid of ranks", lambda arguments: _grid(arguments, closed=False)),
        Kind("torus", f"NxM...{_LINK}", "a grid of ranks, closed", lambda arguments: _grid(arguments, closed=True)),
        Kind("hypercube", f"DIMENSIONS{_LINK}", "2^DIMENSIONS ranks, joined where one bit differs", _hypercube),
        Kind("fully-connected", f"RANKS{_LINK}", "a cable between every two ranks", _fully_connected),
        Kind("switch", f"RANKS[,reduces=no|yes]{_LINK}", "all ranks on one switch", _one_switch),
        Kind(
            "fat-tree",
            f"RANKS[,levels=3|2][,radix=][,oversubscription=][,routing=dmodk|ecmp][,reduces=no|yes]{_LINK}",
            "a tree of switches with as much bandwidth above as below",
            _fat_tree,
        ),
        Kind(
            "dragonfly",
            f"a,p,h,g[,routing=minimal|valiant][,global-link=...]{_LINK}",
            "g groups of a routers with p hosts and h global cables each",
            _dragonfly,
        ),
        Kind(
            "dragonfly+",
            f"LEAVES,p,SPINES,h,g[,routing=minimal|valiant][,global-link=...]{_LINK}",
            "g groups of leaves with p hosts each, and of spines with h global cables each",
            _dragonfly_plus,
        ),
        *(Kind(name, f"HOSTS{_HOST}", about, _pod) for name, (_, about) in PODS.items()),
    )
}
"""All kinds, by name."""


def make(text: str) -> Topology:
    """The network of "KIND:ARGS", or "INNER@OUTER"; TopologyError for an unknown kind or argument."""
    inner, at, beyond = text.partition("@")
    if at:
        if not inner or not beyond:
            raise TopologyError(f"expected INNER@OUTER, each KIND:ARGS; found {text!r}")
        outer = make(beyond)
        return compose(outer, [make(inner)] * outer.num_ranks, name=text)
    name = text.partition(":")[0]
    if name not in KINDS:
        raise TopologyError(f"expected KIND:ARGS with a kind of {', '.join(KINDS)}; found {text!r}")
    arguments = Arguments(text, KINDS[name])
    topology = KINDS[name].make(arguments)
    if arguments.options:
        raise arguments.wrong(f"unknown option {next(iter(arguments.options))}")
    return topology
