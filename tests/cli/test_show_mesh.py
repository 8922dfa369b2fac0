"""The picture of a mesh: the classic one to the letter, and in any other every rank once, where it belongs."""

import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hocket.cli import main
from hocket.runtime import Cartesian
from hocket.view.networks.mesh_picture import Picture

CLASSIC = """\
mesh pp=2 x dp=2 x tp=4: 16 ranks on 2 nodes of 8 devices

╭ node 0 ───────────────────────────╮       ╭ node 1 ───────────────────────────╮
│ ┏ pp0 dp0 ━━━━━━━━━━━━━━━━━━━━━━┓ │       │ ┏ pp1 dp0 ━━━━━━━━━━━━━━━━━━━━━━┓ │
│ ┃   0   │   1   │   2   │   3   ┃ │───pp─▶│ ┃   8   │   9   │   10  │   11  ┃ │
│ ┃ 0,0,0 │ 0,0,1 │ 0,0,2 │ 0,0,3 ┃ │       │ ┃ 1,0,0 │ 1,0,1 │ 1,0,2 │ 1,0,3 ┃ │
│ ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛ │       │ ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛ │
│     │dp     │dp     │dp     │dp   │       │     │dp     │dp     │dp     │dp   │
│ ┏ pp0 dp1 ━━━━━━━━━━━━━━━━━━━━━━┓ │       │ ┏ pp1 dp1 ━━━━━━━━━━━━━━━━━━━━━━┓ │
│ ┃   4   │   5   │   6   │   7   ┃ │───pp─▶│ ┃   12  │   13  │   14  │   15  ┃ │
│ ┃ 0,1,0 │ 0,1,1 │ 0,1,2 │ 0,1,3 ┃ │       │ ┃ 1,1,0 │ 1,1,1 │ 1,1,2 │ 1,1,3 ┃ │
│ ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛ │       │ ┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛ │
╰───────────────────────────────────╯       ╰───────────────────────────────────╯

A cell: the global rank; below it (pp,dp,tp), its rank in its group of each axis.
A heavy frame: a group of tp. Links: neighbours along another axis, where they stand side by side.

axis  groups, by global rank
tp    [0,1,2,3]  [4,5,6,7]  [8,9,10,11]  [12,13,14,15]
dp    [0,4]  [1,5]  [2,6]  [3,7]  [8,12]  [9,13]  [10,14]  [11,15]
pp    [0,8]  [1,9]  [2,10]  [3,11]  [4,12]  [5,13]  [6,14]  [7,15]

A rank's place in a list, from 0, is its rank in that group.
Groups that cross nodes: pp (8 groups). Inside a node: dp, tp.
"""


def show(capsys: pytest.CaptureFixture[str], axes: str, *arguments: str) -> str:
    assert main(["show", "mesh", "--axes", axes, *arguments]) == 0
    return "".join(line.rstrip() + "\n" for line in capsys.readouterr().out.splitlines())


def cells(picture: str) -> dict[int, tuple[int, ...]]:
    """The coordinates by rank: each text of coordinates stands right below a rank, in the same columns."""
    lines, found = picture.splitlines(), {}
    for above, line in itertools.pairwise(lines):
        for match in re.finditer(r"(?<![\w,\[])\d+(?:,\d+)+(?![\w,\]])", line):
            rank = int(above[match.start() - 1 : match.end() + 1].strip(" │┃"))
            assert rank not in found
            found[rank] = tuple(map(int, match[0].split(",")))
    return found


def links(picture: str, axis: str) -> int:
    return len(re.findall(rf"[│▼]{axis}|─{axis}─", picture))


def test_the_classic_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys, "pp=2,dp=2,tp=4", "--nodes", "2") == CLASSIC


@st.composite
def placements(draw: st.DrawFn) -> tuple[Cartesian, int]:
    sizes = draw(st.lists(st.integers(1, 9), min_size=2, max_size=4))
    topology = Cartesian(dict(zip(("pp", "dp", "context", "tp"), sizes, strict=False)))
    return topology, draw(st.sampled_from([n for n in range(1, topology.size + 1) if topology.size % n == 0]))


