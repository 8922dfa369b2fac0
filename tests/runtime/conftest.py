"""Settings of tests that run ranks: proofs are kept for the session only, and nothing may be left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sets a cache that rank processes inherit: each schedule is proved once, and the user's cache is not used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def nothing_in_shared_memory() -> Iterator[None]:
    """Other programs of the machine may add and remove files there; those of Hocket have its name."""
    yield
    assert [path for path in Path("/dev/shm").iterdir() if "hocket" in path.name] == []
