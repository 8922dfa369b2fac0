"""How the ranks of a process group agree in the store where they meet."""

import threading
from collections import Counter
from typing import Any

import pytest
import torch.distributed as dist

from hocket.torch_backend import meeting_place
from hocket.torch_backend.meeting_place import Agreed, MeetingPlace


class Counting:
    """A store that counts what each thread asks of it, but for looks whether something is there."""

    def __init__(self) -> None:
        self.store, self.asked = dist.HashStore(), Counter[str]()

    def __getattr__(self, name: str) -> Any:
        if name != "check":
            self.asked[threading.current_thread().name] += 1
        return getattr(self.store, name)


def agree(monkeypatch: pytest.MonkeyPatch, hosts: list[str], known: bool | None) -> tuple[list[Agreed], Counter[str]]:
    """Returns what ranks on these hosts agree, and how often each has used the store."""
    monkeypatch.setattr(meeting_place, "identity", lambda: hosts[int(threading.current_thread().name)])
    store, agreed = Counting(), dict[int, Agreed]()

    def meet(rank: int) -> None:
        agreed[rank] = MeetingPlace(store, "", rank, len(hosts), 60.0).agree(known)

    threads = [threading.Thread(target=meet, args=(rank,), name=str(rank)) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [agreed[rank] for rank in range(len(hosts))], store.asked


@pytest.mark.parametrize("known", [None, True, False])
@pytest.mark.parametrize("hosts", [["a"] * 4, ["a", "a", "a", "b"], ["b", "a", "a", "a"]], ids="".join)
def test_ranks_meet_over_hosts_if_one_of_them_is_elsewhere(
    hosts: list[str], known: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed, _ = agree(monkeypatch, hosts, known)
    share_host = known if known is not None else len(set(hosts)) == 1
    assert [one.board is None for one in agreed] == [share_host] * len(hosts)
    assert len({one.address for one in agreed}) == 1
    assert len({one.board.key for one in agreed if one.board}) == (0 if share_host else 1)


def test_the_number_of_ranks_does_not_change_how_often_each_uses_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (2, 16):
        _, asked = agree(monkeypatch, ["a"] * (size - 1) + ["b"], None)
        assert asked["0"] == 3 and {asked[str(rank)] for rank in range(1, size)} == {2}


def test_a_text_that_no_rank_0_writes_is_told() -> None:
    store = dist.HashStore()
    store.set("hocket/address", "who knows")
    with pytest.raises(meeting_place.RendezvousError, match="rank 1 of 2 found 'who knows' in the store"):
        MeetingPlace(store, "", 1, 2, 60.0).agree(None)
