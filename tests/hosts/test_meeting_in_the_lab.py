"""Ranks on hosts of their own meet by addresses of both families, by name, and through the interface that was named."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.hosts.lab import Host, Lab
from tests.hosts.pretended import KEY

PROGRAM = """
import json, sys
import numpy as np
import hocket
comm = hocket.init(timeout=30)
x = comm.all_reduce(np.full(70_000, comm.rank + 1.0))
found = {"sum": x[0], "hosts": comm.context.hosts, "door": comm.context._door.addresses[0][0]}
comm.close()
print(json.dumps(found))
"""


def start(hosts: list[Host], per_host: int, address: str, **variables: str) -> list[dict[str, object] | str]:
    """Runs the program on some ranks of each host; returns what they print, or the last line of their errors."""
    ranks = []
    for rank in range(len(hosts) * per_host):
        environment = {
            **os.environ,
            "HOCKET_RANK": str(rank),
            "HOCKET_SIZE": str(len(hosts) * per_host),
            "HOCKET_LOCAL_RANK": str(rank % per_host),
            "HOCKET_LOCAL_SIZE": str(per_host),
            "HOCKET_ADDRESS": address,
            "HOCKET_KEY": KEY,
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        ranks.append(
            hosts[rank // per_host].popen(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found: list[dict[str, object] | str] = []
    for rank in ranks:
        output, errors = rank.communicate(timeout=60)
        found.append(json.loads(output) if rank.returncode == 0 else errors.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("family", ["IPv4", "IPv6", "name"])
def test_ranks_of_two_hosts_meet(make_lab: Callable[..., Lab], family: str) -> None:
    hosts = make_lab(2).hosts
    first = {"IPv4": hosts[0].address, "IPv6": f"[{hosts[0].address6}]", "name": hosts[0].name}[family]
    found = start(hosts, 2, f"{first}:29500")
    assert [one["sum"] for one in found] == [10.0] * 4, found
    assert [one["hosts"] for one in found] == [[0, 0, 1, 1]] * 4, "ranks share memory where they can, and only there"


def test_the_interface_that_is_named_carries_the_data(make_lab: Callable[..., Lab]) -> None:
    hosts = make_lab(2).hosts
    found = start(hosts, 1, f"{hosts[0].address}:29500", HOCKET_SOCKET_IFNAME="=eth0")
    assert [one["door"] for one in found] == [host.address for host in hosts], found


def test_an_interface_that_is_not_there_is_told_with_those_that_are(make_lab: Callable[..., Lab]) -> None:
    hosts = make_lab(2).hosts
    [found] = start(
        hosts[1:], 1, f"{hosts[0].address}:29500", HOCKET_SOCKET_IFNAME="ib0", HOCKET_RANK="1", HOCKET_SIZE="2"
    )
    assert "HOCKET_SOCKET_IFNAME=ib0 chooses no address" in str(found) and "eth0" in str(found)
