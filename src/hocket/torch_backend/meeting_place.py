"""The place in the store where the ranks of a new process group find each other.

Each rank writes there on which host it is. Rank 0 reads that, and answers all: meet on this host, or meet over hosts,
or these ranks have not come. So each rank but 0 writes, waits and reads once, however many ranks there are.
"""

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hocket.errors import RendezvousError
from hocket.runtime import MAX_ADDRESS_BYTES, identity, name_ranks, new_address
from hocket.torch_backend.roll_call import NOTICE_SECONDS, appear, come, loss_is_told, tell_wait, text_of

_CAME, _ANSWER, _BOARD, _HEARD = "hocket/came", "hocket/address", "hocket/board", "hocket/heard"
_ONE_HOST, _HOSTS, _LATE = "host", "hosts", "late"  # the first words of an answer
_LOOK_SECONDS = 0.2  # after this wait, a rank looks again which ranks have come
_LINGER_SECONDS = 2.0  # so much later than rank 0 do others give up, as rank 0 tells why; so long it stays to be heard


class StoreBoard:
    """A board of `hocket.runtime` in the store of a process group. who: the rank that uses it, for errors."""

    where = "the store of this process group"
    carries_key = True  # which is then as secret as the store
    ports: Sequence[int] = ()
    listens_at: tuple[str, int] | None = None

    def __init__(self, store: Any, key: str, who: str) -> None:
        self.key, self._store, self._who = key, store, who

    def publish(self, text: str) -> None:
        """Writes the text."""
        with loss_is_told(self._who, "the other ranks"):
            self._store.set(self.key, text)

    def find(self, seconds: float) -> str | None:
        """Returns the text, or None if it is not there after `seconds`."""
        if not appear(self._store, [self.key], seconds, self._who, "rank 0"):
            return None
        with loss_is_told(self._who, "rank 0"):
            return str(self._store.get(self.key).decode("latin-1"))


@dataclass(frozen=True)
class Agreed:
    """How the ranks meet: at this address, or, if there is a board, over hosts."""

    address: str
    board: StoreBoard | None