@given(placements(), st.integers(60, 100))
def test_every_rank_has_one_cell(placed: tuple[Cartesian, int], width: int) -> None:
    topology, num_nodes = placed
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as capture:
        picture = Picture(topology, num_nodes, width)
        picture.print(console)
    assert max(map(len, capture.get().splitlines())) <= width
    drawn = min(topology.size, 64)  # of whole nodes, or a part of one
    num_devices = topology.size // num_nodes
    assert picture.num_ranks == (drawn - drawn % num_devices or drawn)
    assert cells(capture.get()) == {rank: tuple(topology.coords(rank).values()) for rank in range(picture.num_ranks)}
    assert len(re.findall(r"╭ node \d+ ", capture.get())) == -(-picture.num_ranks // num_devices)


@pytest.mark.parametrize(
    ("axes", "nodes", "num_links"),
    [
        ("pp=4,dp=2,tp=2", "2", {"pp": 8, "dp": 4, "tp": 0}),  # stages below each other, replicas side by side
        ("dp=2,pp=2,tp=4", "4", {"pp": 2, "dp": 8, "tp": 0}),  # boxes of one row: cell by cell from box to box
        ("pp=2,dp=8", "2", {"pp": 8, "dp": 0}),
        ("pp=2,dp=2,cp=2,tp=2", "2", {"pp": 1, "dp": 8, "cp": 4, "tp": 0}),  # boxes of two rows: once
        ("dp=16", "4", {"dp": 3}),  # one group over four nodes
        ("pp=2,tp=6", "3", {"pp": 0, "tp": 1}),  # a group ends inside a node
    ],
)
def test_links_are_between_neighbours(
    axes: str, nodes: str, num_links: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    text = show(capsys, axes, "--nodes", nodes)
    assert {axis: links(text, axis) for axis in num_links} == num_links


@pytest.mark.parametrize(
    ("axes", "nodes", "words"),
    [
        ("dp=4,tp=2", "1", "Groups that cross nodes: none. Inside a node: dp, tp."),
        ("dp=2,tp=3", "3", "Groups that cross nodes: dp (3 groups), tp (2 groups)."),
        ("dp=3,tp=4", "2", "Groups that cross nodes: dp (4 groups), tp (1 of 3 groups)."),
        ("dp=1", "1", "mesh dp=1: 1 rank on 1 node of 1 device"),
    ],
)
def test_what_crosses_nodes(axes: str, nodes: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in show(capsys, axes, "--nodes", nodes).splitlines()


def test_many_ranks_are_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    text = show(capsys, "pp=8,dp=16,tp=8", "--nodes", "128")
    assert max(map(len, text.splitlines())) <= 100 and len(text.splitlines()) < 100
    assert sorted(cells(text)) == list(range(64))
    assert "... and 960 more ranks; --json has all" in text
    assert "... and 112 more groups; --json has all" in text
    assert "[0,1,2,3,4,5,6,7,...,99]" in show(capsys, "dp=100")


@pytest.mark.parametrize("columns", ["60", "100"])
def test_a_terminal_has_a_colour_for_each_stage(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": columns}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = show(capsys, "pp=2,dp=2,tp=4", "--nodes", "2")
    bold = re.findall(r"\x1b\[1;([\d;]+)m +(\d+) +\x1b", text)
    fills = {int(rank): code for code, rank in bold}
    assert [fills[rank] for rank in range(16)] == [fills[0]] * 8 + [fills[8]] * 8 and fills[0] != fills[8]
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert cells(plain) == cells(CLASSIC)
    assert max(map(len, plain.splitlines())) <= int(columns)
    assert "Colours: pp  0   1" in plain


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(show(capsys, "pp=2,tp=3", "--nodes", "3", "--json"))
    assert shown["axes"] == {"pp": 2, "tp": 3} and (shown["num_nodes"], shown["devices_per_node"]) == (3, 2)
    assert shown["ranks"][4] == {"rank": 4, "node": 2, "device": 0, "coords": {"pp": 1, "tp": 1}}
    assert shown["groups"] == {"pp": [[0, 3], [1, 4], [2, 5]], "tp": [[0, 1, 2], [3, 4, 5]]}
    assert shown["crossing_nodes"] == {"pp": [[0, 3], [1, 4], [2, 5]], "tp": [[0, 1, 2], [3, 4, 5]]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mesh"], "expected --axes; type for example: hocket show mesh --nodes 2 --axes pp=2,dp=2,tp=4"),
        (["mesh", "--axes", "pp=2,tp"], "'tp' is no axis with a size; type for example: --axes pp=2,dp=2,tp=4"),
        (["mesh", "--axes", "pp=2,,tp=2"], "'' is no axis with a size"),
        (["mesh", "--axes", "2=pp"], "'2=pp' is no axis with a size"),
        (["mesh", "--axes", "dp=0"], "'dp=0' is no axis with a size"),
        (["mesh", "--axes", "dp=2,dp=4"], "axis dp stands twice in 'dp=2,dp=4'"),
        (
            ["mesh", "--axes", "dp=3,tp=4", "--nodes", "5"],
            "type --nodes with one of 1, 2, 3, 4, 6, 12, or other --axes",
        ),
        (["mesh", "--axes", "dp=4", "--nodes", "0"], "0 nodes cannot share the 4 ranks of dp=4 evenly"),
        (["mesh", "--axes", "dp=1000000"], "expected at most 131072 ranks, found 1000000 of dp=1000000"),
        (["ring", "--axes", "dp=2"], "--axes belongs to `hocket show mesh`; found 'ring'"),
    ],
)
def test_errors_say_what_to_type(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *arguments]) == 2
    assert words in capsys.readouterr().err
