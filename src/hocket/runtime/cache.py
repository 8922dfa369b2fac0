"""The cache on disk, shared by processes: content under a key, in a folder that may be read-only or absent.

The cache saves work; correctness never depends on it. A reader checks what it reads. It does the work itself if there
is nothing to read, if it cannot write, or if another process takes too long.
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
_PATIENCE_SECONDS = 5.0  # longer than nearly all proofs take; after that each process makes its own proof


def cache_folder() -> Path:
    """Returns the folder of the cache: $HOCKET_CACHE, else hocket in $XDG_CACHE_HOME or ~/.cache."""
    if CACHE in os.environ:
        return Path(os.environ[CACHE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hocket"


def digest(content: bytes) -> str:
    """Returns a key of 64 characters for this content."""
    return hashlib.sha256(content).hexdigest()


def folder(name: str) -> Path | None:
    """Returns a folder of the cache, and makes it; None if it cannot be made: then each process works without it."""
    try:
        folder = cache_folder() / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    return folder


@contextlib.contextmanager
def alone(folder: Path | None, key: str) -> Iterator[None]:
    """Holds a lock while other processes that need this proof wait, so that only one works.

    The lock guards nothing: a process that cannot get it goes on without it.
    """
    with contextlib.ExitStack() as stack:
        if folder is not None:
            with contextlib.suppress(OSError):  # a read-only folder, or a file system without locks
                lock = folder / f"lock-{int(key, 16) % _LOCKS:x}"
                descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, descriptor)
                file_lock.acquire(descriptor, _PATIENCE_SECONDS)
        yield


def read(folder: Path | None, key: str) -> bytes:
    """Returns the content under this key. Raises OSError if there is none."""
    if folder is None:
        raise FileNotFoundError(key)
    return (folder / key).read_bytes()


def write(folder: Path | None, key: str, content: bytes) -> None:
    """Keeps the content, whole or not at all; keeps nothing without a folder, or if the folder cannot be written."""
    if folder is None:
        return
    with contextlib.suppress(OSError):  # with a full disk, the next process repeats the work
        # If the process dies here, the file stays. No key begins like its name, so no process ever reads it.
        descriptor, name = tempfile.mkstemp(prefix="unfinished-", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(name).replace(folder / key)
        except OSError:
            Path(name).unlink()