@dataclass(frozen=True)
class MeetingPlace:
    """The place as one rank of a group sees it; `members` is a part of its keys. Each wait ends after `seconds`."""

    store: Any
    members: str
    rank: int
    size: int
    seconds: float

    def agree(self, share_host: bool | None) -> Agreed:
        """Returns how the ranks meet, the same on all. share_host: whether they share a host, None if nobody knows.

        Raises RendezvousError, which names all ranks that have not come, or if the store is lost.
        """
        word, text = (self._answer if self.rank == 0 else self._hear)(share_host)
        if word == _LATE:
            raise self._missing([int(rank) for rank in text.split(",")])
        return Agreed(text, StoreBoard(self.store, self._board(text), self._who) if word == _HOSTS else None)

    def clear(self, agreed: Agreed | None) -> None:
        """Deletes what the ranks have written, on rank 0."""
        keys = [self._key(_ANSWER), *self._came.values()]
        if agreed is None:  # those that came have heard it
            keys += self._heard.values()
        elif agreed.board is not None:
            keys.append(agreed.board.key)
        with contextlib.suppress(RuntimeError):  # from a store that cannot delete
            for key in keys:
                self.store.delete_key(key)

    # On rank 0 -------------------------------------------------------------------------------------------------------

    def _answer(self, share_host: bool | None) -> tuple[str, str]:
        address, late = new_address(), list[int]()
        with loss_is_told(self._who, "the other ranks"):
            if share_host is None and self.size > 1:
                self.store.set(self._came[0], "")
                late = self._await_others()
                share_host = not late and self._is_one_host()
            word, text = (_LATE, text_of(late)) if late else (_HOSTS if share_host is False else _ONE_HOST, address)
            self.store.set(self._key(_ANSWER), f"{word} {text}")
            if late:  # the store may end with this rank
                heard = [key for other, key in self._heard.items() if other not in late]
                come(self.store, heard, _LINGER_SECONDS)
        return word, text

    def _await_others(self) -> list[int]:
        """Returns which ranks have not come in time."""
        late, start = list(range(1, self.size)), time.monotonic()
        noticed = False
        while late:
            left = start + self.seconds - time.monotonic()
            if come(self.store, [self._came[other] for other in late], max(min(left, NOTICE_SECONDS), 0.0)):
                return []
            late = [other for other in late if not self.store.check([self._came[other]])]
            if left <= 0:
                return late
            if late and not noticed:
                noticed = True
                tell_wait(self._who, late, "to come to the store of this process group", self.seconds)
        return []

    def _is_one_host(self) -> bool:
        here = identity().encode()
        return all(found == here for found in self.store.multi_get([self._came[rank] for rank in range(1, self.size)]))

    # On the other ranks ----------------------------------------------------------------------------------------------

    def _hear(self, share_host: bool | None) -> tuple[str, str]:
        """Returns the answer of rank 0.

        Once rank 0 has come, it names the ranks that have not; so only before, or if rank 0 falls silent or takes the
        store along, this rank names them.
        """
        late = [other for other in self._came if other != self.rank]
        with loss_is_told(self._who, name_ranks(late)):
            self.store.set(self._came[self.rank], identity())
        left = self.seconds
        deadline, is_answering = time.monotonic() + left, False
        while left > 0:
            if appear(self.store, [self._key(_ANSWER)], min(left, _LOOK_SECONDS), self._who, name_ranks(late or [0])):
                return self._read()
            with loss_is_told(self._who, name_ranks(late or [0])):
                late = [other for other in late if not self.store.check([self._came[other]])]
            if 0 not in late and not is_answering:
                is_answering, deadline = True, time.monotonic() + self.seconds + _LINGER_SECONDS
            left = deadline - time.monotonic()
        raise self._missing(late)

    def _read(self) -> tuple[str, str]:
        with loss_is_told(self._who, "rank 0"):
            found: str = self.store.get(self._key(_ANSWER)).decode("latin-1")
            word, _, text = found.partition(" ")
            if word == _LATE:
                self.store.set(self._heard[self.rank], "")
        if word not in (_ONE_HOST, _HOSTS, _LATE) or not 0 < len(text) <= MAX_ADDRESS_BYTES:
            raise RendezvousError(f"{self._who} found {found!r} in the store; expected an answer of rank 0")
        return word, text

    # On all ----------------------------------------------------------------------------------------------------------

    def _missing(self, late: Collection[int]) -> RendezvousError:
        came = [other for other in range(self.size) if other not in late]
        if not late:
            return RendezvousError(
                f"all {self.size} ranks came to the store of this process group, but rank 0 did not say within "
                f"{self.seconds:g} s where they meet (reported by rank {self.rank}); check whether it is stopped"
            )
        advice = "check whether every rank started, and whether one ended early"
        others = [other for other in late if other]
        if 0 in late and others:  # the store of PyTorch that rank 0 serves lets it go on only when all are connected
            advice += f"; rank 0 may only wait for {name_ranks(others)}, so look there first"
        return RendezvousError(
            f"{name_ranks(sorted(late))} of {self.size} did not come to the store of this process group within "
            f"{self.seconds:g} s, {name_ranks(came)} came (reported by rank {self.rank}); {advice}",
            missing=sorted(late),
        )

    @property
    def _who(self) -> str:
        return f"rank {self.rank} of {self.size}"

    @cached_property
    def _came(self) -> dict[int, str]:
        return {rank: self._key(_CAME, str(rank)) for rank in range(self.size)}

    @cached_property
    def _heard(self) -> dict[int, str]:
        return {rank: self._key(_HEARD, str(rank)) for rank in range(1, self.size)}

    def _board(self, address: str) -> str:
        return self._key(_BOARD, address)

    def _key(self, what: str, *more: str) -> str:
        return "/".join([what, *([self.members] if self.members else []), *more])
