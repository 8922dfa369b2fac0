"""`hocket train`: trains the digits with one strategy and compares the result with training in one process."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.cli.demo import finite
from hocket.cli.training_progress import SHOW_CURSOR, Progress, processes

if TYPE_CHECKING:
    from hocket.training import Trial

_DATA = ("digits",)
_STRATEGIES = {
    "data": "all weights on every rank, gradients summed in buckets during the backward pass (needs torch)",
    "zero1": "as data, with the optimizer's state cut in parts over the ranks (needs torch)",
    "zero2": "as zero1; also cuts the gradients (needs torch)",
    "zero3": "as zero2; also cuts the weights (needs torch)",
    "server": "a parameter server; --staleness says how far a worker may be ahead",
    "async": "a parameter server that applies every gradient as it comes",
    "local": "each rank trains by itself; --every so many steps the weights are averaged",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `hocket train`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Train a small network on several ranks with one strategy, and compare it with one process."
    width = max(map(len, _STRATEGIES))
    parser.epilog = "strategies:\n" + "\n".join(f"  {name:<{width}}  {what}" for name, what in _STRATEGIES.items())
    parser.add_argument("what", choices=_DATA, metavar="digits", help="the handwritten digits that come with Hocket")
    parser.add_argument(
        "--strategy", choices=list(_STRATEGIES), default="data", metavar="NAME", help="one of those below (data)"
    )
    parser.add_argument("-n", "--ranks", type=int, default=4, metavar="N", help="number of processes (4)")
    parser.add_argument("--data", type=Path, metavar="PATH", help="other images, as for `hocket demo`")
    parser.add_argument("--servers", type=int, default=1, metavar="N", help="ranks that serve, of server and async (1)")
    parser.add_argument(
        "--staleness", type=int, default=0, metavar="S", help="steps that a worker may be ahead, of server (0)"
    )
    parser.add_argument("--every", type=int, default=8, metavar="H", help="steps between two averages, of local (8)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Returns 0, or 1 if ranks differ or a synchronous strategy has other losses. ValueError, OSError, HocketError."""
    from hocket.training import TrialOptions, try_strategy
    from hocket.view import Terminal

    options = TrialOptions(arguments.servers, arguments.staleness, arguments.every)
    how = f"strategy {arguments.strategy}"
    progress = None if arguments.json else Progress(arguments.ranks, bar=sys.stdout.isatty(), how=how)
    try:
        trial = try_strategy(arguments.strategy, arguments.ranks, arguments.data, options, progress)
    finally:
        if progress and progress.bar:
            print(SHOW_CURSOR, end="", flush=True)  # rank 0 may have ended while its bar hid the cursor
    if arguments.json:
        print(json.dumps({name: finite(value) for name, value in asdict(trial).items()}))
    else:
        Terminal().print(as_text(trial), markup=False)
    return 0 if trial.weights_equal and (trial.losses_equal or not trial.is_synchronous) else 1


def as_text(trial: "Trial") -> str:
    """Returns the table that a person reads."""
    apart = f"largest difference {trial.largest_loss_difference:.1e} over {trial.num_steps:,} steps"
    expected = "" if trial.is_synchronous or trial.losses_equal else "; this strategy is not synchronous"
    held = " ".join(f"{one:,}" for one in trial.state_bytes_per_rank)
    rows = [
        ("data", f"{trial.data}, a network of {trial.num_parameters:,} parameters"),
        ("held-out accuracy", f"{trial.test_accuracy:.3f}  (these images were never trained on)"),
        ("training", f"{trial.training_seconds:.2f} s; loss {trial.first_loss:.3f} -> {trial.last_loss:.4f}"),
        ("communication", f"{trial.communication_share:.0%} of that time, waits included"),
        ("bytes held per rank", f"{held}  (parameters, gradients, optimizer state)"),
        ("weights equal on all ranks", "yes" if trial.weights_equal else "NO"),
        ("same losses as one process", f"{'yes' if trial.losses_equal else 'no'}  ({apart}{expected})"),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name + ':':<{width + 1}} {value}" for name, value in rows]
    return "\n".join(["", f"  {trial.strategy} on {processes(trial.num_ranks)}", *lines])
