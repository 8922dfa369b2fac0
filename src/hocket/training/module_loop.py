"""The training loop for PyTorch: a module, data parallel or with sharded state, with AdamW, on images.

It is loop.py with PyTorch in place of NumPy: the same batches, weights and history.
"""

import hashlib
from collections.abc import Iterable
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hocket import runtime
from hocket.runtime import Communicator
from hocket.training.buckets.held_bytes import StateBytes
from hocket.training.datasets import Dataset
from hocket.training.loop import AfterEpoch, History, TrainingSettings, batches
from hocket.training.model import Classifier
from hocket.training.strategies.data import share
from hocket.training.strategies.data_parallel import DataParallel
from hocket.training.strategies.sharded import sharded


def module_of(network: Classifier) -> nn.Module:
    """Returns a module with the layers and the weights of a network."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(network.sizes, network.sizes[1:], strict=False):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    module = nn.Sequential(*layers[:-1])
    flat = torch.from_numpy(network.parameters.copy())
    with torch.no_grad():
        at = 0
        for layer in module[::2]:
            for parameter, shape in ((layer.weight, layer.weight.T.shape), (layer.bias, layer.bias.shape)):
                values = flat[at : at + parameter.numel()].reshape(shape)
                parameter.copy_(values.T if parameter is layer.weight else values)
                at += parameter.numel()
    return module


def train_module(
    module: nn.Module,
    dataset: Dataset,
    settings: TrainingSettings,
    stage: int = 0,
    comm: Communicator | None = None,
    after_epoch: AfterEpoch | None = None,
) -> tuple[History, str]:
    """Trains the module in place, and returns its history and the SHA-256 of its final weights. Blocks.

    stage: of ZeRO, 1 to 3, or 0 for data parallelism. Without `comm` it trains in this process alone. Every rank calls
    it with the same dataset and settings. Raises CommunicationError.
    """
    rank, size = (0, 1) if comm is None else (comm.rank, comm.size)
    model: Any = module
    if comm is not None:
        model = sharded(module, comm, stage=stage, op="sum") if stage else DataParallel(module, comm, op="sum")
    optimizer = torch.optim.AdamW(model.shards() if stage else module.parameters(), lr=settings.learning_rate)
    history, started = History(), perf_counter()
    for epoch in range(settings.num_epochs):
        losses: list[float] = []
        for batch in batches(len(dataset.train_labels), settings, epoch):
            own = share(batch, rank, size)
            images, labels = torch.from_numpy(dataset.train_images[own]), torch.from_numpy(dataset.train_labels[own])
            with runtime.span("gradient"):
                loss = cross_entropy(model(images), labels, reduction="sum") / len(batch)
                loss.backward()
            with runtime.span("update"):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        own = share(np.arange(len(dataset.test_labels)), rank, size)
        with torch.no_grad():
            found = model(torch.from_numpy(dataset.test_images[own])).argmax(1).numpy()
        numbers = np.array([*losses, np.count_nonzero(found == dataset.test_labels[own])], np.float64)
        if comm is not None:
            comm.all_reduce(numbers)
            history.communication_seconds = model.report().seconds_waited
        history.losses += numbers[:-1].tolist()
        history.accuracies.append(float(numbers[-1]) / len(dataset.test_labels))
        history.seconds = perf_counter() - started
        if after_epoch:
            after_epoch(epoch + 1, history)
    parameters = list(module.parameters())
    held = model.state_bytes() if stage else StateBytes.of(parameters, _gradients(model), [optimizer])
    history.state_bytes = held.total
    with model.gathered() if stage else nullcontext(module.state_dict()) as weights:
        digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in weights.values())).hexdigest()
    if comm is not None:
        model.close()
    return history, digest


def _gradients(model: Any) -> Iterable[Any]:
    """Returns tensors on the memory of all gradients: of data parallelism, they stay in their buckets."""
    if isinstance(model, DataParallel):
        return model.gradients.values()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
