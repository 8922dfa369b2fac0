"""Real servers as hosts: DGX-1V, DGX-A100, DGX-H100, DGX-B200, MI250, MI300X, an 8-NPU mesh; and a machine at home.

Sources: NVIDIA's user guides of the DGX systems for the position of devices; SCCL (Cai et al. 2021) for the NVLinks of
DGX-1V; ForestColl (Zhao et al. 2024) for the links of MI250. The constants of links are in `links.LINKS`.
"""

from dataclasses import replace

from hocket.network.kinds.hosts import Host
from hocket.network.links import LINKS

_DGX_1V_NVLINKS = (  # numbered as nvidia-smi does, not as SCCL's paper
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
# Two dies in each of eight modules; between modules, rows of (die, die, links).
_MI250_DIES = 16
_MI250_BETWEEN = (
    (0, 4, 2), (0, 8, 1), (1, 5, 1), (1, 9, 1), (1, 10, 1), (2, 6, 1), (2, 9, 1), (2, 10, 1), (3, 7, 2), (3, 11, 1),
    (4, 6, 1), (5, 6, 1), (5, 7, 1), (8, 12, 2), (9, 13, 1), (10, 14, 1), (11, 15, 2), (12, 14, 1), (13, 14, 1),
    (13, 15, 1),
)  # fmt: skip


def _mi250_links() -> tuple[tuple[int, ...], ...]:
    lanes = [[0] * _MI250_DIES for _ in range(_MI250_DIES)]
    within = [(die, die + 1, 4) for die in range(0, _MI250_DIES, 2)]
    for one, other, number in (*within, *_MI250_BETWEEN):
        lanes[one][other] = lanes[other][one] = number
    return tuple(map(tuple, lanes))


def _all_to_all(number: int) -> tuple[tuple[int, ...], ...]:
    """Returns one link between any two."""
    return tuple(tuple(int(one != other) for other in range(number)) for one in range(number))


_DGX_A100 = Host(
    8,
    nic=LINKS["infiniband-hdr"],
    pcie=LINKS["pcie4-x16"],
    socket=LINKS["xgmi-socket"],
    nics=8,
    direct=LINKS["nvswitch3"],
)

_DGX_H100 = replace(
    _DGX_A100,
    nic=LINKS["infiniband-ndr"],
    pcie=LINKS["pcie5-x16"],
    socket=LINKS["upi"],
    direct=LINKS["nvswitch4"],
)

PODS: dict[str, tuple[Host, str]] = {
    "dgx-1v": (
        Host(
            8,
            nic=LINKS["infiniband-edr"],
            pcie=LINKS["pcie3-x16"],
            socket=LINKS["qpi"],
            nics=4,
            direct=LINKS["nvlink2"],
            lanes=_DGX_1V_NVLINKS,
        ),
        "8 V100, each with 6 NVLinks",
    ),
    "dgx-a100": (_DGX_A100, "8 A100 on NVSwitches, 8 cards of 200 Gb/s"),
    "dgx-h100": (_DGX_H100, "8 H100 on NVSwitches, 8 cards of 400 Gb/s"),
    "dgx-b200": (replace(_DGX_H100, direct=LINKS["nvswitch5"]), "8 B200 on NVSwitches, 8 cards of 400 Gb/s"),
    "mi300x": (
        replace(
            _DGX_H100, nic=LINKS["roce-400g"], socket=LINKS["xgmi-socket"], direct=LINKS["xgmi3"], lanes=_all_to_all(8)
        ),
        "8 MI300X, fully connected by xGMI, 8 cards of 400 Gb/s",
    ),
    "mi250": (
        Host(
            _MI250_DIES,
            nic=LINKS["infiniband-hdr"],
            pcie=None,
            socket=LINKS["xgmi-socket"],
            nics=_MI250_DIES,
            direct=LINKS["xgmi"],
            lanes=_mi250_links(),
            forwards=True,  # xGMI is routed over several dies
        ),
        "8 MI250 (16 dies), linked by xGMI",
    ),
    "npu8": (
        Host(
            8,
            nic=LINKS["roce-200g"],
            pcie=None,
            socket=LINKS["upi"],
            nics=8,
            direct=LINKS["ub"],
            lanes=_all_to_all(8),
            kind="npu",
        ),
        "8 NPUs, fully connected, each with its own card",
    ),
    "pcie": (
        Host(
            8,
            nic=LINKS["roce-100g"],
            pcie=LINKS["pcie4-x16"],
            socket=LINKS["upi"],
            memory=LINKS["ddr4-3200x8"],
        ),
        "accelerators on PCIe only",
    ),
    "home": (
        Host(
            1,
            nic=LINKS["ethernet-1g"],
            pcie=LINKS["pcie4-x16"],
            socket=LINKS["upi"],
            sockets=1,
            switches=0,
            affinity="PHB",
            memory=LINKS["ddr4-3200x2"],
        ),
        "machines at home: an accelerator on PCIe, hosts on Ethernet",
    ),
}
"""For each kind of network made of hosts: the host and a description."""
