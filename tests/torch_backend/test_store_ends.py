"""The store may end with rank 0, which usually serves it: no rank needs it for longer than rank 0 stays."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from hocket.torch_backend import _create
from hocket.torch_backend.monitored import MonitoredBarrier
from tests.torch_backend.ranks import given_to, start
from tests.waiting import wait_until


def test_the_ranks_that_have_come_are_not_taken_for_missing() -> None:
    store = dist.HashStore()
    for rank, missing in ((3, (0, 1, 2)), (2, (0, 1))):
        with pytest.raises(dist.DistBackendError, match="did not come to the store") as caught:
            _create(given_to(rank, 4, store, 0.001), None)
        assert caught.value.cause.missing == missing
    words = r": ranks 0, 1 of 4 did not come .*, ranks 2, 3 came .*; rank 0 may only wait for rank 1, so look there"
    assert re.search(words, str(caught.value))


def test_a_store_that_rank_0_takes_along_still_tells_which_ranks_were_missing() -> None:
    class Ending(dist.Store):
        def __init__(self) -> None:
            super().__init__()
            self.keys, self.num_looks = set(), 0

        def set(self, key: str, value: str) -> None:
            self.keys.add(key)

        def check(self, keys: list[str]) -> bool:
            self.num_looks += keys == ["hocket/came/1"]
            if self.num_looks > 1:
                raise dist.DistNetworkError("connection reset by peer")
            return set(keys) <= self.keys | {"hocket/came/3"}

    with pytest.raises(dist.DistBackendError, match=r"rank 2 of 4 lost the store .* waiting for ranks 0, 1;"):
        _create(given_to(2, 4, Ending(), 60.0), None)


class Leaving(dist.Store):
    """A store as rank 1 sees it if rank 0, which serves it, leaves as soon as it can: after the address nothing comes.

    It waits until rank 0 has left: a rank 0 that in turn waits for rank 1 would never leave.
    """

    def __init__(self, store: Any, left: Path) -> None:
        super().__init__()
        self.store, self.left, self.is_read = store, left, False

    def set(self, key: str, value: Any) -> None:
        self.store.set(key, value)

    def check(self, keys: list[str]) -> bool:
        if self.is_read:
            wait_until(self.left.exists)
            raise dist.DistNetworkError("broken pipe")
        found: bool = self.store.check(keys)
        return found

    def get(self, key: str) -> bytes:
        found: bytes = self.store.get(key)
        self.is_read = True
        return found


def leaving_early(rank: int, path: str) -> None:
    store: Any = dist.FileStore(f"{path}/store", 2)
    group = _create(given_to(rank, 2, store if rank == 0 else Leaving(store, Path(path) / "left"), 60.0), None)
    group.shutdown()
    if rank == 0:
        (Path(path) / "left").touch()


def test_no_rank_needs_the_store_once_rank_0_has_met_the_others(tmp_path: Path) -> None:
    start(leaving_early, 2, str(tmp_path))


class Watched:
    """The store of a barrier of two ranks: rank 1 reads the answer when rank 0 waits for that, or returns."""

    def __init__(self) -> None:
        self.store, self.steps = dist.HashStore(), list[str]()

    def set(self, key: str, value: Any) -> None:
        self.store.set(key, value)
        if "/verdict/" in key:
            self.steps.append("rank 0 has answered")

    def check(self, keys: list[str]) -> bool:
        if "/done/" in keys[0] and self.steps:
            self.steps.append("rank 0 waits")
        found: bool = self.store.check(keys)
        return found

    def get(self, key: str) -> bytes:
        wait_until(lambda: {"rank 0 waits", "rank 0 returns"} & set(self.steps))
        self.steps.append("rank 1 has read")
        found: bytes = self.store.get(key)
        return found

    def delete_key(self, key: str) -> None:
        self.store.delete_key(key)


def test_rank_0_leaves_a_monitored_barrier_when_the_others_have_read_its_answer() -> None:
    watched = Watched()
    other = threading.Thread(target=MonitoredBarrier(watched, 1, 2), args=(60.0, False))
    other.start()
    MonitoredBarrier(watched, 0, 2)(60.0, False)
    watched.steps.append("rank 0 returns")
    other.join()
    assert watched.steps[-1] == "rank 0 returns"
    assert watched.store.num_keys() <= 1  # HashStore counts one of its own


def test_a_monitored_barrier_whose_store_is_lost_says_so() -> None:
    class Lost(dist.Store):
        def set(self, key: str, value: str) -> None:
            raise dist.DistNetworkError("broken pipe")

    with pytest.raises(dist.DistBackendError, match=r"Rank 1 successfully reached .* The store is lost; .*broken pipe"):
        MonitoredBarrier(Lost(), 1, 2)(60.0, False)
