"""Keeps the namespaces of one host until its maker lets go or ends, then ends every process in them.

    unshare --net --uts --mount --ipc python -I keeper.py NAME HOSTS

The host gets this name and this text as its /etc/hosts, and a /dev/shm and a /sys/class/net of its own. "ready" on
standard output says that it is done. A line on standard input is the sign to end, and so is the end of standard input,
which comes however the maker ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# The files for /etc/hosts and /sys stand in the new /dev/shm only until they are in their places.
MOUNTS = """set -e
mount -t tmpfs tmpfs /dev/shm
cd /dev/shm
printf %s "$1" >hosts
mount --bind hosts /etc/hosts
mkdir sys
mount -t sysfs sysfs sys
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup sys/fs/cgroup; fi
mount --rbind sys /sys
umount --recursive --lazy sys
rmdir sys
rm hosts
printf %s "$0" >/proc/sys/kernel/hostname
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
"""


def others(keeper: int) -> Iterator[int]:
    """Yield the processes in the network of the keeper, but for it; what has ended and is not waited for is in none."""
    own = Path(f"/proc/{keeper}/ns/net").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "ns/net").readlink() == own and int(process.name) != keeper:
                yield int(process.name)


def main() -> None:
    subprocess.run(["sh", "-c", MOUNTS, *sys.argv[1:]], check=True)
    print("ready", flush=True)
    sys.stdin.readline()
    while found := list(others(os.getpid())):
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.001)  # between two looks at whether all have ended


if __name__ == "__main__":
    main()
