"""Shows the progress of training from within rank 0, which alone knows it: a bar in a terminal, else plain lines."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hocket.errors import name_count

if TYPE_CHECKING:
    from hocket.training import AfterEpoch, History

SHOW_CURSOR = "\x1b[?25h"
_NUM_PLAIN_LINES = 6


@dataclass(frozen=True)
class Progress:
    """Begins the display when it is called with the number of epochs. how: the end of the first line."""

    num_ranks: int
    bar: bool
    how: str = "each with its part of every batch"

    def __call__(self, num_epochs: int) -> "AfterEpoch":
        """Begins the display. Returns a function to call after every epoch; it ends the display after the last."""
        print(f"Hocket: training on {processes(self.num_ranks)}, {self.how}", flush=True)
        return _bar(num_epochs) if self.bar else _lines(num_epochs)


def processes(count: int) -> str:
    """Returns for example "4 processes"."""
    return name_count(count, "process")


def _lines(num_epochs: int) -> "AfterEpoch":
    every = max(1, num_epochs // _NUM_PLAIN_LINES)

    def after_epoch(epoch: int, history: "History") -> None:
        if epoch % every == 0 or epoch == num_epochs:
            print(f"  epoch {epoch:>{len(str(num_epochs))}}/{num_epochs}  {_state(history)}", flush=True)

    return after_epoch


def _bar(num_epochs: int) -> "AfterEpoch":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("  epoch"), MofNCompleteColumn(), BarColumn(bar_width=30), TextColumn("{task.description}")
    )
    task = bar.add_task("", total=num_epochs)
    bar.start()

    def after_epoch(epoch: int, history: "History") -> None:
        bar.update(task, completed=epoch, description=_state(history))
        if epoch == num_epochs:
            bar.stop()

    return after_epoch


def _state(history: "History") -> str:
    share = history.communication_seconds / history.seconds if history.seconds else 0.0
    return f"loss {history.losses[-1]:.4f}  held-out accuracy {history.accuracies[-1]:.3f}  communicating {share:.0%}"
