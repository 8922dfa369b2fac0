"""Where the commands print with rich: a terminal, or a pipe whose reader may go away."""

from rich.console import Console

_PIPED_WIDTH = 160


class Terminal(Console):
    """Standard output, wide enough for tables where it is piped. If the reader goes away: BrokenPipeError, as print.

    Colons are printed as they are; what stands in brackets is markup, so names are escaped.
    """

    def __init__(self, *, soft_wrap: bool = False) -> None:
        super().__init__(highlight=False, emoji=False, soft_wrap=soft_wrap)
        if not self.is_terminal:
            self.width = _PIPED_WIDTH

    def on_broken_pipe(self) -> None:
        """Called by rich while it handles the error, to end the program with exit code 1."""
        raise
