"""Describes processor, system, command and versions: without them a number has no meaning."""

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import peers

CPUINFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Flags that select kernels, and that peers may use: "AMD EPYC" alone may be Zen 1 or Zen 5.
FLAGS = ("avx2", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "amx_bf16", "sve", "asimd", "bf16")
OURS = ("hocket", "numpy", "ml_dtypes")


def processor(cpuinfo: str) -> str:
    """Returns name, model and relevant flags of the first core; leaves out what cpuinfo does not have."""
    pairs = [line.split(":", 1) for line in cpuinfo.split("\n\n", 1)[0].splitlines() if ":" in line]
    said = {name.strip(): value.strip() for name, value in pairs}
    words = [
        f"{word} {said[name]}"
        for name, word in (("cpu family", "family"), ("model", "model"), ("stepping", "stepping"), ("CPU part", "part"))
        if name in said
    ]
    has = said.get("flags", said.get("Features", "")).split()
    flags = " ".join(flag for flag in FLAGS if flag in has)
    name = said.get("model name", said.get("CPU implementer", "unknown processor"))
    details = "; ".join(filter(None, [" ".join(words), flags]))
    return f"{name} ({details})" if details else name


def caches(folder: Path) -> str:
    """Returns the data caches of a core, such as "L1 32K, L2 1024K, L3 32768K of cores 0-1"."""
    found = []
    for cache in sorted(folder.glob("index*")):
        said = {name: (cache / name).read_text().strip() for name in ("level", "type", "size", "shared_cpu_list")}
        if said["type"] != "Instruction":
            shared = said["shared_cpu_list"]
            of = "" if shared.isdecimal() else f" of cores {shared}"
            found.append(f"L{said['level']} {said['size']}{of}")
    return ", ".join(found)


def versions(packages: Iterable[str], path: Sequence[str]) -> str:
    """Returns the versions installed in these folders, such as "mpi4py 4.1.2, openmpi 5.0.8"."""
    found = {each.name.lower(): each.version for each in metadata.distributions(path=list(path))}
    names = [package.split("==")[0] for package in packages]
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def of_peer(peer: str) -> str:
    """Returns the versions in the peer's own environment."""
    folders = peers.interpreter(peer).parents[1].glob("lib/python*/site-packages")
    return f"{peers.TITLES[peer]} ({versions(peers.PACKAGES[peer], list(map(os.fspath, folders)))})"


def description(measured_peers: Iterable[str]) -> str:
    """Returns processor, caches, system, command and versions on one line."""
    cpuinfo = CPUINFO.read_text() if CPUINFO.exists() else ""
    system = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}"
    command = shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    ours = f"Python {platform.python_version()}, {versions(OURS, sys.path)}"
    machine = filter(None, [processor(cpuinfo), caches(CACHES), system])
    return "; ".join([", ".join(machine), f"`python {command}`", ours, *map(of_peer, measured_peers)])
