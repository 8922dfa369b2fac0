"""Target: what comes over the link of two leaders, from an end that has the key and from one that has not."""

from random import Random

from hocket.runtime.network import control_messages
from hocket.runtime.network.control_messages import Ask, Beat, Death, Leaving, News, Over, Proposal, TellAgain, Verdict
from hocket.runtime.network.sealed import LinkEndedError, Sealer, Unsealer
from tests.fuzz import inputs

SESSION = bytes(range(32))
DIRECTION = b"to the gate"
_SEALED, _MESSAGE = range(2)
MESSAGES = (
    Beat(),
    News(b"pages", True),
    Ask(),
    Proposal(b"reason"),
    Verdict(b"reason"),
    Death(3, True),
    Leaving(),
    Over(),
    TellAgain(),
)


def handle(data: bytes) -> None:
    """Handle a message, or a part of a link, which the second byte cuts; the first byte says which."""
    kind, rest = data[:1], data[1:]
    if not kind:
        return
    if kind[0] % 2 == _MESSAGE:
        message = control_messages.read(rest)
        assert message is None or control_messages.read(control_messages.write(message)) == message
        return
    place, stream = (rest[0] if rest else 0), rest[1:]
    unsealer, sealer = Unsealer(SESSION, DIRECTION), Sealer(SESSION, DIRECTION)
    signed = b""
    try:
        for part in (stream[:place], stream[place:]):
            signed += b"".join(sealer.seal(message) for message in unsealer.feed(part))
    except LinkEndedError:
        pass
    assert stream.startswith(signed), "what was not sealed at this place is taken for a message"


def draw(choose: Random) -> bytes:
    """Return a message, or some of them as they travel, with some changes."""
    if choose.random() < 0.5:
        return bytes([_MESSAGE]) + inputs.mutate([control_messages.write(one) for one in MESSAGES], choose)
    sealer = Sealer(SESSION, DIRECTION)
    sealed = [sealer.seal(control_messages.write(choose.choice(MESSAGES))) for _ in range(3)]
    stream = b"".join(choose.choice(sealed) if choose.random() < 0.2 else one for one in sealed)
    return bytes([_SEALED, choose.randrange(256)]) + (
        inputs.mutate([stream], choose) if choose.random() < 0.7 else stream
    )
