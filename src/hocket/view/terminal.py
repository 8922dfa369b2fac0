"""The rich console of the commands and answers: a terminal, a pipe that its reader may close, or text."""

from typing import IO

from rich.console import Console

_PIPED_WIDTH = 160


class Terminal(Console):
    """Standard output or another file, wide enough for tables if it is no terminal. Never cuts a line or a name.

    Colons are printed unchanged. Text in brackets is markup, so callers escape names. Raises BrokenPipeError if the
    reader of a pipe closes it. record: remember what is printed, for export_html.
    """

    def __init__(self, file: IO[str] | None = None, *, record: bool = False) -> None:
        super().__init__(file=file, highlight=False, emoji=False, soft_wrap=True, record=record)
        if not self.is_terminal:
            self.width = _PIPED_WIDTH

    def on_broken_pipe(self) -> None:
        """Raises the error again; rich calls this method, which by default ends the program with exit code 1."""
        raise
