import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.style import Style

from hocket.algorithms import ALGORITHMS
from hocket.cli import main
from hocket.view.schedules.chunk_matrix import ChunkMatrix


@pytest.fixture(autouse=True)
def width_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["show", *arguments])
    return code, capsys.readouterr().out


def matrices(text: str) -> list[tuple[list[str], list[str]]]:
    """Returns for the start and each step: the cells of all ranks without blanks, and what the ranks receive."""
    found: list[tuple[list[str], list[str]]] = []
    num_cells = 0
    for line in text.splitlines():
        if line.startswith(("start", "step")):
            num_cells = len(line[7:].partition("receives")[0].split())
            found.append(([], []))
        elif line.startswith("rank"):
            end = 7 + 3 * num_cells
            cells = [line[at : at + 3].strip() for at in range(7, end, 3)]
            found[-1][0].append(" ".join(cells))
            found[-1][1].append(line[end:].strip())
    return found


def test_the_steps_of_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "ring", "-n", "3")
    assert code == 0
    assert text.startswith("all_reduce ring, 3 ranks\n")
    assert "4 steps; data in 3 chunks; a rank sends at most 1.333 times the whole vector" in text
    assert matrices(text) == [
        (["1 1 1", "1 1 1", "1 1 1"], ["", "", ""]),
        (["1 [2] 1", "1 1 [2]", "[2] 1 1"], ["c1 += r2", "c2 += r0", "c0 += r1"]),
        (["[█] 2 1", "1 [█] 2", "2 1 [█]"], ["c0 += r2", "c1 += r0", "c2 += r1"]),
        (["█ 2 [█]", "[█] █ 2", "2 [█] █"], ["c2 = r2", "c0 = r0", "c1 = r1"]),
        (["█ [█] █", "█ █ [█]", "[█] █ █"], ["c1 = r2", "c2 = r0", "c0 = r1"]),
    ]
    assert "█: all 3; [ ]: just written\n" in text and "scratch memory" not in text
    assert text.endswith("laws 1, 2, 4, 5 hold; to check law 3, use hocket verify\n")
    assert (
        "for other collectives, use --collective with: all_gather, all_gather_v, reduce_scatter, reduce_scatter_v\n"
        in text
    )


