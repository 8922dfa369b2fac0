"""Writes the table of all built-in algorithms into docs/algorithms.md, between its marks, and what commands print.

python -m tests.algorithms.table
"""

import tempfile
from pathlib import Path

import hocket
from hocket.algorithms import ALGORITHMS, Algorithm
from hocket.algorithms.description import describe, evaluate
from hocket.schedule import COLLECTIVES
from tests.algorithms.guide import replayed

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "algorithms.md"
BEGIN, END = "<!-- written by make algorithms -->\n", "<!-- end of what make algorithms writes -->\n"
HEAD = ["name", "steps", "sent", "order of reduction", "ranks", "best", "reference"]


def table() -> str:
    """A section for each collective, an uneven one together with the even one."""
    text = ""
    for collective in COLLECTIVES:
        if collective.endswith("_v"):
            continue
        rows = [row(one, uneven) for one, uneven in algorithms(collective)]
        title = f"{collective} and {collective}_v" if f"{collective}_v" in COLLECTIVES else collective
        lines = [HEAD, ["---"] * len(HEAD), *rows]
        text += f"\n### {title}\n\n" + "".join(f"|{'|'.join(line)}|\n" for line in lines)
    return text + "\n"


def algorithms(collective: str) -> list[tuple[Algorithm, str]]:
    """The built-in ones for an even or the uneven collective by name, and what to say of the uneven one."""
    ours = str(Path(hocket.__file__).parent)
    found = []
    for name in sorted({name for kind, name in ALGORITHMS if kind.removesuffix("_v") == collective}):
        even, uneven = ALGORITHMS.get((collective, name)), ALGORITHMS.get((f"{collective}_v", name))
        one = even or uneven
        if one is not None and one.source.startswith(ours):
            found.append((one, "" if uneven is None else ", `_v` too" if even else ", `_v` only"))
    return found


def row(one: Algorithm, uneven: str) -> list[str]:
    said = describe(one)
    file = Path(one.source.rpartition(":")[0])
    least = next(p for p in range(1, 1000) if one.allows(p))
    steps, sent = (
        text if evaluate(text, one.layout(least)) is None else f"`{text}`" for text in (said.steps, said.sent)
    )
    labels = ", ".join(f"`{label}`" for label in sorted(one.labels))
    name = f"[`{one.name}`](../{file.relative_to(ROOT)}){uneven}"
    return [name, steps, sent, labels, *(text.replace("|", "\\|") for text in (said.ranks, said.best, said.reference))]


def updated(document: str) -> str:
    """The document with the table of today."""
    before, found, rest = document.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"expected {BEGIN.strip()!r} and {END.strip()!r} in the document")
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        DOCUMENT.write_text(replayed(updated(DOCUMENT.read_text()), Path(folder)))
    print(f"{len(ALGORITHMS)} algorithms: {DOCUMENT}")
