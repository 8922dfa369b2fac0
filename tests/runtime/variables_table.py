"""Writes docs/reports/variables.md, the table of the environment variables.

python -m tests.runtime.variables_table
"""

from pathlib import Path

from hocket.runtime import variables

DOCUMENT = Path(__file__).parents[2] / "docs" / "reports" / "variables.md"
HEAD = """\
# Environment variables

`make docs-pictures` wrote this page from `src/hocket/runtime/variables.py`; do not edit it.
`hocket doctor` lists the variables that are set, and `hocket doctor --json` all of them.

|scope|meaning|
|---|---|
|rank|each rank heeds its own value|
|rank 0 for all|rank 0 reads the variable and tells the other ranks|
|launcher|what starts the ranks, `hocket run` for example, sets it for each rank|

|variable|meaning|default|scope|read by|
|---|---|---|---|---|
"""


def page() -> str:
    """Returns the whole document."""
    lines = [f"|`{one.name}`|{one.sentence}|{one.default}|{one.scope}|`{one.reader}`|\n" for one in variables.VARIABLES]
    return HEAD + "".join(lines)


if __name__ == "__main__":
    DOCUMENT.write_text(page())
