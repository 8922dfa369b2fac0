"""Keeps what synthesis has found in the cache on disk: a large forest takes seconds to find."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from hocket import __version__
from hocket.network import Forest, Optimum
from hocket.runtime import cache

_FOLDER = "forests"
_DIGEST_CHARACTERS = 64


class KeptForests:
    """Forests by the content of the network, the collective and the code that finds them. See Kept."""

    def forest(self, optimum: Optimum, find: Callable[[Optimum], Forest]) -> Forest:
        """Returns the kept forest, or finds and keeps it. A file that is not whole counts as none."""
        folder, key = cache.folder(_FOLDER), _key(optimum)
        kept = _read(folder, key)
        if kept is None:
            kept = find(optimum)
            content = msgspec.msgpack.encode(kept)
            cache.write(folder, key, cache.digest(content).encode() + content)
        return kept


def _key(optimum: Optimum) -> str:
    content, topology = hashlib.sha256(_code()), optimum.topology
    content.update(f"{optimum.collective} {optimum.root} {optimum.num_trees} {topology.routing!r}".encode())
    for column in (
        topology.ranks,
        topology.link_source,
        topology.link_target,
        topology.bytes_per_second,
        topology.forwards,
        optimum.shares,
    ):
        content.update(f"{len(column)} ".encode() + column.tobytes())
    return content.hexdigest()


def _read(folder: Path | None, key: str) -> Forest | None:
    try:
        content = cache.read(folder, key)
        if content[:_DIGEST_CHARACTERS].decode() != cache.digest(content[_DIGEST_CHARACTERS:]):
            return None
        return msgspec.msgpack.decode(content[_DIGEST_CHARACTERS:], type=Forest)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _code() -> bytes:
    """Returns what changes whenever other code could find another forest."""
    from hocket.network import synthesis

    content = hashlib.sha256(__version__.encode())
    for folder in synthesis.__path__:
        for file in sorted(Path(folder).glob("*.py")):
            content.update(file.read_bytes())
    return content.digest()
