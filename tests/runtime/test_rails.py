"""Rails: several interfaces of a host at once, and which way each of them takes to another host."""

from collections.abc import Sequence
from ipaddress import ip_interface

import pytest

from hocket.runtime.network import interfaces, rails
from hocket.runtime.network.interfaces import Interface, LocalAddress
from hocket.runtime.network.rails import MAX_RAILS, approaches, rails_of_this_host

ETH0, ETH1 = LocalAddress("10.1.0.1", "eth0"), LocalAddress("10.2.0.1", "eth1")


def interface(name: str, *addresses: str, is_inner: bool = False) -> Interface:
    return Interface(name, tuple(map(ip_interface, addresses)), is_inner=is_inner)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> list[Interface]:
    found = [
        interface("lo", "127.0.0.1/8", is_inner=True),
        interface("eth0", "10.1.0.1/24", "fd01::1/64"),
        interface("eth1", "10.2.0.1/24", "10.2.0.9/24", "fd02::1/64"),
        interface("docker0", "10.3.0.1/24", is_inner=True),
        interface("eth2", "fd03::1/64"),
    ]
    for room in (interfaces, rails):
        monkeypatch.setattr(room, "list_interfaces", lambda: found)
    return found


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("pattern", "towards", "expected"),
    [
        (None, "10.1.0.1", []),
        ("eth0", "10.1.0.1", []),
        ("^eth2", "10.1.0.1", []),
        ("eth", "10.1.0.1", ["10.1.0.1", "10.2.0.1"]),
        ("eth1,eth0", "10.1.0.1", ["10.2.0.1", "10.1.0.1"]),
        ("10.0.0.0/8", "10.1.0.1", ["10.1.0.1", "10.2.0.1"]),
        ("eth0,docker", "10.1.0.1", []),
        ("eth", "fd01::1", ["fd01::1", "fd02::1", "fd03::1"]),
    ],
)
def test_interfaces_that_are_named_are_rails_if_there_are_several(
    pattern: str | None, towards: str, expected: list[str]
) -> None:
    assert [one.host for one in rails_of_this_host(pattern, towards)] == expected


@pytest.mark.usefixtures("host")
def test_a_pattern_that_chooses_nothing_gives_no_rails() -> None:
    assert rails_of_this_host("=none77", "10.1.0.1") == []


def test_rails_are_limited(host: list[Interface]) -> None:
    host += [interface(f"ib{number}", f"10.9.{number}.1/24") for number in range(40)]
    assert len(rails_of_this_host("ib", "10.1.0.1")) == MAX_RAILS


def tried(
    monkeypatch: pytest.MonkeyPatch, rail: int, addresses: Sequence[str], routes: dict[str, str]
) -> list[tuple[str, str | None]]:
    monkeypatch.setattr(rails, "source_towards", routes.get)
    found = approaches([(address, 5) for address in addresses], [ETH0, ETH1], rail)
    return [(address, source and source.interface) for (address, _), source in found]


def test_a_rail_goes_to_the_address_in_its_own_network_first(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"10.1.0.2": "10.1.0.1", "10.2.0.2": "10.2.0.1"}
    addresses = ["10.2.0.2", "10.1.0.2"]
    routed = [("10.2.0.2", None), ("10.1.0.2", None)]
    assert tried(monkeypatch, 0, addresses, routes) == [("10.1.0.2", "eth0"), *routed]
    assert tried(monkeypatch, 1, addresses, routes) == [("10.2.0.2", "eth1"), *routed]


def test_rails_in_one_network_go_to_different_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = dict.fromkeys(("10.1.0.2", "10.1.0.3"), "10.1.0.1")
    assert tried(monkeypatch, 0, list(routes), routes)[0] == ("10.1.0.2", "eth0")
    assert tried(monkeypatch, 1, list(routes), routes)[0] == ("10.1.0.3", "eth1")


def test_a_rail_leaves_out_addresses_of_the_other_family_but_where_the_kernel_routes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tried(monkeypatch, 0, ["fd01::2"], {}) == [("fd01::2", None)]


def test_without_rails_the_kernel_routes() -> None:
    assert approaches([("10.1.0.2", 5)], [], 0) == [(("10.1.0.2", 5), None)]
