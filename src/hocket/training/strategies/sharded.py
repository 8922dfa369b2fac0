"""ZeRO, stages 1 to 3, for any PyTorch module: ranks share the state of the optimizer, the gradients and the weights.

With order="invariant" all stages give the bits of DataParallel. Bytes that a rank holds, of P parameters in float32
under Adam with p ranks: 16P without sharding, 8P + 8P/p in stage 1, 4P + 12P/p in stage 2, 16P/p in stage 3.

Reference: Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models". Left out:
mixed precision of one weight, moving state to the host, reentrant checkpointing, gradients of gradients in stage 3.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch

from hocket.runtime import Communicator, check_order, stream
from hocket.training.buckets.gathers import seconds_until
from hocket.training.buckets.held_bytes import StateBytes
from hocket.training.buckets.hooks import BackwardPasses, trainable
from hocket.training.buckets.layers import LayerHooks, agreed, units_of
from hocket.training.buckets.optimizer_steps import unwatch, watch
from hocket.training.buckets.slots import Order
from hocket.training.buckets.unit_slots import UnitSlots
from hocket.training.buckets.units import Unit
from hocket.training.coordinator.coordinator import Coordinator
from hocket.training.coordinator.waiting import RoundsReport
from hocket.training.strategies.accumulation import AccumulatesGradients


class Sharded(AccumulatesGradients):
    """A module whose optimizer state (stage 1), gradients (2) and weights (3), too, are spread over the ranks.

        model = hocket.training.sharded(network, comm, stage=3)
        optimizer = torch.optim.AdamW(model.shards(), lr=1e-3)    # any elementwise optimizer of torch.optim
        for batch in parts:
            with model.no_sync(unless=batch is parts[-1]):        # accumulates gradients over the parts
                loss_of(model(batch)).backward()
        model.clip(1.0)
        optimizer.step()                                          # the next forward pass has the new weights
        optimizer.zero_grad()

    op and order: as in DataParallel. bucket_bytes: in stages 1 and 2, of gradients that are reduced together.

    Ranks begin with rank 0's weights and buffers. After a backward pass the gradients are those of the shards, and
    parameters have none; inside no_sync they have this rank's own, whole in each stage. The gradients of another pass
    are added. A parameter may be unused, on some ranks or on all; a rank whose backward pass reaches no parameter calls
    sync(). Parameters that are frozen, or later unfrozen or replaced, are left alone. Models that differ between ranks
    raise CollectiveMismatch on all, before anything is changed. In stages 1 and 2 optimizer.step() gathers: all ranks
    call it equally often.

    In stage 3 a layer has its weights while it is called, and in its part of the backward pass; all other reads give
    NaN. A layer is a module that has parameters of its own; it returns tensors, or tuples, lists or dicts of them, and
    keeps no view of its weights. All ranks make equally many forward and backward passes, and in each a rank may skip
    layers or call them in another order: buckets/gathers.py has the rule. The first forward pass holds all weights.
    """

    def __init__(
        self,
        module: Any,
        comm: Communicator,
        *,
        stage: int,
        order: Order = "fast",
        op: Literal["avg", "sum"] = "avg",
        bucket_bytes: int = 4 << 20,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"sharded: expected a torch.nn.Module, found {module!r}")
        if stage not in (1, 2, 3):
            raise ValueError(f"sharded: expected stage 1, 2 or 3, found {stage!r}; stage 0 is DataParallel")
        if not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise ValueError(f"sharded: expected bucket_bytes of at least 1 byte, found {bucket_bytes!r}")
        check_order("sharded", order)
        self.module, self._stage, self._order = module, stage, order
        if not (parameters := trainable(module)):
            raise ValueError("sharded: expected a module with parameters that need a gradient, found none")
        self.seconds_waited = 0.0  # for weights, in stages 1 and 2
        self._layers: LayerHooks | None = None
        self._handles: list[Any] = []
        self._units: list[Unit] = []
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._comm = comm.dup()  # of weights; gradients go their own way, at other times on each rank
        parameters = agreed(module, parameters, self._comm, f"stage {stage}, order {order}, {bucket_bytes} bytes", op)
        self.engine = Coordinator(comm, bucket_bytes=1, first_bytes=1, order=order, carrier=self._new_slots)
        try:
            self._units = units_of(module, parameters, self._comm, stage, bucket_bytes)
            for unit in self._units:
                self.engine.register(unit.name, unit, op, moved=lambda view: None)  # a unit has its own memory
            self.engine.prepare()
            self._take(list(parameters.values()))
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns what the module returns. Raises RuntimeError after a failed backward pass, and closed in stage 3."""
        self._passes.check_ended()
        if self._layers is not None and not self._handles:
            raise RuntimeError("sharded, stage 3: it is closed and has no weights; save them inside gathered() before")
        return self.module(*args, **kwargs)

    def shards(self) -> list[Any]:
        """Returns what the optimizer updates: for each trainable parameter, the elements that this rank owns.

        They are 1-dimensional and in the order of module.parameters(), perhaps with no element on this rank.
        """
        return list(self._shards)

    def sync(self) -> None:
        """Ends the backward pass of this rank, and waits for the gradients of all ranks.

        Only ranks call it whose backward pass reaches no parameter, also inside no_sync.
        """
        self._passes.check_ended()
        if self._layers is not None:
            self._layers.end_backward()
        if not self._syncs:
            return
        for unit in self._units:
            unit.forget_zeroed()
            for place, parameter in enumerate(unit.parameters):
                if parameter.grad is not None:  # from inside no_sync
                    self._put(unit, place)
            if 0 < len(unit.present) < len(unit.parameters):
                self.engine.submit(unit.name)
        self.engine.flush().wait()

    def clip(self, max_norm: float) -> float:
        """Scales the gradients so that the norm of all of them together is at most `max_norm`; returns the norm before.

        All ranks call it. The norm is added up in another order than PyTorch's, so it differs from it by rounding.
        """
        gradients = [shard.grad for shard in self._shards if shard.grad is not None]
        squares = np.array([sum(float(gradient.abs().double().square().sum()) for gradient in gradients)])
        with stream(None):
            self._comm.all_reduce(squares, order=self._order)
        norm = float(squares[0] ** 0.5)
        scale = max_norm / (norm + 1e-6)  # as PyTorch does
        if scale < 1:
            for gradient in gradients:
                gradient.mul_(scale)
        return norm

    @contextlib.contextmanager
    def gathered(self) -> Iterator[dict[str, Any]]:
        """Inside, the module has all its weights, to be saved, loaded or evaluated; gives its state_dict().

        All ranks enter. What all ranks write into the weights is kept. Copy tensors that are to outlast the next step.
        """
        with self._layers.gathers.held() if self._layers is not None else contextlib.nullcontext():
            yield self.module.state_dict()

    def state_bytes(self) -> StateBytes:
        """Returns the bytes of the memory that this rank holds now; an optimizer counts once it has made a step."""
        storages = [unit.storages() for unit in self._units]
        weights = [*self.module.parameters(), *(one for held, _ in storages for one in held)]
        return StateBytes.of(weights, [one for _, held in storages for one in held], self._optimizers)

    def report(self) -> RoundsReport:
        """Returns what the rounds of gradients have cost so far; seconds_waited includes the waits for weights."""
        found, weights = self.engine.report(), self if self._layers is None else self._layers.gathers
        found.seconds_waited += weights.seconds_waited
        return found

    def close(self) -> None:
        """Takes the hooks off the module and leaves; in stage 3 the module has no weights then."""
        self._remove()
        self.engine.close()
        self._comm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._remove()
        self.engine.__exit__(kind, error, traceback)
        self._comm.__exit__(kind, error, traceback)

    def check_step(self) -> None:
        """Is called before each step of an optimizer of the shards."""
        if self._layers is not None and self._layers.gathers.holds:
            raise RuntimeError("sharded, stage 3: expected a step outside gathered(), which would overwrite its result")

    def stepped(self, optimizer: Any) -> None:
        """Is called after each step of an optimizer of the shards; in stages 1 and 2 it makes the weights whole."""
        self._optimizers.add(optimizer)
        torch._C._increment_version(self._parameters)  # a backward pass through the old weights is then refused
        if self._stage < 3:
            self.seconds_waited += seconds_until([unit.gather(self._comm) for unit in self._units])

    def _new_slots(self, *arguments: Any) -> UnitSlots:
        self._slots = UnitSlots(*arguments)
        return self._slots

    def _take(self, parameters: Sequence[Any]) -> None:
        """Spreads the weights, and puts the hooks on the module."""
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            if not tensor.requires_grad:
                self._comm.broadcast(tensor.detach(), root=0)
        shards: dict[int, Any] = {}
        for unit in self._units:
            unit.take(self._comm)
            shards |= {id(one): shard for one, shard in zip(unit.parameters, unit.shards, strict=True)}
        self._shards = [shards[id(one)] for one in self.module.parameters() if id(one) in shards]
        self._parameters = parameters
        watch(self, self._shards, parameters)
        self._passes = BackwardPasses(self.sync, self.engine.check)
        if self._stage == 3:
            self._layers = LayerHooks(self.module, self._units, self._comm, self._passes)
            self._handles += self._layers.handles
        for number, unit in enumerate(self._units):
            for place, parameter in enumerate(unit.parameters):
                self._handles.append(parameter.register_hook(lambda _, unit=unit: unit.forget_zeroed()))
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(number, unit, place)))

    def _hook(self, number: int, unit: Unit, place: int) -> Callable[[Any], None]:
        enter = self._passes.enter if self._layers is None else self._layers.enter_backward

        def accumulated(parameter: Any) -> None:
            enter()
            if self._syncs:
                self._put(unit, place)
            else:
                unit.hold(place)
            if self._layers is not None:
                self._layers.arrived(number)

        return accumulated

    def _put(self, unit: Unit, place: int) -> None:
        """Moves the gradient of a parameter into its unit, and submits the unit if it is complete."""
        self._slots.drop_done()
        parameter = unit.parameters[place]
        is_full = unit.put(place, parameter.grad)
        parameter.grad = None
        if is_full:
            self.engine.submit(unit.name)

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        unwatch(parameter for unit in self._units for parameter in unit.parameters)


sharded = Sharded  # as programs call it; the class is for annotations
