"""Which addresses of a host the ranks use, from lists of interfaces that hosts really have."""

import socket
from ipaddress import ip_interface

import pytest

from hocket.errors import RendezvousError
from hocket.runtime.network import interfaces
from hocket.runtime.network.interfaces import Interface, choose, choose_among, list_interfaces, named_interfaces


def interface(name: str, *addresses: str, is_up: bool = True) -> Interface:
    return Interface(
        name,
        tuple(ip_interface(one) for one in addresses),
        is_up=is_up,
        is_loopback=name == "lo",
        is_inner=name in ("lo", "docker0", "virbr0"),
    )


LOOPBACK = interface("lo", "127.0.0.1/8", "::1/128")
HOST = [
    LOOPBACK,
    interface("docker0", "172.17.0.1/16", "fe80::4/64"),
    interface("eth0", "10.0.0.5/24", "fd77::5/64", "fe80::1/64"),
    interface("eth1", "10.1.0.5/24", "fe80::2/64"),
    interface("eth10", "10.2.0.5/24"),
    interface("ib0", "192.168.7.5/24"),
    interface("ib1", "192.168.8.5/24", is_up=False),
    interface("usb0", "169.254.3.1/24"),
]


def chosen(pattern: str | None, source: str | None = None) -> list[str]:
    return [one.host for one in choose_among(HOST, pattern, source)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("eth", ["10.0.0.5", "fd77::5", "10.1.0.5", "10.2.0.5"]),  # the beginning of names
        ("eth1", ["10.1.0.5", "10.2.0.5"]),
        ("=eth1", ["10.1.0.5"]),  # a name
        ("=ib0,eth1", ["192.168.7.5", "10.1.0.5"]),  # = holds for all; the list gives the order
        ("ib,eth0", ["192.168.7.5", "10.0.0.5", "fd77::5"]),
        ("^docker,eth,usb", ["192.168.7.5"]),  # ^ holds for all, and loopback needs no word
        ("^=eth1,ib0,docker0,usb0", ["10.0.0.5", "fd77::5", "10.2.0.5"]),
        ("10.0.0.0/15", ["10.0.0.5", "10.1.0.5"]),
        ("fd77::/64,10.2.0.0/16", ["fd77::5", "10.2.0.5"]),
        ("10.1.0.5", ["10.1.0.5"]),
        ("^10.0.0.0/8,fd77::/16", ["192.168.7.5", "169.254.3.1", "172.17.0.1"]),
        ("fe80::/10,eth0", ["fe80::1%eth0", "fe80::2%eth1", "fe80::4%docker0", "10.0.0.5", "fd77::5"]),
        ("lo", ["127.0.0.1", "::1"]),
        ("docker", ["172.17.0.1"]),
        ("usb", ["169.254.3.1"]),
    ],
)
def test_a_pattern_chooses_as_in_nccl(pattern: str, expected: list[str]) -> None:
    assert chosen(pattern) == expected


@pytest.mark.parametrize("pattern", ["eth0,^docker", "eth0,=eth1", "ib , =", "10.0.0.0/40", "a/b", "^", "=", "^=", ","])
def test_a_malformed_pattern_is_the_fault_of_who_wrote_it(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"HOCKET_SOCKET_IFNAME is .*; expected "):
        chosen(pattern)


@pytest.mark.parametrize("pattern", ["wlan", "=eth", "11.0.0.0/8", "ib1", "^lo,docker,eth,ib,usb"])
def test_a_pattern_that_chooses_nothing_lists_the_interfaces(pattern: str) -> None:
    with pytest.raises(RendezvousError) as caught:
        chosen(pattern)
    text = str(caught.value)
    assert f"HOCKET_SOCKET_IFNAME={pattern} chooses no address" in text and "unset HOCKET_SOCKET_IFNAME" in text
    assert "eth0 10.0.0.5/24 fd77::5/64" in text and "ib1 192.168.8.5/24 (down)" in text
    assert "docker0 172.17.0.1/16 fe80::4/64 (within this host)" in text


def test_a_named_interface_without_an_address_is_listed() -> None:
    host = [LOOPBACK, interface("eth0"), interface("veth1", "fe80::9/64")]
    with pytest.raises(RendezvousError, match=r"are: lo 127.0.0.1/8 ::1/128; eth0 \(no address\); correct"):
        choose_among(host, "=eth0", None)


