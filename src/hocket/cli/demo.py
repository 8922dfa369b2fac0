"""`hocket demo`: several processes train a digit classifier; a proved schedule sums every gradient.

Rank 0 draws the progress, because only rank 0 knows it. This module prints everything else after the ranks have ended.
"""

import argparse
import json
import math
import os
import shlex
import shutil
import sys
import sysconfig
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.cli.training_progress import SHOW_CURSOR, Progress, processes

if TYPE_CHECKING:
    from hocket.training import Demonstration, Start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `hocket demo`."""
    parser.description = "Train a small network on handwritten digits; several processes share every batch."
    parser.add_argument("-n", "--ranks", type=int, default=4, metavar="N", help="number of processes (default 4)")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="an .npz file, or the folder or training images of MNIST's idx files (default: Hocket's own digits)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo. Returns 0 if weights and losses are equal, else 1. Raises ValueError, OSError, HocketError."""
    from hocket.training import demonstrate
    from hocket.view import Terminal

    progress = None if arguments.json else Progress(arguments.ranks, bar=sys.stdout.isatty())
    try:
        result = demonstrate(arguments.ranks, arguments.data, progress, started_at=_process_started_at())
    finally:
        if progress and progress.bar:
            print(SHOW_CURSOR, end="", flush=True)  # rank 0 may have ended while its bar hid the cursor
    if arguments.json:
        print(json.dumps(as_json(result)))
    else:
        Terminal().print(as_text(result), markup=False)
    return 0 if result.weights_equal and result.losses_equal else 1


def as_json(result: "Demonstration") -> dict[str, object]:
    """Returns the result as one flat dictionary; the values of the proof and of the start have prefixed names."""
    values = asdict(result)
    proof = values.pop("proof") or {"labels": [], "method": None, "seconds": None}
    proved = {"cold_proof_seconds": proof["seconds"], "proof_labels": proof["labels"], "proof_method": proof["method"]}
    start = {f"first_all_reduce_{name}": value for name, value in values.pop("first_all_reduce").items()}
    return {name: finite(value) for name, value in {**values, **start, **proved}.items()}


def finite(value: object) -> object:
    """Returns None for NaN and infinity, which JSON does not have and a training that diverged reports."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_text(result: "Demonstration") -> str:
    """Returns the report that a person reads."""
    n, proof = result.num_ranks, result.proof
    losses = f"loss {result.first_loss:.3f} -> {result.last_loss:.4f}"
    rows = [
        ("data", f"{result.data}: {result.num_train:,} images for training, {result.num_test:,} held out"),
        ("held-out accuracy", f"{result.test_accuracy:.3f}  (these images were never trained on)"),
        ("training", f"{result.training_seconds:.2f} s for {result.num_steps:,} steps; {losses}"),
        ("communication", f"{result.communication_share:.0%} of that time (waiting for slower ranks included)"),
        ("algorithm", f"{result.algorithm} all_reduce of {result.num_parameters + 1:,} numbers in every step"),
        *_first(result.first_all_reduce, f"{processes(n)} started"),
    ]
    if proof:
        labels = ", ".join(label.replace("_", " ") for label in proof.labels) or "no further label"
        rows.append(("proof", f"{proof.seconds:.3f} s from scratch ({proof.method}; {labels})"))
    within = "within" if result.losses_equal else "more than"
    apart = f"largest difference {result.largest_loss_difference:.1e} over {result.num_steps:,} steps"
    rows += [
        ("weights equal on all ranks", _yes(result.weights_equal, "every bit compared, by SHA-256")),
        ("same losses as one process", _yes(result.losses_equal, f"{within} rounding; {apart}")),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name + ':':<{width + 1}} {value}" for name, value in rows]
    return "\n".join(["", *lines, "", _scale(result), "", "Next, try:", *_next(result)])


def _scale(result: "Demonstration") -> str:
    """Returns a sentence that says how little a step has to compute."""
    milliseconds = 1e3 * result.training_seconds * (1 - result.communication_share) / result.num_steps
    computes = f"a step computes for {milliseconds:.1f} ms" if math.isfinite(milliseconds) else "a step computes little"
    return f"The network is tiny: {computes}, so the share of communication says little about larger networks."


def _first(start: "Start", started: str) -> list[tuple[str, str]]:
    """Returns the wait for the first all_reduce in this run, and the wait with an empty cache (proof included)."""
    rows = [("first all_reduce", f"{start.seconds:.2f} s after the command, {started}, the proof {start.proof}")]
    if start.cold_seconds is not None:
        how = "this run" if start.proof == "made now" else "started again with an empty cache"
        share = f"the proof took {start.cold_proof_seconds:.3f} s of it"
        rows.append(("first all_reduce, cold", f"{start.cold_seconds:.2f} s ({how}; {share})"))
    return rows


def _next(result: "Demonstration") -> list[str]:
    """Returns three commands to try next; each works as printed from the current folder."""
    hocket = _this_program()
    commands = [
        (f"{hocket} show {result.algorithm} --collective all_reduce -n {result.num_ranks}", "the steps that just ran"),
        (f"{hocket} verify --all --ranks 1-16", "prove every algorithm that Hocket has"),
        (f"{hocket} doctor", "check this machine and suggest fixes"),
    ]
    width = max(len(command) for command, _ in commands)
    return [f"  {command:<{width}}  {why}" for command, why in commands]


def _this_program() -> str:
    """Returns what to type in the current folder to start this program: `hocket` only if PATH leads to this one."""
    started = Path(sys.argv[0])
    script = started if started.name == "hocket" else Path(sysconfig.get_path("scripts")) / "hocket"
    if not script.is_file():  # Hocket is not installed
        return f"{_shortest(Path(sys.executable))} -m hocket"
    found = shutil.which("hocket")
    return "hocket" if found and script.samefile(found) else _shortest(script)


def _shortest(program: Path) -> str:
    """Returns the program's path, quoted for a shell, relative to the current folder if that is shorter."""
    absolute = program.absolute()
    relative = os.path.relpath(absolute)
    if os.sep not in relative:
        relative = f".{os.sep}{relative}"
    return shlex.quote(min(relative, str(absolute), key=len))


def _yes(holds: bool, how: str) -> str:
    return f"yes  ({how})" if holds else f"NO  ({how}); please report this with the output of {_this_program()} doctor"


def _process_started_at() -> float:
    """Returns when this process started, in seconds of CLOCK_BOOTTIME: the interpreter's start counts as waiting."""
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return int(after_name[19]) / os.sysconf("SC_CLK_TCK")  # field 22, starttime
    except (OSError, ValueError, IndexError):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
