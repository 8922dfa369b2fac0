"""A trial of a strategy: it trains the digits on several ranks, and once more in this process, and compares them.

It prints nothing: `hocket train` does.
"""

import hashlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hocket.errors import did_you_mean
from hocket.training.datasets import Dataset, load
from hocket.training.demonstration import (
    ABSOLUTE_TOLERANCE,
    RELATIVE_TOLERANCE,
    Progress,
    choose_settings,
    new_network,
)
from hocket.training.loop import History, TrainingSettings, train
from hocket.training.one_thread import one_thread
from hocket.training.strategies.local import LocalSGD, LocalTraining
from hocket.training.strategies.server import ParameterServer
from hocket.training.strategies.strategy import Strategy

if TYPE_CHECKING:
    from hocket.runtime import Communicator

STRATEGIES = ("data", "zero1", "zero2", "zero3", "server", "async", "local")
WITH_TORCH = STRATEGIES[:4]
ADAMW_LEARNING_RATE = 2e-3


@dataclass(frozen=True)
class TrialOptions:
    """Options. servers: how many ranks serve, from rank 0 on; staleness: of "server"; every: of "local"."""

    servers: int = 1
    staleness: int = 0
    every: int = 8


@dataclass(frozen=True)
class RankTrial:
    """What one rank tells the parent."""

    history: History
    weights_sha256: str


@dataclass(frozen=True)
class Trial:
    """The results of a trial. is_synchronous: whether its losses have to be those of one process.

    accuracies: on the held-out images, after each epoch. state_bytes_per_rank: parameters, gradients and optimizer
    state that each rank holds. communication_share: of the wall time of training, the mean over the ranks.
    """

    strategy: str
    data: str
    num_ranks: int
    num_parameters: int
    num_epochs: int
    num_steps: int
    test_accuracy: float
    accuracies: tuple[float, ...]
    first_loss: float
    last_loss: float
    is_synchronous: bool
    losses_equal: bool
    largest_loss_difference: float
    weights_equal: bool
    state_bytes_per_rank: tuple[int, ...]
    communication_share: float
    training_seconds: float


def try_strategy(
    strategy: str,
    num_ranks: int = 4,
    path: str | Path | None = None,
    options: TrialOptions | None = None,
    progress: Progress | None = None,
    *,
    kind: str = "process",
) -> Trial:
    """Trains with a strategy on `num_ranks` ranks and compares the result; blocks.

    progress: as in `demonstrate`. Raises ValueError for unknown strategies and wrong options (of "data" and "zero1" to
    "zero3" also without PyTorch), OSError for missing data, and CommunicationError.
    """
    options = options or TrialOptions()
    if strategy not in STRATEGIES:
        near = did_you_mean(strategy, STRATEGIES)
        raise ValueError(f"strategy: expected one of {', '.join(STRATEGIES)}, found {strategy!r}{near}")
    if num_ranks < 1:
        raise ValueError(f"number of ranks: expected at least 1, found {num_ranks}")
    if strategy in WITH_TORCH and importlib.util.find_spec("torch") is None:
        others = ", ".join(STRATEGIES[len(WITH_TORCH) :])
        raise ValueError(f'strategy {strategy} needs PyTorch: pip install "hocket[torch]", or take one of {others}')
    _check_options(strategy, num_ranks, options)
    from hocket.runtime import run_ranks

    dataset = load(path)
    settings = choose_settings(dataset)
    with one_thread():
        ranks: list[RankTrial] = run_ranks(
            train_rank, num_ranks, args=(strategy, path, settings, options, progress), kind=kind
        )
        return _judged(strategy, dataset, settings, options, ranks)


