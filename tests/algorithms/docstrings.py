"""Reads an algorithm's docstring, field by field.

    Idea in one to four sentences.

    Best: large N, and where only neighbours have fast links
    Ranks: any
    Reference: author, title, year

    Remarks, if there are any.

N is the size of the whole vector; for all_to_all, of all blocks of one rank's input. A field continues in the next line
if that is indented. A user's algorithm may leave fields out.
"""

import inspect
import re
from dataclasses import dataclass

FIELDS = ("Best", "Ranks", "Reference")

_FIELD = re.compile(rf"({'|'.join(FIELDS)}): *(.*)")


@dataclass(frozen=True)
class Description:
    """The parts of a docstring, each on one line; a missing part is empty. best: where to use the algorithm."""

    idea: str
    best: str = ""
    ranks: str = ""
    reference: str = ""
    remarks: str = ""


def describe(doc: str) -> Description:
    """Returns the parts of a docstring. The first paragraph is the idea; the fields are another paragraph."""
    first, *others = re.split(r"\n\s*\n", inspect.cleandoc(doc))
    fields: dict[str, str] = {}
    remarks = []
    for paragraph in others:
        found = _fields(paragraph)
        fields |= found
        remarks += [] if found else [paragraph]
    parts = {name.lower(): fields.get(name, "") for name in FIELDS}
    return Description(_line(first), **parts, remarks=_line("\n".join(remarks)))


def _fields(paragraph: str) -> dict[str, str]:
    """Returns the fields of a paragraph that has only fields, else {}."""
    found: dict[str, str] = {}
    name = ""
    for line in paragraph.splitlines():
        field = _FIELD.fullmatch(line)
        if field:
            name = field[1]
            found[name] = field[2]
        elif name and line.startswith("  "):
            found[name] += f" {line}"
        else:
            return {}
    return {name: _line(text) for name, text in found.items()}


def _line(text: str) -> str:
    return " ".join(text.split())
