"""The handshake of a connection, without its socket: both ends show that they know the key of the job.

1. The end that has accepted the connection sends a challenge: 32 random bytes, after eight that name this protocol.
2. The end that has opened it answers with 32 random bytes of its own, what the connection is for, and a proof.
3. The end that has accepted it sends a proof of its own. From then on the core uses the connection.

A proof is HMAC-SHA256, under the key, of all that both ends have said before, of the end that proves it, and of the
job: its name, its number of ranks, and the build that all of them run. So no message is of any use in another
handshake, job or direction. Every message has a fixed length, and nothing of it is used before its proof is checked.
"""

import hmac
import secrets
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

KEY_BYTES = 32
_PROTOCOL = b"hocket\x00\x02"
_NONCE_BYTES = 32
_PURPOSE = struct.Struct("<QIIBB")
_JOB = struct.Struct("<QI8s")
_PROOF_BYTES = 32
CHALLENGE_BYTES = len(_PROTOCOL) + _NONCE_BYTES
ANSWER_BYTES = _NONCE_BYTES + _PURPOSE.size + _PROOF_BYTES
GREETING_BYTES = _PROOF_BYTES


@dataclass(frozen=True)
class Credentials:
    """What all ranks of a job know. key: KEY_BYTES secret bytes. layout: of the build that all of them run.

    Before the ranks have met, name, size and layout are still to be compared: then they are "", 0 and 0.
    """

    key: bytes = field(repr=False)
    name: str
    size: int
    layout: int

    def _prove(self, end: bytes, *said: bytes) -> bytes:
        job = _JOB.pack(self.layout, self.size, self.name.encode())
        return hmac.digest(self.key, b"".join((_PROTOCOL, end, job, *said)), "sha256")

    def session(self, challenged: bytes, answered: bytes) -> bytes:
        """Return a key that only the two ends of a connection have, once both have proved that they know the job's."""
        return self._prove(b"session", challenged, answered)


class Purpose(NamedTuple):
    """What a connection is for: bytes from rank `source` to rank `target`, in one lane of a communicator.

    rail: which of the num_rails connections it is that they take in turn.
    """

    communicator: int
    source: int
    target: int
    rail: int = 0
    num_rails: int = 1


def challenge() -> bytes:
    """Return what the end that has accepted a connection sends first."""
    return _PROTOCOL + secrets.token_bytes(_NONCE_BYTES)


def answer(job: Credentials, purpose: Purpose, challenged: bytes) -> tuple[bytes, bytes] | None:
    """Return what the end that has opened a connection sends then, and the greeting that it expects; None if this is no
    challenge.
    """
    if len(challenged) != CHALLENGE_BYTES or not challenged.startswith(_PROTOCOL):
        return None
    said = secrets.token_bytes(_NONCE_BYTES) + _PURPOSE.pack(*purpose)
    return said + job._prove(b"opens", challenged, said), job._prove(b"admits", challenged, said)


def admit(job: Credentials, rank: int, challenged: bytes, answered: bytes) -> tuple[Purpose, bytes] | None:
    """Return what the connection is for, and the greeting; None unless it leads from a rank of the job to `rank`."""
    if len(answered) != ANSWER_BYTES:
        return None
    said, proof = answered[:-_PROOF_BYTES], answered[-_PROOF_BYTES:]
    if not hmac.compare_digest(proof, job._prove(b"opens", challenged, said)):
        return None
    purpose = Purpose(*_PURPOSE.unpack_from(said, _NONCE_BYTES))
    if purpose.target != rank or purpose.source == rank or (job.size > 0 and purpose.source >= job.size):
        return None
    if purpose.rail >= purpose.num_rails:
        return None
    return purpose, job._prove(b"admits", challenged, said)


def is_greeting(expected: bytes, greeting: bytes) -> bool:
    """Return whether the other end has proved that it is a rank of the job."""
    return hmac.compare_digest(expected, greeting)
