"""The checks of `hocket doctor`: each tries exactly what Hocket will do, and suggests a fix if it fails."""

import ctypes
import fcntl
import importlib
import importlib.util
import mmap
import os
import platform
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

_MIN_DESCRIPTORS = 1024
_MIN_MEMORY_BYTES = 1 << 30
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, _ATTACH_BYTES = 0x59616D61, 2**64 - 1, 16

# The program of another process. It reads memory of this one; its arguments are process, address, number of bytes.
_ATTACH = """
import ctypes, os, sys
process, address, size = map(int, sys.argv[1:])
class Part(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("size", ctypes.c_size_t)]
found = ctypes.create_string_buffer(size)
read = ctypes.CDLL(None, use_errno=True).process_vm_readv
here, there, one, zero = Part(ctypes.addressof(found), size), Part(address, size), ctypes.c_ulong(1), ctypes.c_ulong(0)
if read(process, ctypes.byref(here), one, ctypes.byref(there), one, zero) < 0:
    sys.exit(os.strerror(ctypes.get_errno()))
sys.stdout.buffer.write(found.raw)
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report. status is OK, WARN (works, with a drawback) or FAIL; fix is empty if all is well."""

    name: str
    status: str
    found: str
    fix: str = ""


def diagnose() -> list[Finding]:
    """Returns all findings, in the order in which to fix them. Never raises."""
    findings = []
    for name, check in _CHECKS.items():
        try:
            status, found, fix = check()
        except Exception as error:
            status, found = "WARN", f"the check itself failed ({type(error).__name__}: {error})"
            fix = "please report this line; Hocket may still work"
        findings.append(Finding(name, status, found, fix))
    return findings


_Answer = tuple[str, str, str]


def _ok(found: str) -> _Answer:
    return "OK", found, ""


def _check_python() -> _Answer:
    found = f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}"
    if sys.platform != "linux":
        return "FAIL", found, "use Linux"
    return _ok(found)


def _check_dependencies() -> _Answer:
    versions, missing = [], []
    for name in ("numpy", "msgspec", "rich"):
        try:
            importlib.import_module(name)
            versions.append(f"{name} {metadata.version(name)}")
        except Exception as error:
            missing.append(f"{name} ({error})")
    if missing:
        return "FAIL", f"cannot import {', '.join(missing)}", "python -m pip install numpy msgspec rich"
    return _ok(", ".join(versions))


def _check_core() -> _Answer:
    try:
        importlib.import_module("hocket.runtime.memory")  # loads the core, which only runtime may import
    except Exception as error:
        return "FAIL", f"cannot import hocket._core ({error})", "in a clone: make build; else: pip install hocket"
    return _ok(f"compiled core at {sys.modules['hocket._core'].__file__}")


def _check_place() -> _Answer:
    from hocket.errors import RendezvousError
    from hocket.runtime import discover

    try:
        environment = discover()
    except RendezvousError as error:
        return "FAIL", str(error), "unset these variables, or start the ranks with `hocket run -n 4 -- script.py`"
    if environment.source == "alone":
        return _ok("one process alone; `hocket run -n 4 -- script.py` starts four")
    return _ok(f"rank {environment.rank} of {environment.size}, from {environment.source}")


def _check_cores() -> _Answer:
    from hocket.runtime.ranks import cores

    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    limit = cores.quota()
    found = f"{usable} of {present} cores"
    if limit is not None and limit < usable:
        found += f"; the container may use {limit:g} of them at a time"
        return "WARN", found, "start at most that many ranks, or raise the container's CPU limit"
    if usable < 2:
        return "WARN", found, "ranks will share one core; widen the affinity (taskset -p) or the container's CPU set"
    return _ok(found)


def _check_memory() -> _Answer:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _cgroup_value("memory.max"), _cgroup_value("memory.current")
    if limit.isdecimal() and used.isdecimal():
        available = min(available, int(limit) - int(used))
    found = f"{available / 2**30:.1f} GiB available"
    if available < _MIN_MEMORY_BYTES:
        return "WARN", found, "end other programs, or raise the container's memory limit"
    return _ok(found)


def _check_limits() -> _Answer:
    from hocket.runtime import arena_bytes

    descriptors, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    file_size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = (
        f"open files {_limit(descriptors)}, address space {_limit(space)}, file size {_limit(file_size)}, "
        f"locked memory {_limit(locked)} bytes"
    )
    fixes = []
    if descriptors != resource.RLIM_INFINITY and descriptors < _MIN_DESCRIPTORS:
        fixes.append(f"ulimit -n {_MIN_DESCRIPTORS if hard >= _MIN_DESCRIPTORS else hard}")
    registered = arena_bytes()
    if registered < os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE:
        found += f"; hocket.empty() has at most {registered / 2**20:.0f} MiB on each rank"
        by_file_size = file_size // mmap.PAGESIZE * mmap.PAGESIZE == registered
        fixes.append(f"ulimit -{'f' if by_file_size else 'v'} unlimited")
    if fixes:
        return "WARN", found, "; ".join(fixes)
    return _ok(found)


