"""Times that users published, as numbers, and the logs of benchmarks that print them.

Sizes are powers of two; times in us, out of place and in place.
"""

import json
from collections.abc import Sequence

from hocket.schedule import COLLECTIVES

Row = tuple[int, float, float]


def _powers(first: int, times: str) -> list[Row]:
    values = [float(one) for one in times.split()]
    return [
        (1 << (first + at), out, within) for at, (out, within) in enumerate(zip(values[::2], values[1::2], strict=True))
    ]


# 8 A100-SXM4-80GB in one host: notes on nccl-tests in a public repository on GitHub, mpirun -np 8 all_reduce_perf -b 8
# -e 4G, average bus bandwidth 72.7724.
A100_X8 = _powers(
    3,
    """20.26 17.74 17.90 17.77 20.75 20.29 22.30 23.21 23.91 24.08 23.61 23.37 24.36 23.51 24.43 23.63 24.32 23.38 25.29
    24.85 25.84 24.30 26.15 25.67 30.25 29.67 31.82 30.24 31.90 28.97 27.65 26.18 28.11 26.79 37.89 38.57 55.39 55.32
    81.66 94.98 130.6 127.8 213.3 216.2 377.6 377.7 615.7 614.8 1181.6 1187.8 2218.2 2217.6 4248.8 4246.2 8244.5 8252.7
    16288 16294 32285 32268""",
)

# 2 hosts of 8 A100-SXM4-40GB: a public example of an MPI job for nccl-tests on Kubernetes, all_reduce_perf -b 8 -e 8G,
# average bus bandwidth 66.4834.
A100_X16 = _powers(
    3,
    """36.47 34.74 38.86 35.65 38.53 35.41 39.25 37.05 38.85 37.21 40.68 38.52 39.27 39.35 41.97 40.56 43.36 41.29 44.54
    43.36 48.16 46.51 49.40 48.00 49.66 49.17 51.69 50.09 54.86 53.31 67.95 65.81 73.94 72.87 85.58 84.50 99.19 100.1
    127.0 127.8 174.3 168.4 282.7 265.9 452.3 452.0 821.7 812.7 1542.0 1546.1 3042.7 3065.9 6436.0 6070.5 9187.8 9073.4
    18289 17557 34176 34417 67689 67811""",
)

# 2 hosts of 8 MI300X: a public script that prints a run of rccl-tests, all_reduce_perf -b 8M -e 8G, average bus
# bandwidth 240.128.
MI300X_X16 = _powers(
    23,
    """235.4 220.6 315.5 317.1 424.9 426.7 650.4 652.8 1088.0 1090.7 1974.0 1974.6 3118.7 3118.6 6412.6 6433.2 12419
    12092 23707 23711 47159 47148""",
)

# 2 hosts of 8 H100: a public log of nccl-tests on Kubernetes, all_reduce_perf -b 512M -e 8G, average bus bandwidth
# 194.675: half of what eight cards of 400 Gb/s carry in rings.
H100_X16_SLOW = _powers(29, "5202.3 5377.7 10314 10339 20565 20583 41198 41040 81958 81960")

# 2 hosts of 8 H100, cards of 400 Gb/s: a public issue of nccl-tests with the output of `srun -l`, all_reduce_perf -b
# 8M -e 8G -c 0, average bus bandwidth 142.735.
H100_X16_SRUN = _powers(
    23,
    """215.3 180.0 262.9 261.9 439.3 437.8 918.4 856.0 1575.6 1566.6 3027.9 2998.2 6983.7 7003.1 13435 13430 26301 26293
    52043 51992 103530 103538""",
)

# 8 H100 in one host (ND H100 v5), in a CUDA graph, only in place: README of Azure/msccl.
H100_X8 = [
    (size, time, time)
    for size, time in zip(
        [1 << 10, 1 << 12, 1 << 14, *(1 << power for power in range(18, 31))],
        [13.12, 15.28, 16.64, 20.5, 29.89, 31.94, 37.95, 49.28, 77.01, 116, 187.2, 317.4, 572.5, 1079, 2071.1, 4028.7],
        strict=True,
    )
]


def nccl_log(rows: Sequence[Row], hosts: Sequence[int], collective: str = "all_reduce", header: bool = True) -> str:
    """Returns what nccl-tests prints. header: with the line of sizes, which every run prints."""
    factor, bandwidths = COLLECTIVES[collective].bus_factor(sum(hosts)), []
    program = collective.replace("all_to_all", "alltoall")
    lines = [f"# Collective test starting: {program}_perf"]
    if header:
        lines.append(
            f"# nThread 1 nGpus 1 minBytes {rows[0][0]} maxBytes {rows[-1][0]} step: 2(factor) warmup iters: 5 "
            "iters: 20 agg iters: 1 validation: 1 graph: 0"
        )
    lines += ["#", "# Using devices"]
    ranks = [(host, device) for host, count in enumerate(hosts) for device in range(count)]
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank:6d} on      host{host} device {device:2d} [0x{device:02x}] GPU"
        for rank, (host, device) in enumerate(ranks)
    ]
    mode = "  {:>7}  {:>6}  {:>6}  {:>6}"
    lines += [
        "#",
        "#" + " " * 61 + "out-of-place                       in-place",
        "#       size         count      type   redop    root" + mode.format("time", "algbw", "busbw", "#wrong") * 2,
        "#        (B)    (elements)                        " + mode.format("(us)", "(GB/s)", "(GB/s)", "") * 2,
    ]
    for size, *times in rows:
        line = f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:>6}"
        for time in times:
            bandwidth = size / time / 1e3
            bandwidths.append(bandwidth * factor)
            line += mode.format(_fixed(time, 7), _fixed(bandwidth, 6), _fixed(bandwidth * factor, 6), 0)
        lines.append(line)
    mean = sum(bandwidths) / len(bandwidths)
    return "\n".join([*lines, "# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {mean:g} ", "#", ""])


def nccl_json(rows: Sequence[Row], hosts: Sequence[int]) -> str:
    """Returns what nccl-tests writes with -J, with one process for each GPU."""
    factor = COLLECTIVES["all_reduce"].bus_factor(sum(hosts))

    def timing(size: int, time: float) -> dict[str, float]:
        bandwidth = size / time / 1e3
        return {"time": time, "alg_bw": bandwidth, "bus_bw": bandwidth * factor, "nwrong": 0.0}

    devices = [{"rank": 0, "hostname": f"host{host}"} for host, count in enumerate(hosts) for _ in range(count)]
    return json.dumps(
        {
            "version": 1,
            "args": ["./build/all_reduce_perf", "-b", "8"],
            "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
            "results": [
                {
                    "size": size,
                    "count": size // 4,
                    "type": "float",
                    "redop": "sum",
                    "root": "    -1",
                    "out_of_place": timing(size, out),
                    "in_place": timing(size, within),
                }
                for size, out, within in rows
            ],
            "out_of_bounds": {"count": 0, "okay": "true"},
        }
    )


def osu_log(rows: Sequence[Row], title: str = "OSU MPI-CUDA Allreduce Latency Test v7.5") -> str:
    """Returns what the OSU benchmarks print."""
    lines = [f"# {title}", "# Datatype: MPI_CHAR.", "# Size       Avg Latency(us)"]
    return "\n".join([*lines, *(f"{size:<10}{time:18.2f}" for size, time, _ in rows), ""])


def _fixed(value: float, width: int) -> str:
    return next((text for digits in (2, 1) if len(text := f"{value:.{digits}f}") <= width), f"{value:.0f}")
