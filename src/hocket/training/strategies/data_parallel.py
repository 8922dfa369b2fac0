"""Data parallelism for any model: each rank has all weights and a part of every batch, and gradients are combined.

Three manners, one meaning: each gradient by itself (buckets=None), in buckets after the backward pass (overlap=False),
or in buckets while the backward pass goes on. With order="invariant" all of them give the same bits.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

import numpy as np

from hocket.errors import did_you_mean
from hocket.runtime import Communicator
from hocket.training.buckets.slots import Order, Slots
from hocket.training.coordinator.coordinator import Coordinator
from hocket.training.coordinator.waiting import RoundsReport
from hocket.training.strategies.accumulation import AccumulatesGradients

_ALL_BYTES = 1 << 62
_FIRST_BYTES = 1 << 20  # of a round's first bucket: communication begins early


class DataParallel(AccumulatesGradients):
    """A model whose gradients are combined over the ranks of a communicator in every backward pass.

        model = hocket.training.DataParallel(network, comm)       # a torch.nn.Module
        for batch in parts:
            with model.no_sync(unless=batch is parts[-1]):        # accumulates gradients over the parts
                loss_of(model(batch)).backward()                  # afterwards .grad is the average over the ranks
        model.clip(1.0)
        optimizer.step()

    model: a torch.nn.Module in the memory of the host, or arrays by name. Of arrays, write the gradient of each into
    `gradients[name]` and call ready(name); after the last one call sync().

    op: "avg", the mean over the ranks that have a gradient (PyTorch's DDP: over all); or "sum", for losses that each
    rank has divided by the size of the whole batch: then ranks may have parts of any length, and none, and the gradient
    is that of one process. buckets: bytes of a bucket, "one" for a single one, None for a collective per gradient.
    overlap: whether buckets go out while the backward pass goes on. order: "fast", "rank" or "invariant", as in
    collectives. carrier: half("bfloat16") or top_k(0.01), which send fewer bytes.

    Ranks begin with rank 0's weights and buffers. A parameter may be unused, on some ranks or on all; a rank whose
    backward pass reaches no parameter calls sync(). Parameters that are frozen, or later unfrozen or replaced, are
    left alone. Buffers, such as BatchNorm's, are each rank's own after the beginning. Models that differ between ranks
    raise CollectiveMismatch on all of them, before anything is changed.
    """

    def __init__(
        self,
        model: Any,
        comm: Communicator,
        *,
        buckets: int | Literal["one"] | None = 4 << 20,
        overlap: bool = True,
        order: Order = "fast",
        op: Literal["avg", "sum"] = "avg",
        carrier: Callable[[Communicator, Order], Slots] = Slots,
    ) -> None:
        bucket_bytes = 1 if buckets is None else _ALL_BYTES if buckets == "one" else buckets
        if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ValueError(f"DataParallel: expected buckets as bytes, 'one' or None, found {buckets!r}")
        if op not in ("avg", "sum"):
            raise ValueError(f"DataParallel: expected op 'avg' or 'sum', found {op!r}")
        self.module = model
        self._gradients: dict[str, Any] = {}
        self._overlaps = overlap
        self._unsent: set[str] = set()  # gradients that this rank has written and not yet submitted
        self._num_rounds = 0
        self._hooks: Any = None
        if hasattr(model, "named_parameters"):
            from hocket.training.buckets.hooks import BackwardHooks, BackwardPasses

            passes = BackwardPasses(self._end_pass, lambda: self.engine.check())
            self._hooks = BackwardHooks(model, self.ready, passes, op == "avg")
            parameters: Mapping[str, Any] = self._hooks.parameters
        elif isinstance(model, Mapping):
            parameters = model
        else:
            raise TypeError(f"DataParallel: expected a torch.nn.Module, or arrays by name, found {model!r}")
        if not parameters:
            raise ValueError("DataParallel: expected a model with parameters that need a gradient, found none")
        first_bytes = _ALL_BYTES if buckets == "one" else min(_FIRST_BYTES, bucket_bytes)
        self.engine = Coordinator(
            comm, bucket_bytes=bucket_bytes, first_bytes=first_bytes, order=order, carrier=carrier
        )
        try:
            for name, parameter in parameters.items():
                start = np.zeros_like(parameter) if self._hooks is None else _gradient_of(parameter)
                self.engine.register(name, start, op, moved=partial(self._move, name))
            self.engine.prepare()
            self._broadcast(0)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module returns. Raises RuntimeError after a backward pass that failed."""
        if self._hooks is not None:
            self._hooks.passes.check_ended()
        return self.module(*args, **kwargs)

    @property
    def gradients(self) -> Mapping[str, Any]:
        """The gradients by name, where they are combined; write into them. After sync() they may be other arrays."""
        return MappingProxyType(self._gradients)

    def ready(self, name: str) -> None:
        """Says that the gradient of a parameter is complete; autograd does it for the parameters of a module."""
        if name not in self._gradients:
            hint = did_you_mean(name, self._gradients)
            raise ValueError(f"DataParallel: expected the name of a parameter, found {name!r}{hint}")
        if self._syncs and self._overlaps:
            self._unsent.discard(name)
            self.engine.submit(name)
        else:
            self._unsent.add(name)

    def sync(self) -> None:
        """Ends the round and waits for it. Of a module, only ranks call it whose backward pass reaches no parameter."""
        if self._hooks is not None:
            self._hooks.passes.check_ended()
        for name in self._gradients:
            if name in self._unsent and (self._hooks is None or self._hooks.has_gradient(name)):
                self.engine.submit(name)
        self._unsent.clear()
        kept = self._hooks.kept(self.engine.submitted()) if self._hooks is not None else {}
        self.engine.flush().wait()
        self._num_rounds += 1
        absent = self.engine.absent()
        if self._hooks is not None:
            self._hooks.adopt(absent, kept)
            return
        for name in absent:
            self._gradients[name].fill(0)

    def join(self) -> None:
        """Says that this rank has no more batches; takes part until all ranks have joined.

        Then all ranks get the weights and buffers of the rank that went on longest.
        """
        self.engine.join()
        comm = self.engine.communicator
        self._broadcast(int(comm.all_gather(np.array([self._num_rounds])).argmax()))

    def clip(self, max_norm: float) -> float:
        """Scales the gradients so that the norm of all of them together is at most `max_norm`; returns the norm before.

        Call it after the backward pass: then all ranks have the same gradients, and so the same norm.
        """
        if self._hooks is not None:
            return float(self._hooks.clip(max_norm))
        squares = [np.square(np.abs(gradient).astype(np.float64)).sum() for gradient in self._gradients.values()]
        norm = float(np.sum(squares) ** 0.5)
        if norm > max_norm:
            for gradient in self._gradients.values():
                gradient *= np.asarray(max_norm / (norm + 1e-6), gradient.dtype)  # as PyTorch does
        return norm

    def report(self) -> RoundsReport:
        """Returns what the rounds have cost so far."""
        return self.engine.report()

    def close(self) -> None:
        """Takes the hooks off the module and leaves. Gradients stay as they are."""
        if self._hooks is not None:
            self._hooks.remove()
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._hooks is not None:
            self._hooks.remove()
        self.engine.__exit__(kind, error, traceback)

    def _end_pass(self) -> None:
        if self._syncs:
            self.sync()

    def _move(self, name: str, view: Any) -> None:
        self._gradients[name] = view
        if self._hooks is not None:
            self._hooks.move(name, view)

    def _broadcast(self, root: int) -> None:
        if self._hooks is None:
            tensors = list(self.module.values())
        else:
            tensors = [tensor.detach() for tensor in (*self.module.parameters(), *self.module.buffers())]
        for tensor in tensors:
            dense = np.ascontiguousarray(tensor) if self._hooks is None else tensor.contiguous()
            self.engine.communicator.broadcast(dense, root=root)
            if dense is not tensor:  # its dims lie in another order in memory
                tensor[...] = dense


def _gradient_of(parameter: Any) -> Any:
    """Returns the gradient that a parameter has, or zeros."""
    return parameter.detach().new_zeros(parameter.shape) if parameter.grad is None else parameter.grad
