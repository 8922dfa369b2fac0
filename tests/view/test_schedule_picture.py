import json
import re
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest

from hocket.algorithms import ALGORITHMS
from hocket.cli import main
from hocket.view import name_counts
from hocket.view.schedules.rank_layout import RADIUS, Curves, on_circle, on_grid
from tests.cli.test_show import LAID_OUT
from tests.view.test_chunk_matrix import BROKEN

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[2]


def drawn(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Element:
    assert main(["show", *arguments, "--svg", "-"]) == code
    return fromstring(capsys.readouterr().out)


def parts(element: Element, kind: str) -> list[Element]:
    return [part for part in element.iter(f"{SVG}g") if part.get("class") == kind]


def titles(elements: list[Element]) -> list[str]:
    return [element.findtext(f"{SVG}title", "") for element in elements]


def texts(element: Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_every_algorithm_can_be_drawn(collective: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for num_ranks in (1, 2, 4, 5):
        if not ALGORITHMS[collective, name].allows(num_ranks):
            continue
        picture = drawn(capsys, name, "--collective", collective, "-n", str(num_ranks))
        schedule = ALGORITHMS[collective, name].build(num_ranks)
        steps = parts(picture, "step")
        assert len(parts(picture, "start")) == 1 and len(steps) == schedule.num_steps
        for number, (panel, step) in enumerate(zip(steps, schedule.steps(), strict=True)):
            assert texts(panel)[0] == f"step {number}"
            assert [texts(rank)[0] for rank in parts(panel, "rank")] == [str(rank) for rank in range(num_ranks)]
            found = [
                re.match(r"step (\d+): rank (\d+) -> rank (\d+), ", title) for title in titles(parts(panel, "arrow"))
            ]
            rows = zip(step.src.tolist(), step.dst.tolist(), strict=True)
            expected = {(number, src, dst) for src, dst in rows if src != dst}
            assert len(found) == len(expected)
            assert {tuple(map(int, match.groups())) for match in found if match} == expected


def test_tooltips_say_what_rows_say(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("halving_doubling", "-n", "8")
    picture = drawn(capsys, *arguments)
    assert main(["show", *arguments, "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    for number, (panel, rows) in enumerate(zip(parts(picture, "step"), steps, strict=True)):
        chunks: dict[tuple[int, int], set[int]] = {}
        for row in rows:
            if row["src"] != row["dst"]:
                here = chunks.setdefault((row["src"], row["dst"]), set())
                here.update(row["dst_chunk"] + i * row["stride"] for i in range(row["count"]))
        verb = "reduce" if number < 3 else "copy"
        expected = [
            f"step {number}: rank {src} -> rank {dst}, {'chunks' if len(moved) > 1 else 'chunk'} "
            f"{name_counts(sorted(moved))}, {verb}"
            for (src, dst), moved in chunks.items()
        ]
        assert sorted(titles(parts(panel, "arrow"))) == sorted(expected)


def test_what_is_reduced_is_solid_with_a_plus_and_what_is_copied_dashed(capsys: pytest.CaptureFixture[str]) -> None:
    picture = drawn(capsys, "ring", "-n", "4")
    for number, panel in enumerate(parts(picture, "step")):
        dashes = {path.get("stroke-dasharray") is not None for path in panel.iter(f"{SVG}path")}
        assert dashes == {number >= 3}
        labels = [texts(label)[0] for label in parts(panel, "label")]
        assert all(label.startswith("+") == (number < 3) for label in labels) and len(labels) == 4
    assert {"+ reduced: combined with the old content or with other sources", "copied"} <= set(
        texts(parts(picture, "legend")[0])
    )
    # A fold of several is a reduction, although its first row is a copy.
    assert all(title.endswith("reduce") for title in titles(parts(drawn(capsys, "direct"), "arrow")))


def test_bars_grow_with_contributions(capsys: pytest.CaptureFixture[str]) -> None:
    picture = drawn(capsys, "ring", "-n", "4")
    heights = []
    for panel in (*parts(picture, "start"), *parts(picture, "step")):
        _, *strips = parts(panel, "rank")[0].findall(f"{SVG}rect")
        heights.append([float(strip.get("height", "")) for strip in strips if strip.get("height") != "2.5"])
    # Rank 0 has 1 contribution to each chunk, then 2 to chunk 2, 3 to chunk 1, 4 to chunk 0; then chunks are copied.
    counts = [[round(height / 5.5) for height in step] for step in heights]
    assert counts == [
        [1, 1, 1, 1],
        [1, 1, 2, 1],
        [1, 3, 2, 1],
        [4, 3, 2, 1],
        [4, 3, 2, 4],
        [4, 3, 4, 4],
        [4, 4, 4, 4],
    ]
    start, *_, end = titles(parts(picture, "rank"))
    assert start == "rank 0 contributions: c0 1, c1 1, c2 1, c3 1"
    assert end == "rank 3 contributions: c0 4, c1 4, c2 4, c3 4"


def test_the_head_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    picture = drawn(capsys, "binomial", "--collective", "reduce", "-n", "6", "--root", "2")
    words = texts(picture)
    assert words[0] == picture.findtext(f"{SVG}title") == "reduce binomial, 6 ranks, root 2"
    assert "3 steps; data in 1 chunk; a rank sends at most 1 times the whole vector" in words
    assert "order of reduction: balanced_tree, same_on_all_ranks, size_invariant" in words


def test_a_file_is_the_same_each_time_and_names_no_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hier <&>.svg"
    path.write_text("what was there")
    written = []
    for _ in range(2):
        assert main(["show", "pairwise", "--collective", "all_to_all", "-n", "6", "--svg", str(path)]) == 0
        written.append(path.read_text(encoding="utf-8"))
    assert capsys.readouterr().out == ""
    assert written[0] == written[1] and str(ROOT) not in written[0] and "http" not in written[0].replace(SVG[1:-1], "")
    fromstring(written[0])
    code = main(["show", "ring", "--svg", str(path), "--json"])
    assert code == 0 and json.loads(capsys.readouterr().out)["name"] == "ring"
    assert path.read_text(encoding="utf-8") != written[0]


def test_before_all_to_all_the_bars_show_what_ranks_give(capsys: pytest.CaptureFixture[str]) -> None:
    found = titles(parts(drawn(capsys, "direct", "--collective", "all_to_all", "-n", "3"), "rank"))
    assert found[:3] == [f"rank {rank} has i0, i1, i2" for rank in range(3)]
    assert found[3:] == [f"rank {rank} has o0, o1, o2" for rank in range(3)]


def test_text_of_a_user_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.py"
    path.write_text(LAID_OUT.replace("Rings along rows", "<b>Rings</b> & 'rows'"))
    picture = drawn(capsys, f"{path}:grid", "-n", "3")
    assert "<b>Rings</b> & 'rows', then along columns." in texts(picture)


def test_a_grid_has_rows_and_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "laid_out.py"
    path.write_text(LAID_OUT)
    picture = drawn(capsys, f"{path}:grid", "--dims", "2x3")
    circles = [circle for rank in parts(picture, "rank")[:6] for circle in rank.iter(f"{SVG}circle")]
    x, y = ([circle.get(name) for circle in circles] for name in ("cx", "cy"))
    assert x[:3] == x[3:] and len(set(x)) == 3
    assert len(set(y[:3])) == len(set(y[3:])) == 1 and y[0] != y[3]
    assert texts(picture)[0] == "all_gather grid, 6 ranks, on a grid of 2x3"


def test_what_is_broken_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    for name in ("none", "twice", "elsewhere"):
        picture = drawn(capsys, f"{path}:{name}", "-n", "2", code=1)
        assert any("law 2" in text for text in texts(picture))
    assert main(["show", f"{path}:none", "-n", "2", "--svg", str(tmp_path / "none.svg")]) == 1
    assert "law 2 (step 1, rank 1, chunk 1)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["ring", "-n", "65", "--svg", "-"],
            "--svg: expected at most 64 ranks, because more are not readable; found 65",
        ),
        (
            ["ring", "-n", "34", "--svg", "-"],
            "--svg: expected at most 64 steps, because more are not readable; found 66",
        ),
        (["ring", "--svg", "-", "--json"], "--json and --svg - exclude each other"),
        (["ring", "--svg", "no/ring.svg"], "expected an existing folder for no/ring.svg; found none; create it first"),
        (["ring", "--msccl", "no/such/ring.xml"], "expected an existing folder for no/such/ring.xml; found none"),
        (["ring", "--svg", "."], "expected a writable file; found '.': Is a directory; choose another"),
        (
            ["mesh", "--axes", "dp=2", "--svg", "-"],
            "--svg belongs to algorithms, `hocket show topology` and `hocket show pipeline`; found 'mesh'",
        ),
        (["choice", "--msccl", "choice.xml"], "--msccl belongs to algorithms; found 'choice'"),
        (["choice", "--mscclpp", "choice.json"], "--mscclpp belongs to algorithms; found 'choice'"),
    ],
)
def test_bad_requests(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *arguments]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and "<svg" not in printed.out


@pytest.mark.parametrize("num_ranks", [2, 3, 5, 8, 16])
def test_arrows_keep_clear_of_each_other_and_of_ranks(num_ranks: int) -> None:
    layout = on_circle(num_ranks, (60.0, 26.0))
    curves = Curves(layout)
    for src in range(num_ranks):
        for dst in {*range(num_ranks)} - {src}:
            there, back = (curves.between(*ends, 9).point(0.5) for ends in ((src, dst), (dst, src)))
            assert abs(there[0] - back[0]) + abs(there[1] - back[1]) > 4
            x, y = zip(*(curves.between(src, dst, 9).point(t / 10) for t in range(11)), strict=True)
            assert min(*x, *y) > 0 and max(x) < layout.width and max(y) < layout.height
            for rank, (at_x, at_y) in enumerate(layout.ranks):
                nearest = min((a - at_x) ** 2 + (b - at_y) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5
                assert rank in (src, dst) or nearest > RADIUS


def shaft(arrow: Element) -> np.ndarray:
    """Returns many points of an arrow: of each strand, and of its head."""
    parts = [np.array(re.findall(r"-?[\d.]+", path.get("d", "")), float) for path in arrow.iter(f"{SVG}path")]
    along = np.linspace(0, 1, 101)[:, None]
    weights = np.concatenate(((1 - along) ** 2, 2 * along * (1 - along), along**2), axis=1)
    [head] = [np.array(re.findall(r"-?[\d.]+", one.get("points", "")), float) for one in arrow.iter(f"{SVG}polygon")]
    return np.concatenate([*(weights @ ends.reshape(3, 2) for ends in parts), head.reshape(3, 2)])


@pytest.mark.parametrize(
    "arguments",
    ["hierarchical --collective all_reduce --groups 2,2", "ring -n 4", "halving_doubling -n 8"],
)
def test_each_label_is_nearer_to_its_own_arrow_than_to_any_other(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for panel in parts(drawn(capsys, *arguments.split()), "step"):
        arrows, labels = parts(panel, "arrow"), parts(panel, "label")
        assert len(labels) == len(arrows) > 0
        for number, label in enumerate(labels):
            [box] = label.iter(f"{SVG}rect")
            x, y, width, height = (float(box.get(name, "")) for name in ("x", "y", "width", "height"))
            middle = (x + width / 2, y + height / 2)
            apart = [np.linalg.norm(shaft(arrow) - middle, axis=1).min() for arrow in arrows]
            assert int(np.argmin(apart)) == number, (titles(arrows)[number], texts(label))


def test_each_group_has_a_shade_and_each_step_says_whether_it_leaves_the_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture = drawn(capsys, "hierarchical", "--collective", "all_reduce", "--groups", "2,1,2")
    start, *steps = (*parts(picture, "start"), *parts(picture, "step"))
    assert {"group 0", "group 1", "group 2"} <= set(texts(start))
    where = [step.findall(f"{SVG}text")[1].text or "" for step in steps]
    assert where[0] == where[-1] == "inside the groups" and where[1] == "between the groups"
    group_of_rank = [0, 0, 1, 2, 2]
    for step, words in zip(steps, where, strict=True):
        ends = [re.findall(r"rank (\d+)", title) for title in titles(parts(step, "arrow"))]
        inside = {group_of_rank[int(src)] == group_of_rank[int(dst)] for src, dst in ends}
        assert inside == {"inside the groups": {True}, "between the groups": {False}}[words]
    centres = [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in start.iter(f"{SVG}circle")]
    stops = [
        [tuple(map(float, stop.split())) for stop in path.get("d", "")[1:].split(" L")]
        for group in parts(start, "group")
        for path in group.iter(f"{SVG}path")
    ]
    shaded = [sorted({centres.index((x, y)) for x, y in line}) for line in stops]
    assert shaded == [[0, 1], [2], [3, 4]] and len(parts(picture, "group")) == 3 * (1 + len(steps))
    mixed = drawn(capsys, "neighbor_exchange", "--collective", "all_gather", "-n", "4")
    assert not parts(mixed, "group") and "inside the groups" not in texts(mixed)


def test_few_ranks_are_drawn_as_wide_as_a_page_of_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("ring", "-n", "4"), ("hierarchical", "--groups", "2,2"), ("ring", "-n", "1")):
        assert float(drawn(capsys, *arguments).get("width", "")) <= 1000


def test_a_grid_of_three_dims_is_several_grids() -> None:
    layout = on_grid((2, 2, 3), (30.0, 26.0))
    assert len({*layout.ranks}) == 12
    x, y = zip(*layout.ranks, strict=True)
    assert y[:6] == y[6:] and max(x[:6]) < min(x[6:])


def test_the_picture_of_the_documents_is_what_the_command_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "ring", "-n", "4", "--svg", "-"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "ring.svg").read_text(encoding="utf-8")
