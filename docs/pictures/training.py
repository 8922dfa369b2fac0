"""Draws the pictures of docs/training.md: two timelines, bytes per rank, and accuracy by strategy."""

import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib
import numpy as np

from hocket.training import TrialOptions, try_strategy

matplotlib.use("svg")
from matplotlib import pyplot

PICTURES = Path(__file__).parent
EXAMPLE = PICTURES.parents[1] / "examples" / "training_timeline.py"
RANKS = (1, 2, 4)
CONVERGENCE = {
    "synchronous server": ("server", TrialOptions()),
    "server, staleness 4": ("server", TrialOptions(staleness=4)),
    "asynchronous server": ("async", TrialOptions()),
    "local SGD, average every 8 steps": ("local", TrialOptions(every=8)),
    "local SGD, average every 32 steps": ("local", TrialOptions(every=32)),
}


def timelines() -> None:
    """Traces the example, in both manners."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, EXAMPLE, "--traces", folder], check=True)
        for trace in sorted(Path(folder).glob("*.json")):
            picture = PICTURES / f"training-{trace.stem}.svg"
            subprocess.run([sys.executable, "-m", "hocket", "trace", "plot", trace, "-o", picture], check=True)


def memory() -> None:
    """Trains with each strategy on some numbers of ranks, and draws what they hold beside the formulas."""
    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    formulas = {
        "data": lambda p: 16.0,
        "zero1": lambda p: 8 + 8 / p,
        "zero2": lambda p: 4 + 12 / p,
        "zero3": lambda p: 16 / p,
    }
    width = 0.8 / len(RANKS)
    for number, p in enumerate(RANKS):
        places = np.arange(len(formulas)) + (number - (len(RANKS) - 1) / 2) * width
        held = []
        for strategy in formulas:
            trial = try_strategy(strategy, p, kind="thread")
            held.append(max(trial.state_bytes_per_rank) / trial.num_parameters)
        axes.bar(places, held, width * 0.9, label=f"{p} ranks" if p > 1 else "1 rank")
        for place, formula in zip(places, formulas.values(), strict=True):
            axes.hlines(formula(p), place - width / 2, place + width / 2, colors="black", linewidth=1.5)
    axes.set_xticks(range(len(formulas)), formulas)
    axes.set_ylabel("bytes per parameter and rank")
    axes.set_ylim(0, 19)
    axes.set_yticks(range(0, 17, 4))
    axes.set_title("Rank that holds most, AdamW in float32, network of the digits; lines: formula", fontsize=10)
    axes.legend(frameon=False, ncols=len(RANKS))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / "training-memory.svg")


def convergence() -> None:
    """Trains with strategies that are not synchronous, beside one that is."""
    figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
    for name, (strategy, options) in CONVERGENCE.items():
        trial = try_strategy(strategy, 5, options=options)
        epochs = np.arange(1, len(trial.accuracies) + 1)
        axes.plot(epochs, [100 * (1 - accuracy) for accuracy in trial.accuracies], label=name, linewidth=1.2)
    axes.set_ylim(0, 15)
    axes.set_xlabel("epoch, 5 ranks")
    axes.set_ylabel("held-out digits wrong, %")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / "training-convergence.svg")


if __name__ == "__main__":
    timelines()
    memory()
    convergence()
