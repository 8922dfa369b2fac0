"""The examples of training do what they say. Times are not tested."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_opposite_orders_give_the_right_gradients_only_here() -> None:
    order, both = run("examples/opposite_order.py").split("opposite order, and")
    assert re.search(r"by hooks +WRONG gradients of branches \[0, 1, 3, 4\], and no error", order)
    assert re.search(r"DDP +right", order) and re.search(r"hocket +right", order)
    assert re.search(r"by hooks +BackendError", both) and re.search(r"DDP +\w+Error", both)
    assert re.search(r"DDP, unused +right", both) and re.search(r"hocket +right", both)


def test_the_timeline_has_both_manners_and_the_same_weights(tmp_path: Path) -> None:
    printed = run("examples/training_timeline.py", "--traces", str(tmp_path))
    assert "the same weights: True" in printed
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["buckets.json", "one-bucket.json"]


def test_the_workload_of_the_lecture() -> None:
    fixed, bandwidth = (run("examples/lecture_workload.py", "--fixed", share) for share in ("1", "0"))
    seconds = [[float(one) for one in re.findall(r"([\d.]+) s$", text, re.MULTILINE)] for text in (fixed, bandwidth)]
    assert seconds == [[577.152, 576.001, 13.652, 12.546], [577.152, 576.001, 577.152, 576.046]]
