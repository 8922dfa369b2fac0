"""The notebook of the examples: its stored outputs are those that its cells give, in a fresh process."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hocket

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
SECONDS = re.compile(r"in \d+\.\d s")  # how long the proof took
Cells = list[dict[str, Any]]


def without_seconds(cells: Cells) -> Cells:
    alike: Cells = json.loads(SECONDS.sub("in some s", json.dumps(cells)))
    return alike


def shown(cells: Cells, name: str, kind: str = "text/plain") -> str:
    (cell,) = [cell for cell in cells if cell["id"] == name]
    (output,) = cell["outputs"]
    return "".join(output["data"][kind])


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Cells:
    output = tmp_path_factory.mktemp("notebook") / "tour.ipynb"
    program = ROOT / "docs" / "pictures" / "tour.py"
    subprocess.run([sys.executable, program, output], check=True, timeout=120, cwd=output.parent)
    made: Cells = json.loads(output.read_text())["cells"]
    return made


def test_stored_outputs_are_those_of_the_cells(cells: Cells) -> None:
    stored = json.loads(NOTEBOOK.read_text())
    assert without_seconds(cells) == without_seconds(stored["cells"]), "make docs-pictures writes them anew"
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    assert len(cells) <= 12 and len({cell["id"] for cell in cells}) == len(cells)
    assert [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"] == [1, 2, 3, 4, 5, 6]


def test_the_algorithm_of_a_cell_is_proved_drawn_predicted_run_and_explained(cells: Cells) -> None:
    assert shown(cells, "proved").startswith("<Proof: 1 of 1 algorithms hold: 16 schedules proved")
    assert "same_on_all_ranks" in shown(cells, "proved", "text/html")
    drawn = shown(cells, "drawn", "text/html")
    assert drawn.startswith("<svg") and "6 steps; data in 4 chunks" in drawn
    ring = hocket.simulate("all_reduce", algorithm="ring", num_bytes="64M", topology="torus:4x4")
    assert f"{ring.seconds * 1e3:.2f} ms" in shown(cells, "predicted") and ring.seconds > 1e-3
    assert "<svg" in shown(cells, "predicted", "text/html")
    assert shown(cells, "ran") == repr([(10.0, 10.0)] * 4)
    assert "tour_ring" in shown(cells, "explained", "text/html")
