"""What a board is: rank 0 publishes on it where it is to be found, and the other ranks look there.

A board does nothing before it is used: no connection, no count. It does not know what the text means, and does not
prove that rank 0 wrote it: the handshake of a connection proves that, with the key of the job.
"""

from collections.abc import Sequence
from typing import Protocol

from hocket.errors import RendezvousError

MAX_TEXT_BYTES = 500
_RIGHT = f"ASCII without spaces, 1 to {MAX_TEXT_BYTES} bytes"
ANSWER_SECONDS = 10.0
"""How long the other end of a board may be silent where it should answer at once."""


class Board(Protocol):
    """The means by which the ranks of one meeting find rank 0; each `hocket.init` has a board of its own.

    where is for messages ("torchrun's store at hxa:29500"). Rank 0 listens at the first of `ports` that is free, and at
    any port if there are none. If there is `listens_at`, it listens there and nowhere else.

    The methods raise RendezvousError or ResourceError, at the latest ANSWER_SECONDS after they should have returned.
    """

    @property
    def where(self) -> str:
        """The means in words."""

    @property
    def carries_key(self) -> bool:
        """Whether a secret may travel by it."""

    @property
    def ports(self) -> Sequence[int]:
        """The ports of rank 0 that the board can name; empty if it can name any."""

    @property
    def listens_at(self) -> tuple[str, int] | None:
        """Host and port of rank 0, if they are given from outside."""

    def publish(self, text: str) -> None:
        """Shows the text to the other ranks: ASCII without spaces, 1 to MAX_TEXT_BYTES.

        Rank 0 calls it once, and listens before. It may return only when every other rank has called `find`.
        """

    def find(self, seconds: float) -> str | None:
        """Returns what rank 0 has published last; None if that is nothing after at most `seconds`: call it again.

        Every rank but 0 calls it. One that reaches nobody there pauses, and calls it again: the text may be left over
        from ranks that have ended, or be one of several that the board can name.
        """


def check_text(text: str) -> None:
    """Raises ValueError unless a board can carry the text."""
    wrong = _wrong_with(text)
    if wrong:
        raise ValueError(f"expected {_RIGHT}; found {wrong}")


def checked_found(text: str, where: str) -> str:
    """Returns a text that was found. Raises RendezvousError unless a rank 0 can have published it."""
    wrong = _wrong_with(text)
    if wrong:
        raise RendezvousError(
            f"{where} has {wrong} where rank 0 writes its addresses, expected {_RIGHT}; does another program write "
            "there? Tell all ranks where rank 0 is by HOCKET_ADDRESS=HOST:PORT instead"
        )
    return text


def _wrong_with(text: str) -> str:
    """Returns why no board can carry the text, "" if they can; without the text, which may hold a key."""
    if not 0 < len(text) <= MAX_TEXT_BYTES:
        return f"{len(text)} characters"
    bad = next((one for one in text if not "!" <= one <= "~"), None)
    return "" if bad is None else f"the character {bad!r}"


def shortened(found: object) -> str:
    """Returns what was found, for messages: its beginning if it is long."""
    text = repr(found)
    return text if len(text) <= 80 else f"{text[:77]}..."
