"""Rank 0's decisions, without a socket: any order of arrival, any bytes."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.runtime.rendezvous import protocol
from hocket.runtime.rendezvous.protocol import Failure, Gathering, Hello, Pending, Ready, Roster, encode


def hello(rank: int, size: int = 3, *, version: int = protocol.VERSION, protocol: str = protocol.PROTOCOL) -> bytes:
    return encode(Hello(protocol, version, rank, size, {"of": rank}))


def complete_gathering(size: int) -> Gathering:
    gathered = Gathering(size, {"of": 0})
    for rank in range(1, size):
        assert gathered.arrive(hello(rank, size), f"process {100 + rank}") == rank
    return gathered


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3])))
def test_any_order_of_arrival_completes(order: tuple[int, ...]) -> None:
    gathered = Gathering(4, {"of": 0})
    for count, rank in enumerate(order):
        assert not gathered.complete
        assert len(gathered.missing) == 3 - count
        gathered.arrive(hello(rank, 4), f"process {100 + rank}")
    assert gathered.complete and not gathered.missing
    for rank in order:
        assert not gathered.all_ready
        gathered.receive(rank, encode(Ready()))
    assert gathered.all_ready


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (hello(1), "two processes say they are rank 1 of 3: process 101 and process 200"),
        (hello(0), "two processes say they are rank 0 of 3: the process that listens and process 200"),
        (hello(2, 4), "rank 2 .process 200. expects 4 ranks, rank 0 expects 3"),
        (hello(3), "process 200 says it is rank 3; expected a rank from 0 to 2"),
        (hello(-1), "says it is rank -1"),
        (hello(2, version=2), "speaks version 2 of the rendezvous, rank 0 speaks 1"),
        # A later version may send more, or other data: only the header stays readable.
        (encode({"kind": "hello", "protocol": "hocket", "version": 9, "new": [1]}), "speaks version 9"),
    ],
)
def test_a_contradiction_is_everybodys_failure(data: bytes, words: str) -> None:
    gathered = Gathering(3, {})
    gathered.arrive(hello(1), "process 101")
    assert gathered.arrive(data, "process 200") is not None, "who contradicts is told as well"
    assert gathered.failure is not None
    with pytest.raises(Exception, match=words):
        raise gathered.failure
    assert gathered.failure.missing == ()
    assert not gathered.complete


STRANGERS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00",
    b"\xdf\xff\xff\xff\xff",
    b"\x91" * 2000,
    b"\x81\xa4kind\xa1\xff",  # text that is not UTF-8
    encode({"kind": "hello"}),
    encode({"kind": "go"}),
    encode(Pending([])),
    hello(1, protocol="other"),
    hello(1)[:-1],
    encode({"kind": "hello", "protocol": "hocket", "version": 1, "rank": "1", "size": 3, "hello": {}}),
]


@pytest.mark.parametrize("data", STRANGERS)
def test_a_stranger_changes_nothing(data: bytes) -> None:
    gathered = Gathering(3, {})
    assert gathered.arrive(data, "process 200") is None
    assert gathered.failure is None and gathered.missing == [1, 2]


@given(st.binary(max_size=200))
def test_random_bytes_change_nothing(data: bytes) -> None:
    gathered = Gathering(3, {})
    assert gathered.arrive(data, "process 200") is None
    assert gathered.failure is None and gathered.missing == [1, 2]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, r"rank 2 of 3 \(process 102\) ended during the rendezvous"),
        (b"nonsense", "rank 2 of 3 .* sent something unexpected"),
        (encode(Failure("rank 2 gave up", [1])), "rank 2 gave up"),
    ],
)
def test_a_member_that_leaves_is_named(data: bytes | None, words: str) -> None:
    gathered = complete_gathering(3)
    gathered.receive(2, data)
    with pytest.raises(Exception, match=words):
        raise gathered.failure or AssertionError


def test_ready_before_the_roster_is_unexpected() -> None:
    gathered = Gathering(3, {})
    gathered.arrive(hello(1), "process 101")
    gathered.receive(1, encode(Ready()))
    assert "unexpected" in str(gathered.failure)


def test_missing_ranks_are_named_and_the_first_failure_wins() -> None:
    gathered = Gathering(4, {})
    gathered.arrive(hello(2, 4), "process 102")
    gathered.expire(7)
    gathered.fail("something later")
    assert gathered.failure is not None
    assert gathered.failure.missing == (1, 3)
    assert str(gathered.failure).startswith("ranks 1, 3 of 4 did not come to the rendezvous within 7 s")


def test_a_rank_that_stops_after_the_roster_is_named() -> None:
    gathered = complete_gathering(3)
    gathered.receive(1, encode(Ready()))
    gathered.expire(7)
    assert str(gathered.failure).startswith("rank 2 of 3 came to the rendezvous but stopped answering")


@pytest.mark.parametrize(("size", "padding"), [(1, 0), (2, 0), (200, 0), (201, 0), (450, 0), (40, 3800)])
def test_the_roster_is_cut_into_messages_that_the_kernel_takes(size: int, padding: int) -> None:
    gathered = complete_gathering(size)
    for member in gathered.hellos.values():
        member["padding"] = "x" * padding
    config = {"text": "y" * 30000}
    ranks: list[int] = []
    for data, members in gathered.roster(config):
        message = protocol.decode(data)
        assert isinstance(message, Roster)
        assert len(data) <= protocol.MAX_MESSAGE_BYTES and len(members) <= protocol.MAX_DESCRIPTORS
        assert message.first == len(ranks) and [entry["of"] for entry in message.hellos] == list(members)
        assert message.config == (config if message.first == 0 else {})
        ranks += members
    assert ranks == list(range(size))


@pytest.mark.parametrize("data", [*STRANGERS, b""])
def test_decode_never_raises(data: bytes) -> None:
    message = protocol.decode(data)
    assert message is None or isinstance(message, msgspec.Struct)
