"""The roll call of a new group: each rank writes into the store of which ranks it makes the group, and reads what the
others wrote.

PyTorch names a group by how many groups a rank has made before, so ranks that make different groups find each other
under one name. Ranks are those of the default group.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hocket.errors import RendezvousError
from hocket.runtime import name_ranks

SHORTEST_WAIT_SECONDS = 0.001  # stores count in milliseconds; 0 means no limit
_SHORTEST_PAUSE_SECONDS = 0.0005  # between two questions to the store; each pause is twice as long as the one before
_LONGEST_PAUSE_SECONDS = 0.02
_FIRST_LOOK_SECONDS = 0.05  # after this wait, and then after twice as long again, the lists that are there are compared
_LAST_LOOK_SECONDS = 2.0
NOTICE_SECONDS = 5.0  # after this wait, one line names the missing ranks


def text_of(members: Sequence[int]) -> str:
    """Returns the members as a part of a key."""
    return ",".join(map(str, members))


def call_roll(store: Any, scope: str, members: Sequence[int], rank: int, seconds: float) -> None:
    """Returns once all members make a group of the same members, in the same order.

    rank: this rank's index in members. scope: a text that only this life of the default group has, because a store may
    serve several. Raises RendezvousError, which names both lists if a member makes another group, and the missing ranks
    after `seconds`.
    """
    here, own = members[rank], text_of(members)
    keys = {member: f"hocket/members/{scope}/{member}" for member in members}
    store.set(keys[here], own)
    missing = [member for member in members if member != here]
    start = time.monotonic()
    look, noticed = _FIRST_LOOK_SECONDS, False
    while missing:
        passed = time.monotonic() - start
        wait = min(look, max(seconds - passed, SHORTEST_WAIT_SECONDS))
        complete = appear(store, [keys[member] for member in missing], wait, f"rank {here}", name_ranks(missing))
        came = missing if complete else [member for member in missing if store.check([keys[member]])]
        for member, found in zip(came, store.multi_get([keys[member] for member in came]), strict=True):
            _compare(here, members, member, found.decode())
        missing = [member for member in missing if member not in came]
        look = min(2 * look, _LAST_LOOK_SECONDS)
        passed = time.monotonic() - start
        if missing and passed >= seconds:
            raise RendezvousError(
                f"{name_ranks(missing)} did not come within {seconds:g} s to make the group of ranks {list(members)} "
                f"(reported by rank {here}); check whether every rank of the group makes it, and whether one ended "
                "early",
                missing=missing,
            )
        if missing and passed >= NOTICE_SECONDS and not noticed:
            noticed = True
            tell_wait(f"rank {here}", missing, f"to make the group of ranks {list(members)}", seconds)


def tell_wait(who: str, missing: Sequence[int], what: str, seconds: float) -> None:
    """Prints one line on standard error: for which ranks a rank waits, and what they are to do."""
    print(
        f"hocket: {who} has waited {NOTICE_SECONDS:g} s for {name_ranks(missing)} {what} (it gives up after "
        f"{seconds:g} s)",
        file=sys.stderr,
        flush=True,
    )


def _compare(here: int, members: Sequence[int], member: int, found: str) -> None:
    if found != text_of(members):
        raise RendezvousError(
            f"the ranks differ in the group that they make: rank {here} makes one of ranks {list(members)}, rank "
            f"{member} one of ranks [{found.replace(',', ', ')}]; call new_group on all ranks for all groups, in the "
            "same order and with the same ranks"
        )


def appear(store: Any, keys: Sequence[str], seconds: float, who: str, awaited: str) -> bool:
    """Returns whether all keys come into the store within `seconds`. Raises RendezvousError if the store is lost."""
    with loss_is_told(who, awaited):
        return come(store, keys, seconds)


@contextlib.contextmanager
def loss_is_told(who: str, awaited: str) -> Iterator[None]:
    """A context in which errors of the store become RendezvousError, which tells who lost it and what it waited for."""
    try:
        yield
    except Exception as error:
        raise RendezvousError(
            f"{who} lost the store of this process group while waiting for {awaited}; check whether the process that "
            f"serves the store, usually rank 0, ended early ({error})"
        ) from error


def come(store: Any, keys: Sequence[str], seconds: float) -> bool:
    """Returns whether all keys come into the store within `seconds`; checks at least once.

    It asks again and again, because a TCPStore prints two warnings whenever the time of its `wait` is up.
    """
    deadline, pause = time.monotonic() + seconds, _SHORTEST_PAUSE_SECONDS
    while not store.check(list(keys)):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return True
