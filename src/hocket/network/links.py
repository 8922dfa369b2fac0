"""The catalogue of links: bytes per second in each direction and latency, each with its source, or unknown.

Bandwidths are those that long messages reach, not nominal ones: NCCL's effective constants (src/graph/topo.h) if they
exist, measured values for NICs, and for TCP the nominal bandwidth times the share of a frame that is payload.
"""

import math
import re
from dataclasses import dataclass, replace

from hocket.errors import TopologyError, did_you_mean

UNKNOWN = math.nan
"""A constant without a source. A network that needs it raises an error that asks the user for the value."""


@dataclass(frozen=True)
class Link:
    """One link in one direction. source: origin of the numbers. lanes: number of physical links that it bundles."""

    link_class: str
    bytes_per_second: float
    seconds: float
    source: str = "given"
    lanes: int = 1

    def times(self, number: int) -> "Link":
        """Returns a bundle of `number` such links in parallel."""
        return replace(self, bytes_per_second=number * self.bytes_per_second, lanes=number * self.lanes)

    def with_(self, bytes_per_second: float | None = None, seconds: float | None = None) -> "Link":
        """Returns the link with other constants; None keeps a constant."""
        return replace(
            self,
            bytes_per_second=self.bytes_per_second if bytes_per_second is None else bytes_per_second,
            seconds=self.seconds if seconds is None else seconds,
        )


_TCP = 1448 / 1538  # payload bytes over wire bytes of a 1500-byte frame
_NIC_SECONDS = 0.5e-6  # SimAI's default for NICs and switch ports
_NVLINK_SECONDS = 0.3e-6  # TACCL's NVLink profile, between two GPUs
_PCIE_SECONDS = 0.15e-6  # order of magnitude of one PCIe switch
_MEMORY_SECONDS = 0.1e-6  # order of magnitude of one memory access without caches

LINKS: dict[str, Link] = {
    "ethernet-1g": Link("nic", 0.125e9 * _TCP, 10e-6, "TCP payload of 1500-byte frames; latency: typical of a LAN"),
    "ethernet-10g": Link("nic", 1.25e9 * _TCP, 10e-6, "TCP payload of 1500-byte frames; latency: typical of a LAN"),
    "ethernet-25g": Link("nic", 3.125e9 * _TCP, 10e-6, "TCP payload of 1500-byte frames; latency: typical of a LAN"),
    "ethernet-100g": Link("nic", 12.5e9 * _TCP, 10e-6, "TCP payload of 1500-byte frames; latency: typical of a LAN"),
    "roce-100g": Link("nic", 12e9, _NIC_SECONDS, "NCCL topo.h: NET 12; latency: SimAI"),
    "roce-200g": Link("nic", 23.5e9, _NIC_SECONDS, "measured on ConnectX-6; latency: SimAI"),
    "roce-400g": Link("nic", 48.5e9, _NIC_SECONDS, "SimAI -nic 48.5, measured on ConnectX-7; latency: SimAI"),
    "infiniband-edr": Link("nic", 12e9, _NIC_SECONDS, "NCCL topo.h: NET 12; latency: SimAI"),
    "infiniband-hdr": Link("nic", 23.5e9, _NIC_SECONDS, "measured on ConnectX-6; latency: SimAI"),
    "infiniband-ndr": Link("nic", 48.5e9, _NIC_SECONDS, "measured on ConnectX-7; latency: SimAI"),
    "pcie3-x16": Link("pcie", 12e9, _PCIE_SECONDS, "NCCL topo.h: PCI 12"),
    "pcie4-x16": Link("pcie", 24e9, _PCIE_SECONDS, "NCCL topo.h: PCI 12 for generation 3, twice"),
    "pcie5-x16": Link("pcie", 55e9, _PCIE_SECONDS, "long copies to an H100"),
    "qpi": Link("socket", 10e9, _PCIE_SECONDS, "NCCL topo.h: SKL_QPI 10"),
    "upi": Link("socket", 22e9, _PCIE_SECONDS, "NCCL topo.h: SRP_QPI 22"),
    "xgmi-socket": Link("socket", 16e9, _PCIE_SECONDS, "NCCL topo.h: AMD 16"),
    "nvlink2": Link("nvlink", 20e9, _NVLINK_SECONDS, "NCCL topo.h: SM70 20; latency: TACCL"),
    "nvlink3": Link("nvlink", 20e9, _NVLINK_SECONDS, "NCCL topo.h: SM80 20; latency: TACCL"),
    "nvlink4": Link("nvlink", 20.6e9, _NVLINK_SECONDS, "NCCL topo.h: SM90 20.6; latency: TACCL"),
    "nvswitch2": Link("nvswitch", 120e9, _NVLINK_SECONDS / 2, "6 NVLinks of NCCL topo.h: SM70 20; latency: TACCL", 6),
    "nvswitch3": Link("nvswitch", 240e9, _NVLINK_SECONDS / 2, "12 NVLinks of NCCL topo.h: SM80 20; latency: TACCL", 12),
    "nvswitch4": Link(
        "nvswitch", 370.8e9, _NVLINK_SECONDS / 2, "18 NVLinks of NCCL topo.h: SM90 20.6; latency: TACCL", 18
    ),
    "nvswitch5": Link(
        "nvswitch", 721.8e9, _NVLINK_SECONDS / 2, "18 NVLinks of NCCL topo.h: SM100 40.1; latency: TACCL", 18
    ),
    "xgmi": Link("nvlink", 50e9, _NVLINK_SECONDS, "ForestColl's MI250: 50 GB/s; latency: as NVLink"),
    "xgmi3": Link("nvlink", 48e9, _NVLINK_SECONDS, "RCCL topo.h: GFX94X 48; latency: as NVLink"),
    "c2c": Link("c2c", 450e9, UNKNOWN, "NVIDIA: NVLink-C2C has 900 GB/s in both directions together"),
    "ub": Link("ub", 28e9, UNKNOWN, "Huawei: 8 NPUs, 392 GB/s each over 7 links in both directions together"),
    "ddr4-3200x2": Link("memory", 51.2e9, _MEMORY_SECONDS, "JEDEC: 8 bytes x 3200 MT/s x 2 channels"),
    "ddr4-3200x8": Link("memory", 204.8e9, _MEMORY_SECONDS, "JEDEC: 8 bytes x 3200 MT/s x 8 channels"),
    "ddr5-4800x8": Link("memory", 307.2e9, _MEMORY_SECONDS, "JEDEC: 8 bytes x 4800 MT/s x 8 channels"),
    "memory": Link("memory", UNKNOWN, UNKNOWN, "differs from machine to machine"),
    "core": Link("core", UNKNOWN, UNKNOWN, "differs from machine to machine"),
}

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PREFIX = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


