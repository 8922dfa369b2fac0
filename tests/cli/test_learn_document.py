"""docs/learn.md: its programs and commands run, print what the page says, and make the pictures that it shows."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "docs" / "pictures" / "learn.py"


def program() -> Any:
    specification = importlib.util.spec_from_file_location("learn", PROGRAM)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


LEARN = program()
TEXT = LEARN.PAGE.read_text()


@pytest.mark.slow("runs every program and command of the page")
def test_every_command_prints_what_the_page_says_and_makes_the_picture_that_it_shows(tmp_path: Path) -> None:
    pictures = set(LEARN.SHOWN.findall(TEXT))
    assert {path.name for path in LEARN.PICTURES.iterdir()} == pictures
    num_compared = 0
    for command, said, printed in LEARN.sessions(TEXT, tmp_path):
        assert LEARN.agrees(said, printed), f"{command}\n{printed}"
        num_compared += bool(said)
        drawn = re.fullmatch("hocket show .* --svg (.*)", command)
        if drawn:  # the others have times in them
            here = LEARN.PICTURES / drawn[1]
            assert here.read_text() == (tmp_path / drawn[1]).read_text(), f"run `python {PROGRAM}`"
    assert num_compared > 10
    assert pictures <= {path.name for path in tmp_path.iterdir()}


def test_every_section_has_a_command() -> None:
    _, *sections = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    titles = {section.partition("\n")[0] for section in sections if not re.search(r"^\$ ", section, re.MULTILINE)}
    assert titles == {"Exercises"}


@pytest.mark.parametrize(
    ("said", "printed", "agrees"),
    [
        ("", "anything\n", True),
        ("one\n", "one  \n", True),
        ("one\n", "two\n", False),
        ("one\n", "one\ntwo\n", False),
        ("one\n...\n", "one\ntwo\nthree\n", True),
        ("...\nthree\n", "one\ntwo\nthree\n", True),
        ("...\ntwo\n", "one\ntwo\nthree\n", False),
        ("a ... c\n", "a b c\n", True),
        ("a ... c\n", "a b d\n", False),
    ],
)
def test_a_page_agrees_with_what_is_printed_up_to_what_it_leaves_out(said: str, printed: str, agrees: bool) -> None:
    assert LEARN.agrees(said, printed) == agrees
