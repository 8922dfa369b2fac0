"""The measured host as a machine file, for `hocket simulate`, `expect` and `calibrate --machine`.

Every rank is an accelerator of the kind `home`. Ranks run Hocket, whose calls have one protocol: no flags, no fences.
"""

import platform
from collections.abc import Sequence

from hocket.runtime.tuning.link_times import LinkTimes, topology_of
from hocket.runtime.tuning.machine_costs import MachineCosts

_TEXT = """\
title: {title}
topology: home:HOSTS,{options}
bandwidth_share: {share:.4g}{why}
hop_latency: 0us
launch: 0us
fabric: measured
fabrics: {{measured: 0us}} # the time of hops between hosts is that of the protocol
copy: {rate}
low_latency: [{rate}, {rate}, {rate}] # of a protocol that Hocket does not have
algorithms: [ring, direct]
protocols:
  ring: &hocket {{Simple: {{begin: 0us, inside: {inside}, between: {between}, share: 1}}}}
  tree: *hocket
  switches: *hocket
  direct: *hocket
"""
_ETHERNET_SECONDS = 20e-6  # a message over the links of 1 Gb/s that `home` has between hosts, in two hops


def machine_of_costs(costs: MachineCosts) -> str:
    """Returns the file of this host: a rank for each core, as fast as copies of all cores at once in main memory.

    Bounds follow from copies of one core in its cache, which nothing beats. Hosts of its kind are connected by the
    gigabit Ethernet of `home`.
    """
    rate = costs.together_bytes_per_second["copy"] / costs.num_cores
    fastest = max(rate, *costs.bytes_per_second["copy"].values())
    options = _one_host(costs.num_cores, costs.hop_seconds, fastest)
    why = " # copies in main memory by all cores, over those in the cache of one core"
    return _text(options, costs.hop_seconds, _ETHERNET_SECONDS, rate, rate / fastest, why)


def machine_of_links(links: Sequence[LinkTimes], hosts: Sequence[int]) -> str:
    """Returns the file of the hosts of a job, with the times of its messages. hosts: that of each rank.

    Raises ValueError if hosts have unlike numbers of ranks.
    """
    sizes = sorted({list(hosts).count(host) for host in hosts})
    if len(sizes) > 1:
        raise ValueError(f"-o: expected hosts with equally many ranks, as a machine has; found {sizes}; start as many")
    times = {one.kind: one for one in links}
    across = times.get("across")
    inside = times.get("inside", across)
    assert inside is not None, "a job of one rank has no links"
    if across is None:
        options = _one_host(sizes[0], inside.short_seconds, inside.bytes_per_second)
        return _text(options, inside.short_seconds, _ETHERNET_SECONDS, inside.bytes_per_second)
    _, _, options = topology_of(links, hosts).partition(",")
    return _text(options, inside.short_seconds, across.short_seconds, inside.bytes_per_second)


def _one_host(num_ranks: int, seconds: float, bytes_per_second: float) -> str:
    """Returns the options of `home` for one host, whose ranks are two links apart."""
    link = f"pcie-bandwidth={_rate(bytes_per_second)},pcie-latency={_us(seconds / 2)}"
    return f"gpus={num_ranks},gpu-direct=yes,{link}"


def _text(
    options: str, inside: float, between: float, bytes_per_second: float, share: float = 1.0, why: str = ""
) -> str:
    return _TEXT.format(
        title=f"Hocket on {platform.node() or 'this host'}",
        options=options,
        share=share,
        why=why,
        rate=_rate(bytes_per_second),
        inside=_us(inside),
        between=_us(between),
    )


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.4g}GB/s"


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.4g}us"
