"""hocket show topology: the kinds there are, and one network as a table, a matrix and JSON."""

import json
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

from hocket.cli import main
from hocket.network import KINDS
from tests.cli.printed import text_of

SVG = "{http://www.w3.org/2000/svg}"


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", "topology", *arguments]) == 0
    return capsys.readouterr().out


def test_the_matrix_is_printed_with_its_legend(capsys: pytest.CaptureFixture[str]) -> None:
    text = show(capsys, "--topology", "dgx-1v:1")
    assert "dgx-1v:1: 8 ranks; nodes: 8 gpus, 4 nics, 2 roots, 4 pcie-switches\n" in text
    assert "gpu0 X    NV1  NV1  NV2  NV2  SYS  SYS  SYS  PIX  PHB  SYS  SYS  root0\n" in text
    assert "PIX  PCIe, within one switch\n" in text
    assert "C2C" not in text


def test_json_has_nodes_links_and_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(show(capsys, "--topology", "switch:2,bandwidth=25GB/s,latency=1us", "--json"))
    assert facts["nodes"] == {"rank": 2, "switch": 1}
    assert facts["links"] == [{"class": "nic", "bytes_per_second": 25e9, "seconds": 1e-6, "number": 4}]
    assert facts["ways"] == [["X", "NET2"], ["NET2", "X"]]


def picture_of(capsys: pytest.CaptureFixture[str], network: str) -> Element:
    return fromstring(show(capsys, network, "--svg", "-"))


def test_a_picture_says_what_a_line_and_its_colour_mean(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    texts = [one.text for one in picture_of(capsys, "dgx-h100:1").iter(f"{SVG}text")]
    assert "8 ranks (gpu0 to gpu7), 23 nodes, 58 links, one in each direction of a line" in texts
    assert {"nvswitch: 371 GB/s, latency 0.150 us", "pcie: 55 GB/s, latency 0.150 us"} <= {*texts}
    file = tmp_path / "uneven.yaml"
    link = "{between: [%s, s], class: nic, bandwidth: %d GB/s, latency: 1 us}"
    file.write_text(f"nodes: {{gpu: [a, b], switch: [s]}}\nlinks: [{link % ('a', 10)}, {link % ('b', 20)}]\n")
    texts = [one.text for one in picture_of(capsys, str(file)).iter(f"{SVG}text")]
    assert not any("GB/s" in str(text) for text in texts)  # one class, but several costs


def test_hosts_of_a_fat_tree_are_near_each_other_whatever_is_above_them(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [float(one.get("cx", "")) for one in picture_of(capsys, "fat-tree:8").iter(f"{SVG}circle")]
    assert {right - left for left, right in pairwise(hosts)} == {76}


def test_a_narrow_terminal_shows_the_first_of_many_equal_hosts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(show(capsys, "fat-tree:64").splitlines()) > 64, "a pipe gets all"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = show(capsys, "fat-tree:64").splitlines()
    assert len(lines) < 30
    assert any("these are the first 10 of 64 devices; --json has all." in line for line in lines)
    assert any(line.startswith("host9 NET") or line.startswith("host9  NET") for line in lines)
    assert not any("host10" in line for line in lines)


def test_a_large_network_has_no_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert "The matrix is not shown: there are more than 256 devices.\n" in show(capsys, "--topology", "ring:300")


def test_brackets_in_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "name: 'a[/b] net'\nnodes: {gpu: ['[red]g0', '[/]g1'], '[/i]': [s]}\n"
        "links: [{between: ['[red]g0', s], link: roce-100g}, {between: ['[/]g1', s], link: roce-100g}]\n"
    )
    assert "a[/b] net: 2 ranks; nodes: 2 gpus, 1 [/i]\n" in show(capsys, "--topology", str(file))
    call = ("all_reduce", "-b", "1K", "--topology", str(file))
    text = text_of(capsys, "simulate", *call)
    assert " on a[/b] net, 2 ranks: " in text and " [red]g0->s " in text and " [/]g1->s " in text
    assert "1 KiB on a[/b] net, 2 ranks: " in text_of(capsys, "explain", *call)


def test_all_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = show(capsys)
    assert all(f"{name}:{kind.usage}\n    {kind.about}\n" in text for name, kind in KINDS.items())
    assert set(json.loads(show(capsys, "--json"))["kinds"]) == set(KINDS)


def test_mistakes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "topology", "--topology", "circle:4"]) == 2
    assert "expected KIND:ARGS" in (captured := capsys.readouterr().err) or "nor KIND:ARGS" in captured
    assert main(["show", "ring", "--topology", "ring:4"]) == 2
    assert "leave the topology out, or see `hocket show topology`" in capsys.readouterr().err
    assert main(["show", "topology", "ring:4", "--topology", "ring:8"]) == 2
    assert "expected one network; found ring:4 and --topology ring:8; leave one out" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show topology", "explain all_reduce -b 1K"])
def test_a_second_network_is_refused_and_the_command_that_compares_is_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--topology", "ring:4", "--topology", "ring:8"])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "expected one network; found ring:4 and ring:8; run the command once" in said
    compared = said.splitlines()[0].rpartition(": hocket ")[2].split()
    rows = text_of(capsys, *compared).splitlines()
    assert {row.split(",")[2] for row in rows[1:]} == {"ring:4", "ring:8"}