def test_rank_0_offers_what_leads_out_of_its_host_first_and_loopback_never() -> None:
    expected = ["10.0.0.5", "fd77::5", "10.1.0.5", "10.2.0.5", "192.168.7.5", "169.254.3.1", "172.17.0.1"]
    assert chosen(None) == expected


def test_loopback_is_offered_if_it_is_all_there_is() -> None:
    assert [one.host for one in choose_among([LOOPBACK], None, None)] == ["127.0.0.1", "::1"]
    with pytest.raises(RendezvousError, match="ip link set lo up"):
        choose_among([interface("lo", "127.0.0.1/8", is_up=False)], None, None)


def test_link_local_alone_is_used_only_on_a_named_interface() -> None:
    host = [LOOPBACK, interface("eth0", "fe80::1/64")]
    assert [one.host for one in choose_among(host, None, None)] == ["127.0.0.1", "::1"]
    assert [one.host for one in choose_among(host, "eth0", None)] == ["fe80::1%eth0"]


def test_the_interface_that_routes_is_chosen_with_all_its_addresses() -> None:
    assert chosen(None, "10.1.0.5") == ["10.1.0.5"]
    assert chosen(None, "fd77::5") == ["fd77::5", "10.0.0.5"]  # the family that routes comes first
    assert chosen(None, "127.0.0.1") == ["127.0.0.1", "::1"]
    assert chosen("eth", "10.1.0.5") == ["10.1.0.5", "10.0.0.5", "fd77::5", "10.2.0.5"]
    assert chosen("^eth1", "10.1.0.5")[0] == "10.0.0.5"  # it routes, but it is excluded
    assert choose_among(HOST, None, "10.9.9.9") == [("10.9.9.9", "")]  # the kernel may know one that no interface has


def test_the_route_is_asked_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(None, ("127.0.0.1", 1))[0] == ("127.0.0.1", "lo")
    assert choose(None, ("localhost", 1))[0].interface == "lo"
    monkeypatch.setattr(interfaces, "source_towards", lambda _: None)
    monkeypatch.setattr(interfaces, "list_interfaces", lambda: HOST)
    assert [one.host for one in choose(None, ("10.0.0.9", 1))] == chosen(None)  # no route: nothing is preferred


def test_a_name_that_is_not_found_prefers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(host: str, deadline: float) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(interfaces, "resolve", find)
    monkeypatch.setattr(interfaces, "list_interfaces", lambda: HOST)
    assert [one.host for one in choose(None, ("nowhere", 1))] == chosen(None)


def test_the_kernel_lists_loopback_and_every_name_that_the_system_knows() -> None:
    found = {one.name: one for one in list_interfaces()}
    assert found.keys() == {name for _, name in socket.if_nameindex()}
    assert found["lo"].is_up and found["lo"].is_loopback and ip_interface("127.0.0.1/8") in found["lo"].addresses
    for name in found.keys() - {"lo"}:
        for address in found[name].addresses:
            host = f"{address.ip}%{name}" if address.is_link_local and address.version == 6 else str(address.ip)
            family, kind, _, _, sockaddr = interfaces.numeric(host, 0)
            with socket.socket(family, kind) as here:
                here.bind(sockaddr)  # it is an address of this host


@pytest.mark.parametrize(
    ("kind", "ports", "is_inner"),
    [
        ("bridge", [], True),  # docker0 without containers, virbr0
        ("bridge", ["veth", "veth"], True),  # containers
        ("bridge", ["tun"], True),  # virtual machines
        ("bridge", ["tun", ""], False),  # the bridge of a host of virtual machines: a real card is in it
        ("bridge", ["bond"], False),
        ("dummy", [], True),  # the addresses of Kubernetes's services
        ("", [], False),  # a real card
        ("veth", [], False),  # the only card of a container
    ],
)
def test_a_bridge_leads_out_only_through_a_card(kind: str, ports: list[str], is_inner: bool) -> None:
    assert interfaces._is_inner(kind.encode() + b"\0", [port.encode() + b"\0" for port in ports]) == is_inner


def test_an_empty_variable_is_none() -> None:
    assert named_interfaces({}) is named_interfaces({"HOCKET_SOCKET_IFNAME": ""}) is None
    assert named_interfaces({"HOCKET_SOCKET_IFNAME": "^docker"}) == "^docker"
