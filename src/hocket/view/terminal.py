"""The rich console of the commands: a terminal, or a pipe that its reader may close."""

from rich.console import Console

_PIPED_WIDTH = 160


class Terminal(Console):
    """Standard output, wide enough for tables if it is piped. Raises BrokenPipeError if the reader closes the pipe.

    Colons are printed unchanged. Text in brackets is markup, so callers escape names.
    """

    def __init__(self, *, soft_wrap: bool = False) -> None:
        super().__init__(highlight=False, emoji=False, soft_wrap=soft_wrap)
        if not self.is_terminal:
            self.width = _PIPED_WIDTH

    def on_broken_pipe(self) -> None:
        """Raises the error again; rich calls this method, which by default ends the program with exit code 1."""
        raise
