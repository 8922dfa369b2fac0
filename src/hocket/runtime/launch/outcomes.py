"""How the functions of ranks ended: with values, or with the failure that the caller of all of them gets."""

import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from hocket.runtime.launch.tracebacks import place_in, shortened
from hocket.runtime.ranks.failure_reports import follows_from_another

GRACE_SECONDS = 5.0  # for the other ranks after one has failed, and for all to exit after all have returned


class Pickler(Protocol):
    """A module such as pickle."""

    def dumps(self, value: Any, /) -> bytes:
        """Returns the value as bytes."""

    def loads(self, data: bytes, /) -> Any:
        """Returns the value of bytes."""


@dataclass
class Outcome:
    """How a rank function ended: with a value, or with an error (None if it does not survive pickling) and its text.

    follows: whether the error only follows from the failure of another rank.
    """

    value: Any = None
    failed: bool = False
    interrupted: bool = False
    error: BaseException | None = None
    text: str = ""
    follows: bool = False


def outcome_of(call: Callable[[], Any], pickler: Pickler) -> Outcome:
    """Calls a rank function, and returns how it ended. pickler: what the outcome will travel by."""
    try:
        return Outcome(value=call())
    except KeyboardInterrupt:
        return Outcome(failed=True, interrupted=True)
    except SystemExit as error:
        if error.code in (None, 0):
            return Outcome()
        text = f"the rank function called sys.exit({error.code!r})"
        return Outcome(failed=True, error=RuntimeError(text), follows=follows_from_another(error))
    except BaseException as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        return Outcome(failed=True, error=_transferable(error, pickler), text=text, follows=follows_from_another(error))


def _transferable(error: BaseException, pickler: Pickler) -> BaseException | None:
    try:
        copy = pickler.loads(pickler.dumps(error))
    except Exception:
        return None
    return error if type(copy) is type(error) else None


class Outcomes:
    """The results of the ranks, and the failure to raise."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.by_rank: dict[int, Outcome] = {}
        self.failed: list[int] = []  # in the order in which they were seen
        self.deadline: float | None = None  # for the ranks that still run

    def add(self, rank: int, outcome: Outcome) -> None:
        """Takes the outcome of a rank. The first failure sets the deadline."""
        self.by_rank[rank] = outcome
        if outcome.failed:
            self.failed.append(rank)
            self.deadline = self.deadline or time.monotonic() + GRACE_SECONDS

    def failure(self) -> BaseException | None:
        """Returns what the caller of all ranks gets instead of values; None if no rank failed."""
        if not self.failed:
            return None
        # A rank that only reports the failure of another rank may end before that other rank.
        causes = [rank for rank in self.failed if not self.by_rank[rank].follows] or self.failed
        rank, outcome = causes[0], self.by_rank[causes[0]]
        if outcome.interrupted:
            return KeyboardInterrupt()
        error = outcome.error or RuntimeError(outcome.text.rpartition("\n")[2] or "unknown failure")
        if outcome.text:
            error.add_note(f"This was rank {rank} of {self.size}, at:\n{place_in(shortened(outcome.text))}")
        elif not re.search(rf"\brank {rank}\b", str(error)):
            error.add_note(f"This was rank {rank} of {self.size}.")
        return error
