"""docs/calls.md: it lists every call of a communicator, and every line in it runs."""

import importlib.util
import inspect
from pathlib import Path
from typing import Any

import hocket

PROGRAM = Path(__file__).parents[2] / "docs" / "pictures" / "calls.py"


def program() -> Any:
    specification = importlib.util.spec_from_file_location("calls", PROGRAM)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_page_lists_every_call_and_no_other() -> None:
    module = program()
    listed = [*module.WITHOUT_LINE, *(name for calls in module.FAMILIES.values() for name in calls)]
    methods = inspect.getmembers(hocket.Communicator, callable)
    assert sorted(listed) == sorted(name for name, _ in methods if not name.startswith("_"))
    for calls in module.FAMILIES.values():
        for name, (line, needs) in calls.items():
            assert line.startswith(f"comm.{name}(") and needs


def test_the_page_says_what_its_lines_return() -> None:
    module = program()
    assert module.PAGE.read_text() == module.page(), "run `python docs/pictures/calls.py`"
