"""docs/networks.md: its commands parse; a program makes the picture and the table of each question."""

import argparse
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hocket.cli import explain, simulate
from hocket.cli.simulate.command import cases_asked
from hocket.errors import TopologyError
from hocket.network import MACHINES, load, load_machine
from hocket.network.links import LINKS
from hocket.network.topology import LINK_CLASSES
from tests.cli.printed import json_of

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "networks.md").read_text()
COMMANDS = re.findall(r"^\$ hocket (simulate|explain) ([^#\n]*)", TEXT.replace("\\\n", ""), re.MULTILINE)


EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def pictures() -> Any:
    specification = importlib.util.spec_from_file_location("networks", ROOT / "docs" / "pictures" / "networks.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "words"), COMMANDS)
def test_commands_ask_for_what_there_is(name: str, words: str) -> None:
    parser = argparse.ArgumentParser()
    (simulate if name == "simulate" else explain).add_arguments(parser)
    arguments = parser.parse_args(shlex.split(words.replace("mine.yaml", "h100")))
    if name == "simulate":
        for case in cases_asked(arguments)[0]:
            assert case.network().num_ranks > 1


def test_the_file_that_is_shown_is_read_as_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = next(one for one in EXAMPLES if "nodes:" in one)
    file = tmp_path / "lab.yaml"
    file.write_text(example)
    network = load(file)
    assert (network.name, network.num_ranks, network.num_nodes, network.num_links) == ("lab", 3, 5, 10)
    assert [network.node_names[node] for node in network.ranks] == ["g2", "g0", "g1"]
    inside = network.paths(np.array([1]), np.array([2])).links
    assert network.link_class[inside].tolist() == ["nvswitch", "nvswitch"], "not by way of the leaf"
    row = json_of(capsys, "simulate", "all_reduce", "--algorithm", "ring", "-b", "64M", "--topology", str(file))
    assert row["topology"] == "lab" and row["binding_links"] == ["leaf->g2"]
    for name in (*LINK_CLASSES, "topology: ", "outer: ", "change: ", "routes: ", "reducing: "):
        assert f"`{name}" in TEXT
    slurm = load("SwitchName=s Nodes=tux[0-1]\n")
    assert slurm.bytes_per_second.tolist() == [LINKS["infiniband-ndr"].bytes_per_second] * 4
    for wrong in ("bandwidth: 1e9, latency: 2us", "bandwidth: 1 GB, latency: 2us", "bandwidth: 1GB/s, latency: 2"):
        with pytest.raises(TopologyError, match="with its unit"):
            load(f"nodes: {{gpu: [a, b]}}\nlinks: [{{between: [a, b], class: nic, {wrong}}}]\n")


def test_the_machine_that_is_shown_is_read_as_is_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(next(one for one in EXAMPLES if "base:" in one))
    machine = load_machine(str(file))
    assert (
        machine.network(2).num_ranks == 16
        and machine.launch_seconds == pytest.approx(35e-6)
        and machine.fabric == "roce"
    )
    for name in MACHINES:
        assert f"`{name}`" in TEXT


def test_every_question_has_its_picture_and_its_table() -> None:
    module = pictures()
    sections, report = module.questions(TEXT), module.REPORT.read_text()
    tables = dict(module.TABLES.findall(report))
    assert list(sections) == list(tables) == list(module.FORMS)
    for name, section in sections.items():
        assert (module.PICTURES / f"{name}.svg").is_file() and module.commands_of(section)
        assert tables[name].count("\n|") > 2, "make docs-pictures writes the table"
    assert report == module.report(sections, tables), "make docs-pictures writes the page"
    assert "(reports/networks.md)" in TEXT


def test_a_picture_is_drawn_from_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pictures()
    monkeypatch.setattr(module, "PICTURES", tmp_path)
    rows = module.rows_of("hocket simulate all_reduce --sweep -b 1K --algorithm ring,direct --topology ring:4")
    module.draw("slow_link", rows)
    drawn = (tmp_path / "slow_link.svg").read_text()
    assert "ring:4" in drawn and "lower bound" in drawn and "direct" in drawn
    assert module.table(rows).count("\n") == 4
