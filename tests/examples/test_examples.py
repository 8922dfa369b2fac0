"""Every example does what it says, started as its own first lines say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def shell(line: str) -> str:
    program, *arguments = line.split()
    start = [sys.executable, "-m", "hocket"] if program == "hocket" else [sys.executable]
    done = subprocess.run([*start, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands(example: str) -> list[str]:
    """Returns the indented command lines of an example's docstring."""
    text = (ROOT / "examples" / example).read_text().split('"""')[1]
    return re.findall(r"^    ((?:hocket|python) .*)$", text, re.MULTILINE)


def test_first_program() -> None:
    (line,) = commands("first_program.py")
    printed = sorted(shell(line).splitlines())
    assert printed == [f"rank {rank} of 4: sum [10.0, 10.0, 10.0], ranks [0, 1, 2, 3]" for rank in range(4)]
    assert shell("python examples/first_program.py") == "rank 0 of 1: sum [1.0, 1.0, 1.0], ranks [0]\n"


def test_first_algorithm() -> None:
    verify, run = commands("first_algorithm.py")
    assert "star" in shell(verify)
    assert shell(run).splitlines() == [
        "proved for 4 ranks: rank_order, same_on_all_ranks, size_invariant",
        "the same bits as direct: [True, True, True, True]",
    ]


def test_own_algorithm() -> None:
    verify, _ = commands("own_algorithm.py")
    assert "2 of 2 algorithms hold: 16 schedules proved" in shell(verify)
    for num_ranks, steps, sent in ((2, 2, 1.0), (4, 4, 1.5)):
        assert sorted(with_ranks("own_algorithm.py", num_ranks).splitlines()) == [
            f"proved: {steps} steps, a rank sends {sent} times the vector",
            *(f"rank {rank} of {num_ranks}: the sums are NumPy's: True" for rank in range(num_ranks)),
        ]


def with_ranks(example: str, num_ranks: int) -> str:
    """Returns what an example prints with so many ranks."""
    *_, line = commands(example)
    return shell(re.sub(r"-n \d+", f"-n {num_ranks}", line))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_sample_sort(num_ranks: int) -> None:
    *lines, last = sorted(with_ranks("sample_sort.py", num_ranks).splitlines(), key=lambda line: line[0] != "r")
    assert last == f"{num_ranks}00000 numbers are in order, and none is lost"
    found = sorted(tuple(map(int, re.findall(r"\d+", line))) for line in lines)  # rank, of, count, from, to
    assert [part[:2] for part in found] == [(rank, num_ranks) for rank in range(num_ranks)]
    assert sum(part[2] for part in found) == num_ranks * 100_000
    ends = [end for part in found for end in part[3:]]
    assert ends == sorted(ends)
    assert min(part[2] for part in found) > 50_000  # the samples give parts of similar size


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 6])
def test_stencil(num_ranks: int) -> None:
    *picture, last = with_ranks("stencil.py", num_ranks).splitlines()
    grid = {1: "1 x 1", 2: "1 x 2", 3: "1 x 3", 4: "2 x 2", 6: "2 x 3"}[num_ranks]
    assert last == f"60 steps on {grid} ranks: the same bits as one process: True"
    assert len(picture) == 16 and {len(row) for row in picture} == {62}
    assert all(row[1:-1] == row[-2:0:-1] for row in picture)  # the cylinder is symmetric
    assert "@" in picture[5] and set(picture[5][25:35]) != {" "}  # the spots at the seam and in the middle


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_ping_pong(num_ranks: int) -> None:
    head, *rows = with_ranks("ping_pong.py", num_ranks).splitlines()
    assert head.split() == ["size", "latency", "bandwidth"]
    assert [row.split()[:2] for row in rows] == [
        pair.split() for pair in ("8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB", "2 MiB", "16 MiB")
    ]
    for row in rows:
        assert re.fullmatch(r" *\d+ \w+ +\d+\.\d µs +\d+\.\d{3} GB/s", row), row


def test_ping_pong_alone() -> None:
    assert shell("python examples/ping_pong.py").startswith("ping-pong needs two ranks: hocket run -n 2")


def test_opposite_order() -> None:
    line, _ = commands("opposite_order.py")  # the second is a name in its table
    order, both = shell(line).split("opposite order, and")
    assert re.search(r"by hooks +WRONG gradients of branches \[0, 1, 3, 4\], and no error", order)
    assert re.search(r"DDP +right", order) and re.search(r"hocket +right", order)
    assert re.search(r"by hooks +BackendError", both) and re.search(r"DDP +\w+Error", both)
    assert re.search(r"DDP, unused +right", both) and re.search(r"hocket +right", both)


def test_training_timeline(tmp_path: Path) -> None:
    *_, line = commands("training_timeline.py")
    assert "the same weights: True" in shell(line.replace("--traces .", f"--traces {tmp_path}"))
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["buckets.json", "one-bucket.json"]


def test_lecture_workload() -> None:
    (line,) = commands("lecture_workload.py")
    found = [re.findall(r"([\d.]+) s$", shell(line.replace("1.0", share)), re.MULTILINE) for share in ("1.0", "0")]
    assert found == [["577.152", "576.001", "13.652", "12.546"], ["577.152", "576.001", "577.152", "576.046"]]


def test_pipeline() -> None:
    rates = ["27.3%", "11.1%"]
    for line, name, rate in zip(commands("pipeline.py"), ("lecture", "zb-h1"), rates, strict=True):
        first, second = shell(line).splitlines()
        assert first == f"{name}: bubble rate {rate} where F, B and W take the same time"
        loss, alone = re.findall(r"\d\.\d{4}", second)
        assert loss == alone and float(loss) < 0.3


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_every_example_is_tested(example: str) -> None:
    """In this file, or in its own file."""
    name, here = Path(example).stem, Path(__file__)
    assert f"def test_{name}(" in here.read_text() or (here.parent / f"test_{name}.py").exists()
