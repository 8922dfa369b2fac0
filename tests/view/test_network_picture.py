"""Pictures of networks: what they show of many nodes, and that everything in them has its room."""

import re
from itertools import pairwise
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest

import hocket
from hocket.network import load
from hocket.view import draw_network

SVG = "{http://www.w3.org/2000/svg}"
NETWORKS = ["dgx-h100:2", "dgx-h100:16", "dgx-1v:1", "dragonfly:4,2,2,9", "fat-tree:64", "torus:16x16", "torus:4x30"]
TITLE_ENDS = 46  # pixels


def drawn(network: str) -> Element:
    return fromstring(draw_network(load(network)))


def texts(picture: Element) -> list[str]:
    return [str(one.text) for one in picture.iter(f"{SVG}text")]


def marks(picture: Element) -> dict[float, list[tuple[float, float]]]:
    """Returns the middle and half the width of each mark, by the height of its row."""
    rows: dict[float, list[tuple[float, float]]] = {}
    for one in picture.iter(f"{SVG}circle"):
        rows.setdefault(float(one.get("cy", "")), []).append((float(one.get("cx", "")), float(one.get("r", ""))))
    for one in picture.iter(f"{SVG}rect"):
        if one.get("rx"):
            x, y, side = (float(one.get(name, "")) for name in ("x", "y", "width"))
            rows.setdefault(round(y + side / 2, 0), []).append((x + side / 2, side / 2))
    return rows


def test_a_cable_is_drawn_twice_only_if_its_directions_differ() -> None:
    """A ring on four ranks: all cables one way. The exchange of neighbours: all cables equally busy both ways."""
    for algorithm, cables, both in (("ring", 4, False), ("bidirectional_ring", 4, True)):
        found = hocket.simulate("all_reduce", "64M", topology="ring:4", algorithm=algorithm)
        lines = [one.findtext(f"{SVG}title") or "" for one in fromstring(found.svg()).iter(f"{SVG}path")]
        assert len(lines) == (cables if both else 2 * cables)
        assert all(("<->" in line and "in each direction" in line) == both for line in lines)
    idle = hocket.simulate("all_reduce", "64M", 2, topology="ring:4", algorithm="ring")
    assert sum("for 0% of the time in each direction" in text for text in fromstring(idle.svg()).itertext()) == 3


@pytest.mark.parametrize("network", NETWORKS)
def test_no_line_leaves_the_picture_or_crosses_its_title(network: str) -> None:
    picture = drawn(network)
    width, height = float(picture.get("width", "")), float(picture.get("height", ""))
    for path in picture.iter(f"{SVG}path"):
        numbers = [float(one) for one in re.findall(r"-?[\d.]+", path.get("d", ""))]
        assert all(0 <= x <= width for x in numbers[::2])
        assert all(TITLE_ENDS < y < height for y in numbers[1::2])


@pytest.mark.parametrize("network", NETWORKS)
def test_no_mark_covers_another(network: str) -> None:
    for row in marks(drawn(network)).values():
        for (left, one), (right, other) in pairwise(sorted(row)):
            assert right - left > one + other - 0.2, "coordinates are rounded to a tenth"


@pytest.mark.parametrize("network", NETWORKS)
def test_every_text_ends_inside_the_picture(network: str) -> None:
    picture = drawn(network)
    for one in picture.iter(f"{SVG}text"):
        if one.get("font-size") is None:  # the title has larger letters
            assert float(one.get("x", "")) + 5.6 * len(str(one.text)) <= float(picture.get("width", "")), one.text


@pytest.mark.parametrize("network", ["ring:8", "torus:4x4", "hypercube:3", "fat-tree:8", "mesh:2x2x3"])
def test_no_line_crosses_a_name(network: str) -> None:
    picture = drawn(network)
    boxes = [one for one in picture.iter(f"{SVG}rect") if one.get("fill-opacity")]
    assert len(boxes) == load(network).num_nodes
    for path in picture.iter(f"{SVG}path"):
        stops = np.array(re.findall(r"-?[\d.]+", path.get("d", "")), float).reshape(-1, 2)
        for begin, end in pairwise(stops):
            way = begin + np.linspace(0, 1, 200)[:, None] * (end - begin)
            for box in boxes:
                x, y, width, height = (float(box.get(name, "")) for name in ("x", "y", "width", "height"))
                inside = ((way > (x + 1, y + 2)) & (way < (x + width - 1, y + height - 2))).all(axis=1)
                assert not inside.any(), (path.get("d"), x, y)


@pytest.mark.parametrize("network", ["dgx-h100:2", "dgx-1v:1", "torus:4x4", "dragonfly:4,2,2,3"])
def test_no_name_covers_another(network: str) -> None:
    boxes = [one for one in drawn(network).iter(f"{SVG}rect") if one.get("fill-opacity")]
    places = [tuple(float(box.get(name, "")) for name in ("x", "y", "width", "height")) for box in boxes]
    assert len(places) == load(network).num_nodes
    for number, (x, y, width, height) in enumerate(places):
        for at, above, wide, _ in places[:number]:
            assert at + wide < x or x + width < at or abs(above - y) >= height - 0.1, (x, y)


@pytest.mark.parametrize("network", ["torus:3x4", "mesh:3x4"])
def test_a_grid_counts_along_rows_from_the_upper_left_as_a_mesh_of_ranks_does(network: str) -> None:
    middles = [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in drawn(network).iter(f"{SVG}circle")]
    assert middles == sorted(middles, key=lambda middle: (middle[1], middle[0]))
    assert middles[0][1] == middles[3][1] < middles[4][1]


def test_a_picture_says_which_nodes_are_ranks_and_what_the_times_of_links_are() -> None:
    words = texts(drawn("fat-tree:8"))
    assert "8 ranks (host0 to host7), 20 nodes, 48 links, one in each direction of a line" in words
    assert "nic: 48.5 GB/s, latency 0.500 us" in words
    assert "8 ranks, 8 nodes, 16 links, one in each direction of a line" in texts(drawn("ring:8"))


def test_lines_between_neighbouring_rows_are_straight() -> None:
    ways = [one.get("d", "") for one in drawn("dgx-h100:16").iter(f"{SVG}path")]
    assert len([way for way in ways if way.count("L") > 1]) == 16, "only those between the sockets of a host are bent"


def test_many_nodes_have_no_names_but_rows_say_what_is_in_them() -> None:
    few, many = texts(drawn("dgx-h100:2")), texts(drawn("dgx-h100:5"))
    assert "gpu15" in few and "16 gpu" not in few
    assert "gpu15" not in many
    assert {"40 gpu", "5 nvswitch, 20 pcie-switch", "40 nic, 10 root", "8 rail", "1 spine"} <= {*many}
    assert any(
        "to read names, point at a node in a browser, or draw a network of at most 80 nodes" in one for one in many
    )


def test_a_network_that_is_too_large_to_draw_is_a_sentence() -> None:
    picture = drawn("dgx-h100:64")
    assert texts(picture)[1:] == [
        "512 ranks (gpu0 to gpu511), 1481 nodes, 4752 links: too many to draw.",
        "Draw fewer hosts or ranks of this kind; `hocket show topology` without --svg counts nodes and links.",
    ]
    assert not list(picture.iter(f"{SVG}path"))
