"""docs/reports/slow_links.md is what its commands print; only digits may differ from processor to processor."""

import re
from pathlib import Path

from tests.network.slow_links_page import PAGE, page


def shape(text: str) -> str:
    return re.sub(r"[-+]?\d[\d.]*( us| ms|%| )? *", "0 ", text)


def test_the_page_is_what_its_commands_print(tmp_path: Path) -> None:
    assert shape(page(tmp_path)) == shape(PAGE.read_text()), "run `python -m tests.network.slow_links_page`"
