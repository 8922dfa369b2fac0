"""Units: parameters of one type in one flat vector, of which every rank owns an equal part (ZeRO, FSDP).

The vector is padded, so that each of p ranks owns as many elements. The gradient of a unit has one block for each rank:
that rank's part of the values, then one element for each parameter, which counts the ranks that have its gradient. So
one reduce_scatter gives a rank all that it needs.

Memory that comes and goes is a PyTorch storage that shrinks to nothing: what autograd has saved for the backward pass
refers to the same storage, and is right again when the storage is filled again.
"""

from collections.abc import Mapping
from typing import Any

import torch

from hocket.runtime import Communicator, Work, empty
from hocket.training.buckets.slots import Operation, Order, like

_ALIGNMENT = 64


class Unit:
    """The weights and the gradient of some parameters, on one rank.

    parameters: by name, all of one type, in the order in which they lie in the vector. shards: for each of them a
    1-dimensional Parameter, the elements that this rank owns, perhaps none. stage: of ZeRO; from 2 on, a gradient
    shrinks to this rank's part, and in stage 3 the weights do, too. shape, dtype: of the vector without padding.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any], rank: int, size: int, stage: int) -> None:
        self.name, self.parameters = name, list(parameters.values())
        self._rank, self._size, self._stage = rank, size, stage
        self.dtype = self.parameters[0].dtype
        self._spans: list[tuple[int, int]] = []
        end = 0
        for parameter in self.parameters:
            begin = self._padded(end)  # what PyTorch computes depends on the alignment, to the bit
            end = begin + parameter.numel()
            self._spans.append((begin, end))
        self.shape = (end,)
        self.present: set[int] = set()  # parameters, by place, whose gradient is in `_gradient`
        self._part = self._padded(max(1, -(-end // size)))
        self._length = self._padded(self._part + len(self.parameters))
        own = rank * self._part
        self._places = [
            tuple(min(max(edge - own, 0), self._part) for edge in span) for span in self._spans
        ]  # of the shards, in this rank's part
        self._held: dict[int, int] = {}  # parameters, by place, whose gradient waits: the version of the shard's
        self._is_open = False

    def take(self, comm: Communicator) -> None:
        """Moves the parameters into the vector, and gives all ranks the values of rank 0."""
        self._lay_out()
        self._weights.zero_()
        for parameter, view in zip(self.parameters, self._views, strict=True):
            view.copy_(parameter.detach())
        self.show()
        comm.broadcast(self._weights, root=0)
        self._own = self._memory(self._part, False) if self._stage == 3 else self._block
        self._own.copy_(self._block)
        self.shards = [torch.nn.Parameter(self._own[low:high]) for low, high in self._places]
        self._waiting = [torch.zeros((), dtype=self.dtype).expand(shard.shape) for shard in self.shards]
        self._gradient = self._memory(self._length * self._size, self._stage > 1)
        self._blocks = self._gradient.view(self._size, self._length)
        self._result = self._memory(self._length, False) if self._stage > 1 else self._blocks[self._rank]
        self.drop()
        if self._stage == 3:
            hidden = torch.full((), float("nan"), dtype=self.dtype)
            self._hidden = [hidden.expand(parameter.shape) for parameter in self.parameters]
            self.free()

    def _lay_out(self) -> None:
        """Takes memory for the whole weights."""
        self._weights = self._memory(self._part * self._size, self._stage == 3)
        self._block = self._weights[self._rank * self._part : (self._rank + 1) * self._part]
        self._views = [
            self._weights[begin:end].view(parameter.shape)
            for parameter, (begin, end) in zip(self.parameters, self._spans, strict=True)
        ]

    # --- weights -----------------------------------------------------------------------------------------------------

    def gather(self, comm: Communicator) -> Work:
        """Begins to make the weights whole."""
        if self._stage == 3:
            self._weights.untyped_storage().resize_(self._weights.nbytes)
        work: Work = comm.all_gather(self._own, out=self._weights, async_op=True)
        return work

    def show(self) -> None:
        """Gives the parameters their weights, which have been gathered."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.data = view

    def hide(self) -> None:
        """Gives the parameters NaN in the place of weights that may be freed."""
        for parameter, hidden in zip(self.parameters, self._hidden, strict=True):
            parameter.data = hidden

    def free(self) -> None:
        """Frees the weights that this rank does not own."""
        self.hide()
        self._weights.untyped_storage().resize_(0)

    def leave(self) -> None:
        """Takes over what the program has written into the whole weights, and leaves their memory to it (stage 3)."""
        self._own.copy_(self._block)
        self._lay_out()
        self.free()

    # --- gradients ---------------------------------------------------------------------------------------------------

    def put(self, place: int, gradient: Any) -> bool:
        """Copies the gradient of a parameter to where it is reduced; returns whether all parameters have theirs."""
        self.open()
        self.present.add(place)
        vector = gradient.detach().reshape(-1)
        begin, end = self._spans[place]
        for rank in range(begin // self._part, -(-end // self._part)):
            start = rank * self._part
            low, high = max(begin, start), min(end, start + self._part)
            self._blocks[rank, low - start : high - start] = vector[low - begin : high - begin]
        self._blocks[:, self._part + place] = 1
        return len(self.present) == len(self.parameters)

    def hold(self, place: int) -> None:
        """Notes that a gradient stays in its parameter, to be added to, until a later pass is summed.

        The shard has a gradient meanwhile, zeros without memory: so it shows if the program zeroes its gradients.
        """
        shard = self.shards[place]
        if shard.grad is None:
            shard.grad = self._waiting[place]
        self._held[place] = shard.grad._version

    def forget_zeroed(self) -> None:
        """Takes away the gradients that are held of parameters whose shards have been zeroed since."""
        for place, version in list(self._held.items()):
            gradient = self.shards[place].grad
            if gradient is None or gradient._version != version:
                self.parameters[place].grad = None
                del self._held[place]

    def open(self) -> None:
        """Makes room for the gradient. What the shards have as gradient is kept, to be added to, and moves away."""
        if self._is_open:
            return
        self._is_open = True
        self.forget_zeroed()
        self._held.clear()
        for shard, waiting in zip(self.shards, self._waiting, strict=True):
            if shard.grad is not None:
                shard.grad = None if shard.grad is waiting else shard.grad.clone()
        if self._stage > 1:
            self._gradient.untyped_storage().resize_(self._gradient.nbytes)
        self._gradient.zero_()

    def reduce(self, comm: Communicator, order: Order, op: Operation) -> Work:
        """Begins to sum or average the gradient over the ranks."""
        self.open()
        work: Work
        if self._stage == 1:
            work = comm.all_reduce(self._gradient, op=op, order=order, async_op=True)
        else:
            work = comm.reduce_scatter(self._gradient, op=op, out=self._result, order=order, async_op=True)
        return work

    def drop(self) -> None:
        """Frees the whole gradient, unless it stays (stage 1)."""
        if self._stage > 1:
            self._gradient.untyped_storage().resize_(0)

    def end(self, op: Operation) -> int:
        """Gives the shards their gradients, after `reduce` is done; returns how many ranks had one of them, at most.

        Where no rank had a gradient, that of the shard stays as it is.
        """
        counted = self._result[self._part : self._part + len(self.parameters)].real.double()
        counts: list[int] = [round(count) for count in (counted * self._size if op == "avg" else counted).tolist()]
        for shard, (low, high), count in zip(self.shards, self._places, counts, strict=True):
            if count and low < high:
                values = self._result[low:high]
                if op == "avg" and count < self._size:
                    values.mul_(torch.tensor(self._size / count, dtype=self.dtype))
                shard.grad = values if shard.grad is None else values.add_(shard.grad)
        self.present.clear()
        self._is_open = False
        self.drop()
        return max(counts)

    # --- memory ------------------------------------------------------------------------------------------------------

    def storages(self) -> tuple[list[Any], list[Any]]:
        """Returns the tensors that hold weights, and those that hold gradients; a freed one has no memory."""
        lent = [shard.grad for shard in self.shards if shard.grad is not None]
        lent += [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        return [self._weights, self._own], [self._gradient, self._result, *lent]

    def _padded(self, length: int) -> int:
        unit = _ALIGNMENT // int(self.dtype.itemsize)
        return -(-length // unit) * unit

    def _memory(self, length: int, shrinks: bool) -> Any:
        """Returns memory for so many elements: registered, or such that its storage can be freed."""
        if shrinks:
            return torch.empty(length, dtype=self.dtype)
        kind = str(self.dtype).removeprefix("torch.")
        return like(self.parameters[0], empty(length, kind))
