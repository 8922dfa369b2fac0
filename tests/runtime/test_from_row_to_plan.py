"""docs/from-row-to-plan.md is what its program writes today."""

import importlib.util
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "docs" / "pictures" / "from_row_to_plan.py"


def test_the_page_is_that_of_today() -> None:
    specification = importlib.util.spec_from_file_location("from_row_to_plan", PROGRAM)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert module.PAGE.read_text() == module.page(), "run `python docs/pictures/from_row_to_plan.py`"
