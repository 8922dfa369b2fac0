"""The handshake of connections: who lacks the key, or repeats what was said elsewhere, is not let in."""

import random
import secrets
from dataclasses import replace

import pytest

from hocket.runtime.network import handshake
from hocket.runtime.network.handshake import Credentials, Purpose

JOB = Credentials(bytes(range(32)), "0badcafe", 4, 0x1234)
PURPOSE = Purpose(1 << 63, 2, 1)


def opened(job: Credentials = JOB, purpose: Purpose = PURPOSE) -> tuple[bytes, bytes, bytes]:
    """Return a challenge, the answer to it, and the greeting that is then expected."""
    challenged = handshake.challenge()
    answered = handshake.answer(job, purpose, challenged)
    assert answered is not None
    return challenged, *answered


def test_two_ranks_of_a_job_let_each_other_in() -> None:
    challenged, answered, expected = opened()
    assert (len(challenged), len(answered)) == (handshake.CHALLENGE_BYTES, handshake.ANSWER_BYTES)
    admitted = handshake.admit(JOB, 1, challenged, answered)
    assert admitted is not None and admitted[0] == PURPOSE
    assert len(admitted[1]) == handshake.GREETING_BYTES and handshake.is_greeting(expected, admitted[1])


@pytest.mark.parametrize(
    "other",
    [
        replace(JOB, key=secrets.token_bytes(32)),
        replace(JOB, name="0badcaff"),
        replace(JOB, size=5),
        replace(JOB, layout=0x1235),
    ],
    ids=["key", "job", "size", "layout"],
)
def test_another_job_is_not_let_in(other: Credentials) -> None:
    challenged, answered, _ = opened(other)
    assert handshake.admit(JOB, 1, challenged, answered) is None


@pytest.mark.parametrize(
    "purpose",
    [Purpose(7, 2, 3), Purpose(7, 1, 1), Purpose(7, 4, 1), Purpose(7, 2, 1, 2, 2)],
    ids=["to", "self", "none", "rail"],
)
def test_a_connection_leads_from_another_rank_of_the_job_to_this_one(purpose: Purpose) -> None:
    challenged, answered, _ = opened(purpose=purpose)
    assert handshake.admit(JOB, 1, challenged, answered) is None


def test_what_was_said_elsewhere_is_of_no_use() -> None:
    challenged, answered, expected = opened()
    assert handshake.admit(JOB, 1, handshake.challenge(), answered) is None, "an answer to another challenge"
    assert handshake.admit(JOB, 2, challenged, answered) is None, "an answer to another rank"
    admitted = handshake.admit(JOB, 1, *opened()[:2])
    assert admitted is not None and not handshake.is_greeting(expected, admitted[1]), "another greeting"
    assert not handshake.is_greeting(expected, answered[-handshake.GREETING_BYTES :]), "its own proof"
    assert handshake.answer(JOB, PURPOSE, b"other" + challenged[5:]) is None, "another protocol"


def test_no_change_of_an_answer_is_let_in() -> None:
    challenged, answered, _ = opened()
    for at in range(len(answered)):
        for bit in range(8):
            changed = bytearray(answered)
            changed[at] ^= 1 << bit
            assert handshake.admit(JOB, 1, challenged, bytes(changed)) is None
    for length in range(len(answered)):
        assert handshake.admit(JOB, 1, challenged, answered[:length]) is None
    assert handshake.admit(JOB, 1, challenged, answered + b"\0") is None


def test_no_random_answer_is_let_in() -> None:
    choose, challenged = random.Random(1), handshake.challenge()
    for _ in range(20_000):
        answered = choose.randbytes(handshake.ANSWER_BYTES)
        assert handshake.admit(JOB, 1, challenged, answered) is None
