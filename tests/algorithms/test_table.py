"""docs/reports/algorithms.md has today's registry, and the guide docs/algorithms.md shows what commands print."""

import re
from pathlib import Path

import pytest

from hocket.algorithms import ALGORITHMS
from tests.algorithms.guide import replayed
from tests.algorithms.table import COLUMNS, DOCUMENT, GUIDE, HEAD, page, table


def test_the_document_has_the_table_of_today() -> None:
    assert DOCUMENT.read_text() == page(), "run `make algorithms`"


@pytest.mark.ring2  # starts commands
@pytest.mark.slow("proves for up to 64 ranks, starts ranks, and measures, all as a reader would")
def test_the_programs_and_commands_of_the_guide_do_what_it_says(tmp_path: Path) -> None:
    document = GUIDE.read_text()
    assert document == replayed(document, tmp_path), "run `make algorithms`, and read what has changed"


def test_every_algorithm_has_its_row() -> None:
    for section in re.split(r"^## ", table(), flags=re.MULTILINE)[1:]:
        title, *lines = section.splitlines()
        collective = title.split()[0]
        rows = [line.strip("|").split("|")[0] for line in lines[3:] if line]
        names = {name for kind, name in ALGORITHMS if kind.removesuffix("_v") == collective}
        assert sorted(re.findall(r"\[`(\w+)`\]", " ".join(rows))) == sorted(names)
        for row in rows:
            name, told = re.findall(r"\[`(\w+)`\]", row)[0], "`_v`" in row
            assert told == ((f"{collective}_v", name) in ALGORITHMS)


def test_every_column_is_explained() -> None:
    assert re.findall(r"^\|([a-z ]+)\|", HEAD, re.MULTILINE)[1:] == COLUMNS