@pytest.mark.parametrize("num_ranks", [2, 4, 5])
def test_the_counts_of_a_ring(num_ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Chunk c starts at rank c + 1, gains one contribution per step, and then travels around complete."""
    held = [[1] * num_ranks for _ in range(num_ranks)]
    expected = []
    for step in range(2 * (num_ranks - 1)):
        for chunk in range(num_ranks):
            src = (chunk + 1 + step) % num_ranks
            dst = (src + 1) % num_ranks
            held[dst][chunk] = min(step + 2, num_ranks)
        expected.append([" ".join("█" if n == num_ranks else str(n) for n in row) for row in held])
    _, text = show(capsys, "ring", "-n", str(num_ranks))
    cells = [[row.translate({ord("["): None, ord("]"): None}) for row in rows] for rows, _ in matrices(text)]
    assert cells[1:] == expected


@pytest.mark.parametrize(("algorithm", "chunk"), [("parameter_server", 0), ("double_tree", 1), ("ring", 3)])
def test_the_legend_explains_a_chunk_that_exists(
    algorithm: str, chunk: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = show(capsys, algorithm, "-n", "5")
    assert f"\nc{chunk} += r0: the rank folds rank 0's chunk {chunk} into its own; " in text


def test_a_reduction_of_many_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "direct", "-n", "3")
    assert text.count("c0 = r0 + r1 + r2") == 3


def test_of_one_chunk_it_is_seen_whose_contributions_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "tree", "-n", "3")
    assert [cells for cells, _ in matrices(text)] == [
        ["▒ · ·", "· ▒ ·", "· · ▒"],
        ["▒ [▒] ·", "· ▒ ·", "· · ▒"],
        ["█ █ [█]", "· ▒ ·", "· · ▒"],
        ["█ █ █", "· ▒ ·", "[█] [█] █"],
        ["█ █ █", "[█] █ [█]", "█ █ █"],
    ]
    _, text = show(capsys, "dissemination", "-n", "3")
    assert [cells for cells, _ in matrices(text)][1:] == [
        ["▒ · [▒]", "[▒] ▒ ·", "· [▒] ▒"],
        ["█ [█] █", "█ █ [█]", "[█] █ █"],
    ]


def test_where_nothing_is_reduced_it_is_seen_what_a_rank_has(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "binomial", "--collective", "scatter", "-n", "3")
    assert [cells for cells, _ in matrices(text)] == [
        ["█ █ █", "· · ·", "· · ·"],
        ["█ █ █", "· · ·", "· · [█]"],
        ["█ █ █", "· [█] ·", "· · █"],
    ]


def test_input_and_output_have_letters_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = show(capsys, "pairwise", "-n", "3", "--collective", "all_to_all_v")
    assert code == 0 and "2 steps; data in 9 chunks of uneven length" in text
    assert matrices(text) == [
        (["█ █ █"] * 3, ["", "", ""]),
        (
            ["[█] · [█]", "[█] [█] ·", "· [█] [█]"],
            ["o0 = r0.i0, o2 = r2.i0", "o1 = r1.i1, o0 = r0.i1", "o2 = r2.i2, o1 = r1.i2"],
        ),
        (["█ [█] █", "█ █ [█]", "[█] █ █"], ["o1 = r1.i0", "o2 = r2.i1", "o0 = r0.i2"]),
    ]
    assert "start   i0 i1 i2\n" in text and "step 0  o0 o1 o2  receives\n" in text
    assert "from rank 0 (o0), 1 (o1) ... for its output; start: those for rank 0 (i0), 1 (i1) ..." in text
    assert "o2 += r0: the rank folds rank 0's chunk 2 into" in text
    assert text.count("; i0, o0: chunk 0 of input, output memory\n") == 1, "and no scratch, which it does not use"


INTO_OUTPUT = """
import hocket

@hocket.algorithm("all_gather", name="into_output", chunks="P")
def into_output(schedule):
    rank = schedule.ranks
    with schedule.step():
        schedule.copy(rank, rank[:, None], src_chunk=0, dst_chunk=rank, src_buffer="input", dst_buffer="output")
"""


def test_before_the_first_step_a_rank_has_its_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "own.py"
    file.write_text(INTO_OUTPUT)
    code, text = show(capsys, str(file), "-n", "3")
    assert code == 0 and re.search(r"^start   i0\nrank 0  █\nrank 1  █\nrank 2  █\n\nstep 0  o0 o1 o2 ", text, re.M)


def test_what_a_rank_sends_in_all_to_all_counts_in_its_own_vector(capsys: pytest.CaptureFixture[str]) -> None:
    _, text = show(capsys, "direct", "-n", "4", "--collective", "all_to_all")
    assert "a rank sends at most 0.75 times a rank's own vector\n" in text and "sent = (P - 1) / P\n" in text


DETOURS = """
import hocket

@hocket.algorithm("all_to_all", name="through_0", chunks=lambda p: p * p)
def through_0(schedule):
    "Rank 0 gets all blocks and hands them out."
    p, rank = schedule.num_ranks, schedule.ranks
    with schedule.step():
        for other in range(1, p):
            schedule.copy(src=other, dst=0, chunk=other * p + rank)
    with schedule.step():
        for other in range(1, p):
            schedule.copy(src=0, dst=other, chunk=rank * p + other)

@hocket.algorithm("reduce", name="kept", chunks=lambda p: 1)
def kept(schedule):
    "Rank 0 keeps all contributions in scratch memory before it adds them."
    rank = schedule.ranks[1:]
    with schedule.step():
        schedule.copy(src=rank, dst=0, src_chunk=0, dst_buffer="scratch", dst_chunk=rank - 1)
    with schedule.step():
        schedule.reduce(src=0, dst=0, src_buffer="scratch", src_chunk=rank - 1, dst_chunk=0)
"""


def test_scratch_memory_and_blocks_of_others_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "detours.py"
    path.write_text(DETOURS)
    _, text = show(capsys, f"{path}:through_0", "-n", "3")
    assert matrices(text)[1] == (["█ [█] [█]", "· █ ·", "· · █"], ["+4  c3-5 = r1, c6-8 = r2", "", ""])
    assert "+3: 3 more chunks, in scratch memory or for other ranks" in text
    _, text = show(capsys, f"{path}:kept", "-n", "3")
    assert [cells[0] for cells, _ in matrices(text)] == ["1 · ·", "1 [1] [1]", "[█] 1 1"]
    _, text = show(capsys, f"{path}:kept", "-n", "10")  # More than eight places of scratch are only counted.
    assert re.search(r"rank 0 +1 +\+9  s0 = r1\.c0", text)


def test_steps_stand_side_by_side_where_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width, together in (("80", ["start", "step 0"]), ("120", ["start", "step 0", "step 1"])):
        monkeypatch.setenv("COLUMNS", width)
        _, text = show(capsys, "ring")
        assert re.findall(r"start|step \d+(?=  )", text.splitlines()[6]) == together
    monkeypatch.delenv("COLUMNS")
    _, text = show(capsys, "ring")
    assert "start   c0 c1 c2 c3\n" in text


@pytest.mark.parametrize("width", [20, 80, 120])
@pytest.mark.parametrize(
    ("name", "collective", "num_ranks"),
    [
        ("ring", "all_reduce", 16),
        ("direct", "all_to_all", 12),
        ("direct", "all_reduce", 40),
        ("halving_doubling", "all_reduce", 64),
    ],
)
def test_no_step_is_wider_than_the_terminal(
    name: str,
    collective: str,
    num_ranks: int,
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, text = show(capsys, name, "--collective", collective, "-n", str(num_ranks))
    lines = text[text.index("\nstart") : text.index("\nafter each step")].splitlines()
    assert max(map(len, lines)) <= max(width, 40)  # lists are never cut below 40 columns
    assert sum(line.startswith("rank 0") for line in lines) == text.count("start ") + len(
        re.findall(r"^step \d+", text, re.MULTILINE)
    )


def test_small_cells_tell_parts_and_a_column_may_be_several_chunks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    _, text = show(capsys, "ring", "-n", "4")
    assert "rank 0 ▂▂▄▂\n" in text and "  rank 0: c2 += r3\n" in text
    assert "from ▁ to ▇; █: all 4\n" in text
    _, text = show(capsys, "ring", "-n", "32")
    assert "each column stands for 4 chunks and shows the lowest value" in text


@pytest.mark.ring2  # starts a process
def test_without_unicode_there_is_ascii() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "hocket", "show", "ring", "-n", "3"]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert matrices(done.stdout.decode("ascii"))[2][0] == ["[#] 2 1", "1 [#] 2", "2 1 [#]"]


def test_a_terminal_gets_colours_unless_it_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    Style.parse.cache_clear()  # a style keeps the codes of the first console that shows it, of another test perhaps
    Style._add.cache_clear()
    schedule = ALGORITHMS["all_reduce", "ring"].build(3)
    for no_color, full in ((False, "[3]"), (True, "[█]")):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, color_system="truecolor", no_color=no_color, width=80)
        ChunkMatrix(schedule, console, 80, side_by_side=True).print()
        assert full in screen.getvalue()
        assert ("48;2;" in screen.getvalue()) != no_color
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="standard", width=80)
    ChunkMatrix(schedule, console, 80, side_by_side=True).print()
    assert "[█]" in screen.getvalue(), "16 colours cannot tell a full chunk from a part"
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="truecolor", no_color=False, width=80)
    ChunkMatrix(ALGORITHMS["broadcast", "direct"].build(2), console, 80, side_by_side=False).print()
    blue = r"\x1b\[38;2;255;255;255;48;2;0;114;178m {3}\x1b\[0m"  # blanks that are not cut off
    assert len(re.findall(rf"rank 0 {blue}", screen.getvalue())) == 2


BROKEN = """
import hocket

@hocket.algorithm("all_gather", name="none", chunks=lambda p: p)
def none(schedule):
    "A row reads what is not there."
    with schedule.step():
        schedule.copy(src=0, dst=1, chunk=0)
    with schedule.step():
        schedule.copy(src=0, dst=1, chunk=1)
    with schedule.step():
        schedule.copy(src=1, dst=0, chunk=0)

@hocket.algorithm("all_reduce", name="twice", chunks=lambda p: 2)
def twice(schedule):
    "A contribution is added twice."
    for _ in range(2):
        with schedule.step():
            schedule.reduce(src=0, dst=1, chunk=0)

@hocket.algorithm("all_gather", name="elsewhere", chunks=lambda p: p)
def elsewhere(schedule):
    "A chunk goes to the place of another."
    with schedule.step():
        schedule.copy(src=0, dst=1, src_chunk=0, dst_chunk=1)
"""


@pytest.fixture
def broken(tmp_path: Path) -> str:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    return str(path)


@pytest.mark.parametrize(
    ("name", "last", "words"),
    [
        ("none", ["? ?", "? ?"], "?: unknown, because an earlier row reads a chunk that is not there"),
        ("twice", ["1 1", "[!] 1"], "!: a wrong sum"),
        ("elsewhere", ["█ ·", "· [?]"], "?: data of another chunk"),
    ],
)
def test_what_is_broken_is_shown_as_far_as_it_goes(
    name: str, last: list[str], words: str, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = show(capsys, f"{broken}:{name}", "-n", "2")
    assert code == 1 and matrices(text)[-1][0] == last
    assert words in text and "law 2" in text.splitlines()[-1]
