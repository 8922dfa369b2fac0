"""What holds for tests that run ranks: proofs are kept for the session only, and nothing may be left behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Rank processes inherit it, so each schedule is proved once, and the user's own cache is left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def nothing_in_shared_memory() -> Iterator[None]:
    """Other programs of the machine may come and go there; what is ours would have our name."""
    yield
    assert [path for path in Path("/dev/shm").iterdir() if "hocket" in path.name] == []
