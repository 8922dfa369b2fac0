"""Reads machines from YAML. A file states what differs from its `base`, which is another file or a shipped machine.

base: nccl                        # the constants of NCCL's cost model (nccl.yaml); or another machine, such as h100
title: H100, NCCL in a CUDA graph
topology: dgx-h100:HOSTS          # KIND:ARGS, with HOSTS for the number of hosts
bandwidth_share: 1                # of every link's bandwidth, before the protocol takes its share
hop_latency: 0us                  # added to each hop, but not to those through reducing switches inside hosts
launch: 0us                       # from the call to the first instruction
fabric: infiniband                # a name in `fabrics`, whose time is added to each hop between hosts
fabrics: {infiniband: 0us, roce: 1us}
post: 1us                         # the least time of a ring's hop on several hosts; three times that for Simple
copy: 1675GB/s                    # of a copy within a GPU's memory
low_latency: [141GB/s, 39GB/s, 20.4GB/s]  # the most busbw that LL reaches on 1, on 2, on more hosts
switch_share: 0.85                # of a switch's links while it reduces (NVLS); fabric_share: between hosts (SHARP)
algorithms: [ring, tree, nvls]    # those that the library chooses from
protocols: {ring: {LL: {begin: 6.6us, inside: 0.6us, between: 2.7us, share: 0.5}}}

A protocol may also have share_between, if it differs between hosts; per_card: [23.6GB/s, 17.8GB/s], the most busbw per
network card on 2 and on more hosts; plateau: 1.4, times the latency of a ring's all_reduce on several hosts; and
by_size: [1, 0.9], times the bandwidth for vectors of 64 B, of 128 B and so on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hocket.errors import TopologyError, did_you_mean
from hocket.network.files.yaml_text import read_yaml
from hocket.network.links import bytes_per_second, seconds
from hocket.network.machines.machine import HOSTS, PROTOCOLS, Machine, Protocol, Protocols

_SHIPPED = Path(__file__).parent
_COMMON = "nccl"  # constants only, no machine
MACHINES = tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml") if path.stem != _COMMON))
"""The names of the shipped machines."""

_NAMES = (*MACHINES, _COMMON)

LIBRARY_ALGORITHMS = ("ring", "tree", "nvls", "sharp", "direct")
"""What a library may run: rings, trees, reducing switches in hosts or also between them, exchanges of all pairs."""

_FAMILIES = Protocols._fields
_MOST_BASES = 8
_KEYS = {
    *("base", "title", "topology", "bandwidth_share", "hop_latency", "launch", "fabric", "fabrics", "post", "copy"),
    *("low_latency", "switch_share", "fabric_share", "algorithms", "protocols"),
}
_NEEDED = {"begin", "inside", "between", "share"}  # by a protocol
_OPTIONAL = {"share_between", "per_card", "plateau", "by_size"}


def load_machine(named: str) -> Machine:
    """Returns a shipped machine by name, or the machine of a YAML file.

    Raises a TopologyError that names the wrong entry.
    """
    return _machine(*_with_bases(named)[:2], named)


def machine_files(named: str) -> tuple[Path, ...]:
    """Returns the file of a machine and those of its bases, without shipped ones. Raises as `load_machine`."""
    return tuple(Path(one).resolve() for one in _with_bases(named)[2] if one not in _NAMES)


def _with_bases(named: str) -> tuple[dict[str, Any], Path, list[str]]:
    """Returns all entries, the folder of the files that they name, and the machine with its bases."""
    entries, bases = _entries(named), [named]
    folder = Path(named).parent
    while (base := entries.pop("base", None)) is not None:
        if len(bases) == _MOST_BASES:
            raise TopologyError(f"machine {named}: base: expected at most {_MOST_BASES}; found {' <- '.join(bases)}")
        # A machine by name, or a file as it lies beside the one that names it.
        bases.append(str(base) if base in _NAMES else str(Path(bases[-1]).parent / str(base)))
        if "topology" not in entries:
            folder = Path(bases[-1]).parent
        entries = _merged(_entries(bases[-1]), entries)
    return entries, folder, bases


def _entries(named: str) -> dict[str, Any]:
    if named in _NAMES:
        return dict(_shipped(named))
    if not Path(named).is_file():
        raise TopologyError(
            f"expected a machine, one of {', '.join(MACHINES)}, or a YAML file; found {named!r}"
            f"{did_you_mean(Path(named).name, MACHINES)}"
        )
    return _read_entries(Path(named))


@lru_cache
def _shipped(named: str) -> dict[str, Any]:
    return _read_entries(_SHIPPED / f"{named}.yaml")


def _read_entries(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"cannot read the machine file {str(path)!r}: {error}") from error
    entries = read_yaml(text, path.name)
    for key in entries:
        if key not in _KEYS:
            raise TopologyError(
                f"{path.name}: expected entries of a machine, of {', '.join(sorted(_KEYS))}; found {key!r}"
                f"{did_you_mean(str(key), _KEYS)}"
            )
    return entries


def _merged(base: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries over those of the base; entries by name are merged, all others replaced."""
    merged = dict(base)
    for key, value in entries.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _machine(entries: dict[str, Any], folder: Path, named: str) -> Machine:
    where = f"machine {named}"
    topology = entries.get("topology")
    if not isinstance(topology, str) or HOSTS not in topology:
        raise TopologyError(
            f"{where}: topology: expected KIND:ARGS with {HOSTS} for the number of hosts, such as dgx-h100:{HOSTS}; "
            f"found {topology!r}"
        )
    fabrics, fabric = entries.get("fabrics"), entries.get("fabric")
    if not isinstance(fabrics, dict) or fabric not in fabrics:
        known = ", ".join(map(str, fabrics or ()))
        raise TopologyError(f"{where}: fabric: expected a name in fabrics ({known}); found {fabric!r}")
    one, two, more = _bandwidths(entries.get("low_latency"), ("1", "2", "more"), f"{where}: low_latency")
    algorithms = entries.get("algorithms")
    if not isinstance(algorithms, list) or not algorithms or set(map(str, algorithms)) - set(LIBRARY_ALGORITHMS):
        raise TopologyError(
            f"{where}: algorithms: expected a list of {', '.join(LIBRARY_ALGORITHMS)}; found {algorithms!r}"
        )
    for algorithm, key in (("nvls", "switch_share"), ("sharp", "fabric_share")):
        if algorithm in algorithms and key not in entries:
            raise TopologyError(f"{where}: expected {key}, because algorithms has {algorithm}; found none")
    return Machine(
        name=Path(named).stem,
        title=str(entries.get("title", named)),
        topology=topology,
        folder=folder,
        bandwidth_share=_share(entries, "bandwidth_share", where),
        hop_seconds=_read(seconds, entries.get("hop_latency"), f"{where}: hop_latency"),
        fabric=str(fabric),
        fabric_seconds=_read(seconds, fabrics[fabric], f"{where}: fabrics: {fabric}"),
        post_seconds=_read(seconds, entries.get("post", "0us"), f"{where}: post"),
        launch_seconds=_read(seconds, entries.get("launch"), f"{where}: launch"),
        copy_bytes_per_second=_read(bytes_per_second, entries.get("copy"), f"{where}: copy"),
        low_latency_bytes_per_second=(one, two, more),
        switch_share=_share(entries, "switch_share", where) if "switch_share" in entries else None,
        fabric_share=_share(entries, "fabric_share", where) if "fabric_share" in entries else None,
        protocols=_protocols(entries.get("protocols"), f"{where}: protocols"),
        algorithms=tuple(map(str, algorithms)),
    )