def _check_memfd() -> _Answer:
    fix = "Linux 3.17 or newer; in a sandbox, allow memfd_create, fallocate and fcntl F_ADD_SEALS"
    descriptor = -1
    try:
        descriptor = os.memfd_create("hocket-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        os.posix_fallocate(descriptor, 0, mmap.PAGESIZE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        try:
            os.ftruncate(descriptor, 0)
        except PermissionError:
            return _ok("sealed memory works")
        return "FAIL", "a sealed memory file can be truncated", fix
    except OSError as error:
        return "FAIL", f"no sealed memory files ({error.strerror})", fix
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _check_sockets() -> _Answer:
    from hocket.runtime.rendezvous import sockets

    address = "\0hocket-doctor-" + secrets.token_hex(8)
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender,
        ):
            listener.bind(address)
            listener.listen(1)
            sender.connect(address)
            receiver, _ = listener.accept()
            with receiver:
                sockets.send(sender, b"?", [listener.fileno()])
                _, descriptors = sockets.receive(receiver, 16, 1)
                sockets.close(descriptors)
                _, user = sockets.credentials(receiver)
    except OSError as error:
        return "FAIL", f"no abstract Unix sockets ({error.strerror})", "in a sandbox, allow AF_UNIX sockets"
    if len(descriptors) != 1 or user != os.geteuid():
        return "FAIL", "abstract Unix sockets do not pass descriptors and credentials", "use another sandbox"
    return _ok("abstract Unix sockets pass descriptors")


def _check_processes() -> _Answer:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        fix = "Linux 5.3 or newer; in a sandbox, allow pidfd_open"
        return "FAIL", f"no process descriptors ({error.strerror}): ranks cannot be started", fix
    return _ok("process descriptors work")


def _check_attach() -> _Answer:
    from hocket.runtime import may_attach

    try:
        if not may_attach():
            return _ok("switched off by HOCKET_CMA=0")
    except ValueError as error:
        return "FAIL", str(error), "unset HOCKET_CMA"
    token = ctypes.create_string_buffer(secrets.token_bytes(_ATTACH_BYTES), _ATTACH_BYTES)
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY), 0, 0, 0)  # as ranks do in scope 1
    command = [sys.executable, "-c", _ATTACH, str(os.getpid()), str(ctypes.addressof(token)), str(_ATTACH_BYTES)]
    child = subprocess.run(command, capture_output=True, timeout=60, check=False)
    if child.stdout == token.raw:
        return _ok("processes can read each other's private memory")
    reason = child.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["other bytes came"]
    fix = "in a container, allow process_vm_readv (--cap-add=SYS_PTRACE); else lower kernel.yama.ptrace_scope below 2"
    return "WARN", f"no cross-memory attach ({reason[0]}): large messages in private memory need one more copy", fix


def _check_huge_pages() -> _Answer:
    shared = _chosen(_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    private = _chosen(_read("/sys/kernel/mm/transparent_hugepage/enabled"))
    found = f"transparent huge pages for shared memory: {shared}, for private memory: {private}"
    if shared in ("never", "deny"):
        found += " (large arrays of hocket.empty() would be slightly faster with advise)"
    return _ok(found)


def _check_cache() -> _Answer:
    try:
        from hocket.runtime import cache_folder
    except ImportError:
        return "WARN", "not checked: it needs the compiled core", "fix that first"

    fix = "set HOCKET_CACHE to a writable folder; until then every start repeats the proofs"
    try:
        folder = cache_folder() / "proofs"
    except RuntimeError as error:  # no home directory
        return "WARN", f"no folder for proofs ({error})", fix
    try:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryFile(dir=existing):  # Permission bits are not enough: root, read-only disks, /proc.
            return _ok(f"{folder} is writable")
    except OSError as error:
        return "WARN", f"{folder} is not writable ({error.strerror})", fix


def _check_torch() -> _Answer:
    if importlib.util.find_spec("torch") is None:
        return _ok("not installed; only the PyTorch backend needs it")
    return _ok(f"torch {metadata.version('torch')}")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _cgroup_value(name: str) -> str:
    """Returns a control of this process's cgroup (version 2), or of the container's root; "" if there is none."""
    group = next((line[3:] for line in _read("/proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    return _read(f"/sys/fs/cgroup{group}/{name}") or _read(f"/sys/fs/cgroup/{name}")


def _chosen(text: str) -> str:
    """Returns the value in brackets, which is the active one in such a kernel file."""
    return text.partition("[")[2].partition("]")[0] or "unknown"


_CHECKS: dict[str, Callable[[], _Answer]] = {
    "python": _check_python,
    "dependencies": _check_dependencies,
    "compiled core": _check_core,
    "place": _check_place,
    "cores": _check_cores,
    "memory": _check_memory,
    "limits": _check_limits,
    "sealed memory": _check_memfd,
    "sockets": _check_sockets,
    "processes": _check_processes,
    "attach": _check_attach,
    "huge pages": _check_huge_pages,
    "cache": _check_cache,
    "torch": _check_torch,
}
