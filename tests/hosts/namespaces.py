"""Namespaces of Linux: how processes and sockets get into those of another process, and whether this machine has them.

No namespace has a name here: each belongs to a process, and goes with the last process in it.
"""

import ctypes
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

OPTIONS = ("--net", "--uts", "--mount", "--ipc")
"""What a host has of its own, as options of unshare and nsenter: interfaces, name, mounts, System V memory."""

CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000

PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "ss": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""The needed programs, and the packages of Debian that have them."""

# Within its own network namespace, so it leaves nothing.
TRIAL = """set -e
ip link add name switch type bridge
ip link add name here type veth peer name there
ip tuntap add dev delayed mode tap
tc qdisc add dev here root tbf rate 1gbit burst 256kb latency 50ms
mount -t sysfs sysfs /sys
"""


class Unavailable(Exception):
    """This machine cannot make hosts, or not with this link; the message says why."""


@functools.cache
def check() -> None:
    """Return if this process can make hosts; raise Unavailable if not."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Unavailable("hosts are network namespaces, which only root of a Linux machine can make")
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            raise Unavailable(f"hosts need the program {program}: apt-get install {package}")
    tried = subprocess.run(["unshare", *OPTIONS, "sh", "-c", TRIAL], capture_output=True, text=True, check=False)
    if tried.returncode:
        raise Unavailable(f"this system refuses what hosts are made of: {' '.join(tried.stderr.split())}")


def inside(process: int, command: Sequence[str], folder: Path) -> list[str]:
    """Return the command that runs in the namespaces of the process, in this folder, without a process between."""
    return ["nsenter", "--target", str(process), *OPTIONS, "sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]


def enter(process: int) -> None:
    """Move this process, which has one thread, to the network and the name of the host of that process."""
    for name, kind in (("net", CLONE_NEWNET), ("uts", CLONE_NEWUTS)):
        namespace = os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY)
        try:
            _set(namespace, kind)
        finally:
            os.close(namespace)


def _set(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, kind):
        raise OSError(ctypes.get_errno(), "setns")


@contextmanager
def network_of(process: int) -> Iterator[None]:
    """Within this block, sockets that the calling thread makes, and processes, are in the network of that process."""
    own, other = (os.open(path, os.O_RDONLY) for path in ("/proc/thread-self/ns/net", f"/proc/{process}/ns/net"))
    try:
        _set(other, CLONE_NEWNET)
        try:
            yield
        finally:
            _set(own, CLONE_NEWNET)
    finally:
        os.close(own)
        os.close(other)
