"""The demonstration: trains on several ranks, then checks the result in the parent process without any collective.

The parent compares the bits of all ranks' weights, trains once more in one process on the same batches, and proves the
algorithm that ran, from scratch. It prints nothing: `hocket demo` does.
"""

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime, perf_counter
from typing import TYPE_CHECKING, Literal

import numpy as np

from hocket.errors import InternalError
from hocket.training.datasets import Dataset, load
from hocket.training.loop import AfterEpoch, History, TrainingSettings, train
from hocket.training.model import Classifier
from hocket.training.one_thread import one_thread
from hocket.training.strategies.data import DataParallelTraining

if TYPE_CHECKING:
    from hocket.runtime import Communicator

# Another order of float32 sums changes losses by a few 1e-7 after 700 steps; one lost gradient by more than 1e-3.
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-4, 1e-5

_HIDDEN = 64
_IMAGES_TO_SEE = 45_000
_MOST_EPOCHS = 30
_LONGEST_STEP, _STEP_TIMES_SQUARED_NORM = 0.1, 1.5

Progress = Callable[[int], AfterEpoch]


@dataclass(frozen=True)
class FirstAllReduce:
    """The time when one rank had the result (seconds of CLOCK_BOOTTIME), and its seconds of proving: 0 if cached."""

    at: float
    proof_seconds: float


@dataclass(frozen=True)
class RankReport:
    """The report of one rank to the parent."""

    history: History
    weights_sha256: str
    algorithms: dict[str, int]
    first_all_reduce: FirstAllReduce


@dataclass(frozen=True)
class Start:
    """The wait for the first all_reduce: wall seconds from the command until the last rank has the result.

    proof: whether this run made the proof. cold_seconds: the wait including a new proof, which takes cold_proof_seconds
    of it. Both come from this run, or from a second start with an empty cache; None if neither applies.
    """

    seconds: float
    proof: Literal["cached", "made now"]
    cold_seconds: float | None = None
    cold_proof_seconds: float | None = None


@dataclass(frozen=True)
class FreshProof:
    """A proof made from scratch, without the cache: labels of the certificate, method, wall seconds."""

    labels: tuple[str, ...]
    method: str
    seconds: float


@dataclass(frozen=True)
class Demonstration:
    """The results of the parent. Times are wall seconds; the share of communication is the mean over the ranks."""

    data: str
    num_ranks: int
    num_train: int
    num_test: int
    num_parameters: int
    num_epochs: int
    num_steps: int
    test_accuracy: float
    weights_equal: bool
    weights_sha256: tuple[str, ...]
    losses_equal: bool
    largest_loss_difference: float
    first_loss: float
    last_loss: float
    algorithm: str
    proof: FreshProof | None
    communication_share: float
    training_seconds: float
    one_process_seconds: float
    first_all_reduce: Start


def demonstrate(
    num_ranks: int = 4,
    path: str | Path | None = None,
    progress: Progress | None = None,
    *,
    kind: Literal["process", "thread"] = "process",
    started_at: float | None = None,
) -> Demonstration:
    """Trains on `num_ranks` ranks and checks the result; blocks. Raises ValueError, OSError or CommunicationError.

    progress: rank 0 calls it with the number of epochs, and calls the function that it returns after each epoch; it
    must be picklable. started_at: when the wait for the first all_reduce began, in seconds of CLOCK_BOOTTIME; by
    default now.
    """
    started_at = clock_gettime(CLOCK_BOOTTIME) if started_at is None else started_at
    if num_ranks < 1:
        raise ValueError(f"number of ranks: expected at least 1, found {num_ranks}")
    from hocket.runtime import run_ranks, variables

    dataset = load(path)
    settings = choose_settings(dataset)
    called_at = clock_gettime(CLOCK_BOOTTIME)
    with one_thread():
        ranks: list[RankReport] = run_ranks(train_rank, num_ranks, args=(path, settings, progress), kind=kind)
    start = waited([rank.first_all_reduce for rank in ranks], started_at)
    if start.proof == "cached" and kind == "process":  # threads would find the proof in this process's memory
        with tempfile.TemporaryDirectory(prefix="hocket-") as empty, one_thread({variables.CACHE: empty}):
            again_at = clock_gettime(CLOCK_BOOTTIME)
            cold = waited(run_ranks(start_rank, num_ranks, kind=kind), again_at - (called_at - started_at))
        start = replace(start, cold_seconds=cold.cold_seconds, cold_proof_seconds=cold.cold_proof_seconds)
    return judge(dataset, settings, ranks, start)


def waited(ranks: list[FirstAllReduce], started_at: float) -> Start:
    """Combines the ranks: the last rank counts, and if any rank made the proof, it was not cached."""
    seconds = max(rank.at for rank in ranks) - started_at
    proof_seconds = max(rank.proof_seconds for rank in ranks)
    return Start(seconds, "made now", seconds, proof_seconds) if proof_seconds else Start(seconds, "cached")


