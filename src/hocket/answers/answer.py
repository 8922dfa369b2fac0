"""What every answer has in common: fields, the text that the command prints, and a form for notebooks."""

from abc import ABC, abstractmethod
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hocket.view import Terminal

_PRE = '<pre style="line-height: 1.25; font-family: monospace">{code}</pre>'


class Answer(ABC):
    """An answer of Hocket: frozen fields, `str()` as the command prints it, and a page for notebooks."""

    def print(self, console: "Terminal | None" = None) -> None:
        """Prints the answer as the command does, on standard output unless there is a console."""
        from hocket.view import Terminal

        self._print(console or Terminal())

    @abstractmethod
    def _print(self, console: "Terminal") -> None:
        """Prints the answer as the command does."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Returns the answer as plain values, as the command does with --json."""

    def svg(self) -> str:
        """Returns a picture as SVG; "" if this answer has none."""
        return ""

    def __str__(self) -> str:
        from hocket.view import Terminal

        text = StringIO()
        self.print(Terminal(text))
        return text.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.line()}>"

    def line(self) -> str:
        """Returns the answer in one line."""
        return str(self).partition("\n")[0]

    def _repr_html_(self) -> str:
        from hocket.view import Terminal

        console = Terminal(StringIO(), record=True)
        self.print(console)
        return console.export_html(inline_styles=True, code_format=_PRE) + self.svg()