def _protocols(entries: Any, where: str) -> Protocols:
    found: dict[str, tuple[Protocol, ...]] = {}
    for family, by_name in entries.items() if isinstance(entries, dict) else ():
        if family not in _FAMILIES or not isinstance(by_name, dict) or set(by_name) - set(PROTOCOLS):
            raise TopologyError(
                f"{where}: expected {', '.join(_FAMILIES)}, each with some of {', '.join(PROTOCOLS)}; found {family}: "
                f"{by_name!r}"
            )
        found[family] = tuple(_protocol(name, one, f"{where}: {family}: {name}") for name, one in by_name.items())
    if set(found) != set(_FAMILIES) or not all(found.values()):
        raise TopologyError(f"{where}: expected {', '.join(_FAMILIES)}; found {', '.join(found) or repr(entries)}")
    return Protocols(**found)


def _protocol(name: str, entries: Any, where: str) -> Protocol:
    if not isinstance(entries, dict) or set(entries) - _NEEDED - _OPTIONAL or _NEEDED - set(entries):
        raise TopologyError(
            f"{where}: expected {', '.join(sorted(_NEEDED))}, and perhaps {', '.join(sorted(_OPTIONAL))}; found "
            f"{entries!r}"
        )
    begin, inside, between = (_read(seconds, entries[key], f"{where}: {key}") for key in ("begin", "inside", "between"))
    share, card = _share(entries, "share", where), (math.inf, math.inf)
    if "per_card" in entries:
        two, more = _bandwidths(entries["per_card"], ("2", "more"), f"{where}: per_card")
        card = (two, more)
    plateau = entries.get("plateau", 1)
    if isinstance(plateau, bool) or not isinstance(plateau, int | float) or not 1 <= plateau < math.inf:
        raise TopologyError(f"{where}: plateau: expected a number, 1 or more; found {plateau!r}")
    shares = entries.get("by_size", [])
    if not isinstance(shares, list):
        raise TopologyError(f"{where}: by_size: expected a list of shares, for 64 B, 128 B and so on; found {shares!r}")
    return Protocol(
        name,
        begin,
        inside,
        between,
        share,
        _share({"share_between": share} | entries, "share_between", where),
        card,
        float(plateau),
        tuple(_share({"by_size": one}, "by_size", where) for one in shares),
    )


def _bandwidths(found: Any, hosts: Sequence[str], where: str) -> list[float]:
    if not isinstance(found, list) or len(found) != len(hosts):
        raise TopologyError(f"{where}: expected a bandwidth each for {', '.join(hosts)} hosts; found {found!r}")
    return [_read(bytes_per_second, one, where) for one in found]


def _share(entries: Mapping[str, Any], key: str, where: str) -> float:
    found = entries.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found <= 1:
        raise TopologyError(f"{where}: {key}: expected a share, above 0 and at most 1; found {found!r}")
    return float(found)


def _read(reader: Callable[[str], float], found: Any, where: str) -> float:
    try:
        value = reader(str(found))
    except TopologyError as error:
        raise TopologyError(f"{where}: {error}") from None
    if not 0 <= value < math.inf or (reader is bytes_per_second and not value):
        raise TopologyError(
            f"{where}: expected a value that is not negative, and above 0 if it is a bandwidth; found {found!r}"
        )
    return value
