"""What all boards have alike, and the board of a fixed address."""

import pytest

from hocket.errors import RendezvousError
from hocket.runtime.rendezvous.boards import board
from hocket.runtime.rendezvous.boards.board import Board
from hocket.runtime.rendezvous.boards.fixed_address import FixedAddress, fixed_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("hxa:29500", "hxa", 29500),
        ("node-1.rack_2.example:1", "node-1.rack_2.example", 1),
        ("10.77.0.1:65535", "10.77.0.1", 65535),
        ("[fd77::1]:29500", "fd77::1", 29500),
        ("[FD77:0::1]:29500", "fd77::1", 29500),
        ("run:7", "run", 7),
    ],
)
def test_a_host_and_a_port_are_a_fixed_address(text: str, host: str, port: int) -> None:
    found = fixed_address(text, "HOCKET_ADDRESS")
    assert found == FixedAddress(host, port, "HOCKET_ADDRESS")
    assert (found.listens_at, found.ports) == ((host, port), (port,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "meeting",
        "hxa",
        "10.77.0.1",
        "a:b",
        "hxa:",
        ":29500",
        "hxa:0",
        "hxa:07",
        "hxa:65536",
        "hxa:123456",
        "hxa:29500 ",
        "hxa:29500\n",
        " hxa:29500",
        "hxa: 29500",
        "hxa:+29500",
        "hxa:٢٩٥٠٠",
        "hxä:29500",
        "tcp://hxa:29500",
        "hxa:1:2",
        "fd77::1:29500",
        "[fd77::1]",
        "[hxa]:29500",
        "[10.77.0.1]:29500",
        "[fd77::1%eth0]:29500",
        "-hxa:29500",
        "x" * 254 + ":1",
    ],
)
def test_any_other_text_is_a_name_on_one_host(text: str) -> None:
    assert fixed_address(text, "HOCKET_ADDRESS") is None


def test_a_fixed_address_is_found_at_once_and_carries_no_key() -> None:
    one: Board = FixedAddress("fd77::1", 29500, "HOCKET_ADDRESS")
    one.publish("fd77::2:4")
    assert one.find(0.0) == one.find(9.0) == "[fd77::1]:29500"
    assert one.where == "[fd77::1]:29500 (told by HOCKET_ADDRESS)" and not one.carries_key


@pytest.mark.parametrize("text", ["", " ", "two words", "a\x7f", "a\nb", "a\tb", "é", "x" * (board.MAX_TEXT_BYTES + 1)])
def test_what_a_board_cannot_carry_is_refused_at_both_ends(text: str) -> None:
    with pytest.raises(ValueError, match="expected ASCII without spaces"):
        board.check_text(text)
    with pytest.raises(RendezvousError, match=r"the board has .* where rank 0 writes its addresses"):
        board.checked_found(text, "the board")
    longest = "x" * board.MAX_TEXT_BYTES
    assert board.checked_found(longest, "the board") == longest