def find_link(name: str) -> Link:
    """Returns the link of this name. Raises a TopologyError that lists all names if there is none."""
    if name not in LINKS:
        raise TopologyError(f"expected a link, one of {', '.join(LINKS)}; found {name!r}{did_you_mean(name, LINKS)}")
    return LINKS[name]


def bytes_per_second(text: str) -> float:
    """Reads "25GB/s", "23.5GiB/s", "200Gbps" or "200Gb/s". Raises TopologyError for other text, also without a unit."""
    match = re.fullmatch(r"([-+.\deE]+?)\s*(Ki|Mi|Gi|[kMGT]?)(B|b)(?:/s|ps)", text.strip())
    number = _number(match[1] if match else text)
    if number is None or (match is None and number):  # 0 needs no unit
        raise TopologyError(
            f"expected a bandwidth with its unit per second, such as 25GB/s, 23.5GiB/s or 200Gbps; found {text!r}"
        )
    return number * _PREFIX[match[2]] / (8 if match[3] == "b" else 1) if match else number


def seconds(text: str) -> float:
    """Reads "500ns", "1.5us", "2ms", "1s" or "0". Raises TopologyError for other text, also without a unit."""
    match = re.fullmatch(r"([-+.\deE]+?)\s*(s|ms|us|ns)", text.strip())
    number = _number(match[1] if match else text)
    if number is None or (match is None and number):  # 0 needs no unit
        raise TopologyError(f"expected a latency with its unit, such as 500ns or 1.5us; found {text!r}")
    return number * _SECONDS[match[2]] if match else number


def name_bandwidth(bytes_per_second: float | None) -> str:
    """Returns for example "23.5 GB/s": three digits, decimal units; "-" for None."""
    if bytes_per_second is None:
        return "-"
    rounded = float(f"{bytes_per_second:.3g}")
    for unit, name in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if rounded >= unit:
            return f"{rounded / unit:.3g} {name}" if rounded < 1e3 * unit else f"{rounded / unit:.0f} {name}"
    return f"{rounded:.3g} B/s"


def name_seconds(seconds: float, digits: int = 3) -> str:
    """Returns for example "2.50 ns", "12.3 us", "4.56 ms" or "1.50 s"; what is below 0.01 ns counts as 0."""
    rounded = float(f"{seconds:.{digits}g}")
    factor, unit = (1e6, "us") if rounded < 1e-3 else (1e3, "ms") if rounded < 1 else (1.0, "s")
    if 1e-11 <= rounded < 1e-8:
        factor, unit = 1e9, "ns"
    scaled = rounded * factor
    decimals = max(0, digits - 1 - math.floor(math.log10(scaled))) if scaled >= 0.01 else digits - 1
    return f"{seconds * factor:.{decimals}f} {unit}"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