def choose_settings(dataset: Dataset) -> TrainingSettings:
    """Chooses more epochs for a small data set than for a large one, and shorter steps for brighter images.

    The gradient of the first layer grows with the squared norm of an image. Too long steps would be unstable, and would
    amplify rounding until two correct runs differ.
    """
    num_epochs = round(_IMAGES_TO_SEE / len(dataset.train_labels))
    squared_norm = float(np.vdot(dataset.train_images, dataset.train_images)) / len(dataset.train_labels)
    learning_rate = min(_LONGEST_STEP, _STEP_TIMES_SQUARED_NORM / max(squared_norm, 1.0))
    return TrainingSettings(max(1, min(_MOST_EPOCHS, num_epochs)), learning_rate=learning_rate)


def train_rank(path: str | Path | None, settings: TrainingSettings, progress: Progress | None) -> RankReport:
    """Runs one rank: it joins, checks that all ranks are there, makes weights of its own, and trains."""
    from hocket.runtime import init

    with init() as communicator:
        first = _first_all_reduce(communicator)
        before = dict(communicator.statistics["algorithms"])
        dataset = load(path)
        network = new_network(dataset, seed=settings.seed + communicator.rank)
        after_epoch = progress(settings.num_epochs) if progress and communicator.rank == 0 else None
        communicator.barrier()  # so that rank 0's time for showing progress does not count as communication
        history = train(network, dataset, settings, DataParallelTraining(communicator), after_epoch)
        ran = {name: count - before.get(name, 0) for name, count in communicator.statistics["algorithms"].items()}
    return RankReport(history, hashlib.sha256(network.parameters.tobytes()).hexdigest(), ran, first)


def start_rank() -> FirstAllReduce:
    """Runs only the beginning of `train_rank`, to time it once more."""
    from hocket.runtime import init

    with init() as communicator:
        return _first_all_reduce(communicator)


def _first_all_reduce(communicator: "Communicator") -> FirstAllReduce:
    """Counts the ranks by an all_reduce; it first requests the proof of the chosen algorithm, to measure its time."""
    from hocket.runtime import plans

    ones = np.ones(1, np.int64)
    chosen = communicator.lower.chosen("all_reduce", ones.nbytes)
    algorithm = plans.find("all_reduce", chosen)
    proof_seconds = plans.prove(algorithm, algorithm.build(communicator.size))
    present = communicator.all_reduce(ones, algorithm=algorithm.name)
    at = clock_gettime(CLOCK_BOOTTIME)
    if present[0] != communicator.size:
        raise InternalError(f"rank {communicator.rank}: expected {communicator.size} ranks, counted {present[0]}")
    return FirstAllReduce(at, proof_seconds)


def new_network(dataset: Dataset, seed: int) -> Classifier:
    """Returns the demonstration's network; each rank has a seed of its own, so only a broadcast makes them equal."""
    return Classifier((dataset.num_features, _HIDDEN, dataset.num_classes), seed=seed)


def judge(dataset: Dataset, settings: TrainingSettings, ranks: list[RankReport], start: Start) -> Demonstration:
    """Compares the ranks with each other and with training in this process, and proves the algorithm that ran."""
    alone = train(new_network(dataset, seed=settings.seed), dataset, settings)
    losses = np.array([rank.history.losses for rank in ranks])
    expected = np.array(alone.losses)
    algorithm = _most_used_all_reduce(ranks[0].algorithms)
    shares = [rank.history.communication_seconds / rank.history.seconds for rank in ranks]
    return Demonstration(
        data=dataset.name,
        num_ranks=len(ranks),
        num_train=len(dataset.train_labels),
        num_test=len(dataset.test_labels),
        num_parameters=new_network(dataset, seed=settings.seed).parameters.size,
        num_epochs=settings.num_epochs,
        num_steps=len(expected),
        test_accuracy=ranks[0].history.accuracies[-1],
        weights_equal=len({rank.weights_sha256 for rank in ranks}) == 1,
        weights_sha256=tuple(rank.weights_sha256 for rank in ranks),
        losses_equal=np.allclose(losses, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE),
        largest_loss_difference=float(np.abs(losses - expected).max()),
        first_loss=ranks[0].history.losses[0],
        last_loss=ranks[0].history.losses[-1],
        algorithm=algorithm,
        proof=prove(algorithm, len(ranks)),
        communication_share=float(np.mean(shares)),
        training_seconds=max(rank.history.seconds for rank in ranks),
        one_process_seconds=alone.seconds,
        first_all_reduce=start,
    )


def prove(algorithm: str, num_ranks: int) -> FreshProof | None:
    """Builds and verifies an all_reduce from scratch; returns None if it is not a built-in one."""
    from hocket.algorithms import ALGORITHMS
    from hocket.schedule import verify

    found = ALGORITHMS.get(("all_reduce", algorithm))
    if found is None:
        return None
    started = perf_counter()
    certificate = verify(
        found.produce(found.layout(num_ranks)), declared=found.declared(num_ranks)
    )  # build() would use its memory
    return FreshProof(tuple(sorted(certificate.labels)), certificate.method, perf_counter() - started)


def _most_used_all_reduce(algorithms: Mapping[str, int]) -> str:
    """Returns the all_reduce with the most calls: that of the gradients. Keys are "collective:name"."""
    counts = {name.partition(":")[2]: count for name, count in algorithms.items() if name.startswith("all_reduce:")}
    return max(counts, key=lambda name: counts[name], default="none")
