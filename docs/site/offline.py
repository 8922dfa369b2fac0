"""Checks that the pages in a folder load nothing from the network: python docs/site/offline.py build/docs."""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_ATTRIBUTES = {"src", "srcset", "data", "poster"}  # what a browser loads by itself, whatever the tag
_ELSEWHERE = re.compile(r"\s*(?:https?:)?//")
_IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?\s*((?:https?:)?//[^"')\s]+)""")


class _Page(HTMLParser):
    """Collects what a page would load from the network. Links that a reader may follow do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            loads = name in _ATTRIBUTES or (tag == "link" and name == "href")
            if loads and value and _ELSEWHERE.match(value):
                self.found.append(f"<{tag} {name}={value}>")


def loads(text: str, suffix: str) -> list[str]:
    """Returns what a page (".html") or a style sheet (".css") loads from the network."""
    page = _Page()
    if suffix == ".html":
        page.feed(text)
    return page.found + _IN_CSS.findall(text)


def check(folder: Path) -> Iterator[str]:
    """Yields one line for each load from the network below a folder."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".html", ".css"}:
            for load in loads(path.read_text(), path.suffix):
                yield f"{path}: loads {load} from the network"


if __name__ == "__main__":
    faults = list(check(Path(sys.argv[1])))
    print(*faults, sep="\n", end="\n" if faults else "")
    sys.exit(bool(faults))
