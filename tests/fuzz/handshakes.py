"""Targets: the messages of a handshake, from an end that has the key and from one that has not."""

import hmac
import struct
from random import Random

from hocket.runtime.network import handshake
from hocket.runtime.network.handshake import Credentials, Purpose
from tests.fuzz import inputs

JOB = Credentials(bytes(range(32)), "0badcafe", 4, 0x1234)
RANK = 1
CHALLENGE = b"hocket\x00\x02" + bytes(range(100, 132))
_CHALLENGE_BYTES, _OPENING_BYTES, _ANSWER_BYTES = 40, 50, 82
_ADMIT, _ADMIT_SIGNED, _ANSWER, _GREET = range(4)


def proof(job: Credentials, who: bytes, *said: bytes) -> bytes:
    """Return a proof, made here once more from what the protocol says."""
    told = [b"hocket\x00\x02", who, struct.pack("<QI8s", job.layout, job.size, job.name.encode()), *said]
    return hmac.new(job.key, b"".join(told), "sha256").digest()


def handle(data: bytes) -> None:
    """Handle one message. Its first byte says which, and whether its sender has the key and proves what it says."""
    kind, said = data[:1], data[1:]
    if not kind:
        return
    if kind[0] % 4 == _ADMIT:
        _check_admitted(said)
    elif kind[0] % 4 == _ADMIT_SIGNED:
        _check_admitted(said + proof(JOB, b"opens", CHALLENGE, said))
    elif kind[0] % 4 == _ANSWER:
        answered = handshake.answer(JOB, Purpose(7, 2, 1), said)
        assert (answered is not None) == (len(said) == 40 and said[:8] == b"hocket\x00\x02")
        if answered is not None:
            opening = answered[0][:_OPENING_BYTES]
            assert opening[32:] == struct.pack("<QIIBB", 7, 2, 1, 0, 1)
            assert answered[0][_OPENING_BYTES:] == proof(JOB, b"opens", said, opening)
            assert answered[1] == proof(JOB, b"admits", said, opening)
    else:
        expected = proof(JOB, b"admits", CHALLENGE)
        assert handshake.is_greeting(expected, said) == (said == expected)


def _check_admitted(answered: bytes) -> None:
    admitted = handshake.admit(JOB, RANK, CHALLENGE, answered)
    said, proved = answered[:_OPENING_BYTES], answered[_OPENING_BYTES:]
    if len(answered) != _ANSWER_BYTES or proved != proof(JOB, b"opens", CHALLENGE, said):
        assert admitted is None, "an answer without its proof is let in"
        return
    communicator, source, target, rail, num_rails = struct.unpack("<QIIBB", said[32:])
    belongs = target == RANK and source < JOB.size and source != RANK and rail < num_rails
    expected = (Purpose(communicator, source, target, rail, num_rails), proof(JOB, b"admits", CHALLENGE, said))
    assert admitted == (expected if belongs else None)


# Forgeries -----------------------------------------------------------------------------------------------------------

_OTHERS = [  # who may have recorded something: the job itself, and others that are nearly the same
    JOB,
    Credentials(bytes(32), JOB.name, JOB.size, JOB.layout),
    Credentials(JOB.key[:-1] + b"\0", JOB.name, JOB.size, JOB.layout),
    Credentials(JOB.key, "0badcaff", JOB.size, JOB.layout),
    Credentials(JOB.key, JOB.name, 5, JOB.layout),
    Credentials(JOB.key, JOB.name, JOB.size, 0x1235),
]


def draw_forgery(choose: Random) -> bytes:
    """Return a challenge, and an answer to it that an attacker makes of other handshakes: it has no key."""
    challenge = b"hocket\x00\x02" + choose.randbytes(32)
    other = challenge if choose.random() < 0.3 else b"hocket\x00\x02" + choose.randbytes(32)
    recorded = _OTHERS[int(choose.random() * len(_OTHERS))]
    opening = choose.randbytes(32) + struct.pack("<QIIBB", 7, 2 if choose.random() < 0.8 else 3, RANK, 0, 1)
    if recorded is JOB and other == challenge:  # of this very handshake, only the greeting to another answer
        answered = opening + proof(JOB, b"admits", challenge, choose.randbytes(32) + opening[32:])
    else:
        answered = opening + proof(recorded, b"opens" if choose.random() < 0.8 else b"admits", other, opening)
    if choose.random() < 0.5:
        answered = inputs.mutate([answered], choose)
        answered = answered if choose.random() < 0.3 else answered[:_ANSWER_BYTES].ljust(_ANSWER_BYTES, b"\0")
    return challenge + answered


def handle_forgery(data: bytes) -> None:
    """Refuse it as an answer, and its parts as a greeting."""
    challenge, answered = data[:_CHALLENGE_BYTES], data[_CHALLENGE_BYTES:]
    admitted = handshake.admit(JOB, RANK, challenge, answered)
    assert admitted is None, f"a forged answer is let in, as one of {admitted}"
    expected = proof(JOB, b"admits", challenge, answered[:_OPENING_BYTES])
    for greeting in (answered[_OPENING_BYTES:], answered[:32], challenge[8:], b""):
        assert not handshake.is_greeting(expected, greeting), "a forged greeting is taken"