def _check_options(strategy: str, num_ranks: int, options: TrialOptions) -> None:
    """Raises ValueError for options that are wrong, or that the strategy does not have."""
    usual = TrialOptions()
    for name, least, having in (
        ("servers", 1, ("server", "async")),
        ("staleness", 0, ("server",)),
        ("every", 1, ("local",)),
    ):
        value = getattr(options, name)
        if strategy not in having and value != getattr(usual, name):
            raise ValueError(f"strategy {strategy} has no {name}, found {value}; see {' and '.join(having)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"strategy {strategy}: expected {name} of at least {least}, found {value!r}")
    if strategy in ("server", "async") and options.servers >= num_ranks:
        raise ValueError(
            f"strategy {strategy}: expected fewer servers than ranks, found {options.servers} servers and {num_ranks} "
            "ranks; start more ranks"
        )


def train_rank(
    strategy: str, path: str | Path | None, settings: TrainingSettings, options: TrialOptions, progress: Progress | None
) -> RankTrial:
    """Runs one rank; it begins with weights of its own, so that only a broadcast makes them equal."""
    from hocket.runtime import init

    with init() as comm:
        dataset = load(path)
        network = new_network(dataset, seed=settings.seed + comm.rank)
        after_epoch = progress(settings.num_epochs) if progress and comm.rank == 0 else None
        comm.barrier()  # so that rank 0's time for showing progress does not count as communication
        if strategy in WITH_TORCH:
            import torch

            from hocket.training.module_loop import module_of, train_module

            torch.set_num_threads(1)
            stage = WITH_TORCH.index(strategy)
            settings = adapted(strategy, settings)
            return RankTrial(*train_module(module_of(network), dataset, settings, stage, comm, after_epoch))
        history = train(network, dataset, settings, _made(strategy, comm, options), after_epoch)
        return RankTrial(history, hashlib.sha256(network.parameters.tobytes()).hexdigest())


def adapted(strategy: str, settings: TrainingSettings) -> TrainingSettings:
    """Returns the settings with the learning rate of AdamW, which is that of the strategies with PyTorch."""
    return replace(settings, learning_rate=ADAMW_LEARNING_RATE) if strategy in WITH_TORCH else settings


def _made(strategy: str, comm: "Communicator", options: TrialOptions) -> Strategy:
    if strategy == "local":
        return LocalTraining(comm, lambda weights: LocalSGD([weights], comm, every=options.every))
    staleness = options.staleness if strategy == "server" else None
    return ParameterServer(comm, range(options.servers), staleness)


def _judged(
    strategy: str, dataset: Dataset, settings: TrainingSettings, options: TrialOptions, ranks: list[RankTrial]
) -> Trial:
    """Compares the ranks with each other and with training in this process."""
    network = new_network(dataset, seed=settings.seed)
    if strategy in WITH_TORCH:
        import torch

        from hocket.training.module_loop import module_of, train_module

        torch.set_num_threads(1)
        alone, _ = train_module(module_of(network), dataset, adapted(strategy, settings))
    else:
        alone = train(network, dataset, settings)
    histories = [rank.history for rank in ranks]
    losses, expected = np.array([one.losses for one in histories]), np.array(alone.losses)
    every_step = strategy == "local" and options.every == 1
    return Trial(
        strategy=strategy,
        data=dataset.name,
        num_ranks=len(ranks),
        num_parameters=network.parameters.size,
        num_epochs=settings.num_epochs,
        num_steps=len(expected),
        test_accuracy=histories[0].accuracies[-1],
        accuracies=tuple(histories[0].accuracies),
        first_loss=histories[0].losses[0],
        last_loss=histories[0].losses[-1],
        is_synchronous=strategy in WITH_TORCH or (strategy == "server" and options.staleness == 0) or every_step,
        losses_equal=bool(np.allclose(losses, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)),
        largest_loss_difference=float(np.abs(losses - expected).max()),
        weights_equal=len({rank.weights_sha256 for rank in ranks}) == 1,
        state_bytes_per_rank=tuple(one.state_bytes for one in histories),
        communication_share=float(np.mean([one.communication_seconds / one.seconds for one in histories])),
        training_seconds=max(one.seconds for one in histories),
    )
