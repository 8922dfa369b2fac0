"""Runs the cells of examples/tour.ipynb as a notebook would, and stores what they show in the file.

python docs/pictures/tour.py [OUTPUT.ipynb]

It needs no Jupyter: a cell shows the value of its last expression, as text and as a page.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tour.ipynb"


def shown_by(source: str, name: str, variables: dict[str, Any]) -> Any:
    """Runs a cell. Returns the value of its last expression; None if the last statement is none."""
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        exec(compile(source, name, "exec"), variables)
        return None
    exec(compile(ast.Module(body, []), name, "exec"), variables)
    return eval(compile(ast.Expression(last.value), name, "eval"), variables)


def lines(text: str) -> list[str]:
    """Returns the text as notebooks store it."""
    return text.splitlines(keepends=True)


def run(notebook: dict[str, Any]) -> None:
    """Runs all cells in order, and puts what they show in place of their outputs."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate((one for one in notebook["cells"] if one["cell_type"] == "code"), 1):
        value = shown_by("".join(cell["source"]), f"<cell {number}>", variables)
        data = {} if value is None else {"text/plain": lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = lines(value._repr_html_())
        result = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}
        cell |= {"execution_count": number, "outputs": [result] if data else []}


def main() -> None:
    """Writes the notebook with new outputs, into the same file unless another one is named."""
    notebook = json.loads(NOTEBOOK.read_text())
    run(notebook)
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK
    output.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
