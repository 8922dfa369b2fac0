"""Writes docs/reports/algorithms.md, the table of all built-in algorithms, and the outputs of the guide's commands.

python -m tests.algorithms.table
"""

import tempfile
from pathlib import Path

import hocket
from hocket.algorithms import ALGORITHMS, Algorithm, said
from hocket.algorithms.promise import Formula
from hocket.schedule import COLLECTIVES
from tests.algorithms.docstrings import describe
from tests.algorithms.guide import replayed

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "algorithms.md"
DOCUMENT = ROOT / "docs" / "reports" / "algorithms.md"
COLUMNS = ["name", "steps", "sent", "order of reduction", "ranks", "best for", "reference"]
HEAD = """\
# Built-in algorithms

`make algorithms` wrote this page from the registry; do not edit it. [The guide](../algorithms.md) explains the words.

|column|content|
|---|---|
|name|the value of `algorithm=`, and a link to the program; "`_v` too": the uneven collective has it as well|
|steps|number of steps|
|sent|how much the rank that sends most sends; 1 is the whole vector, for all_to_all what one rank gives|
|order of reduction|labels that the order of reduction earns|
|ranks|rank counts that the algorithm takes|
|best for|sizes and networks for which the algorithm is made|
|reference|where the idea comes from|

The proof checks *steps*, *sent* and *order of reduction* for every rank count that runs. The docstrings of the programs
say the rest.

In the formulas P is the number of ranks, G is the number of groups, the largest group has M ranks, and `dims` are the
lengths of a grid. N is the size of the whole vector; for all_to_all, of all blocks that one rank gives.
"""


def table() -> str:
    """Returns a section for each collective; an uneven one shares the section of the even one."""
    text = ""
    for collective in COLLECTIVES:
        if collective.endswith("_v"):
            continue
        rows = [row(one, uneven) for one, uneven in algorithms(collective)]
        title = f"{collective} and {collective}_v" if f"{collective}_v" in COLLECTIVES else collective
        lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
        text += f"\n## {title}\n\n" + "".join(f"|{'|'.join(line)}|\n" for line in lines)
    return text


def page() -> str:
    """Returns the whole document."""
    return HEAD + table()


def algorithms(collective: str) -> list[tuple[Algorithm, str]]:
    """Returns the built-in algorithms for an even or the uneven collective by name, and a remark on the uneven one."""
    ours = str(Path(hocket.__file__).parent)
    found = []
    for name in sorted({name for kind, name in ALGORITHMS if kind.removesuffix("_v") == collective}):
        even, uneven = ALGORITHMS.get((collective, name)), ALGORITHMS.get((f"{collective}_v", name))
        one = even or uneven
        if one is not None and one.source.startswith(ours):
            found.append((one, "" if uneven is None else ", `_v` too" if even else ", `_v` only"))
    return found


def row(one: Algorithm, uneven: str) -> list[str]:
    described = describe(one.doc)
    file = Path(one.source.rpartition(":")[0])
    steps, sent = (f"`{said(one)}`" if isinstance(one, Formula) else said(one) for one in (one.steps, one.sent))
    labels = ", ".join(f"`{label}`" for label in sorted(one.labels))
    name = f"[`{one.name}`](../../{file.relative_to(ROOT)}){uneven}"
    texts = (described.ranks, described.best, described.reference)
    return [name, steps, sent, labels, *(text.replace("|", "\\|") for text in texts)]


if __name__ == "__main__":
    DOCUMENT.write_text(page())
    with tempfile.TemporaryDirectory() as folder:
        GUIDE.write_text(replayed(GUIDE.read_text(), Path(folder)))
    print(f"{len(ALGORITHMS)} algorithms: {DOCUMENT}")
