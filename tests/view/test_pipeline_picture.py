"""The SVG of a pipeline: bars where the timing has them, pairs in two halves, colours by micro-batch."""

from collections import Counter
from xml.etree.ElementTree import Element, fromstring

import pytest

import hocket
from hocket.view.pipelines.pipeline_bars import ticks

SVG = "{http://www.w3.org/2000/svg}"


def bars_of(name: str, ranks: int, microbatches: int) -> dict[str, tuple[Element, str]]:
    root = fromstring(hocket.pipeline(name, ranks, microbatches).svg())
    groups = [one for one in root.iter(f"{SVG}g") if one.get("class") != "rank"]
    found = {}
    for group in groups:
        title, bar = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None and title.text and bar is not None
        found[title.text.partition(", from")[0]] = (bar, title.text)
    return found


def test_bars_are_as_long_as_operations_and_coloured_by_micro_batch() -> None:
    bars = bars_of("1f1b", 3, 4)
    assert len(bars) == 3 * 4 * 2
    width = {kind: {float(bar.get("width", "")) for name, (bar, _) in bars.items() if name[0] == kind} for kind in "FG"}
    ((forward,), (full,)) = width["F"], width["G"]
    assert full == pytest.approx(2 * forward, abs=0.2)
    fills = {bar.get("fill") for name, (bar, _) in bars.items() if name.startswith("F") and name.endswith("batch 2")}
    assert len(fills) == 1
    assert len({bar.get("fill") for name, (bar, _) in bars.items() if name.startswith("F")}) == 4
    assert bars["F of stage 2, micro-batch 0"][1].endswith(", from 2 to 3")


def test_pairs_are_drawn_in_two_halves() -> None:
    heights = Counter(bar.get("height") for bar, _ in bars_of("dualpipev", 2, 5).values())
    assert set(heights) == {"28", "14"} and heights["14"] % 2 == 0


def test_ticks_are_round() -> None:
    assert ticks(27, 10) == [0, 5, 10, 15, 20, 25] and ticks(0.3, 3) == pytest.approx([0, 0.1, 0.2, 0.3])
