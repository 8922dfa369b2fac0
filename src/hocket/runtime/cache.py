"""What is kept on disk between processes: content under a key, in a folder that may be read only, or absent.

A kept file spares work and guards nothing: the reader checks what it reads, and does the work itself where there is
nothing to read, nowhere to write, or somebody else takes too long.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hocket.runtime import file_lock
from hocket.runtime.variables import CACHE

_LOCKS = 16  # files that serialise proofs, chosen by the key
_PATIENCE_SECONDS = 5.0  # with who proves, more than nearly all proofs take; then each proves for itself


def cache_folder() -> Path:
    """Where verdicts are kept: $HOCKET_CACHE, else hocket in $XDG_CACHE_HOME or ~/.cache."""
    if CACHE in os.environ:
        return Path(os.environ[CACHE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hocket"


def digest(content: bytes) -> str:
    """A key for this content, of 64 characters."""
    return hashlib.sha256(content).hexdigest()


def folder(name: str) -> Path | None:
    """A folder of the cache; None where none can be written: then each process does all by itself."""
    try:
        folder = cache_folder() / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    return folder


@contextlib.contextmanager
def alone(folder: Path | None, key: str) -> Iterator[None]:
    """While others that want this proof wait. It spares work and guards nothing: who cannot have it goes on without."""
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):  # a folder to be read only; no locks in its file system
                lock = folder / f"lock-{int(key, 16) % _LOCKS:x}"
                descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, descriptor)
                file_lock.acquire(descriptor, _PATIENCE_SECONDS)
        yield


def read(folder: Path | None, key: str) -> bytes:
    """OSError where there is none."""
    if folder is None:
        raise FileNotFoundError(key)
    return (folder / key).read_bytes()


def write(folder: Path | None, key: str, content: bytes) -> None:
    """Keeps the content, whole or not at all; without a folder, or where it cannot be written, nothing is kept."""
    if folder is None:
        return
    with contextlib.suppress(OSError):  # a full disk costs the next one the same work
        # If the process dies here the file stays: no key begins like it, so that nobody ever reads it.
        descriptor, name = tempfile.mkstemp(prefix="unfinished-", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(name).replace(folder / key)
        except OSError:
            Path(name).unlink()
