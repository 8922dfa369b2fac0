"""hocket show topology: the kinds there are, and one network as a table, a matrix and JSON."""

import json

import pytest

from hocket.cli import main
from hocket.network.kinds import KINDS


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", "topology", *arguments]) == 0
    return capsys.readouterr().out


def test_the_matrix_is_printed_with_its_legend(capsys: pytest.CaptureFixture[str]) -> None:
    text = show(capsys, "--topology", "dgx-1v:1")
    assert "dgx-1v:1: 8 ranks; nodes: 8 gpu, 4 nic, 2 root, 4 pcie-switch" in text
    assert "gpu0 X    NV2  NV1  NV1  NV2  SYS  SYS  SYS  PIX  PHB  SYS  SYS  root0\n" in text
    assert "PIX  PCIe, within one switch\n" in text
    assert "C2C" not in text


def test_json_has_nodes_links_and_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(show(capsys, "--topology", "switch:2,bandwidth=25GB/s,latency=1us", "--json"))
    assert facts["nodes"] == {"rank": 2, "switch": 1}
    assert facts["links"] == [{"class": "nic", "bytes_per_second": 25e9, "seconds": 1e-6, "number": 4}]
    assert facts["ways"] == [["X", "NET2"], ["NET2", "X"]]


def test_a_large_network_has_no_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert "More than 256 devices: no matrix." in show(capsys, "--topology", "ring:300")


def test_all_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = show(capsys)
    assert all(f"{name}:{kind.usage}\n    {kind.about}\n" in text for name, kind in KINDS.items())
    assert set(json.loads(show(capsys, "--json"))["kinds"]) == set(KINDS)


def test_mistakes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "topology", "--topology", "circle:4"]) == 2
    assert "expected KIND:ARGS" in (captured := capsys.readouterr().err) or "no KIND:ARGS" in captured
    assert main(["show", "ring", "--topology", "ring:4"]) == 2
    assert "--topology belongs to `hocket show topology`" in capsys.readouterr().err
